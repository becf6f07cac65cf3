"""Read-only statements on DuckDB: known ways around its read-only transactions, and what is left of a session."""

from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, run
from tests.contract.read_only_contract import READ_ONLY, Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_duckdb_engine import FACTS, RESOURCES, engines_of_one_pool

from queryserver.engines.duckdb.engine import DuckdbEngine, duckdb_processes
from queryserver.engines.protocol import Engine, EngineSession
from queryserver.errors.statements import StatementRejected

_OBJECTS = """
    SELECT table_name FROM duckdb_tables() UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal
    UNION ALL SELECT sequence_name || '=' || coalesce(last_value, 0) FROM duckdb_sequences()
    UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal
    ORDER BY ALL"""
_SEQUENCE, _DROP_SEQUENCE = "CREATE SEQUENCE {t}_s", "DROP SEQUENCE {t}_s"
_PREPARED = "PREPARE gone AS DELETE FROM {t}"


def _sequence(name: str, *statements: str, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Bypass:
    return Bypass(name, statements, before=(_SEQUENCE, *before), after=(*after, _DROP_SEQUENCE))


BYPASSES = (
    Bypass("with_insert", ("WITH d AS (INSERT INTO {t} VALUES (8) RETURNING a) FROM d",)),
    Bypass("with_update", ("WITH d AS (UPDATE {t} SET a = 9 RETURNING a) SELECT count(*) FROM d",)),
    Bypass("with_delete_unread", ("WITH d AS (DELETE FROM {t} RETURNING a) SELECT 1",), is_refused=False),
    Bypass("with_in_subquery", ("FROM (WITH d AS (DELETE FROM {t} RETURNING a) FROM d)",)),
    Bypass("from_first", ("FROM (DELETE FROM {t} RETURNING a)",)),
    Bypass("query_function", ("FROM query('WITH d AS (DELETE FROM {t} RETURNING a) FROM d')",)),
    Bypass("pivot", ("PIVOT (WITH d AS (DELETE FROM {t} RETURNING a) FROM d) ON a USING count(*)",)),
    Bypass("create_as_pivot", ("CREATE TABLE {t}_x AS PIVOT {t} ON a USING count(*)",)),
    Bypass("insert_pivot", ("WITH p AS (PIVOT {t} ON a USING count(*)) INSERT INTO {t} SELECT 1 FROM p",)),
    Bypass("explain_insert", ("EXPLAIN INSERT INTO {t} VALUES (4)",)),
    Bypass("explain_analyze_options", ("EXPLAIN (ANALYZE, FORMAT json) DELETE FROM {t}",)),
    Bypass("explain_analyze_create", ("EXPLAIN ANALYZE CREATE TABLE {t}_x AS SELECT 1 AS a",)),
    Bypass("explain_analyze_set", ("EXPLAIN ANALYZE SET TimeZone = 'Asia/Tokyo'",)),
    Bypass("explain_analyze_pivot", ("EXPLAIN ANALYZE CREATE TABLE {t}_x AS PIVOT {t} ON a USING count(*)",)),
    Bypass("explain_comment", ("EXPLAIN /* ANALYZE */ -- SELECT\n ANALYZE DELETE FROM {t}",)),
    Bypass("prepare", ("PREPARE gone AS DELETE FROM {t}", "EXECUTE gone")),
    Bypass("prepared_before", ("EXECUTE gone",), before=(_PREPARED,)),
    Bypass("explain_analyze_prepared", ("EXPLAIN ANALYZE EXECUTE gone",), before=(_PREPARED,)),
    _sequence("next_value", "SELECT nextval('{t}_s')"),
    _sequence("next_value_quoted", "SELECT \"nextval\"('{t}_s')"),
    _sequence("set_value", "SELECT setval('{t}_s', 100)"),
    _sequence(
        "view_with_effect", "FROM {t}_v",
        before=("CREATE VIEW {t}_v AS SELECT nextval('{t}_s')",), after=("DROP VIEW {t}_v",),
    ),
    _sequence(
        "macro_with_effect", "SELECT {t}_m()",
        before=("CREATE MACRO {t}_m() AS nextval('{t}_s')",), after=("DROP MACRO {t}_m",),
    ),
    _sequence(
        "table_macro_with_effect", "FROM {t}_m()",
        before=("CREATE MACRO {t}_m() AS TABLE SELECT nextval('{t}_s')",), after=("DROP MACRO TABLE {t}_m",),
    ),
    _sequence("query_function_with_effect", "FROM query('SELECT nextval(''{t}_s'')')"),
    Bypass("create_temporary", ("CREATE TEMP TABLE {t}_x AS FROM {t}",)),
    Bypass("temporary_table", ("INSERT INTO {t}_t VALUES (1)",), before=("CREATE TEMP TABLE {t}_t (a integer)",)),
    Bypass("open_transaction", ("DELETE FROM {t}", "COMMIT"), before=("BEGIN",)),
    Bypass("open_transaction_reads", ("SELECT 1", "COMMIT"), before=("BEGIN", "DELETE FROM {t}")),
    Bypass("begin_read_write", ("BEGIN TRANSACTION READ WRITE", "DELETE FROM {t}", "COMMIT")),
    Bypass("end_own_transaction", ("ROLLBACK", "DELETE FROM {t}", "COMMIT")),
    Bypass("set_variable", ("SET VARIABLE {t} = 1",)),
    Bypass("pragma_sets", ("PRAGMA TimeZone = 'Asia/Tokyo'",)),
    Bypass("reset", ("RESET TimeZone",)),
    Bypass("use", ("USE memory",)),
    Bypass("checkpoint", ("CHECKPOINT",)),
    Bypass("checkpoint_function", ("FROM checkpoint()",)),
    Bypass("query_function_checkpoint", ("FROM query('FROM query(''FROM checkpoint()'')')",)),
    Bypass("set_seed", ("SELECT setseed(0.5)",)),
    Bypass("query_function_set_seed", ("FROM query($$SELECT setseed(0.5)$$)",)),
    Bypass("call_checkpoint", ("CALL checkpoint()",)),
    Bypass("force_checkpoint", ("FROM force_checkpoint()",)),
    Bypass("vacuum", ("VACUUM",)),
    Bypass("analyze", ("ANALYZE",)),
    Bypass("comment", ("COMMENT ON TABLE {t} IS 'x'",), probes=("SELECT comment FROM duckdb_tables()",)),
    Bypass("create_macro", ("CREATE MACRO {t}_m() AS 1",)),
    Bypass("create_type", ("CREATE TYPE {t}_e AS ENUM ('a')",)),
    Bypass("create_secret", ("CREATE SECRET {t} (TYPE s3)",)),
    Bypass("attach", ("ATTACH ':memory:' AS {t}",)),
    Bypass("detach", ("DETACH facts",)),
    Bypass("install", ("INSTALL httpfs",)),
    Bypass("load", ("LOAD httpfs",)),
    Bypass("copy_to", ("COPY {t} TO '/tmp/{t}.csv'",)),
    Bypass("copy_query_to", ("COPY (FROM {t}) TO '/tmp/{t}.csv'",)),
    Bypass("copy_from", ("COPY {t} FROM '/dev/null'",)),
    Bypass("export", ("EXPORT DATABASE '/tmp/{t}'",)),
    Bypass("import", ("IMPORT DATABASE '/tmp/{t}'",)),
    Bypass("write_log", ("SELECT write_log('x')",)),
    Bypass("serialized", ("FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",)),
)  # fmt: skip


@pytest.fixture(scope="module")
async def file_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Callable[[], DuckdbEngine]]:
    """A function that returns an engine. All engines use one process, which has their file open."""
    directory, processes = tmp_path_factory.mktemp("duckdb"), duckdb_processes()
    new = partial(DuckdbEngine, path="facts.duckdb", root=directory, resources=RESOURCES, processes=processes)
    async for one in engines_of_one_pool(new):
        yield one


class TestDuckdbReadOnly(ReadOnlyContract):
    facts = FACTS
    read_only = ReadOnlyFacts(
        probes=("SELECT a FROM {t} ORDER BY a", _OBJECTS),
        bypasses=BYPASSES,
        reads=(
            "FROM {t}",
            "VALUES (1)",
            "TABLE {t}",
            "WITH x AS (FROM {t}) SELECT count(*) FROM x",
            "(SELECT 1) UNION (SELECT 2)",
            "PIVOT {t} ON a USING count(*)",
            "SELECT * FROM (PIVOT {t} ON a USING count(*))",
            "FROM query('FROM {t}')",
            "SHOW TABLES",
            "DESCRIBE {t}",
            "SUMMARIZE {t}",
            "PRAGMA table_info('{t}')",
            "PRAGMA version",
            "EXPLAIN SELECT * FROM {t}",
            "EXPLAIN ANALYZE SELECT * FROM {t}",
            "-- comment\n/* DELETE */ SELECT 'delete', now(), random()",
        ),
    )

    @pytest.fixture
    async def engine(self, file_engine: Callable[[], DuckdbEngine]) -> AsyncGenerator[DuckdbEngine]:
        engine = file_engine()
        yield engine
        await engine.close()

    async def test_refused_statement_leaves_settings_unchanged(self, engine: Engine, session: EngineSession) -> None:
        settings = "SELECT current_setting('TimeZone'), current_schema(), getvariable('v')"
        before = (await run(session, settings)).rows
        for sql in ("SET TimeZone = 'Asia/Tokyo'", "SET VARIABLE v = 1", "USE temp", "PRAGMA schema = 'x'"):
            await self.refused(engine, session, sql)
            await self.refused(engine, session, f"EXPLAIN ANALYZE {sql}")
        assert (await run(session, settings)).rows == before

    async def test_open_transaction_goes_on_after_read_only_statements(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        """They are refused, because DuckDB cannot make part of a transaction read-only."""
        await run(session, "BEGIN")
        await run(session, f"INSERT INTO {filled} VALUES (4)")
        assert "in the open transaction" in await self.refused(engine, session, f"SELECT a FROM {filled}")
        await run(session, f"INSERT INTO {filled} VALUES (5)")
        await run(session, "COMMIT")
        assert len((await self.run_read_only(engine, session, f"SELECT a FROM {filled}")).rows) == 5

    async def test_aborted_transaction_stays_aborted(self, engine: Engine, session: EngineSession) -> None:
        await run(session, "BEGIN")
        await failure(session, "SELECT error('x')")
        assert "transaction is aborted" in await self.refused(engine, session, "SELECT 1")
        await run(session, "ROLLBACK")
        assert (await self.run_read_only(engine, session, "SELECT 1")).cell == 1

    async def test_canceled_read_only_statement_leaves_the_session_usable(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        for _ in range(3):
            handle = await session.submit(self.facts.slow_sql, READ_ONLY)
            await session.poll(handle, wait_s=0.2)
            await session.cancel(handle)
            await ended(session, handle)
            await session.close(handle)
            await run(session, f"INSERT INTO {filled} VALUES (4)")

    async def test_read_only_statement_has_position_of_its_error(self, engine: Engine, session: EngineSession) -> None:
        sql = "SELECT\n nope"
        with pytest.raises(StatementRejected) as caught:
            await self.run_read_only(engine, session, sql)
        assert caught.value.location == (await failure(session, sql)).location is not None

    async def test_temporary_table_may_change_within_a_query(self, engine: Engine, session: EngineSession) -> None:
        """DuckDB's read-only transactions permit this, as the documentation says."""
        await run(session, "CREATE TEMP TABLE own (a integer)")
        sql = "WITH d AS (INSERT INTO own VALUES (1) RETURNING a) FROM d"
        handle = await session.submit(sql, READ_ONLY)
        assert (await ended(session, handle)).error is None
        await session.close(handle)
        async with engine.session(USER, NO_OPTIONS) as other:
            await failure(other, "FROM own")
