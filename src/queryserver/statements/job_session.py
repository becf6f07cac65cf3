"""Runs work other than SQL as a statement: imports, and exports of results.

The statement runner uses the session of such a job in place of an engine session.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
import structlog

from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.protocol import (
    NO_CONTEXT,
    EngineSession,
    OperationHandle,
    OperationState,
    OperationStatus,
    StatementContext,
)
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage
from queryserver.errors.statements import EngineError, disk_below_floor, rejected_by_rule
from queryserver.formats.arrow import Column
from queryserver.sql.markers import BoundStatement

log = structlog.get_logger(__name__)

_STOP_WAIT_S = 5.0
_CLEAN_UP_WAIT_S = 60.0
"""How long a canceled job may take to clean up before its task is canceled again."""


@dataclass(slots=True)
class JobReport:
    """What a job reports to its session while it works."""

    progress: int = 0
    """0 to 99 percent."""
    lines: list[str] = field(default_factory=list[str])
    """Log lines."""
    scanned_bytes: int | None = None
    """The bytes that the job's statement has read, as the engine reports them."""
    row_bytes: int = 0
    """The size of the rows that the job has received from an engine."""
    summary: pa.RecordBatch | None = None
    """The row that becomes the statement's result. The job has succeeded once it is set, even if it is canceled."""


Job: TypeAlias = Callable[[str | BoundStatement, StatementContext, JobReport], Awaitable[None]]
"""Works until it has set `JobReport.summary`. The statement is the submitted one, for jobs that run it. Raises
QueryServerError.
"""


class JobSession:
    """Implements `engines.protocol.EngineSession` for one job.

    Create instances with `opened`, which cancels an unfinished job on exit.
    """

    def __init__(self, columns: tuple[Column, ...], work: Job, source: EngineSession | None) -> None:
        self._columns = columns
        self._work = work
        self._source = source
        self._report = JobReport()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_estimated = False

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, columns: tuple[Column, ...], work: Job, source: EngineSession | None = None
    ) -> "AsyncGenerator[JobSession]":
        """Open the session of a job. `source` is the session in which the job runs the statement, if it runs one."""
        session = cls(columns, work, source)
        try:
            yield session
        finally:
            await session.end()

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        self._task = asyncio.create_task(self._run(statement, context), name="job")
        return OperationHandle("job")

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return the estimate of the session in which the job runs the statement, or None if there is none."""
        estimate = await self._source.estimate(statement) if isinstance(self._source, EstimatingSession) else None
        self._is_estimated = estimate is not None
        return estimate

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        del handle
        task = self._task
        if task is None:
            return OperationStatus(OperationState.PENDING, has_result_set=True)
        if not task.done():
            await asyncio.wait({task}, timeout=wait_s)
        report = self._report
        # The rows go to the destination, so their size is not that of the stored result. An estimate is preferred.
        read_bytes = None if self._is_estimated else report.row_bytes or None
        return replace(
            self._status(task), scanned_bytes=read_bytes if report.scanned_bytes is None else report.scanned_bytes
        )

    def _status(self, task: "asyncio.Task[None]") -> OperationStatus:
        if not task.done():
            return OperationStatus(OperationState.RUNNING, has_result_set=True, progress=self._report.progress)
        if self._report.summary is not None:
            return OperationStatus(OperationState.FINISHED, has_result_set=True, progress=100)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FAILED, error=_engine_error(error))

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        del handle
        return self._columns

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        del handle
        if self._report.summary is not None:
            yield self._report.summary

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        del handle
        return self._report.lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        """Cancel the job, and wait up to 5 s for its clean-up."""
        del handle
        if (task := self._cancel_work()) is not None:
            await asyncio.wait({task}, timeout=_STOP_WAIT_S)

    async def close(self, handle: OperationHandle) -> None:
        """Do nothing, because all resources are freed when the session ends."""
        del handle

    async def is_alive(self) -> bool:
        """Return True until the job is submitted. A session runs a single job, so it cannot be reused."""
        return self._task is None

    async def end(self) -> None:
        """Cancel the job and wait until it has cleaned up, even if the caller is canceled."""
        task = self._cancel_work()
        if task is None:
            return
        clock = asyncio.get_running_loop().time
        end, was_canceled = clock() + _CLEAN_UP_WAIT_S, False
        while not task.done():
            left_s = end - clock()
            if left_s <= 0:
                task.cancel()
            try:
                await asyncio.wait({task}, timeout=max(left_s, 1.0))
            except asyncio.CancelledError:
                # What the job has begun, such as a staging table, must be removed before the job is reported as ended.
                was_canceled = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("job ended", code=getattr(error, "code", ""))
        if was_canceled:
            raise asyncio.CancelledError

    def _cancel_work(self) -> "asyncio.Task[None] | None":
        """Cancel the job at most once, because a second cancellation would interrupt its clean-up."""
        if self._task is not None and not self._is_stopped:
            self._is_stopped = True
            self._task.cancel()
        return self._task

    async def _run(self, statement: str | BoundStatement, context: StatementContext) -> None:
        try:
            await self._work(statement, context, self._report)
        except QueryServerError:
            raise
        except Exception as error:  # last resort of a task
            log.exception("job failed with an internal error")
            message = "Internal error."
            raise EngineError(message) from error


def _engine_error(error: BaseException) -> EngineError:
    """Convert an error to the EngineError that becomes the outcome of the statement."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, InsufficientStorage):
        return disk_below_floor(error.message)
    return rejected_by_rule(error.message if isinstance(error, QueryServerError) else "Internal error.")
