"""What holds for duckdb beyond the contract of all engines."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import duckdb
import psutil
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run

from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.errors.statements import EngineUnavailable, SessionLost, StatementRejected
from queryserver.formats.columns import ResultType
from queryserver.sql.positions import position_of

MIB = 1024 * 1024

_WRITE_AND_DIE = """
import asyncio, os, sys
from pathlib import Path
from queryserver.identity.model import User
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.protocol import SessionOptions

async def main():
    engine = DuckdbEngine(path="own.duckdb", root=Path(sys.argv[1]))
    async with engine.session(User(1, "ada"), SessionOptions()) as session:
        for sql in ("CREATE TABLE t (n INTEGER)", "INSERT INTO t SELECT * FROM range(1000)"):
            handle = await session.submit(sql)
            assert (await session.poll(handle, wait_s=20)).error is None
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def exit_code(program: str, argument: Path) -> int | None:
    """How a Python program ended, in a process of its own."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(argument))
    async with asyncio.timeout(60):
        return await process.wait()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path, max_statements=2)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: DuckdbEngine) -> AsyncGenerator[EngineSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


def test_only_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    assert DuckdbEngine(path="own.duckdb", root=tmp_path).capabilities.one_process
    assert not DuckdbEngine().capabilities.one_process


async def test_what_is_stored_outlives_the_engine(tmp_path: Path) -> None:
    for expected in (1, 2):
        engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
        async with engine.session(USER, NO_OPTIONS) as session:
            await run(session, "CREATE TABLE IF NOT EXISTS t (n INTEGER)")
            await run(session, "INSERT INTO t VALUES (1)")
            assert (await run(session, "SELECT count(*) FROM t")).cell == expected
        await engine.close()


async def test_what_was_told_finished_outlives_kill_9(tmp_path: Path) -> None:
    assert await exit_code(_WRITE_AND_DIE, tmp_path) == -9
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT count(*) FROM t")).cell == 1000
    await engine.close()


@pytest.mark.item(34)
@pytest.mark.slow
async def test_twenty_million_rows_pass_in_flat_memory(session: EngineSession) -> None:
    process, rows, peak = psutil.Process(), 0, 0
    async with operation(session, "SELECT range AS n, 'x' || range AS s FROM range(20000000)") as handle:
        await ended(session, handle)
        before = process.memory_info().rss
        async for batch in session.batches(handle):
            rows += batch.num_rows
            peak = max(peak, process.memory_info().rss)
    assert rows == 20_000_000
    assert peak - before < 100 * MIB


@pytest.mark.security("T23")
async def test_a_text_of_two_statements_runs_none_of_them(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    for text in ("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)", "SELECT 1; DROP TABLE t"):
        assert isinstance(await failure(session, text), StatementRejected)
    assert (await run(session, "SELECT count(*) FROM t; -- the end")).cell == 0


async def test_a_transaction_lasts_over_statements_of_its_session(engine: DuckdbEngine, session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n INTEGER)")
    for end, rows in (("ROLLBACK", 0), ("COMMIT", 1)):
        await run(session, "BEGIN")
        await run(session, "INSERT INTO t VALUES (1)")
        async with engine.session(USER, NO_OPTIONS) as other:
            assert (await run(other, "SELECT count(*) FROM t")).cell == 0
        await run(session, end)
        assert (await run(session, "SELECT count(*) FROM t")).cell == rows


async def test_returned_rows_are_told_from_the_count_of_changes(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n BIGINT)")
    counted = await run(session, 'INSERT INTO t SELECT 5 AS "Count" -- returning')
    assert (counted.status.has_result_set, counted.status.modified_rows) == (False, 1)
    returned = await run(session, 'INSERT INTO t VALUES (7) RETURNING n AS "Count"')
    assert returned.rows == [(7,)]
    assert (await run(session, 'SELECT count(*) AS "Count" FROM t')).rows == [(2,)]


@pytest.mark.parametrize(
    "statement",
    [
        "EXPLAIN SELECT 1",
        "SHOW TABLES",
        "DESCRIBE SELECT 1",
        "SUMMARIZE SELECT 1",
        "PRAGMA version",
        "PIVOT t ON n",
        "CALL pragma_version()",
        "VALUES (1)",
        "FROM t",
        "WITH w AS (SELECT 1) FROM w",
        "TABLE t",
    ],
)
async def test_what_answers_rows_has_a_result_set(session: EngineSession, statement: str) -> None:
    await run(session, "CREATE TABLE t AS SELECT 1 AS n")
    assert (await run(session, statement)).columns


async def test_a_query_runs_once(session: EngineSession) -> None:
    await run(session, "CREATE SEQUENCE s")
    for expected in ("1", "2"):
        assert (await run(session, "SELECT (nextval('s')::UHUGEINT)")).cell == expected


async def test_a_union_in_a_list_keeps_its_values(session: EngineSession) -> None:
    answer = await run(session, "SELECT [union_value(n := 1)::UNION(n INTEGER, s VARCHAR), 'x'] AS v")
    assert answer.columns[0].type is ResultType.ARRAY
    assert answer.cell == [1, "x"]


async def test_more_statements_than_threads_wait_their_turn(engine: DuckdbEngine) -> None:
    slow = "SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b"
    async with (
        engine.session(USER, NO_OPTIONS) as one,
        engine.session(USER, NO_OPTIONS) as two,
        engine.session(USER, NO_OPTIONS) as three,
        operation(one, slow) as first,
        operation(two, slow),
        operation(three, "SELECT 1") as last,
    ):
        assert (await three.poll(last, wait_s=0.3)).state is OperationState.PENDING
        assert engine._sessions.threads.busy == 2
        await one.cancel(first)
        assert (await ended(three, last, within_s=5)).state is OperationState.FINISHED


async def test_a_waiting_statement_is_canceled_without_being_run(engine: DuckdbEngine, session: EngineSession) -> None:
    slow = "SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b"
    await run(session, "CREATE TABLE t (n INTEGER)")
    async with (
        engine.session(USER, NO_OPTIONS) as one,
        engine.session(USER, NO_OPTIONS) as two,
        operation(one, slow),
        operation(two, slow),
        operation(session, "INSERT INTO t VALUES (1)") as handle,
    ):
        await session.cancel(handle)
        assert (await session.poll(handle, wait_s=1)).state is OperationState.CANCELED
    assert (await run(session, "SELECT count(*) FROM t")).cell == 0


async def test_progress_grows(session: EngineSession) -> None:
    async with operation(session, "SELECT sum(a.range * b.range) FROM range(200000) a, range(20000) b") as handle:
        seen = list[int]()
        async with asyncio.timeout(60):  # a busy machine needs seconds for one per cent
            while not seen or seen[-1] <= seen[0]:
                status = await session.poll(handle, wait_s=0.3)
                assert status.state in {OperationState.PENDING, OperationState.RUNNING}
                seen.append(status.progress or 0)
    assert seen == sorted(seen)


async def test_the_place_of_an_error_is_that_of_the_statement(session: EngineSession) -> None:
    for sql in (
        "CREATE TABLE t (n INTEGER, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'x')",
        "CREATE TABLE u (n INTEGER, m INTEGER)",
        "CREATE VIEW v AS SELECT n,   m AS other FROM u",
        "ALTER TABLE u DROP COLUMN m",
    ):
        await run(session, sql)
    for sql, place in (
        ("-- 日本\r\n/* a */ SELECT\t'é😀', nope FROM t; -- b", (2, 22)),
        ("INSERT INTO t SELECT n, nope FROM t", (1, 25)),
        ("EXPLAIN SELECT nope FROM t", (1, 16)),
        ("MERGE INTO t USING u ON nope WHEN MATCHED THEN DELETE", (1, 25)),
        # While rows are read, DuckDB counts lines of the expressions around the columns of text.
        ("SELECT s,\n s::INTEGER,\n 2,\n 3\nFROM t", (2, 3)),
        # It marks places of other texts in this one.
        ("SELECT 1,  2, 3, 4 FROM v", None),
        ("SHOW nowhere", None),
    ):
        error = await failure(session, sql)
        assert isinstance(error, StatementRejected)
        found = position_of(error.place, sql)
        assert (found and (found.line, found.column)) == place, (sql, error.message)


async def test_an_error_that_leaves_a_transaction_open_still_does(session: EngineSession) -> None:
    for sql in ("CREATE TABLE t (n INTEGER)", "BEGIN", "INSERT INTO t VALUES (1)"):
        await run(session, sql)
    assert (await failure(session, "SELECT nope FROM t")).place is None
    assert (await run(session, "SELECT count(*) FROM t")).cell == 1
    await run(session, "COMMIT")
    assert (await run(session, "SELECT count(*) FROM t")).cell == 1
    assert (await failure(session, "SELECT nope FROM t")).place is not None


async def test_only_queries_are_sent_again_for_the_place_of_their_error(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[str]()

    def unbound(_: DuckdbConnection, statement: duckdb.Statement, __: int) -> None:
        sent.append(statement.query)

    monkeypatch.setattr(DuckdbConnection, "_unbound", unbound)
    for sql in ("SELECT nope", "INSERT INTO nowhere VALUES (1)", "CREATE TABLE t AS SELECT nope", "DROP TABLE nowhere"):
        await failure(session, sql)
    assert sent == ["SELECT nope"]


async def test_a_closed_engine_gives_the_file_and_its_threads_back(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t (n INTEGER)")
        await engine.close()
        assert not await session.is_alive()
    own = set(threading.enumerate()) - others
    assert not [thread for thread in own if thread.name.startswith("duckdb-")]
    holder = "import duckdb, sys; duckdb.connect(sys.argv[1]).execute('FROM t')"
    assert await exit_code(holder, tmp_path / "own.duckdb") == 0


async def test_what_is_no_database_is_told_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "junk.duckdb").write_text("no database" * 1000)
    engine = DuckdbEngine(path="junk.duckdb", root=tmp_path)
    with pytest.raises(EngineUnavailable, match=r"^The file is not a DuckDB database\.$"):
        await engine.ping()
    await engine.close()


async def test_a_database_that_an_internal_error_has_ended_is_opened_anew(
    engine: DuckdbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryserver.engines.duckdb.guard._SWITCHED_OFF", frozenset[str]())
    deep = "(repeat('[', 300) || repeat(']', 300))::JSON"
    async with engine.session(USER, NO_OPTIONS) as other:
        await run(other, "CREATE TABLE kept AS SELECT 1 AS n")
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (
                "INTERNAL Error"
                in (await failure(session, f"CREATE TABLE t AS SELECT json_structure({deep}) AS x")).message
            )
        assert "FATAL Error" in (await failure(other, "SELECT 1")).message
        with pytest.raises(SessionLost):
            await other.submit("SELECT 1")
    await engine.ping()
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT n FROM kept")).cell == 1


async def test_a_session_that_waits_for_a_database_opened_anew_gets_it(
    engine: DuckdbEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queryserver.engines.duckdb.guard._SWITCHED_OFF", frozenset[str]())

    async def later() -> int:
        async with engine.session(USER, NO_OPTIONS) as session:
            return (await run(session, "SELECT 1")).cell

    async with engine.session(USER, NO_OPTIONS) as session:
        await failure(session, "SELECT json_structure((repeat('[', 300) || repeat(']', 300))::JSON)")
        waiting = [asyncio.create_task(later()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
    assert await asyncio.gather(*waiting) == [1, 1, 1]
