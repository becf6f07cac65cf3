"""DuckDB queries with `FROM 'result://<operation id>'` (Contract editor 6.5)."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Caller, until
from tests.api.test_api_token_statements import program_of

ROWS = "SELECT i AS n, i % 7 AS k, 'row ' || i AS t, i / 4.0 AS x FROM range(30000) AS r(i)"


async def operation_of(caller: Caller, statement: str, dialect: str = "duckdb", **more: Any) -> str:
    body = await caller.run(dialect, statement, limit=100_000, **more)
    assert body["status"] == 0, body
    return body["history_uuid"]


async def rows_of(caller: Caller, statement: str, **more: Any) -> list[list[Any]]:
    operation = await operation_of(caller, statement, **more)
    return (await caller.page(operation, rows=10_000))["data"]


async def failure_of(caller: Caller, statement: str, **more: Any) -> tuple[str, str]:
    body = await caller.run("duckdb", statement, **more)
    return body["code"], body["message"]


async def test_statement_may_use_a_result_several_times(ana: Caller) -> None:
    one = await operation_of(ana, ROWS)
    assert await rows_of(ana, f"SELECT count(*), sum(n)::BIGINT, max(t) FROM 'result://{one}'") == [
        [30000, 449985000, "row 9999"]
    ]
    assert await rows_of(
        ana, f'SELECT n, t FROM "RESULT://{one.upper()}" WHERE n BETWEEN 20000 AND 20001 ORDER BY n'
    ) == [[20000, "row 20000"], [20001, "row 20001"]]
    joined = f"SELECT count(*) FROM 'result://{one}' a JOIN 'result://{one}' b ON a.n = b.n WHERE a.k = 3"
    assert await rows_of(ana, joined) == [[4286]]
    assert await rows_of(ana, f"SELECT count(*) FROM query('FROM ''result://{one}''')") == [[30000]]
    kinds = await rows_of(ana, f"DESCRIBE FROM 'result://{one}'")
    assert [row[:2] for row in kinds] == [["n", "BIGINT"], ["k", "BIGINT"], ["t", "VARCHAR"], ["x", "DOUBLE"]]


async def test_results_of_several_engines_can_be_joined(ana: Caller) -> None:
    left = await operation_of(
        ana, "SELECT i AS id, 'name ' || i AS name FROM generate_series(1, 50) AS g(i)", "postgresql"
    )
    right = await operation_of(ana, "rows 20000", "mysql")
    found = await rows_of(
        ana,
        f"SELECT name FROM 'result://{left}' AS l JOIN 'result://{right}' AS r ON l.id = r.n WHERE r.n > 48 ORDER BY 1",
    )
    assert found == [["name 49"], ["name 50"]]


@pytest.mark.parametrize("condition", ["true", "false"])
async def test_small_and_empty_results_are_tables(ana: Caller, condition: str) -> None:
    small = await operation_of(ana, f"SELECT 7 AS a, NULL AS b, 'x' AS c WHERE {condition}", "postgresql")
    assert await rows_of(ana, f"FROM 'result://{small}'") == ([[7, None, "x"]] if condition == "true" else [])


async def test_duplicate_column_names_are_made_unique(ana: Caller) -> None:
    one = await operation_of(ana, "columns a A b a", "mysql")
    (row,) = await rows_of(ana, f"SELECT column_name FROM (DESCRIBE FROM 'result://{one}') LIMIT 1")
    assert row == ["a"]
    names = [row[0] for row in await rows_of(ana, f"DESCRIBE FROM 'result://{one}'")]
    assert len({name.lower() for name in names}) == 4
    assert names[0] == "a"


async def test_table_keeps_the_rows_but_views_are_refused(ana: Caller) -> None:
    one, name = await operation_of(ana, ROWS), f"t{uuid4().hex}"
    await operation_of(ana, f"CREATE TABLE {name} AS FROM 'result://{one}'")
    await ana.on(one, "close_statement")
    assert await rows_of(ana, f"SELECT count(*) FROM {name}") == [[30000]]
    two = await operation_of(ana, ROWS)
    for kept in (
        f"CREATE VIEW v{name} AS FROM 'result://{two}'",
        f"CREATE OR REPLACE TEMP VIEW v{name} AS FROM 'result://{two}'",
        f"CREATE MACRO m{name}() AS TABLE FROM 'result://{two}'",
        f"PREPARE p AS FROM 'result://{two}'",
        f"EXPLAIN ANALYZE CREATE VIEW v{name} AS FROM 'result://{two}'",
    ):
        code, message = await failure_of(ana, kept)
        assert (code, "not through a view, macro or prepared statement" in message) == ("result_not_available", True), (
            kept
        )
    assert await rows_of(ana, f"SELECT count(*) FROM duckdb_views() WHERE view_name LIKE '%{name}'") == [[0]]
    assert await rows_of(ana, "SELECT count(*) FROM duckdb_views() WHERE view_name LIKE 'result:%'") == [[0]]


async def test_result_address_in_a_text_is_not_resolved(ana: Caller) -> None:
    unknown = f"result://{uuid4()}"
    assert await rows_of(ana, f"SELECT '{unknown}' AS address") == [[unknown]]
    assert await rows_of(ana, "SELECT ? AS address", parameters=f'["{unknown}"]') == [[unknown]]


async def test_unreadable_results_fail_with_their_code(ana: Caller, bob: Caller) -> None:
    theirs = await operation_of(bob, "SELECT 1 AS n")
    unknown = str(uuid4())
    found = [await failure_of(ana, f"FROM 'result://{one}'") for one in (theirs, unknown)]
    assert [code for code, _ in found] == ["operation_not_found"] * 2
    assert found[0][1].replace(theirs, unknown) == found[1][1]
    assert (await failure_of(ana, "FROM 'result://orders'"))[0] == "operation_not_found"
    running = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    await ana.running(running)
    assert (await failure_of(ana, f"FROM 'result://{running}'"))[0] == "result_not_available"
    await ana.on(running, "cancel_statement")
    nothing = await operation_of(ana, "change 3", "mysql")
    assert "has no result set" in (await failure_of(ana, f"SELECT count(*) FROM 'result://{nothing}'"))[1]
    closed = await operation_of(ana, "SELECT 1 AS n")
    await ana.on(closed, "close_statement")
    assert (await failure_of(ana, f"FROM 'result://{closed}'"))[0] == "result_expired"


async def test_statement_rights_apply_instead_of_session_rights(ana: Caller) -> None:
    """Two tokens of one user run statements in one session."""
    theirs = await operation_of(ana, "rows 9", "mysql")
    narrow, _ = await program_of(ana, connectors=["duckdb"])
    wide, _ = await program_of(ana)
    session = (await ana.post_ok("editor/create_session", session='{"type": "duckdb"}'))["session"]["id"]
    asked = f"SELECT count(*) FROM 'result://{theirs}'"
    for _ in range(3):
        assert await rows_of(wide, asked, session_id=session) == [[9]]
        assert (await failure_of(narrow, asked, session_id=session))[0] == "operation_not_found"
    assert (await failure_of(narrow, asked))[0] == "operation_not_found"


async def test_results_are_readable_within_a_transaction(ana: Caller) -> None:
    one, name = await operation_of(ana, ROWS), f"t{uuid4().hex}"
    session = (await ana.post_ok("editor/create_session", session='{"type": "duckdb"}'))["session"]["id"]

    async def run(statement: str) -> list[list[Any]]:
        body = await ana.run("duckdb", statement, session_id=session)
        assert body["status"] == 0, body
        return (await ana.page(body["history_uuid"]))["data"] if body["query_status"]["state"] == "available" else []

    await run("BEGIN TRANSACTION")
    await run(f"CREATE TABLE {name} AS SELECT n FROM 'result://{one}' WHERE n < 10")
    assert await run(f"SELECT count(*) FROM {name} JOIN 'result://{one}' USING (n)") == [[10]]
    await run("ROLLBACK")
    assert await run(f"SELECT count(*) FROM 'result://{one}' WHERE n < 5") == [[5]]
    assert (await ana.run("duckdb", f"FROM {name}", session_id=session))["status"] == 1


async def test_result_is_kept_while_a_statement_reads_it(small_api: ApiOpener) -> None:
    """The result is closed and expires while it is being read. All rows are still read, and its data is deleted
    afterward. The application is one of its own, because statements of the one that all tests share would be lost.
    """
    async with small_api() as api:
        ana, database, retention = await api.user("ana"), api.database, api.services.statements.retention
        one = await operation_of(ana, ROWS)
        slow = f"SELECT sum(a.n * b.n) FROM 'result://{one}' a, 'result://{one}' b, range(1000) WHERE a.n >= 0"
        reading = (await ana.execute("duckdb", slow))["history_uuid"]
        await ana.running(reading)

        async def reads() -> int:
            return await database.value("select count(*) from result_reads where statement_id = $1", UUID(one))

        await until(reads)
        await ana.on(one, "close_statement")
        # The process itself knows that it is reading, even if its heartbeat is late.
        await database.execute("update instances set alive_until = now() - interval '1 s'")
        await retention.expire()
        assert await database.value("select count(*) from doomed_results where statement_id = $1", UUID(one)) == 1
        await ana.on(reading, "cancel_statement")
        await ana.ended(reading)

        async def is_over() -> bool:
            return await reads() == 0

        await until(is_over)
        await retention.expire()
        assert await database.value("select count(*) from doomed_results where statement_id = $1", UUID(one)) == 0


async def test_explain_and_log_cover_truncated_results(small_api: ApiOpener) -> None:
    async with small_api(default_limit=3, enforce_default_limit=True) as api:
        ana = await api.user("ana")
        one = (await ana.run("duckdb", "SELECT i FROM range(9) AS r(i)"))["history_uuid"]
        plan = await ana.post_ok("editor/explain/duckdb", statement=f"SELECT i FROM 'result://{one}' WHERE i > 1")
        assert "ARROW_SCAN" in plan["explanation"].upper()
        body = await ana.run("duckdb", f"SELECT count(*) AS n FROM 'result://{one}'")
        assert (await ana.page(body["history_uuid"]))["data"] == [[3]]
        log = (await ana.on(body["history_uuid"], "get_logs"))["logs"]
        assert f"result://{one}: Only the first 3 rows were kept" in log
