"""What an engine process receives of a statement's context, and what it may then do."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pyarrow as pa
import pytest
import structlog
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, operation, read, run
from tests.fakes.directory_files import DirectoryFiles
from tests.fixtures.processes import EngineProcessList
from tests.refusals import raises_code
from tests.timing import until

from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.external_data import ResultPiece
from queryserver.engines.process.calls import FileMethod
from queryserver.engines.process.requests import SessionRequests
from queryserver.engines.protocol import Engine, EngineSession, OperationState, SessionOptions, StatementContext
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.errors.statements import ResultRefused, StatementRejected
from queryserver.formats.arrow import Column, ResultType
from queryserver.results.segments import encode

OPERATION = "0198c5e1-7d3a-7aaa-8bbb-0123456789ab"
CONTEXT = StatementContext(user="ana", operation_id=OPERATION, connector="docs")
READ_ONLY = StatementContext(user="ana", operation_id=OPERATION, connector="docs", read_only=True)
SLOW = {
    "duckdb": "SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b",
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT 10000000000) SELECT max(n) FROM c",
}


@pytest.fixture(params=["duckdb", "sqlite"])
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, engine_processes: EngineProcessList
) -> AsyncGenerator[Engine]:
    kind: type[DuckdbEngine | SqliteEngine] = DuckdbEngine if request.param == "duckdb" else SqliteEngine
    engine = kind(path="own.db", root=tmp_path)
    yield engine
    await engine.close()


def thread_names(process: psutil.Process) -> set[str]:
    tasks = Path(f"/proc/{process.pid}/task")
    return {(task / "comm").read_text().strip() for task in tasks.iterdir()}


async def test_thread_of_a_running_statement_has_the_name_of_its_operation(
    engine: Engine, engine_processes: EngineProcessList
) -> None:
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "SELECT 1")
        (process,) = engine_processes()
        assert OPERATION[:15] not in thread_names(process)
        handle = await session.submit(SLOW[engine.dialect], CONTEXT)
        await until(lambda: OPERATION[:15] in thread_names(process))
        await session.cancel(handle)
        await session.close(handle)
        await until(lambda: OPERATION[:15] not in thread_names(process))


async def test_log_of_a_lost_process_names_the_statements_that_it_ran(
    engine: Engine, engine_processes: EngineProcessList
) -> None:
    with structlog.testing.capture_logs() as entries:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(SLOW[engine.dialect], CONTEXT)
            while (await session.poll(handle)).state is not OperationState.RUNNING:  # noqa: ASYNC110 no event is sent
                await asyncio.sleep(0.01)
            (process,) = engine_processes()
            os.kill(process.pid, signal.SIGKILL)
            await ended(session, handle)
    (entry,) = (entry for entry in entries if entry["event"] == "engine process exited")
    assert entry["pid"] == process.pid
    assert entry["statements"] == [{"operation_id": OPERATION, "user": "ana", "connector": "docs"}]


async def test_server_refuses_file_writes_of_a_read_only_statement(tmp_path: Path) -> None:
    """Whatever the process requests, which the server does not trust."""
    old = tmp_path / "old.csv"
    old.write_text("a\n")
    requests = SessionRequests(files=DirectoryFiles(tmp_path, scheme="s3a"))

    async def call(method: FileMethod, **arguments: Any) -> Mapping[str, Any]:
        return (await requests.answer(method, arguments, b"x")).message

    requests.begin(read_only=True)
    for method, arguments in (
        (FileMethod.BEGIN, {"path": "s3a://new.csv", "overwrite": True}),
        (FileMethod.MAKE_DIRECTORY, {"path": "s3a://new"}),
        (FileMethod.REMOVE, {"path": "s3a://old.csv"}),
        (FileMethod.SEND, {"write": 1}),
        (FileMethod.COMMIT, {"write": 1}),
    ):
        with raises_code("permission_denied"):
            await call(method, **arguments)
    assert (await call(FileMethod.STATUS, path="s3a://old.csv"))["files"]
    requests.begin(read_only=False)
    write = (await call(FileMethod.BEGIN, path="s3a://new.csv", overwrite=True))["write"]
    requests.begin(read_only=True)
    with raises_code("permission_denied"):
        await call(FileMethod.COMMIT, write=write)
    await requests.close()
    assert os.listdir(tmp_path) == ["old.csv"]  # noqa: PTH208 the names suffice


async def test_canceled_estimate_leaves_the_session_usable(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.db", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t AS FROM range(1000)")
        for pause_s in (0.0, 0.0005, 0.002, 0.01):
            estimate = asyncio.create_task(session.estimate("FROM t"))  # type: ignore[attr-defined]
            await asyncio.sleep(pause_s)
            estimate.cancel()
            await asyncio.wait({estimate})
            assert (await run(session, "SELECT count(*) FROM t")).cell == 1000
        assert await session.estimate("SELECT count(*) FROM t") == CostEstimate(scanned_bytes=0)  # type: ignore[attr-defined]
        assert engine.busy == 0
    await engine.close()


async def test_sqlite_has_no_estimates(tmp_path: Path) -> None:
    engine = SqliteEngine(path="own.db", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert not engine.capabilities.estimates_bytes
        assert await session.estimate("SELECT 1") is None  # type: ignore[attr-defined]
    await engine.close()


class MemoryResult:
    """An `OpenResult` of one piece in memory."""

    warning = ""

    def __init__(self, table: pa.Table) -> None:
        self.columns = tuple(Column(name, ResultType.BIGINT, "BIGINT") for name in table.column_names)
        self.content = encode(table)
        self.pieces = (ResultPiece(table.num_rows, len(self.content)),)

    async def descriptor(self, number: int) -> int | None:
        return None

    async def read(self, number: int, start: int, stop: int) -> bytes:
        return self.content[start:stop]


class MemoryResults:
    """`StatementResults` in memory, by operation id."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.results = {operation_id: MemoryResult(table) for operation_id, table in tables.items()}

    @asynccontextmanager
    async def open(self, operation_id: str) -> AsyncGenerator[MemoryResult]:
        if (result := self.results.get(operation_id)) is None:
            raise ResultRefused("Operation does not exist.")
        yield result


async def rows_of(session: EngineSession, sql: str) -> list[tuple[Any, ...]]:
    async with operation_of(session, sql) as handle:
        status = await ended(session, handle)
        if status.error is not None:
            raise status.error
        return await read(session, handle)


@asynccontextmanager
async def operation_of(session: EngineSession, sql: str) -> AsyncGenerator[Any]:
    handle = await session.submit(sql, READ_ONLY)
    try:
        yield handle
    finally:
        await session.close(handle)


async def test_read_only_statement_reads_stored_results() -> None:
    source, missing = str(uuid4()), str(uuid4())
    results = MemoryResults({source: pa.table({"n": range(1000)})})
    engine = DuckdbEngine()
    async with engine.session(USER, SessionOptions(results=results)) as session:
        query = f"SELECT sum(n) FROM 'result://{source}'"
        for _ in range(3):
            assert await rows_of(session, query) == [(499_500,)]
            with pytest.raises(StatementRejected):
                await rows_of(session, f"SELECT error('x') FROM 'result://{source}'")
            with pytest.raises(ResultRefused):
                await rows_of(session, f"FROM 'result://{missing}'")
        size = len(results.results[source].content)
        assert await session.estimate(query) == CostEstimate(scanned_bytes=size)  # type: ignore[attr-defined]
        await run(session, f"CREATE TABLE copied AS FROM 'result://{source}'")
        async with operation(session, query) as handle:
            assert (await ended(session, handle)).error is None
    await engine.close()
