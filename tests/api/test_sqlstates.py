"""The `sqlstate` of failed statements: the engine's own SQLSTATE, or the class that matches the error
(docs/clients.md).
"""

import json
from typing import Any

import pytest
from tests.api.dialects import ALL, DUCKDB, POSTGRESQL, SQLITE, Dialect, every_dialect
from tests.api.driving import Caller

CONSTRAINTS = {POSTGRESQL: "23505", SQLITE: "23505", DUCKDB: "23000"}


async def failure(user: Caller, dialect: Dialect, statement: str, **fields: Any) -> dict[str, Any]:
    body = await user.run(dialect, statement, **fields)
    operation = body["history_uuid"]
    shown = await user.on(operation, "check_status")
    assert (shown["status"], shown["code"]) == (1, "engine_error"), shown
    watched = await user.post_ok(f"editor/watch/{operation}")
    assert watched.get("sqlstate") == shown.get("sqlstate")
    return shown


@every_dialect
async def test_constraint_violation_has_class_23(ana: Caller, dialect: Dialect) -> None:
    table = f"states_{ana.username}"
    assert (await ana.run(dialect, f"CREATE TABLE {table} (n INTEGER PRIMARY KEY, m INTEGER NOT NULL)"))["status"] == 0
    for given in ("(1, 2), (1, 3)", "(2, NULL)"):
        shown = await failure(ana, dialect, f"INSERT INTO {table} VALUES {given}")
        assert shown["sqlstate"][:2] == "23", shown
    assert (await ana.run(dialect, f"INSERT INTO {table} VALUES (?, 3)", parameters="[7]"))["status"] == 0
    shown = await failure(ana, dialect, f"INSERT INTO {table} VALUES (?, 3)", parameters=json.dumps([7]))
    assert shown["sqlstate"] == CONSTRAINTS[dialect]
    await ana.run(dialect, f"DROP TABLE {table}")


@pytest.mark.parametrize(("dialect", "statement", "sqlstate"), [
    (POSTGRESQL, "SELECT CAST('x' AS integer)", "22P02"),
    (POSTGRESQL, "SELECT 1/0", "22012"),
    (POSTGRESQL, "SELCT 1", "42601"),
    (POSTGRESQL, "SELECT * FROM no_such_table", "42P01"),
    (DUCKDB, "SELECT CAST('x' AS integer)", "22000"),
    (DUCKDB, "SELECT CAST(range AS TINYINT) FROM range(100000)", "22000"),
    (DUCKDB, "SELCT 1", "42601"),
    (DUCKDB, "SELECT * FROM no_such_table", "42000"),
    (DUCKDB, "ATTACH 'x'", "42501"),
    (SQLITE, "SELCT 1", None),
    (SQLITE, "SELECT * FROM no_such_table", None),
])  # fmt: skip
async def test_other_errors_have_their_sqlstate(
    ana: Caller, dialect: Dialect, statement: str, sqlstate: str | None
) -> None:
    assert (await failure(ana, dialect, statement)).get("sqlstate") == sqlstate


async def test_failures_outside_the_engine_have_no_sqlstate(ana: Caller) -> None:
    operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    await ana.running(operation)
    await ana.on(operation, "cancel_statement")
    shown = await ana.ended(operation)
    assert (shown["code"], "sqlstate" in shown) == ("canceled", False)
    assert len(ALL) == len(CONSTRAINTS)
