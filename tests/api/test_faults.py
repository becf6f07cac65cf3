"""Failures of engines, result stores and databases, and the positions of errors in statements (Contract editor 1.5,
3.4).
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, POSTGRESQL, SQLITE, Dialect
from tests.api.driving import Api, Caller, verdict
from tests.fixtures.database import execute
from tests.timing import at_best

from queryserver.platform.embedded.postgres import EmbeddedPostgres

BAD_STATEMENTS = [
    (DUCKDB, "SELEC 1"),
    (DUCKDB, "SELECT no_such_function(1)"),
    (DUCKDB, "SELECT 'x'::INTEGER"),
    (DUCKDB, "SELECT error('boom')"),
    (DUCKDB, "ATTACH 'other.duckdb'"),
    (DUCKDB, "SELECT * FROM read_csv('other.csv')"),
    (DUCKDB, "COPY (SELECT 1) TO 'out.csv'"),
    (DUCKDB, "INSTALL httpfs"),
    (DUCKDB, "LOAD httpfs"),
    (DUCKDB, "SET enable_external_access = true"),
    (SQLITE, "SELEC 1"),
    (SQLITE, "SELECT no_such_function(1)"),
    (SQLITE, "SELECT abs(-9223372036854775807 - 1)"),
    (SQLITE, "ATTACH 'other.sqlite' AS other"),
    (SQLITE, "SELECT load_extension('other')"),
    (SQLITE, "VACUUM INTO 'out.sqlite'"),
    (POSTGRESQL, "SELEC 1"),
    (POSTGRESQL, "SELECT 1 / 0"),
    (POSTGRESQL, "SELECT 'x'::integer"),
    (POSTGRESQL, "DO $$ BEGIN RAISE EXCEPTION 'boom'; END $$"),
    (POSTGRESQL, "SELECT pg_read_file('secret')"),
    (POSTGRESQL, "COPY (SELECT 1) TO PROGRAM 'true'"),
    (POSTGRESQL, "CREATE EXTENSION dblink"),
    (POSTGRESQL, "SELECT 1; SELECT 2; SELECT /* unclosed"),
]


class TestEngines:
    @pytest.mark.item(16)
    @pytest.mark.parametrize(("dialect", "statement"), BAD_STATEMENTS)
    async def test_failures_reveal_no_internal_details(self, ana: Caller, dialect: Dialect, statement: str):
        body = await ana.run(dialect, statement)
        while body["handle"]["has_more_statements"]:
            body = await ana.post_ok("editor/execute", operationId=body["history_uuid"], wait=30)
        # `Caller` checks every error response for internal details.
        assert (body["status"], body["query_status"]["state"]) == (1, "failed")
        # A statement may be denied if it accesses files outside all stores.
        assert body["code"] in {"engine_error", "rejected", *(["permission_denied"] if dialect is DUCKDB else [])}
        assert body["message"]
        for call in ("check_status", "fetch_result_data", "get_logs", "cancel_statement"):
            await ana.on(body["history_uuid"], call)
        assert (await ana.run(dialect, "SELECT 1"))["status"] == 0

    async def test_failure_after_some_rows_returns_no_rows(self, ana: Caller):
        body = await ana.run("mysql", "rows 5000 then fail halfway")
        assert (body["code"], body["message"]) == ("engine_error", "halfway")
        assert (await ana.on(body["history_uuid"], "fetch_result_data"))["code"] == "engine_error"

    async def test_lost_session_is_never_silently_replaced(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        held = ana.api.services.statements.runner.sessions.get(session)
        assert held is not None
        await held.engine_session.end()
        marked = f"text lost {ana.username}"
        body = await ana.run("mysql", marked, session_id=session)
        assert (body["status"], body["code"]) == (1, "session_lost")
        assert body["message"].startswith("Invalid session Id")
        assert marked not in ana.api.fakes["mysql"].executions

    @pytest.mark.item(35)
    async def test_time_limit_starts_at_submission(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        first = (await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"]
        marked = f"text late {ana.username}"
        body = await ana.run("mysql", marked, session_id=session, timeout=1)
        assert (body["status"], body["code"]) == (-4, "statement_timeout")
        await ana.on(first, "cancel_statement")
        assert (await ana.run("mysql", "rows 1", session_id=session))["status"] == 0
        assert marked not in ana.api.fakes["mysql"].executions

    @pytest.mark.item(11)
    async def test_long_statements_do_not_delay_other_users(self, ana: Caller, bob: Caller):
        long = [
            (DUCKDB, 2, DUCKDB.slow),
            (SQLITE, 2, SQLITE.slow),
            (POSTGRESQL, 8, POSTGRESQL.slow),
            ("hive", 8, "sleep 120"),
        ]
        operations = [
            (await ana.execute(dialect, statement))["history_uuid"]
            for dialect, count, statement in long
            for _ in range(count)
        ]
        theirs = (await bob.run("mysql", "rows 3"))["history_uuid"]

        async def slowest_of_many() -> tuple[float, None]:
            slowest = 0.0
            for _ in range(10):
                for call in (bob.on(theirs, "check_status"), bob.history(), bob.page(theirs, start_row=0)):
                    began = time.monotonic()
                    await call
                    slowest = max(slowest, time.monotonic() - began)
            return slowest, None

        await at_best(slowest_of_many, below_s=2.5)
        await asyncio.gather(*(ana.on(operation, "cancel_statement") for operation in operations))


class TestReadOnly:
    """With `read_only`, the service rejects statements that appear to change data, and the engine rejects all others
    that do.
    """

    @pytest.mark.parametrize(
        "statement",
        [
            "CREATE TABLE sneaky (a int)",
            "WITH new AS (INSERT INTO kept VALUES (2) RETURNING a) SELECT a FROM new",
            "SELECT 2 AS a INTO sneaky",
            "SELECT change_kept()",
            "EXPLAIN ANALYZE SELECT change_kept()",
            "/* SELECT */ INSERT INTO kept VALUES (2)",
            "DO $$ BEGIN INSERT INTO kept VALUES (2); END $$",
            "BEGIN READ WRITE",
            "SET default_transaction_read_only = off",
        ],
    )
    async def test_read_only_connector_changes_nothing(self, ana: Caller, statement: str):
        await self._prepare(ana)
        before = await ana.result(POSTGRESQL, "SELECT count(*) FROM kept")
        body = await ana.run("replica", statement)
        assert (body["status"], body["query_status"]["state"]) == (1, "failed")
        after = await ana.result(POSTGRESQL, "SELECT count(*) FROM kept")
        assert after["data"] == before["data"] == [[1]]
        assert (await ana.result("replica", "SELECT min(a) FROM kept"))["data"] == [[1]]

    async def test_earlier_statement_cannot_disable_read_only_mode(self, ana: Caller):
        await self._prepare(ana)
        switch = "SELECT set_config('default_transaction_read_only', 'off', false)"
        body = await ana.run("replica", f"{switch}; SELECT change_kept(); SELECT 2 INTO sneaky")
        assert (body["status"], body["query_status"]["state"]) == (1, "failed")
        while body["handle"]["has_more_statements"]:
            body = await ana.post_ok("editor/execute", operationId=body["history_uuid"], wait=30)
            assert (body["status"], body["query_status"]["state"]) == (1, "failed")

    @staticmethod
    async def _prepare(ana: Caller) -> None:
        for statement in (
            "CREATE TABLE IF NOT EXISTS kept AS SELECT 1 AS a",
            (
                "CREATE OR REPLACE FUNCTION change_kept() RETURNS int LANGUAGE sql"
                " AS 'INSERT INTO kept VALUES (2) RETURNING a'"
            ),
        ):
            assert (await ana.run(POSTGRESQL, statement))["status"] == 0


class TestResultStore:
    async def test_result_that_cannot_be_stored_fails_its_statement(self, small_api: ApiOpener):
        async with small_api() as api:
            ana = await api.user()
            results = api.services.settings.results_dir
            shutil.rmtree(results)
            results.write_text("no directory")
            body = await ana.run("mysql", "rows 3000 wide 100")
            assert (body["status"], body["code"]) == (1, "result_store_failed")
            # A small result is stored in the statement's record, so the result store is not needed.
            assert (await ana.result("mysql", "rows 3"))["data"] == [[0], [1], [2]]


class TestDatabase:
    @pytest.mark.platform(98, 99)
    async def test_unavailable_database_returns_503_for_every_call(
        self, postgres: EmbeddedPostgres, small_api: ApiOpener
    ):
        async with small_api() as api:
            ana = await api.user()
            operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
            unavailable = (503, -1, "database_unavailable")
            async with _no_connections(postgres, api):
                for call in ("check_status", "fetch_result_data", "get_logs", "cancel_statement", "close_statement"):
                    assert await ana.refused(f"editor/{call}", operationId=operation) == unavailable
                assert await ana.refused("editor/execute/mysql", statement="rows 1") == unavailable
                assert await ana.refused("editor/create_session", session='{"type": "mysql"}') == unavailable
                for path in ("editor/get_history", f"editor/events/{operation}", f"editor/download/{operation}"):
                    assert verdict(await ana.get(path)) == unavailable
                importing = await ana.get("importer/sql_type_mapping", sql_dialect="hive")
                assert (importing.status_code, importing.json()["code"]) == (500, "database_unavailable")
                login = await api.stranger.post("token/auth", username="x", password="y")
                assert verdict(login) == unavailable
                assert (await ana.get("/desktop/debug/is_alive")).status_code == 200
                assert verdict(await ana.get("/desktop/debug/is_ready")) == (503, -1, "not_ready")
                # A request without credentials is rejected without any database query.
                assert (await api.stranger.get("editor/get_history")).status_code == 401
            assert (await ana.page(operation))["data"] == [[0], [1], [2]]
            assert (await ana.run("mysql", "rows 1"))["status"] == 0


@asynccontextmanager
async def _no_connections(postgres: EmbeddedPostgres, api: Api) -> AsyncIterator[None]:
    """Make the service database refuse new connections and close its existing ones, until the context exits."""
    name = await api.database.value("select current_database()")
    await execute(postgres.admin_dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        await execute(
            postgres.admin_dsn(), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        yield
    finally:
        await execute(postgres.admin_dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


REAL = ("duckdb", "sqlite", "postgresql")
SCRIPT = "SELECT 1; -- 😀\n SELECT 'é' AS a,\n  2 AS b )"
"""A script whose second statement begins with its comment. The comment is on the first line of the script."""


def place(body: dict) -> tuple[object, object]:
    return body["line"], body["column"]


async def test_every_response_about_a_failed_statement_has_its_error_position(ana: Caller):
    for dialect in REAL:
        first = await ana.run(dialect, SCRIPT)
        body = await ana.post_ok(f"editor/execute/{dialect}", operationId=first["history_uuid"], wait=60)
        # The error's position is relative to the statement. The handle contains the statement's own position in the
        # script.
        assert body["handle"]["statement"] == SCRIPT.partition("; ")[2]
        assert place(body) == (3, 10), dialect
        operation = body["history_uuid"]
        for call in ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            assert place(await ana.on(operation, call)) == (3, 10)
        assert place(await ana.post_ok(f"editor/watch/{operation}")) == (3, 10)
        entry = (await ana.history(doc_type=dialect, limit=1))["history"][0]
        assert place(entry["data"]) == (3, 10)
        events = (await ana.get(f"editor/events/{operation}")).text
        ended = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        assert place(ended[0]) == place(ended[-1]) == (3, 10)


async def test_refused_plan_has_the_error_position_within_its_statement(ana: Caller):
    for dialect in REAL:
        body = await ana.post_ok(f"editor/explain/{dialect}", statement="-- é\n/* 😀 */ SELECT 'é' AS a, 2 AS b )")
        assert (body["status"], *place(body)) == (1, 2, 33), dialect
        body = await ana.post_ok(f"editor/explain/{dialect}", statement="SELECT 1,\n 2 AS b )")
        assert place(body) == (2, 9)


@pytest.mark.parametrize(
    ("dialect", "statement", "found"),
    [
        # These statements fail after they have been parsed. DuckDB reports no position for relations. Its messages
        # count display columns.
        ("duckdb", "-- c\n/* 中 */ SELECT '中😀', nofn(1)", (2, 22)),
        ("duckdb", "INSERT INTO nowhere VALUES (1)", (None, None)),
        ("duckdb", "SELECT CAST(x AS INT)\nFROM (VALUES ('1'), ('a')) AS t(x)", (1, 8)),
        ("sqlite", "SELECT 'é',\n nofn(1)", (2, 2)),
        ("sqlite", "SELECT * FROM nowhere", (None, None)),
        ("postgresql", "SELECT 'é😀',\n nofn(1)", (2, 2)),
        ("postgresql", "SELECT 1 / 0", (None, None)),
        ("mysql", "fail no such table", (None, None)),
    ],
)
async def test_semantic_errors_have_positions(ana: Caller, dialect: str, statement: str, found: tuple[object, object]):
    body = await ana.run(dialect, statement)
    assert (body["code"], place(body)) == ("engine_error", found)


async def test_other_outcomes_have_no_error_position(ana: Caller):
    body = await ana.run("mysql", "rows 1")
    await ana.on(body["history_uuid"], "close_statement")
    closed = await ana.on(body["history_uuid"], "check_status")
    assert (closed["code"], place(closed)) == ("closed", (None, None))
    assert place((await ana.history(limit=1))["history"][0]["data"]) == (None, None)
