"""Exports into tables of connectors (Contract exports 8 and 9)."""

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from tests.api.driving import Caller, verdict
from tests.api.importer.tables import Tables, log_of, open_tables, rows, tables_like
from tests.fixtures.database import new_database
from tests.timing import until

from queryserver.identity.repository import AccountRepository
from queryserver.platform.embedded.postgres import EmbeddedPostgres

CONNECTORS = ("duckdb", "sqlite", "postgresql")
TWO_ROWS = "SELECT 1 AS n, 'a' AS s UNION ALL SELECT 2, NULL ORDER BY 1"
SERIES = {
    "duckdb": "SELECT range AS n, repeat('x', 40) AS s FROM range(300000)",
    "postgresql": "SELECT n, repeat('x', 40) AS s FROM generate_series(0, 299999) AS n",
    "sqlite": "WITH RECURSIVE r (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < 299999)"
    " SELECT n, printf('%.40c', 'x') AS s FROM r",
}
_numbers = count(1)


@pytest.fixture(scope="session")
async def tables(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory, users_url: str
) -> AsyncIterator[Tables]:
    """An application with its own service database, because only one process may hold the DuckDB file."""
    async for dsn in new_database(postgres, template=migrated_template):
        async for opened in open_tables(tmp_path_factory.mktemp("tables"), dsn, users_url):
            yield opened


@pytest.fixture
async def ana(tables: Tables) -> Caller:
    return await tables.api.user("ana")


@pytest.fixture
def table() -> str:
    return f"t{next(_numbers)}_export"


async def ended(caller: Caller, operation: str) -> dict[str, Any]:
    """Wait for an export, which must succeed; return the row of its result, and `operation`."""
    end = await caller.ended(operation)
    assert end["query_status"]["state"] == "available", end
    page = await caller.page(operation)
    (row,) = page["data"]
    return {**dict(zip([one["name"] for one in page["meta"]], row, strict=True)), "operation": operation}


async def into(caller: Caller, source: str, sql: str, target: str, table: str, **fields: Any) -> dict[str, Any]:
    """Run a statement whose rows go into a table; return the row of its result."""
    destination = json.dumps({"connector": target, "table": table, **fields})
    body = await caller.execute(source, sql, into=destination)
    return await ended(caller, body["history_uuid"])


async def exported(caller: Caller, operation: str, target: str, table: str, **fields: Any) -> dict[str, Any]:
    """Export a stored result into a table, which must succeed; return the row of its result."""
    answer = await caller.post("editor/export_result", operationId=operation, connector=target, table=table, **fields)
    assert answer.status_code == 202, answer.text
    return await ended(caller, answer.json()["history_uuid"])


async def failure(caller: Caller, source: str, sql: str, target: str, table: str, **fields: Any) -> tuple[str, str]:
    """Run a statement whose rows go into a table, which must fail; return the code and message."""
    destination = json.dumps({"connector": target, "table": table, **fields})
    body = await caller.execute(source, sql, into=destination)
    end = await caller.ended(body["history_uuid"])
    assert end["query_status"]["state"] == "failed", end
    return end["code"], end["message"]


async def refused(caller: Caller, table: str, **fields: Any) -> tuple[int, str]:
    """Make both calls, which must be refused in the same way; return the HTTP status and the code."""
    destination = {"table": table, **fields}
    answer = await caller.post_json("editor/execute/duckdb", statement="SELECT 1 AS n", into=destination)
    operation = (await caller.run("duckdb", "SELECT 1 AS n"))["history_uuid"]
    again = await caller.post_json("editor/export_result", operationId=operation, **destination)
    assert verdict(answer) == verdict(again), (answer.text, again.text)
    status, _, code = verdict(answer)
    return status, code


@pytest.mark.exports(17)
class TestRows:
    @pytest.mark.parametrize("source", CONNECTORS)
    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_rows_of_a_statement_go_into_a_table(self, ana: Caller, source: str, target: str, table: str):
        done = await into(ana, source, TWO_ROWS, target, table)
        assert (done["rows"], done["table"]) == (2, table)
        assert (done["bytes"], done["files"], done["path"]) == (None, None, None)
        assert [one["name"] for one in json.loads(done["schema"])] == ["n", "s"]
        assert await rows(ana, target, table) == [[1, "a"], [2, None]]

    @pytest.mark.parametrize("source", CONNECTORS)
    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_stored_result_goes_into_a_table(self, ana: Caller, source: str, target: str, table: str):
        operation = (await ana.run(source, TWO_ROWS))["history_uuid"]
        done = await exported(ana, operation, target, table)
        assert (done["rows"], done["table"]) == (2, table)
        assert await rows(ana, target, table) == [[1, "a"], [2, None]]

    @pytest.mark.parametrize("connector", CONNECTORS)
    async def test_many_rows_go_from_and_to_the_same_connector(self, ana: Caller, connector: str, table: str):
        done = await into(ana, connector, SERIES[connector], connector, table)
        assert done["rows"] == 300_000
        assert await rows(ana, connector, table, "count(*), max(n)") == [[300_000, 299_999]]

    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_running_statement_is_waited_for(self, ana: Caller, target: str, table: str):
        operation = (await ana.execute("postgresql", "SELECT pg_sleep(1.5)::text AS s, 7 AS n"))["history_uuid"]
        done = await exported(ana, operation, target, table)
        assert done["rows"] == 1
        assert await rows(ana, target, table, "n") == [[7]]

    async def test_result_without_rows_makes_an_empty_table(self, ana: Caller, table: str):
        done = await into(ana, "duckdb", "SELECT 1 AS n, DATE '2024-01-31' AS d WHERE false", "postgresql", table)
        assert done["rows"] == 0
        assert [one["type"] for one in json.loads(done["schema"])] == ["INTEGER", "DATE"]
        assert await rows(ana, "postgresql", table) == []

    async def test_limit_of_the_call_applies(self, ana: Caller, table: str):
        destination = json.dumps({"connector": "sqlite", "table": table})
        body = await ana.execute("duckdb", SERIES["duckdb"], into=destination, limit=7)
        assert (await ended(ana, body["history_uuid"]))["rows"] == 7
        assert await rows(ana, "sqlite", table, "count(*)") == [[7]]

    async def test_log_names_table_and_renamed_columns(self, ana: Caller, table: str):
        done = await into(ana, "duckdb", 'SELECT 1 AS a, 2 AS A, 3 AS """q"', "postgresql", table)
        log = await log_of(ana, done["operation"])
        assert f"table {table}" in log
        assert 'Column "A" is named "A_2" in the table.' in log

    async def test_answer_names_the_table(self, ana: Caller, table: str):
        operation = (await ana.run("duckdb", TWO_ROWS))["history_uuid"]
        answer = await ana.post(
            "editor/export_result", operationId=operation, connector="duckdb", database="main", table=table
        )
        assert answer.status_code == 202
        assert (answer.json()["path"], answer.json()["table"]) == (None, f"main.{table}")
        await ended(ana, answer.json()["history_uuid"])
        found = await ana.get("editor/get_history", doc_type="duckdb")
        assert f"-- Export to main.{table}" in found.text


@pytest.mark.exports(18)
class TestTypes:
    async def test_types_of_postgresql_stay(self, ana: Caller, table: str):
        sql = """SELECT 12.50::numeric(12,2) AS p, 1e40::numeric AS u, '{"a":[1]}'::jsonb AS j, ARRAY[1,2] AS l,
            timestamptz '2024-01-31 10:20:30.123+02' AS z, interval '1 month 2 days' AS i, time '24:00' AS c,
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS id, '\\x00ff'::bytea AS b, date 'infinity' AS d"""
        await into(ana, "postgresql", sql, "postgresql", table)
        kinds = await ana.result(
            "postgresql", f"SELECT {', '.join(f'pg_typeof({name})::text' for name in 'pujlzicbd')} FROM {table}"
        )
        assert kinds["data"] == [[
            "numeric", "numeric", "jsonb", "jsonb", "timestamp with time zone", "interval", "time without time zone",
            "bytea", "date",
        ]]  # fmt: skip
        same = "SELECT t.p = s.p AND t.u = s.u AND t.j = s.j AND t.z = s.z AND t.i = s.i AND t.c = s.c AND t.id = s.id"
        found = await ana.result("postgresql", f"{same} AND t.b = s.b AND t.d = s.d FROM {table} t, ({sql}) s")
        assert found["data"] == [[True]]

    async def test_nested_values_of_duckdb_become_json(self, ana: Caller, table: str):
        sql = "SELECT [1, 2] AS l, {'a': 1, 'b': 'x'} AS s, MAP {'k': 1.5} AS m"
        await into(ana, "duckdb", sql, "sqlite", table)
        [[items, s, m]] = await rows(ana, "sqlite", table)
        assert [json.loads(one) for one in (items, s, m)] == [[1, 2], {"a": 1, "b": "x"}, {"k": "1.5"}]

    async def test_value_that_does_not_fit_ends_the_export(self, ana: Caller, table: str):
        sql = "SELECT TIMESTAMP_NS '2024-01-31 10:20:30.123456789' AS t"
        code, message = await failure(ana, "duckdb", sql, "postgresql", table)
        assert code == "rejected"
        assert message.startswith('Column "t" contains a time with nanoseconds')
        assert await tables_like(ana, "postgresql", table) == []

    async def test_first_rows_of_a_statement_decide_the_types(self, ana: Caller, table: str):
        """The text is far behind the first 4 MiB. A stored result is known as a whole, so its column becomes text."""
        series = SERIES["sqlite"].replace("SELECT n, ", "SELECT CASE WHEN n < 299999 THEN n ELSE 'x' END AS v, ")
        code, message = await failure(ana, "sqlite", series, "postgresql", table)
        assert (code, message.startswith('Column "v" contains values that are not of the type BIGINT')) == (
            "rejected", True,
        ), message  # fmt: skip
        assert await tables_like(ana, "postgresql", table) == []
        operation = (await ana.run("sqlite", series))["history_uuid"]
        done = await exported(ana, operation, "postgresql", table)
        assert json.loads(done["schema"])[0] == {"name": "v", "type": "TEXT"}
        assert await rows(ana, "postgresql", table, "count(DISTINCT v), max(v)") == [[300_000, "x"]]


@pytest.mark.exports(19)
class TestExistingTables:
    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_append_and_replace(self, ana: Caller, target: str, table: str):
        await into(ana, "duckdb", TWO_ROWS, target, table, if_exists="append")
        await into(ana, "duckdb", "SELECT 'b' AS s, 3 AS n", target, table, if_exists="append")
        assert await rows(ana, target, table, "n, s") == [[1, "a"], [2, None], [3, "b"]], "columns are matched by name"
        operation = (await ana.run("duckdb", "SELECT 9 AS z"))["history_uuid"]
        await exported(ana, operation, target, table, if_exists="replace")
        assert await rows(ana, target, table) == [[9]]

    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_existing_table_is_refused_at_the_call(self, ana: Caller, target: str, table: str):
        await into(ana, "duckdb", TWO_ROWS, target, table)
        assert await refused(ana, table, connector=target) == (400, "table_exists")
        assert await rows(ana, target, table) == [[1, "a"], [2, None]]

    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_append_of_unknown_columns_fails_and_changes_nothing(self, ana: Caller, target: str, table: str):
        await into(ana, "duckdb", TWO_ROWS, target, table)
        code, _ = await failure(ana, "duckdb", "SELECT 3 AS other", target, table, if_exists="append")
        assert code == "engine_error"
        assert await rows(ana, target, table) == [[1, "a"], [2, None]]
        assert await tables_like(ana, target, "qs_import") == []

    async def test_given_column_names_are_used(self, ana: Caller, table: str):
        await into(ana, "duckdb", TWO_ROWS, "postgresql", table)
        sql = "SELECT 3, 'c'"
        await into(ana, "duckdb", sql, "postgresql", table, if_exists="append", columns=["n", "s"])
        assert await rows(ana, "postgresql", table) == [[1, "a"], [2, None], [3, "c"]]


@pytest.mark.exports(20)
class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"connector": "nothing"}, (404, "dialect_not_found")),
            ({"connector": "closed"}, (404, "dialect_not_found")),
            ({"connector": "frozen"}, (403, "permission_denied")),
            ({"connector": "odd"}, (400, "invalid_dialect")),
            ({}, (400, "missing_parameter")),
            ({"connector": "duckdb", "path": "file:///shared/x.csv"}, (400, "conflicting_parameters")),
            ({"connector": "duckdb", "columns": ["a", "A"]}, (400, "invalid_columns")),
            ({"connector": "duckdb", "columns": []}, (400, "invalid_parameter")),
            ({"connector": "duckdb", "if_exists": "skip"}, (400, "invalid_parameter")),
            ({"connector": "postgresql", "table": "t" * 64}, (400, "invalid_parameter")),
        ],
        ids=str,
    )
    async def test_bad_destinations_are_refused(self, ana: Caller, fields: dict[str, Any], expected: tuple[int, str]):
        assert await refused(ana, **{"table": "never", **fields}) == expected

    async def test_append_to_files_is_refused(self, ana: Caller):
        destination = {"path": "file:///shared/x.csv", "if_exists": "append"}
        answer = await ana.post_json("editor/execute/duckdb", statement="SELECT 1", into=destination)
        assert verdict(answer)[::2] == (400, "invalid_parameter")

    async def test_result_of_another_user_is_not_found(self, ana: Caller, tables: Tables, table: str):
        operation = (await ana.run("duckdb", TWO_ROWS))["history_uuid"]
        bob = await tables.api.user("bob")
        answer = await bob.post("editor/export_result", operationId=operation, connector="duckdb", table=table)
        assert verdict(answer)[::2] == (404, "operation_not_found")

    async def test_statement_that_fails_leaves_no_table(self, ana: Caller, table: str):
        code, message = await failure(ana, "postgresql", "SELECT 1 / 0 AS n", "sqlite", table)
        assert (code, "division by zero" in message) == ("engine_error", True)
        assert await tables_like(ana, "sqlite", table) == []

    @pytest.mark.parametrize("target", CONNECTORS)
    async def test_canceled_export_leaves_no_table(self, ana: Caller, target: str, table: str):
        sql = "SELECT n, pg_sleep(0.001)::text AS s FROM generate_series(1, 1000000) AS n"
        body = await ana.execute("postgresql", sql, into=json.dumps({"connector": target, "table": table}))
        await ana.running(body["history_uuid"])
        await ana.on(body["history_uuid"], "cancel_statement")
        end = await ana.ended(body["history_uuid"])
        assert end["query_status"]["state"] == "canceled"
        assert await tables_like(ana, target, table) == []
        assert await tables_like(ana, target, body["history_uuid"].replace("-", "")) == []


@pytest.mark.exports(20)
class TestRights:
    async def test_right_to_download_is_needed(self, tables: Tables, table: str):
        cora = await member_of(tables, "viewers", [])
        operation = (await cora.run("duckdb", TWO_ROWS))["history_uuid"]
        fields = {"connector": "duckdb", "table": table}
        answer = await cora.post("editor/export_result", operationId=operation, **fields)
        assert verdict(answer)[::2] == (403, "download_disabled")
        answer = await cora.post("editor/execute/duckdb", statement=TWO_ROWS, into=json.dumps(fields))
        assert verdict(answer)[::2] == (403, "download_disabled")

    @pytest.mark.parametrize("way", ["export_result", "into"])
    @pytest.mark.parametrize("connector", ["closed", "hive"])
    async def test_rights_are_those_at_the_time_of_writing(
        self, tables: Tables, ana: Caller, table: str, connector: str, way: str
    ):
        """Both connectors are open to the group `analysts` only. Other connectors of their dialects are open to all."""
        cora = await member_of(tables, "analysts", ["download"])
        holder = (await ana.execute("postgresql", "SELECT pg_advisory_lock(7711), pg_sleep(600)"))["history_uuid"]
        held = "select exists (select from pg_locks where locktype = 'advisory' and objid = 7711 and granted)"
        await until(lambda: tables.api.database.value(held))
        target, locked = {"connector": connector, "table": table}, "SELECT pg_advisory_lock(7711)::text AS l"
        more = {"into": json.dumps(target)} if way == "into" else {}
        operation = source = (await cora.execute("postgresql", locked, **more))["history_uuid"]
        if way == "export_result":
            answer = await cora.post("editor/export_result", operationId=source, **target)
            assert answer.status_code == 202, answer.text
            operation = answer.json()["history_uuid"]
        waits = "select exists (select from pg_locks where locktype = 'advisory' and objid = 7711 and not granted)"
        await until(lambda: tables.api.database.value(waits))
        await tables.api.database.execute(
            "delete from group_members m using users u where u.id = m.user_id and u.username = $1", cora.username
        )
        await ana.on(holder, "cancel_statement")
        outcome = "select error_code from statements where id = $1::uuid"
        ended = "select state in ('available', 'failed') from statements where id = $1::uuid"
        await until(lambda: tables.api.database.value(ended, operation))
        assert await tables.api.database.value(outcome, operation) == "dialect_not_found"
        assert await tables_like(ana, "postgresql", table) == []


async def member_of(tables: Tables, group: str, rights: list[str]) -> Caller:
    """Create a user who is a member of this group only."""
    await AccountRepository(tables.api.database).ensure_group(group, rights)
    caller = await tables.api.user("cora", groups=(group,))
    others = """delete from group_members m using users u, groups g
        where u.id = m.user_id and g.id = m.group_id and u.username = $1 and g.name <> $2"""
    await tables.api.database.execute(others, caller.username, group)
    return caller
