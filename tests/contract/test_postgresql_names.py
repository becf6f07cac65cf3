"""What PostgreSQL's own views show of a statement: its operation and user while it runs, and its trace."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, read, run
from tests.contract.loading_basis import MemoryLedger
from tests.contract.postgresql_basis import address_of
from tests.timing import until

from queryserver.engines.postgresql.connection import PostgresqlConnection
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.postgresql.transactions import Brackets, brackets, statement_name
from queryserver.engines.protocol import (
    EngineSession,
    LoadColumn,
    SessionOptions,
    StatementContext,
    TableLoad,
    TableName,
)
from queryserver.engines.sessions import StreamedSession
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameter_rows
from queryserver.sql.positions import Position, position_of

OPERATION = "0b5f6a2e-8a39-4f0e-9d53-3c3a4d6f7e21"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTEXT = StatementContext(user="ana", operation_id=OPERATION, connector="shop")
NAME = f"op={OPERATION} user=ana connector=shop"
TRACED = StatementContext(traceparent=TRACE)


@pytest.fixture
async def engine(users_dsn: str) -> AsyncGenerator[PostgresqlEngine]:
    engine = PostgresqlEngine(address_of(users_dsn))
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: PostgresqlEngine) -> AsyncGenerator[StreamedSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


@pytest.fixture
async def watcher(users_dsn: str) -> AsyncGenerator[asyncpg.Connection]:
    watcher = await asyncpg.connect(users_dsn)
    yield watcher
    await watcher.close()


async def completed(session: EngineSession, sql: str | BoundStatement, context: StatementContext = CONTEXT) -> Any:
    """Run a statement in the context and return its rows. Raises its error."""
    handle = await session.submit(sql, context)
    try:
        status = await ended(session, handle)
        if status.error is not None:
            raise status.error
        return await read(session, handle) if status.has_result_set else None
    finally:
        await session.close(handle)


async def shown(watcher: asyncpg.Connection) -> Mapping[str, Any]:
    """Return the row of the only other session in `pg_stat_activity`."""
    sql = (
        "SELECT application_name, state, query, wait_event FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    [row] = await watcher.fetch(sql)
    return dict(row)


@pytest.mark.item(114)
@pytest.mark.parametrize("before", [(), ("BEGIN", "SELECT 1")], ids=["alone", "transaction"])
@pytest.mark.parametrize(
    ("sql", "read_only"),
    [
        ("SELECT pg_sleep(30)", False),
        ("SELECT pg_sleep(30)", True),
        ("DO $$BEGIN PERFORM pg_sleep(30); END$$", False),
        ("INSERT INTO t SELECT 1 FROM pg_sleep(30)", False),
    ],
    ids=["query", "read_only", "block", "insert"],
)
async def test_running_statement_is_named(session, watcher, sql, before, read_only):
    await run(session, "CREATE TABLE t (a integer)")
    for statement in before:
        await run(session, statement)
    context = StatementContext(user="ana", operation_id=OPERATION, connector="shop", read_only=read_only)
    handle = await session.submit(sql, context)

    async def is_sleeping() -> bool:
        return (await shown(watcher))["wait_event"] == "PgSleep"

    await until(is_sleeping)
    row = await shown(watcher)
    assert row["application_name"] == NAME
    assert row["query"] == sql
    await session.cancel(handle)
    await session.close(handle)


async def test_name_ends_with_the_session(engine, watcher):
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await completed(session, "SHOW application_name") == [(NAME,)]
        assert (await shown(watcher))["application_name"] == "queryserver"
        await completed(session, "DO $$BEGIN END$$")
        assert (await shown(watcher))["application_name"] == NAME
        other = StatementContext(user="bo", operation_id=OPERATION)
        assert await completed(session, "SHOW application_name", other) == [(f"op={OPERATION} user=bo",)]
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SHOW application_name")).cell == "queryserver"


async def test_name_in_a_transaction_does_not_outlive_the_next_statement(session):
    await run(session, "BEGIN")
    await completed(session, "SELECT 1")
    other = StatementContext(operation_id="7", connector="shop")
    assert await completed(session, "SHOW application_name", other) == [("op=7 connector=shop",)]
    await run(session, "ROLLBACK")
    assert (await run(session, "SHOW application_name")).cell == "queryserver"


@pytest.mark.item(114)
@pytest.mark.parametrize(
    "before",
    [
        ("BEGIN", "SELECT 1", "ROLLBACK"),
        ("BEGIN", "SAVEPOINT s", "SELECT 1", "SELECT 1/0", "ROLLBACK TO s", "COMMIT"),
        ("BEGIN READ ONLY", "DO $$BEGIN END$$", "COMMIT", "DO $$BEGIN END$$"),
    ],
    ids=["rollback", "savepoint", "commit"],
)
async def test_statements_after_a_transaction_have_their_own_names(session, before):
    for number, sql in enumerate(before):
        with suppress(StatementRejected):
            await completed(session, sql, StatementContext(operation_id=f"earlier-{number}"))
    for _ in range(2):
        assert await completed(session, "SHOW application_name") == [(NAME,)]


@pytest.mark.item(114)
async def test_statements_after_rows_of_values_have_their_own_names(session):
    await run(session, "CREATE TEMP TABLE t (a integer)")
    rows = StatementParameters(read_parameter_rows([[1], [2]]))
    earlier = StatementContext(operation_id="earlier")
    await completed(session, BoundStatement("INSERT INTO t (a) VALUES (?)", "postgresql", rows), earlier)
    assert await completed(session, "SHOW application_name") == [(NAME,)]


@pytest.mark.parametrize(
    "before", ["SET application_name = 'mine'", "SELECT set_config('application_name', 'mine', false)"]
)
async def test_name_of_the_user_is_kept(session, before):
    await completed(session, before)
    for sql in ("SHOW application_name", "SELECT current_setting('application_name')"):
        await completed(session, "DO $$BEGIN END$$")
        assert await completed(session, sql) == [("mine",)]


async def test_name_among_the_session_settings_is_kept(engine):
    async with engine.session(USER, SessionOptions(settings={"application_name": "mine"})) as session:
        assert await completed(session, "SHOW application_name") == [("mine",)]


async def test_names_can_be_switched_off(users_dsn):
    engine = PostgresqlEngine(address_of(users_dsn), tags=False)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await completed(session, "SHOW application_name") == [("queryserver",)]
        traced = StatementContext(user="ana", traceparent=TRACE)
        assert await completed(session, "SELECT current_query()", traced) == [("SELECT current_query()",)]
    await engine.close()


@pytest.mark.parametrize(
    "user", ["o'brien", "a\\' || pg_sleep(9) --", "a\n\0b", "Zoë 日本", "x" * 300, "$$; DROP TABLE t; --"]
)
async def test_odd_names_are_harmless(session, user):
    context = StatementContext(user=user, operation_id=OPERATION, connector=user, traceparent=TRACE)
    [(name,)] = await completed(session, "SHOW application_name", context)
    assert name == statement_name(context)
    assert len(name) <= 63
    await completed(session, "DO $$BEGIN END$$", context)


async def test_rows_of_values_are_named(session):
    await run(session, "CREATE TABLE t (a integer, n text DEFAULT current_setting('application_name'))")
    rows = StatementParameters(read_parameter_rows([[1], [2]]))
    await completed(session, BoundStatement("INSERT INTO t (a) VALUES (?)", "postgresql", rows))
    assert (await run(session, "SELECT DISTINCT n FROM t")).rows == [(NAME,)]


async def test_trace_of_the_caller_is_a_comment(session):
    assert await completed(session, "SELECT current_query()", TRACED) == [
        (f"/*traceparent='{TRACE}'*/ SELECT current_query()",)
    ]
    assert await completed(session, "SELECT /*+ SeqScan(t) */ current_query()", TRACED) == [
        ("SELECT /*+ SeqScan(t) */ current_query()",)
    ]


@pytest.mark.item(114)
@pytest.mark.parametrize(
    ("sql", "position", "shown_position"),
    [
        ("SELECT\n  nope", Position(2, 3), 10),
        ("SELECT 'é', nope", Position(1, 13), 13),
        ("SELECT 1 +", Position(1, 11), 11),
        ("SELECT 'open", Position(1, 8), 8),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
async def test_errors_have_positions_in_the_statement_without_the_comment(
    session, sql, position, shown_position, read_only
):
    context = StatementContext(traceparent=TRACE, read_only=read_only)
    with pytest.raises(StatementRejected) as caught:
        await completed(session, sql, context)
    assert position_of(caught.value.location, sql) == position
    assert caught.value.message.splitlines()[-1] == f"Position: {shown_position}"
    assert "traceparent" not in caught.value.message


async def test_metadata_queries_show_their_user(engine, monkeypatch):
    sent = list[str]()
    execute = PostgresqlConnection.execute

    async def executed(self, query, *rest, **named):
        sent.append(query)
        return await execute(self, query, *rest, **named)

    monkeypatch.setattr(PostgresqlConnection, "execute", executed)
    async with engine.catalog(USER, NO_OPTIONS) as catalog:
        assert "public" in await catalog.databases()
    assert brackets(read_only=False, is_in_transaction=False, name=f"user={USER.username}").begin in sent


@pytest.mark.parametrize("tags", [True, False])
async def test_loads_show_their_operation(users_dsn, watcher, tags):
    engine = PostgresqlEngine(address_of(users_dsn), tags=tags)
    column = LoadColumn("n", ColumnType(BaseType.INT64), "BIGINT", nullable=True)
    load = TableLoad(TableName(None, "loaded"), TableName(None, "_qs_import_1"), (column,), context=CONTEXT)
    names = list[str]()

    async def batches() -> AsyncGenerator[pa.RecordBatch]:
        names.append((await shown(watcher))["application_name"])
        yield pa.record_batch({"n": pa.array([1], pa.int64())})

    async with engine.loader(USER, NO_OPTIONS) as loader:
        assert await loader.load(load, batches(), MemoryLedger()) == 1
        names.append((await shown(watcher))["application_name"])
    assert names == [NAME if tags else "queryserver", "queryserver"]
    await engine.close()


async def test_query_sends_no_further_message_for_its_name(session, monkeypatch):
    """The name of a query is set in the message that begins its transaction, that of others with their own message."""
    sent = list[str]()
    connection = session._new_source.args[0]
    execute = type(connection).execute

    async def executed(self, query, *rest, **named):
        sent.append(query)
        return await execute(self, query, *rest, **named)

    monkeypatch.setattr(type(connection), "execute", executed)
    await completed(session, "SELECT 1")
    await completed(session, "DO $$BEGIN END$$")
    assert sent == [brackets(read_only=False, is_in_transaction=False, name=NAME).begin, "COMMIT"]


@pytest.mark.parametrize("read_only", [False, True])
async def test_begin_that_fails_half_way_leaves_no_transaction(session, monkeypatch, read_only):
    """A cancel request may arrive between BEGIN and the command that sets the name."""
    failing = Brackets("BEGIN; SELECT 1/0", "COMMIT", "ROLLBACK")
    with monkeypatch.context() as patched:
        patched.setattr("queryserver.engines.postgresql.connection.brackets", lambda **_: failing)
        with pytest.raises(StatementRejected, match="division by zero"):
            await completed(session, "SELECT 1", StatementContext(read_only=read_only))
    assert await completed(session, "SHOW application_name") == [(NAME,)]
