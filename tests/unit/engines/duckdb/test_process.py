"""DuckDB in a separate process: loss of the process, sandboxing and limits."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run
from tests.fixtures.processes import EngineProcessList

from queryserver.engines.duckdb.engine import DuckdbEngine, duckdb_processes
from queryserver.engines.duckdb.limits import DuckdbLimits, DuckdbResources
from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.process.pool import ProcessLosses
from queryserver.engines.protocol import OperationState
from queryserver.errors.base import TooManyRequests
from queryserver.errors.statements import EngineError, SessionLost

MIB = 1024 * 1024
SLOW = "SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b"


@pytest.fixture
async def engine(tmp_path: Path, engine_processes: EngineProcessList) -> AsyncGenerator[DuckdbEngine]:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    yield engine
    await engine.close()


async def test_killed_process_loses_sessions_but_keeps_committed_rows(engine, engine_processes) -> None:
    async with engine.session(USER, NO_OPTIONS) as idle, engine.session(USER, NO_OPTIONS) as busy:
        await run(idle, "CREATE TABLE kept AS SELECT 1 AS n")
        async with operation(busy, SLOW) as handle:
            while (await busy.poll(handle)).state is not OperationState.RUNNING:  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.01)
            (process,) = engine_processes()
            os.kill(process.pid, signal.SIGKILL)
            status = await ended(busy, handle, within_s=30)
        assert status.error is not None
        assert status.error.code == "engine_process_lost"
        with pytest.raises(SessionLost):
            await idle.submit("SELECT 1")
        assert not await idle.is_alive()
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT n FROM kept")).cell == 1


@pytest.mark.parametrize("sql", [
    "VALUES (len(range(4000000000)))", "SELECT sum(len(range(400000000 + range::INT))) FROM range(10)",
      "SELECT length(repeat('x', 3000000000::BIGINT // (1 + range))) FROM range(1)"])  # fmt: skip
async def test_statement_that_exceeds_process_memory_fails(engine, sql: str, engine_processes) -> None:
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "SELECT 1")
        (process,) = engine_processes()
        error = await failure(session, sql)
        assert isinstance(error, EngineError)
        assert error.code in {"engine_memory_exceeded", "engine_error"}
        if process.is_running():
            assert process.memory_info().rss < 1800 * MIB
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1")).cell == 1


async def test_process_is_killed_when_statement_cannot_be_stopped(engine, monkeypatch, engine_processes) -> None:
    monkeypatch.setattr("queryserver.engines.process.sessions.STOP_S", 1.0)
    async with engine.session(USER, NO_OPTIONS) as session, operation(session, SLOW) as handle:
        await run_until_running(session, handle)
        (process,) = engine_processes()
        os.kill(process.pid, signal.SIGSTOP)
        await session.cancel(handle)
        assert (await ended(session, handle)).state is OperationState.CANCELED
        assert not process.is_running()


async def run_until_running(session, handle) -> None:
    while (await session.poll(handle)).state is not OperationState.RUNNING:  # noqa: ASYNC110 the engine sends no event
        await asyncio.sleep(0.01)


async def test_process_inherits_no_environment_or_files_from_server(engine, monkeypatch, engine_processes) -> None:
    monkeypatch.setenv("QUERYSERVER_SECRET_OF_A_TEST", "1")
    await engine.ping()
    (process,) = engine_processes()
    environment = process.environ()
    assert "QUERYSERVER_SECRET_OF_A_TEST" not in environment
    assert "PATH" not in environment
    assert {Path(file.path).name for file in process.open_files()} <= {"own.duckdb", "own.duckdb.wal"}
    assert 0 < process.rlimit(psutil.RLIMIT_AS)[0] < 4 * 1024**3
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert process.nice() >= 10


async def test_each_user_of_in_memory_databases_has_separate_process(engine_processes) -> None:
    engine = DuckdbEngine()
    other = USER.__class__(**{**{name: getattr(USER, name) for name in USER.__dataclass_fields__}, "id": USER.id + 1})
    async with (
        engine.session(USER, NO_OPTIONS) as one,
        engine.session(USER, NO_OPTIONS) as two,
        engine.session(other, NO_OPTIONS) as three,
    ):
        for session in (one, two, three):
            assert (await run(session, "SELECT 1")).cell == 1
        assert len(engine._connections._processes._users) == 2
    await engine.close()
    assert not engine_processes()


async def test_engines_with_different_settings_share_a_file_in_turn(tmp_path: Path, engine_processes) -> None:
    shared = duckdb_processes()
    one, two = (
        DuckdbEngine(path="own.duckdb", root=tmp_path, resources=DuckdbResources(threads=threads), processes=shared)
        for threads in (1, 2)
    )
    for engine in (one, two, one):
        async with engine.session(USER, NO_OPTIONS) as session:
            threads = (await run(session, "SELECT current_setting('threads')")).cell
            assert threads == (1 if engine is one else 2)
    await one.close()
    await two.close()
    assert not engine_processes()


def test_user_who_repeatedly_crashes_processes_waits_longer_each_time() -> None:
    now = [0.0]
    losses, waits = ProcessLosses(lambda: now[0]), list[float]()
    for _ in range(6):
        losses.note(1, 1.0)
        try:
            losses.require_admitted(1)
            waits.append(0)
        except TooManyRequests as error:
            waits.append(error.retry_after.total_seconds())
            now[0] += waits[-1]
    losses.require_admitted(1)
    losses.require_admitted(2)
    assert waits[:2] == [0, 0]
    assert waits[2] > 0
    assert waits[2:] == sorted(waits[2:])


async def test_in_memory_database_spills_into_its_own_process_directory(tmp_path: Path) -> None:
    left = tmp_path / ".duckdb-temporary" / "left"
    left.mkdir(parents=True)
    (left / "x").write_bytes(b"x")
    engine = DuckdbEngine(root=tmp_path, resources=DuckdbResources(memory_limit="64MB"))
    async with engine.session(USER, NO_OPTIONS) as session:
        (own,) = left.parent.iterdir()
        assert own != left
        sort = "SELECT max(t) FROM (SELECT md5(range::VARCHAR) || range AS t FROM range(4000000) ORDER BY t OFFSET 1)"
        async with operation(session, sort) as handle:
            files = list[Path]()
            while not files and not (await session.poll(handle, wait_s=0.01)).state.is_terminal:
                files = [file for file in own.rglob("*") if file.is_file()]
            assert files
    await engine.close()
    assert not list(own.rglob("*"))


async def test_in_memory_database_temporary_files_have_a_quota(tmp_path: Path) -> None:
    resources, limits = DuckdbResources(memory_limit="64MB"), DuckdbLimits(temporary_max_bytes=64 * MIB)
    engine = DuckdbEngine(root=tmp_path, resources=resources, limits=limits)
    async with engine.session(USER, NO_OPTIONS) as session:
        sort = "SELECT max(t) FROM (SELECT md5(range::VARCHAR) || range AS t FROM range(9000000) ORDER BY t OFFSET 1)"
        assert "temporary files" in (await failure(session, sort)).message
    await engine.close()


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
async def test_process_has_one_thread_when_it_is_confined(engine: str) -> None:
    """Landlock does not restrict threads that are already running (`ConfinementResult.threads_outside`), so the process
    must be confined before it starts threads.
    """
    process = await EngineProcess.started(f"from queryserver.engines.{engine}.database import main; main()")
    try:
        assert psutil.Process(process.pid).num_threads() == 1
    finally:
        await process.close()


async def test_syntax_error_does_not_discard_in_memory_tables_of_sessions() -> None:
    """The tables fill most of the memory of the process. A failed statement must not end the process, because the
    tables would be lost.
    """
    engine = DuckdbEngine(resources=DuckdbResources(memory_limit="1GB"), max_statements=8)
    keep = "CREATE TABLE kept AS SELECT range AS n, range * 2 AS m, random() AS r FROM range(32000000)"
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(engine.session(USER, NO_OPTIONS)) for _ in range(3)]
        for session in sessions:
            await run(session, keep)
        await failure(sessions[0], "SELEC 1")
        for session in sessions:
            assert (await run(session, "SELECT count(*) FROM kept")).cell == 32_000_000
    await engine.close()
