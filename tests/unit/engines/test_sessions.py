"""Operations that stream rows, and statements that the service itself submits."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import current_thread, main_thread
from weakref import ReferenceType, ref

import pyarrow as pa
import pytest
from tests.fakes.engine import FakeEngine, FakeSession
from tests.timing import settle

from queryserver.engines.protocol import OperationHandle, OperationState
from queryserver.engines.record_batches import Rows
from queryserver.engines.sessions import StreamedOperation, submitted
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementRejected
from queryserver.formats.arrow import Column, ResultType


class Chunk(list[tuple[int]]):
    """Rows to which there can be weak references."""


class FakeSource:
    """A source of rows with one integer each, which are available once `answer` is set. The first `lost_signals` stop
    signals have no effect.
    """

    def __init__(self, rows: int = 0, *, lost_signals: int = 0, commit_error: EngineError | None = None) -> None:
        self.columns = (Column("a", ResultType.INT, "integer"),)
        self.modified_rows: int | None = None
        self.log_lines: list[str] = []
        self.is_open = False
        self.answer = asyncio.Event()
        self.signals = 0
        self.kept: bool | None = None
        self.row_bytes = 4
        self.chunks = list[ReferenceType[object]]()
        self.readers = list[str]()
        self._left = rows
        self._lost_signals = lost_signals
        self._commit_error = commit_error

    async def execute(self, raise_if_stopped: Callable[[], None]) -> None:
        self.is_open = True
        await self.answer.wait()
        if self.signals:
            raise StatementRejected("stopped")

    async def fetch(self, count: int) -> Rows:
        if not self.is_open:
            return ()
        taken = min(count, self._left)
        self._left -= taken
        if taken < count:
            self.is_open = False
            if self._commit_error is not None:
                raise self._commit_error
        chunk = Chunk((number,) for number in range(taken))
        self.chunks.append(ref(chunk))
        return chunk

    def size_bytes(self, rows: Rows) -> int:
        return len(rows) * self.row_bytes

    def read(self, rows: Rows) -> pa.RecordBatch:
        self.readers.append(current_thread().name)
        return pa.RecordBatch.from_arrays([pa.array([row[0] for row in rows], pa.int32())], names=["a"])

    async def interrupt(self) -> None:
        self.signals += 1
        if self.signals > self._lost_signals:
            self.answer.set()

    def was_interrupted(self, error: EngineError) -> bool:
        return error.message == "stopped"

    async def end(self, *, keep: bool) -> None:
        self.is_open = False
        self.kept = keep


@pytest.fixture
def executor() -> Generator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
async def open_operation(executor: Executor) -> AsyncGenerator[Callable[..., StreamedOperation]]:
    opened: list[StreamedOperation] = []

    def start(source: FakeSource) -> StreamedOperation:
        opened.append(StreamedOperation(source, executor))
        return opened[-1]

    yield start
    for operation in opened:
        await operation.close()


class WideSource(FakeSource):
    """A source of rows of 32 KiB each. `counts` are the numbers of rows that were requested."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.row_bytes = 32 * 1024
        self.counts = list[int]()

    async def fetch(self, count: int) -> Rows:
        self.counts.append(count)
        return await super().fetch(count)

    def read(self, rows: Rows) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(["x" * self.row_bytes for _ in rows])], names=["a"])


async def test_number_of_rows_is_adapted_before_more_wide_rows_are_requested(open_operation) -> None:
    source = WideSource(2_000)
    source.answer.set()
    operation = open_operation(source)
    await operation.status(60)
    assert sum([batch.num_rows async for batch in operation.batches()]) == 2_000
    first, *others = source.counts
    assert max(others) < first


async def test_lost_stop_signal_is_repeated(open_operation) -> None:
    source = FakeSource(lost_signals=1)
    operation = open_operation(source)
    await asyncio.sleep(0)
    await operation.cancel()
    assert source.signals == 2
    assert (await operation.status(1)).state is OperationState.CANCELED
    assert operation.is_in_doubt


async def test_late_cancel_does_not_change_outcome(open_operation) -> None:
    source = FakeSource(rows=3)
    source.answer.set()
    operation = open_operation(source)
    assert (await operation.status(1)).state is OperationState.FINISHED
    await operation.cancel()
    assert (await operation.status(1)).state is OperationState.FINISHED
    assert source.signals == 0
    assert not operation.is_in_doubt
    assert [batch.num_rows async for batch in operation.batches()] == [3]


async def test_cancel_before_first_step_never_starts_statement(open_operation) -> None:
    source = FakeSource()
    operation = open_operation(source)
    await operation.cancel()
    assert (await operation.status(1)).state is OperationState.CANCELED
    assert not source.is_open


async def test_cancel_between_batches_stops_the_rows(open_operation) -> None:
    source = FakeSource(rows=1_000_000)
    source.answer.set()
    operation = open_operation(source)
    await operation.status(1)
    batches = operation.batches()
    await anext(batches)
    await operation.cancel()
    assert (await operation.status(0)).state is OperationState.CANCELED
    assert source.kept is False
    with pytest.raises(StatementRejected):
        async for _ in batches:
            pass


async def test_converted_rows_are_freed(open_operation) -> None:
    source = FakeSource(rows=300)
    source.answer.set()
    batches = open_operation(source).batches()
    while not source.chunks:
        await settle()
    assert [(await anext(batches)).num_rows for _ in range(2)] == [256, 44]
    await settle()  # the event loop refers to the rows until its current step ends
    assert [chunk() for chunk in source.chunks] == [None, None]
    await batches.aclose()


async def test_unread_rows_are_freed_on_close(open_operation) -> None:
    source = FakeSource(rows=300)
    source.answer.set()
    operation = open_operation(source)
    await operation.status(1)
    batches = operation.batches()
    await anext(batches)
    while len(source.chunks) < 2:
        await settle()
    await operation.close()
    await batches.aclose()
    await settle()
    assert [chunk() for chunk in source.chunks] == [None, None]


@pytest.mark.parametrize(("row_bytes", "is_inline"), [(4, True), (1024 * 1024, False)])
async def test_few_large_values_are_converted_in_a_thread(open_operation, row_bytes: int, is_inline: bool) -> None:
    source = FakeSource(rows=2)
    source.row_bytes = row_bytes
    source.answer.set()
    operation = open_operation(source)
    await operation.status(1)
    assert [batch.num_rows async for batch in operation.batches()] == [2]
    assert [name == main_thread().name for name in source.readers] == [is_inline]


async def test_refused_commit_after_last_row_fails_statement(open_operation) -> None:
    source = FakeSource(rows=1, commit_error=StatementRejected("deferred"))
    source.answer.set()
    operation = open_operation(source)
    status = await operation.status(1)
    assert status.state is OperationState.FAILED
    with pytest.raises(StatementRejected, match="deferred"):
        await anext(operation.batches())


async def test_close_discards_unread_rows_and_keeps_the_change(open_operation) -> None:
    source = FakeSource(rows=1_000_000)
    source.answer.set()
    operation = open_operation(source)
    await operation.status(1)
    await operation.close()
    assert source.kept is True


async def test_poll_reports_unknown_outcome_when_statement_cannot_be_stopped(executor) -> None:
    operation = StreamedOperation(FakeSource(lost_signals=1000), executor, cancel_s=0.05)
    poller = asyncio.create_task(operation.status(10))
    await settle()
    await operation.close()
    assert isinstance((await poller).error, OutcomeUnknown)


class Unreachable(FakeSession):
    """A session on which every cancel fails."""

    async def cancel(self, handle: OperationHandle) -> None:
        raise EngineUnavailable("no answer")


async def test_leaving_context_closes_finished_statement_without_cancel() -> None:
    engine = FakeEngine()
    session = FakeSession(engine)
    handle = await session.submit("rows 3")
    async with submitted(session, handle):
        await session.poll(handle, wait_s=5)
    assert session._operation is not None
    assert (session._operation.is_closed, engine.cancels) == (True, 0)


async def test_canceled_task_still_cancels_its_statement() -> None:
    engine = FakeEngine()
    session = FakeSession(engine)
    handle = await session.submit("sleep 30")
    inside = asyncio.Event()

    async def work() -> None:
        async with submitted(session, handle):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), session.is_running, engine.cancels) == (True, False, 1)


async def test_failed_cancel_does_not_hide_original_error() -> None:
    session = Unreachable(FakeEngine())
    handle = await session.submit("sleep 30")
    with pytest.raises(StatementRejected, match="the reason"):
        async with submitted(session, handle):
            raise StatementRejected("the reason")
    assert not session.is_running
