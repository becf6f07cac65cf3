"""PostgreSQL-specific behavior: transactions, notices, schemas, logins, and connections that the server ends."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import asyncpg
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, read, run, started
from tests.contract.postgresql_basis import address_of
from tests.timing import until

from queryserver.engines import sessions
from queryserver.engines.postgresql.engine import PostgresqlAddress, PostgresqlEngine
from queryserver.engines.protocol import Credentials, OperationState, SessionOptions
from queryserver.engines.sessions import StreamedSession
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineTimeout,
    OutcomeUnknown,
    SessionLost,
    StatementRejected,
)
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters


@pytest.fixture
def address(users_dsn: str) -> PostgresqlAddress:
    return address_of(users_dsn)


@pytest.fixture
async def engine(address: PostgresqlAddress) -> AsyncGenerator[PostgresqlEngine]:
    engine = PostgresqlEngine(address)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: PostgresqlEngine) -> AsyncGenerator[StreamedSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


async def own_pid(session: StreamedSession) -> int:
    return (await run(session, "SELECT pg_backend_pid()")).cell


@pytest.mark.item(50)
async def test_user_transaction_spans_statements(engine, session):
    await run(session, "CREATE TABLE t (a integer)")
    await run(session, "BEGIN")
    await run(session, "INSERT INTO t VALUES (1)")
    assert (await run(session, "SELECT a FROM t")).rows == [(1,)]
    await failure(session, "SELECT 1/0")
    assert "current transaction is aborted" in (await failure(session, "SELECT a FROM t")).message
    await run(session, "ROLLBACK")
    assert (await run(session, "SELECT a FROM t")).rows == []


async def test_table_read_in_transaction_can_be_dropped_in_it(session):
    await run(session, "CREATE TABLE t AS SELECT generate_series(1, 50000) AS a")
    await run(session, "BEGIN")
    assert len((await run(session, "SELECT a FROM t")).rows) == 50_000
    partly = await session.submit("SELECT a, repeat('x', 1000) FROM t")
    await ended(session, partly)
    batches = session.batches(partly)
    await anext(batches)
    await batches.aclose()
    await session.close(partly)
    assert (await run(session, "INSERT INTO t VALUES (0) RETURNING a")).rows == [(0,)]
    await run(session, "ALTER TABLE t ADD COLUMN b integer")
    await run(session, "SELECT a FROM t")
    await run(session, "DROP TABLE t")
    await run(session, "COMMIT")


async def test_change_returning_rows_is_committed_with_its_last_row(engine, session):
    await run(session, "CREATE TABLE t (a integer)")
    async with operation(session, "INSERT INTO t SELECT generate_series(1, 20000) RETURNING a") as handle:
        await ended(session, handle)
        assert len(await read(session, handle)) == 20_000
        async with engine.session(USER, NO_OPTIONS) as other:
            assert (await run(other, "SELECT count(*) FROM t")).cell == 20_000


async def test_refused_commit_fails_statement(session):
    await run(session, "CREATE TABLE t (a integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    error = await failure(session, "INSERT INTO t VALUES (1), (1) RETURNING a")
    assert error.message.splitlines()[0] == 'duplicate key value violates unique constraint "t_a_key"'


async def test_procedure_may_commit(session):
    await run(session, "CREATE PROCEDURE p(INOUT a integer) LANGUAGE plpgsql AS $$BEGIN COMMIT; a := a + 1; END$$")
    assert (await run(session, "CALL p(1)")).rows == [(2,)]


async def test_message_is_followed_by_detail_hint_and_position(session):
    error = await failure(session, "SELECT foo(1)")
    lines = error.message.splitlines()
    assert lines[0] == "function foo(integer) does not exist"
    assert lines[-1] == "Position: 8"


async def test_notices_are_log_lines(session):
    async with operation(session, "DO $$BEGIN RAISE NOTICE 'one'; RAISE WARNING E'two\\nthree'; END$$") as handle:
        await ended(session, handle)
        assert list(await session.logs(handle, start=0)) == ["NOTICE:  one", "WARNING:  two", "three"]
        assert list(await session.logs(handle, start=2)) == ["three"]


@pytest.mark.parametrize("text", ["COPY t FROM STDIN", "copy (SELECT 1) to stdout"])
async def test_copy_without_stream_is_refused(session, text):
    assert "COPY" in (await failure(session, text)).message
    assert (await run(session, "SELECT 1")).rows == [(1,)]


async def test_statement_with_parameters_is_refused(session):
    assert (await failure(session, "SELECT $1::integer")).message == "there is no parameter $1"


async def test_text_may_contain_only_one_statement(session):
    assert "multiple commands" in (await failure(session, "SELECT 1; SELECT 2")).message


async def test_session_database_is_its_schema(engine, session):
    await run(session, 'CREATE SCHEMA "My ""schema"""')
    await run(session, 'CREATE TABLE "My ""schema""".t AS SELECT 5 AS a')
    async with engine.session(USER, SessionOptions(database='My "schema"')) as inside:
        assert (await run(inside, "SELECT a FROM t")).rows == [(5,)]
    with pytest.raises(StatementRejected) as caught:
        async with engine.session(USER, SessionOptions(database="nope")):
            pass
    assert caught.value.message == 'schema "nope" does not exist'


async def test_session_settings_stay_in_their_session(engine):
    options = SessionOptions(settings={"work_mem": "77MB", "application_name": "it's \\ mine"})
    async with engine.session(USER, options) as session:
        pid = await own_pid(session)
        assert (await run(session, "SHOW work_mem")).cell == "77MB"
        assert (await run(session, "SHOW application_name")).cell == "it's \\ mine"
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await own_pid(session) == pid
        assert (await run(session, "SHOW work_mem")).cell != "77MB"
        assert (await run(session, "SHOW application_name")).cell == "queryserver"


async def test_session_time_zone_is_utc(session):
    assert (await run(session, "SHOW TimeZone")).cell == "UTC"


async def test_connection_is_reused(engine):
    async with engine.session(USER, NO_OPTIONS) as session:
        pid = await own_pid(session)
        await run(session, "BEGIN")
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await own_pid(session) == pid
        await run(session, "VACUUM")


async def test_connection_of_stopped_statement_is_not_reused(engine):
    async with engine.session(USER, NO_OPTIONS) as session:
        pid = await own_pid(session)
        async with operation(session, "SELECT pg_sleep(30)") as handle:
            await started(session, handle)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await own_pid(session) != pid


async def test_idle_connections_are_closed_after_timeout(address, users_dsn):
    engine = PostgresqlEngine(replace(address, idle_s=0.1))
    watcher = await asyncpg.connect(users_dsn, timeout=60)
    try:
        async with engine.session(USER, NO_OPTIONS) as session:
            pid = await own_pid(session)

        async def is_gone() -> bool:
            return await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0

        async with asyncio.timeout(30):  # the default timeout is 60 s
            await until(is_gone)
    finally:
        await watcher.close()
        await engine.close()


async def test_connections_are_never_shared_between_logins(engine, address, users_dsn):
    owner = await asyncpg.connect(users_dsn)
    await owner.close()
    async with engine.session(USER, NO_OPTIONS) as session:
        pid = await own_pid(session)
    wrong = SessionOptions(credentials=Credentials(address.user or "", "wrong"))
    with pytest.raises(CredentialsRequired) as caught:
        async with engine.session(USER, wrong):
            pass
    assert caught.value.message == f'password authentication failed for user "{address.user}"'
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await own_pid(session) == pid


@pytest.mark.item(59)
async def test_address_without_login_requires_credentials(address):
    engine = PostgresqlEngine(replace(address, user=None, password=None))
    with pytest.raises(CredentialsRequired):
        async with engine.session(USER, NO_OPTIONS):
            pass
    given = SessionOptions(credentials=Credentials(address.user or "", address.password or ""))
    async with engine.session(USER, given) as session:
        assert (await run(session, "SELECT 1")).rows == [(1,)]
    with pytest.raises(CredentialsRequired):
        await engine.ping()
    await engine.close()


async def test_server_time_limit_is_a_timeout(session):
    await run(session, "SET statement_timeout = '100ms'")
    error = await failure(session, "SELECT pg_sleep(30)")
    assert isinstance(error, EngineTimeout)
    assert error.message == "canceling statement due to statement timeout"


async def test_connection_lost_during_statement_leaves_outcome_unknown(engine, session):
    pid = await own_pid(session)
    async with operation(session, "SELECT pg_sleep(30)") as handle:
        await started(session, handle)
        async with engine.session(USER, NO_OPTIONS) as other:
            sleeps = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"

            async def is_sleeping() -> bool:
                return (await run(other, sleeps)).rows == [(1,)]

            await until(is_sleeping)
            await run(other, f"SELECT pg_terminate_backend({pid})")
        status = await ended(session, handle)
        assert status.state is OperationState.FAILED
        assert isinstance(status.error, OutcomeUnknown)
    assert not await session.is_alive()


async def test_connection_lost_before_a_statement_raises_session_lost(engine, session):
    pid = await own_pid(session)
    async with engine.session(USER, NO_OPTIONS) as other:
        await run(other, f"SELECT pg_terminate_backend({pid})")
    assert isinstance(await failure(session, "SELECT 1"), SessionLost)


async def test_cancel_reaches_a_request_whose_first_rows_wait_to_be_read(session):
    """The rows fill a chunk, which is not read. The sixth row of the same request takes longer than the test."""
    slow = "SELECT repeat('x', 3000000), CASE WHEN n = 6 THEN pg_sleep(600)::text END FROM generate_series(1, 9) AS n"
    async with operation(session, slow) as handle:
        await ended(session, handle)
        await session.cancel(handle)
        assert (await session.poll(handle)).state is OperationState.CANCELED
    assert (await run(session, "SELECT 1")).cell == 1


async def test_session_is_lost_if_its_open_transaction_cannot_be_ended(session, monkeypatch):
    """The rest of a truncated result takes longer than its end may take. Later statements must not run in its
    transaction, which would never be committed.
    """
    monkeypatch.setattr(sessions, "_END_S", 0.1)
    slow = "SELECT repeat('x', 3000000), CASE WHEN n = 7 THEN pg_sleep(600)::text END FROM generate_series(1, 9) AS n"
    handle = await session.submit(slow)
    await ended(session, handle)
    batches = session.batches(handle)
    await anext(batches)
    await until(session.is_alive)  # the next rows have arrived, too
    await batches.aclose()
    await session.close(handle)
    assert not await session.is_alive()
    assert isinstance(await failure(session, "SELECT 1"), SessionLost)


async def test_stopped_result_is_gone_from_server(engine, session):
    """The server discards a canceled result even if no task is waiting for its rows."""
    async with operation(session, "SELECT generate_series(1, 500000000)") as handle:
        await ended(session, handle)
        batches = session.batches(handle)
        await anext(batches)
        await session.cancel(handle)
        assert (await session.poll(handle)).state is OperationState.CANCELED
        async with engine.session(USER, NO_OPTIONS) as other:
            busy = "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()"
            assert (await run(other, f"{busy} AND usename = current_user")).cell == 0
        await batches.aclose()


async def test_array_dimension_change_after_first_chunk_fails_with_advice(session):
    sql = "SELECT CASE WHEN n = 900 THEN '{{1}}'::int[] ELSE '{1}' END AS d FROM generate_series(1, 1000) AS n"
    async with operation(session, sql) as handle:
        await ended(session, handle)
        with pytest.raises(StatementRejected, match="cast the column to text"):
            await read(session, handle)
    assert (await run(session, "SELECT 1")).rows == [(1,)]


async def test_changed_type_is_seen_by_the_same_session(session):
    await run(session, "CREATE TYPE pair AS (a integer)")
    assert (await run(session, "SELECT ROW(1)::pair")).rows == [({"a": 1},)]
    await run(session, "ALTER TYPE pair ADD ATTRIBUTE b text")
    assert (await run(session, "SELECT ROW(1, 'x')::pair")).rows == [({"a": 1, "b": "x"},)]


async def test_text_for_a_fixed_length_column_is_not_truncated(session):
    await run(session, "CREATE TABLE t (c character(5), b bit(3), d date)")
    values = StatementParameters(read_parameters(["abcde", "101", "2024-01-31"]))
    await run(session, BoundStatement("INSERT INTO t VALUES (?, ?, ?)", "postgresql", values))
    assert (await run(session, "SELECT c, b::text, d::text FROM t")).rows == [("abcde", "101", "2024-01-31")]
