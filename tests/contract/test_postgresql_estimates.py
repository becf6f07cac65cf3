"""Estimates on PostgreSQL: what counts, with bound values, and that nothing is executed or left in the session."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run
from tests.contract.postgresql_basis import address_of

from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import EngineSession
from queryserver.errors.statements import StatementRejected
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameter_rows, read_parameters

ROWS = 50_000


@pytest.fixture
async def engine(users_dsn: str) -> AsyncGenerator[PostgresqlEngine]:
    engine = PostgresqlEngine(address_of(users_dsn))
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: PostgresqlEngine) -> AsyncGenerator[EngineSession]:
    """A session on a database with a table `t` of `ROWS` rows and a table `s` of ten rows, both analyzed."""
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, f"CREATE TABLE t AS SELECT n AS a, repeat('x', 100) AS b FROM generate_series(1, {ROWS}) n")
        await run(session, "CREATE UNIQUE INDEX t_a ON t (a)")
        await run(session, "CREATE TABLE s AS SELECT n AS a FROM generate_series(1, 10) n")
        await run(session, "ANALYZE t")
        await run(session, "ANALYZE s")
        yield session


async def estimate(session: EngineSession, statement: str | BoundStatement) -> CostEstimate | None:
    assert isinstance(session, EstimatingSession)
    return await session.estimate(statement)


async def scanned(session: EngineSession, statement: str | BoundStatement) -> int:
    found = await estimate(session, statement)
    assert found is not None
    assert found.scanned_bytes is not None
    assert found.cost is not None
    assert found.cost >= 0
    return found.scanned_bytes


async def size_of(session: EngineSession, table: str) -> int:
    return (await run(session, f"SELECT pg_relation_size('{table}')")).cell


def bound(statement: str, *values: object) -> BoundStatement:
    return BoundStatement(statement, "postgresql", StatementParameters(read_parameters(list(values))))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT count(*) FROM t",
        "SELECT b FROM t ORDER BY b LIMIT 1",
        "-- comment\n/* another */ SELECT * FROM t WHERE b LIKE '%y'",
        "WITH x AS MATERIALIZED (SELECT * FROM t) SELECT count(*) FROM x",
        "TABLE t",
        "SELECT * FROM s, LATERAL (SELECT count(*) FROM t WHERE t.b > s.a::text) AS c WHERE false OR s.a > 0",
        "INSERT INTO s SELECT a FROM t",
        "UPDATE t SET b = 'y'",
        "DELETE FROM t",
        "CREATE TABLE u AS SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT * FROM t",
        "EXPLAIN (ANALYZE, BUFFERS) DELETE FROM t",
        "/* EXPLAIN */ -- EXPLAIN\nEXPLAIN ANALYZE SELECT * FROM t",
        "/* ßß */ EXPLAIN /* /* */ */ ANALYZE -- a\n VERBOSE SELECT * FROM t",
        "EXPLAIN (/* ) */ ANALYZE) (SELECT * FROM t)",
        'EXPLAIN (FORMAT json, "analyze") SELECT * FROM t',
        "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM t",
        "SELECT 1 WHERE EXISTS (SELECT FROM t WHERE b = 'no' OFFSET 1)",
    ],
)
async def test_sequential_scan_counts_the_whole_table(session: EngineSession, sql: str):
    size = await size_of(session, "t")
    assert size > 5_000_000
    assert 0.9 * size <= await scanned(session, sql) <= size + 20_000
    assert (await run(session, "SELECT count(*) FROM t WHERE b LIKE 'x%'")).cell == ROWS


async def test_each_scan_of_a_table_counts(session: EngineSession):
    both = "SELECT (SELECT count(*) FROM t), (SELECT max(b) FROM t), a FROM s"
    assert await scanned(session, both) == 2 * await size_of(session, "t") + await size_of(session, "s")


async def test_index_scan_counts_its_rows(session: EngineSession):
    size = await size_of(session, "t")
    assert 0 < await scanned(session, "SELECT * FROM t WHERE a = 7") < 1000
    assert await scanned(session, "SELECT * FROM t WHERE a < 5000") == pytest.approx(size / 10, rel=0.3)
    assert await scanned(session, "SELECT t.* FROM s JOIN t ON t.a = s.a") < 30_000


async def test_rows_that_a_limit_spares_do_not_count(session: EngineSession):
    assert await scanned(session, "SELECT * FROM t LIMIT 50") == pytest.approx(
        await size_of(session, "t") * 50 / ROWS, rel=0.1
    )


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "VALUES (1), (2)", "SELECT * FROM generate_series(1, 1000000)", "SELECT now()"]
)
async def test_statement_without_tables_reads_nothing(session: EngineSession, sql: str):
    assert await scanned(session, sql) == 0


@pytest.mark.item(116)
async def test_values_of_markers_are_considered(session: EngineSession):
    size = await size_of(session, "t")
    assert await scanned(session, bound("SELECT * FROM t WHERE a = ?", 7)) < 1000
    assert await scanned(session, bound("SELECT * FROM t WHERE b = ? AND a > ?", "x", 0)) == size
    assert await scanned(session, bound("EXPLAIN ANALYZE SELECT * FROM t WHERE b = ?", "x")) == size
    rows = StatementParameters(read_parameter_rows([["y"], ["z"]]))
    assert await scanned(session, BoundStatement("UPDATE t SET b = ?", "postgresql", rows)) == size


async def test_temporary_and_oddly_named_tables_count(session: EngineSession):
    await run(session, 'CREATE TEMP TABLE "T \'x\' """ AS TABLE t')
    assert await scanned(session, 'SELECT * FROM "T \'x\' """') > 5_000_000


async def test_prepared_statement_counts(session: EngineSession):
    await run(session, "PREPARE gone AS DELETE FROM t")
    assert await scanned(session, "EXECUTE gone") == await size_of(session, "t")
    assert (await run(session, "SELECT count(*) FROM t")).cell == ROWS


@pytest.mark.parametrize(
    "sql",
    [
        "SET work_mem = '1MB'",
        "BEGIN",
        "VACUUM t",
        "CALL p()",
        "DO $$BEGIN DELETE FROM t; END$$",
        "EXPLAIN SELECT * FROM t",
        "EXPLAIN (VERBOSE) SELECT * FROM t AS analyze",
        "EXPLAIN /* ANALYZE */ SELECT * FROM t",
        "SHOW work_mem",
        "",
    ],
)
async def test_statement_without_plan_has_no_estimate(session: EngineSession, sql: str):
    assert await estimate(session, sql) is None


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM nope", "SELECT FROM WHERE", "SELECT 1; DELETE FROM t", "CREATE TABLE t (a integer)"]
)
async def test_failure_to_plan_is_the_servers_error(session: EngineSession, sql: str):
    with pytest.raises(StatementRejected):
        await estimate(session, sql)
    assert (await run(session, "SELECT count(*) FROM t")).cell == ROWS


async def test_planning_changes_nothing(session: EngineSession):
    """The planner calls functions that are declared as immutable."""
    await run(session, "CREATE SEQUENCE q")
    await run(
        session,
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN PERFORM nextval('q'); RETURN 1; END$$",
    )
    with pytest.raises(StatementRejected, match="read-only transaction"):
        await estimate(session, "SELECT * FROM t WHERE a = f()")
    assert (await run(session, "SELECT is_called FROM q")).cell is False


async def test_open_transaction_is_unchanged(session: EngineSession):
    await run(session, "BEGIN")
    await run(session, "INSERT INTO s VALUES (11)")
    assert await scanned(session, "SELECT * FROM t") > 5_000_000
    with pytest.raises(StatementRejected):
        await estimate(session, "SELECT * FROM nope")
    await run(session, "INSERT INTO s VALUES (12)")
    await run(session, "COMMIT")
    assert (await run(session, "SELECT count(*) FROM s")).cell == 12


async def test_session_is_usable_after_an_estimate_that_took_too_long(engine: PostgresqlEngine, session: EngineSession):
    async with engine.session(USER, NO_OPTIONS) as other:
        await run(other, "BEGIN")
        await run(other, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await estimate(session, "SELECT * FROM t")
        await run(other, "ROLLBACK")
    assert await session.is_alive()
    assert (await run(session, "SELECT count(*) FROM t")).cell == ROWS
    assert "nope" in (await failure(session, "SELECT nope")).message
