"""SQLite behavior that the common engine contract does not cover."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run, started
from tests.timing import soon

from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import ResultType

_LOCKED_S = 1.0


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
    engine = SqliteEngine(path="own.sqlite", root=tmp_path, busy_timeout_s=_LOCKED_S)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: SqliteEngine) -> AsyncGenerator[EngineSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


def test_explain_prefix_requests_query_plan() -> None:
    assert SqliteEngine().capabilities.explain_prefix == "EXPLAIN QUERY PLAN "


def test_file_database_may_be_used_by_several_processes(tmp_path: Path) -> None:
    assert not SqliteEngine(path="own.sqlite", root=tmp_path).capabilities.one_process


async def test_each_value_keeps_its_storage_class(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n NUMERIC, b BOOLEAN)")
    await run(session, "INSERT INTO t VALUES (1, 1), (2.5, 0), ('x', 2), (x'00', 'x'), (NULL, NULL), (-3, 1.5)")
    answer = await run(session, "SELECT n, b FROM t ORDER BY rowid")
    assert [column.type for column in answer.columns] == [ResultType.DOUBLE, ResultType.BOOLEAN]
    assert answer.rows == [(1, True), (2.5, False), ("x", 2), (b"\x00", "x"), (None, None), (-3, 1.5)]
    assert [type(row[1]) for row in answer.rows[:3]] == [bool, bool, int]


async def test_storage_class_may_change_long_after_first_chunk(session: EngineSession) -> None:
    sql = (
        "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT 60000) "
        "SELECT CASE WHEN n < 50000 THEN n ELSE 'text ' || n END AS v FROM c"
    )
    async with operation(session, sql) as handle:
        await ended(session, handle)
        before = await session.columns(handle)
        batches = [batch async for batch in session.batches(handle)]
        assert await session.columns(handle) == before
    assert before[0].type is ResultType.BIGINT
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert values == [*range(50_000), *(f"text {number}" for number in range(50_000, 60_000))]


async def test_all_null_boolean_column_is_boolean(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (b BOOLEAN)")
    await run(session, "INSERT INTO t VALUES (NULL)")
    async with operation(session, "SELECT b FROM t") as handle:
        await ended(session, handle)
        batches = [batch async for batch in session.batches(handle)]
    assert [str(batch.schema.field(0).type) for batch in batches] == ["bool"]


async def test_expression_takes_type_of_its_first_value(session: EngineSession) -> None:
    answer = await run(session, "SELECT column1, column2 FROM (VALUES (NULL, NULL), (1.5, NULL), (7, NULL))")
    assert [column.type for column in answer.columns] == [ResultType.DOUBLE, ResultType.STRING]
    assert answer.rows == [(None, None), (1.5, None), (7, None)]


async def test_create_trigger_is_one_statement(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    await run(session, "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t WHERE n < 0; SELECT 1; END;")
    assert (await run(session, "INSERT INTO t VALUES (-1)")).status.modified_rows == 1
    assert (await run(session, "SELECT count(*) FROM t")).cell == 0


async def test_session_closed_in_transaction_releases_database_lock(
    engine: SqliteEngine, session: EngineSession
) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    async with engine.session(USER, NO_OPTIONS) as other:
        await run(other, "BEGIN IMMEDIATE")
        await run(other, "INSERT INTO t VALUES (1)")
    assert (await run(session, "INSERT INTO t VALUES (2)")).status.modified_rows == 1
    assert (await run(session, "SELECT n FROM t")).rows == [(2,)]


async def test_blocked_writer_fails_as_locked_after_busy_timeout(engine, session) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    await run(session, "BEGIN IMMEDIATE")
    async with engine.session(USER, NO_OPTIONS) as other:

        async def wait() -> None:
            begun = time.monotonic()
            error = await failure(other, "INSERT INTO t VALUES (1)")
            assert error.message == "database is locked"
            assert time.monotonic() - begun >= _LOCKED_S

        await soon(wait, within_s=_LOCKED_S + 10)
        assert (await run(other, "SELECT count(*) FROM t")).cell == 0
    await run(session, "COMMIT")


async def test_statement_waiting_for_lock_can_be_canceled(tmp_path: Path) -> None:
    engine = SqliteEngine(path="own.sqlite", root=tmp_path, busy_timeout_s=3600)
    async with engine.session(USER, NO_OPTIONS) as holder, engine.session(USER, NO_OPTIONS) as waiter:
        await run(holder, "BEGIN IMMEDIATE")
        async with operation(waiter, "CREATE TABLE t (n INTEGER)") as handle:
            await started(waiter, handle)
            await waiter.cancel(handle)
            assert (await ended(waiter, handle, within_s=60)).state is OperationState.CANCELED
    await engine.close()


async def test_invalid_utf8_text_is_reported(session: EngineSession) -> None:
    assert "not valid UTF-8" in (await failure(session, "SELECT CAST(x'ff' AS TEXT)")).message
    assert (await run(session, "SELECT CAST(x'ff' AS BLOB)")).cell == b"\xff"


async def test_nul_in_statement_is_refused(session: EngineSession) -> None:
    assert isinstance(await failure(session, "SELECT 1 \0 AS n"), StatementRejected)


async def test_inserted_rows_are_stored_when_returned_rows_are_unread(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    async with operation(session, "INSERT INTO t VALUES (1), (2), (3) RETURNING n") as handle:
        await ended(session, handle)
    assert (await run(session, "SELECT count(*) FROM t")).cell == 3


async def test_slow_query_returns_first_rows_early(session: EngineSession) -> None:
    """The first rows are returned long before there are enough rows for a full batch."""
    sql = (
        "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT 200000) "
        "SELECT n, (SELECT count(*) FROM c AS d WHERE d.n + c.n > 0) FROM c"
    )
    async with operation(session, sql) as handle:
        assert (await ended(session, handle, within_s=30)).state is OperationState.FINISHED
        async with aclosing(session.batches(handle)) as batches:  # type: ignore[type-var]
            assert 0 < (await anext(batches)).num_rows < 1000
