"""An import as a runner follows it: like a statement at an engine (Contract importer 13)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import structlog

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import InsufficientStorage
from queryserver.domain.errors.statements import EngineError, disk_below_floor, rejected_by_rule
from queryserver.domain.result import Column, ResultType
from queryserver.interfaces.engine import OperationHandle, OperationState, OperationStatus

log = structlog.get_logger(__name__)

_STOP_WAIT_S = 5.0
_CLEAN_UP_WAIT_S = 60.0
"""How long a loader may take to stop and to clean up; after that its work is taken away from it."""

COLUMNS = (
    Column("rows_read", ResultType.BIGINT, "BIGINT"),
    Column("rows_loaded", ResultType.BIGINT, "BIGINT"),
    Column("rows_bad", ResultType.BIGINT, "BIGINT"),
    Column("table", ResultType.STRING, "STRING"),
)


@dataclass(frozen=True, slots=True)
class Imported:
    """The one row of the result."""

    rows_read: int
    rows_loaded: int
    rows_bad: int
    table: str


@dataclass(slots=True)
class ImportReport:
    """What an import tells while it works."""

    progress: int = 0
    lines: list[str] = field(default_factory=list[str])
    done: Imported | None = None
    """Set once the table is there: whatever comes after that does not undo it, not even a cancel."""


class ImportSession:
    """`interfaces.engine.EngineSession` for one import. Use `opened`: what is not finished at the end is stopped."""

    def __init__(self, work: Callable[[ImportReport], Awaitable[Imported]]) -> None:
        self._work = work
        self._report = ImportReport()
        self._task: asyncio.Task[Imported] | None = None
        self._is_stopped = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, work: Callable[[ImportReport], Awaitable[Imported]]) -> "AsyncGenerator[ImportSession]":
        """A session whose `submit` does the work."""
        session = cls(work)
        try:
            yield session
        finally:
            await session.end()

    async def submit(self, statement: str) -> OperationHandle:
        """Start the work. The statement is for people only."""
        del statement
        self._task = asyncio.create_task(self._run(), name="import")
        return OperationHandle("import")

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """See the Protocol."""
        del handle
        task = self._task
        if task is None:
            return OperationStatus(OperationState.PENDING, has_result_set=True)
        await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            return OperationStatus(OperationState.RUNNING, has_result_set=True, progress=self._report.progress)
        if self._report.done is not None:
            return OperationStatus(OperationState.FINISHED, has_result_set=True, progress=100)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FAILED, error=error if isinstance(error, EngineError) else _own(error))

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """See the Protocol."""
        del handle
        return COLUMNS

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """One row."""
        del handle
        if (done := self._report.done) is None:
            return
        counts = [pa.array([count], pa.int64()) for count in (done.rows_read, done.rows_loaded, done.rows_bad)]
        arrays = [*counts, pa.array([done.table], pa.string())]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS])

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """See the Protocol."""
        del handle
        return self._report.lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the work; waits a moment until everything is cleaned up."""
        del handle
        if (task := self._stopped()) is not None:
            await asyncio.wait({task}, timeout=_STOP_WAIT_S)

    async def close(self, handle: OperationHandle) -> None:
        """Nothing is held for a statement that the end of the session does not free."""
        del handle

    async def is_alive(self) -> bool:
        """Whether nothing was submitted yet: a session is for one import."""
        return self._task is None

    async def end(self) -> None:
        """Returns when the work has ended and is cleaned up, however often the caller is canceled meanwhile."""
        task = self._stopped()
        if task is None:
            return
        end = asyncio.get_running_loop().time() + _CLEAN_UP_WAIT_S
        was_canceled = False
        while not task.done():
            left_s = end - asyncio.get_running_loop().time()
            if left_s <= 0:
                task.cancel()
            try:
                await asyncio.wait({task}, timeout=max(left_s, 1.0))
            except asyncio.CancelledError:
                # What the loader has made must go before anybody is told that the import has ended.
                was_canceled = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("import ended", code=getattr(error, "code", ""))
        if was_canceled:
            raise asyncio.CancelledError

    def _stopped(self) -> "asyncio.Task[Imported] | None":
        """The work, told to stop once: a second word would stop its clean-up."""
        task = self._task
        if task is not None and not self._is_stopped:
            self._is_stopped = True
            task.cancel()
        return task

    async def _run(self) -> Imported:
        try:
            done = self._report.done = await self._work(self._report)
        except QueryServerError:
            raise
        except Exception as error:  # the outer wall of a task
            log.exception("import failed inside the service")
            message = "Internal error."
            raise EngineError(message) from error
        return done


def _own(error: BaseException) -> EngineError:
    """What is wrong with the file, or with this service, as the outcome of a statement that no engine refused."""
    if isinstance(error, InsufficientStorage):
        return disk_below_floor(error.message)
    return rejected_by_rule(error.message if isinstance(error, QueryServerError) else "Internal error.")
