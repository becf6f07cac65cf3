"""Read-only statements on Trino: known ways around its read-only transactions, and that no transaction stays open."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, read, rows_of, run, started
from tests.contract.engine_resuming import ROWS, resumable, resuming
from tests.contract.read_only_contract import READ_ONLY, Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_trino_engine import FACTS
from tests.contract.trino_basis import TrinoBasis, address_of
from tests.engines.servers import HttpAddress

from queryserver.engines.protocol import Engine, EngineSession, OperationState
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.errors.statements import StatementRejected

_PREPARED = ("PREPARE gone FROM INSERT INTO {t} VALUES 4",)

BYPASSES = (
    Bypass("insert_trino", ("INSERT INTO {t} VALUES 4",)),
    Bypass("explain_analyze_insert", ("EXPLAIN ANALYZE INSERT INTO {t} VALUES 4",)),
    Bypass("explain_analyze_verbose", ("EXPLAIN ANALYZE VERBOSE INSERT INTO {t} SELECT a FROM {t}",)),
    Bypass("explain_analyze_create", ("EXPLAIN ANALYZE CREATE TABLE {t}_x AS SELECT 1 AS a",)),
    Bypass("explain_create", ("EXPLAIN CREATE TABLE {t}_x AS SELECT 1 AS a",)),
    Bypass("prepared_before", ("EXECUTE gone",), before=_PREPARED),
    Bypass("explain_analyze_prepared", ("EXPLAIN ANALYZE EXECUTE gone",), before=_PREPARED),
    Bypass("execute_immediate", ("EXECUTE IMMEDIATE 'INSERT INTO {t} VALUES 4'",)),
    Bypass("insert_markers", ("INSERT INTO {t} VALUES ?",), values=(4,)),
    Bypass("open_transaction", ("INSERT INTO {t} VALUES 4", "COMMIT"), before=("START TRANSACTION",)),
    Bypass("read_write_transaction", ("START TRANSACTION READ WRITE", "INSERT INTO {t} VALUES 4", "COMMIT")),
    Bypass("rollback_then_insert", ("ROLLBACK", "INSERT INTO {t} VALUES 4")),
    Bypass("drop_cascade", ("DROP SCHEMA memory.default CASCADE",)),
    Bypass("create_schema", ("CREATE SCHEMA memory.{t}_s",), probes=("SHOW SCHEMAS FROM memory",)),
    Bypass("comment_on", ("COMMENT ON TABLE {t} IS 'x'",), probes=("SHOW CREATE TABLE {t}",)),
    Bypass("add_column", ("ALTER TABLE {t} ADD COLUMN b integer",), probes=("DESCRIBE {t}",)),
    Bypass("grant", ("GRANT SELECT ON {t} TO ada",)),
    Bypass("create_role", ("CREATE ROLE reader",)),
    Bypass("set_role", ("SET ROLE ALL",)),
    Bypass("analyze", ("ANALYZE {t}",)),
    Bypass("kill_query", ("CALL system.runtime.kill_query('20260101_000000_00000_aaaaa', 'x')",)),
    Bypass("create_function", ("CREATE FUNCTION memory.default.f(x int) RETURNS int RETURN x",)),
    Bypass("create_catalog", ("CREATE CATALOG other USING memory",), probes=("SHOW CATALOGS",)),
    Bypass("passthrough", ("SELECT * FROM TABLE(tpch.system.query(query => 'DELETE FROM t'))",)),
    Bypass("passthrough_in_comment", ('SELECT * FROM TABLE/*(*/("tpch".system."query"(query => \'DELETE\'))',)),
    Bypass("set_authorization", ("SET SESSION AUTHORIZATION other",)),
    Bypass("use", ("USE tpch.tiny",)),
)
READ_ONLY_FACTS = ReadOnlyFacts(
    setup=("CREATE TABLE {t} (a integer)", "INSERT INTO {t} VALUES 1, 2, 3"),
    probes=("SELECT a FROM {t} ORDER BY a", "SHOW TABLES"),
    bypasses=BYPASSES,
    reads=(
        "WITH x AS (SELECT a FROM {t}) SELECT count(*) FROM x",
        "(SELECT 1) UNION (SELECT 2)",
        "VALUES 1",
        "TABLE {t}",
        "SHOW TABLES",
        "SHOW SESSION",
        "DESCRIBE {t}",
        "EXPLAIN SELECT * FROM {t}",
        "EXPLAIN ANALYZE SELECT * FROM {t}",
        "-- comment\n/* DELETE */ SELECT 'delete', now(), random()",
        "WITH FUNCTION f(x int) RETURNS int RETURN x + 1 SELECT f(1)",
        "SELECT * FROM TABLE(sequence(1, 3))",
        "SELECT n.name, r.name FROM tpch.tiny.nation n JOIN tpch.tiny.region r ON n.regionkey = r.regionkey",
    ),
)


@pytest.mark.engine("trino")
class TestTrinoReadOnly(TrinoBasis, ReadOnlyContract):
    """A single node with the catalogs memory and tpch."""

    facts = FACTS
    read_only = READ_ONLY_FACTS

    @pytest.fixture
    async def engine(self, trino_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(address_of(trino_server))
        yield engine
        await engine.close()

    async def open_transactions(self, session: EngineSession) -> int:
        """Return how many transactions exist that a statement has started explicitly."""
        sql = "SELECT count(*) FROM system.runtime.transactions WHERE NOT auto_commit_context"
        return (await run(session, sql)).cell

    async def no_transaction(self, session: EngineSession) -> None:
        """Wait until no such transaction exists. Trino itself would end an idle one after five minutes."""
        async with asyncio.timeout(30):
            while await self.open_transactions(session):  # noqa: ASYNC110 Trino sends no event
                await asyncio.sleep(0.1)

    async def test_transaction_of_statement_is_read_only_and_ends_with_it(
        self, engine: Engine, session: EngineSession
    ) -> None:
        sql = "SELECT read_only FROM system.runtime.transactions WHERE NOT auto_commit_context"
        handle = await session.submit(sql, READ_ONLY)
        await ended(session, handle)
        assert await read(session, handle) == [(True,)]
        await session.close(handle)
        await self.no_transaction(session)

    @pytest.mark.parametrize(
        "sql", ["SELECT nope", "INSERT INTO no_such_table VALUES 1", "SELECT 1 / (a - 1) FROM (VALUES 1) v(a)"]
    )
    async def test_transaction_ends_if_statement_fails(self, engine: Engine, session: EngineSession, sql: str) -> None:
        await self.refused(engine, session, sql)
        await self.no_transaction(session)

    async def test_transaction_ends_if_statement_is_canceled(self, session: EngineSession) -> None:
        handle = await session.submit(FACTS.slow_sql, READ_ONLY)
        await started(session, handle)
        await session.cancel(handle)
        assert (await ended(session, handle)).state is OperationState.CANCELED
        await session.close(handle)
        await self.no_transaction(session)

    async def test_transaction_ends_if_session_is_left(self, engine: Engine, session: EngineSession) -> None:
        async with engine.session(USER, NO_OPTIONS) as other:
            await started(other, await other.submit(FACTS.slow_sql, READ_ONLY))
        await self.no_transaction(session)
        await self.eventually_idle(engine)

    async def test_transaction_ends_if_caller_is_canceled(self, engine: Engine, session: EngineSession) -> None:
        async def start() -> None:
            async with engine.session(USER, NO_OPTIONS) as other:
                await other.submit(FACTS.slow_sql, READ_ONLY)
                await asyncio.sleep(60)

        for delay_s in (0.03, 0.05, 0.07, 0.1, 0.5):
            task = asyncio.create_task(start())
            await asyncio.sleep(delay_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.no_transaction(session)

    async def test_transaction_ends_with_second_client_of_resumed_statement(
        self, engine: Engine, session: EngineSession
    ) -> None:
        given: list[object] = []
        async with engine.session(USER, NO_OPTIONS) as first:
            handle = await first.submit(FACTS.rows_sql(ROWS), READ_ONLY)
            await ended(first, handle)
            async with aclosing(first.batches(handle)) as batches:  # type: ignore[type-var]
                given += [row[0] for row in rows_of(await anext(batches))]
                token = resumable(first).resume_token(handle)
                resumable(first).detach()
        assert await self.open_transactions(session) == 1
        async with resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=len(given)) as (again, found):
            await ended(again, found)
            given += [row[0] for row in await read(again, found)]
            await again.close(found)
            await self.no_transaction(session)
        assert given == list(range(ROWS))

    async def test_open_transaction_refuses_read_only_statement_and_goes_on(
        self, engine: Engine, session: EngineSession
    ) -> None:
        await run(session, "START TRANSACTION")
        assert "open transaction" in await self.refused(engine, session, "SELECT 1")
        assert (await run(session, "SELECT 5")).cell == 5
        await run(session, "COMMIT")
        assert (await self.run_read_only(engine, session, "SELECT 1")).cell == 1

    async def test_read_only_statement_has_position_of_its_error(self, session: EngineSession) -> None:
        handle = await session.submit("SELECT\n nope", READ_ONLY)
        error = (await ended(session, handle)).error
        assert isinstance(error, StatementRejected)
        assert "line 2:2" in error.message
        await session.close(handle)
