"""MySQL-specific behavior: databases, warnings, procedures, logins, and a result that must be read to the end."""

import asyncio
import resource
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, read, run, started
from tests.engines.servers import ServerAddress

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.engines.sessions import StreamedSession
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineTimeout,
    OutcomeUnknown,
    SessionLost,
    StatementRejected,
)

pytestmark = pytest.mark.engine("mariadb")


@pytest.fixture
def address(mariadb: ServerAddress) -> MysqlAddress:
    return MysqlAddress(mariadb.host, mariadb.port, "users", mariadb.user, mariadb.password)


@pytest.fixture
async def engine(address: MysqlAddress) -> AsyncGenerator[MysqlEngine]:
    engine = MysqlEngine(address)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: MysqlEngine) -> AsyncGenerator[StreamedSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


async def own_id(session: StreamedSession) -> int:
    return (await run(session, "SELECT CONNECTION_ID()")).cell


async def test_text_may_contain_only_one_statement(session):
    assert "syntax" in (await failure(session, "SELECT 1; SELECT 2")).message


@pytest.mark.security("T11")
async def test_server_cannot_read_client_files(session):
    await run(session, "CREATE TEMPORARY TABLE t (a text)")
    await failure(session, "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE t")
    assert (await run(session, "SELECT * FROM t")).rows == []


async def test_connection_is_reset_before_reuse(engine):
    async with engine.session(USER, NO_OPTIONS) as session:
        number = await own_id(session)
        await run(session, "CREATE TEMPORARY TABLE mine (a int)")
        await run(session, "SET NAMES latin1")
        await run(session, "SET autocommit = 0")
        await run(session, "USE information_schema")
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await own_id(session) == number
        looked = await run(session, "SELECT DATABASE(), @@character_set_results, @@autocommit")
        assert looked.rows == [("users", "utf8mb4", 1)]
        assert "doesn't exist" in (await failure(session, "SELECT * FROM mine")).message


async def test_session_without_database_never_inherits_one(address):
    engine = MysqlEngine(replace(address, database=None))
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "USE users")
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT DATABASE()")).rows == [(None,)]
    await engine.close()


async def test_session_settings_stay_in_their_session(engine):
    options = SessionOptions(settings={"sql_mode": "ANSI", "max_join_size": "1000", "init_connect": ""})
    with pytest.raises(StatementRejected):
        async with engine.session(USER, options):
            pass
    options = SessionOptions(settings={"time_zone": "+02:00", "max_join_size": "1000"})
    async with engine.session(USER, options) as session:
        assert (await run(session, "SELECT @@time_zone, @@max_join_size")).rows == [("+02:00", 1000)]
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT @@time_zone, @@max_join_size")).rows != [("+02:00", 1000)]


async def test_warnings_are_statement_log_lines_and_not_service_log(session, caplog):
    await run(session, "SET sql_mode = ''")
    await run(session, "CREATE TEMPORARY TABLE t (a tinyint)")
    async with operation(session, "INSERT INTO t VALUES (1000)") as handle:
        await ended(session, handle)
        assert list(await session.logs(handle, start=0)) == ["Warning 1264: Out of range value for column 'a' at row 1"]
    async with operation(session, "SELECT CAST('12x' AS signed)") as handle:
        await ended(session, handle)
        assert await read(session, handle) == [(12,)]
        assert list(await session.logs(handle, start=0)) == ["Warning 1292: Truncated incorrect INTEGER value: '12x'"]
    assert not caplog.records


async def test_procedure_returns_its_first_result(session):
    await run(session, "CREATE OR REPLACE PROCEDURE p() BEGIN SELECT 1 AS a; SELECT 2 AS b; END")
    assert (await run(session, "CALL p()")).rows == [(1,)]
    assert (await run(session, "SELECT 3")).rows == [(3,)]


async def test_user_transaction_spans_statements(engine, session):
    await run(session, "CREATE OR REPLACE TABLE t (a int)")
    await run(session, "BEGIN")
    await run(session, "INSERT INTO t VALUES (1)")
    assert (await run(session, "SELECT a FROM t")).rows == [(1,)]
    async with engine.session(USER, NO_OPTIONS) as other:
        assert (await run(other, "SELECT a FROM t")).rows == []
    await run(session, "ROLLBACK")
    await run(session, "DROP TABLE t")


@pytest.mark.item(59)
async def test_refused_credentials_are_requested_again(engine, address):
    wrong = SessionOptions(credentials=Credentials("admin", "wröng"))
    with pytest.raises(CredentialsRequired) as caught:
        async with engine.session(USER, wrong):
            pass
    assert caught.value.message == "Access denied for user 'admin' (using password: YES)"
    nobody = MysqlEngine(replace(address, user=None))
    with pytest.raises(CredentialsRequired):
        await nobody.ping()
    await nobody.close()


async def test_server_time_limit_is_a_timeout(session):
    await run(session, "SET SESSION max_statement_time = 0.1")
    assert isinstance(await failure(session, "SELECT SLEEP(30)"), EngineTimeout)


async def test_connection_lost_during_statement_leaves_outcome_unknown(engine, session):
    number = await own_id(session)
    async with operation(session, "SELECT SLEEP(30)") as handle:
        await started(session, handle)
        async with engine.session(USER, NO_OPTIONS) as other:
            await run(other, f"KILL CONNECTION {number}")
        assert isinstance((await ended(session, handle)).error, OutcomeUnknown)
    assert not await session.is_alive()


async def test_connection_lost_before_a_statement_raises_session_lost(engine, session):
    number = await own_id(session)
    async with engine.session(USER, NO_OPTIONS) as other:
        await run(other, f"KILL CONNECTION {number}")
    await asyncio.sleep(0.1)
    with pytest.raises(SessionLost):
        await session.submit("SELECT 1")


@pytest.mark.item(34)
async def test_pausing_reader_does_not_accumulate_rows(session):
    """The driver alone would read the whole result of 400 MB into memory even if no row is consumed."""
    async with operation(session, "SELECT REPEAT('x', 2000) AS t FROM seq_1_to_200000") as handle:
        await ended(session, handle)
        batches = session.batches(handle)
        await anext(batches)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await asyncio.sleep(2)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024
        await batches.aclose()
    assert (await run(session, "SELECT 1")).rows == [(1,)]
