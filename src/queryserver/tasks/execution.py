"""Runs tasks in this process: claims, progress, cancellation, and release on shutdown.

Each task does the same as the command with its name (Contract platform 10.6, 12.1, 12.2).
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, assert_never, cast
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable, InvalidParameter, NotSupported, QueryServerError, unknown_user
from queryserver.files.upload_repository import OrphanSweep
from queryserver.identity.users import UserDirectory
from queryserver.imports.uploads import UploadAreaSweep
from queryserver.platform.metrics import Metrics
from queryserver.platform.ownership import Ownership
from queryserver.platform.threads import Progress, Tasks, background
from queryserver.search.refresh import IndexRefresh
from queryserver.statements.retention import CloseReport, RetentionSweep
from queryserver.tasks.model import (
    ClaimedTask,
    CloseQueries,
    CloseSessions,
    DocumentCleanup,
    MetadataRefresh,
    ResultCleanup,
    TaskEnd,
    TaskState,
    UploadCleanup,
    validate_task,
)
from queryserver.tasks.repository import TASKS, TaskRecords

log = structlog.get_logger(__name__)

CANCEL = "task-cancel"
"""Notice that a cancel request was recorded. The subject is the task id."""

Job: TypeAlias = Callable[[ClaimedTask, Progress], Awaitable[TaskEnd]]
"""Performs the work of a task. The work may be interrupted at any moment and started again."""

_REPORT_EVERY_S = 1.0
_RECORDED_WITHIN_S = 5.0

_CANCELED = TaskEnd(TaskState.CANCELED, "Canceled.")
_INTERNAL_ERROR = TaskEnd(TaskState.FAILED, "Internal error.")


@dataclass(frozen=True, slots=True, eq=False)
class TaskJobs:
    """Performs the work of each kind of task. The work may be interrupted at any moment and started again."""

    retention: RetentionSweep
    orphans: OrphanSweep
    area: UploadAreaSweep
    refresh: IndexRefresh | None
    """None if there is no metadata search index."""
    connectors: Connectors
    users: UserDirectory
    matching_keys: Callable[[str], Awaitable[list[str] | None]]
    """Returns the keys of the connectors that a dialect or connector name matches. None means all connectors."""

    async def run(self, task: ClaimedTask, progress: Progress) -> TaskEnd:
        """Run a task. Raises QueryServerError if the work failed or is incomplete."""
        _, params = validate_task(task.name, task.params)
        known = cast(
            "DocumentCleanup | ResultCleanup | UploadCleanup | CloseQueries | CloseSessions | MetadataRefresh", params
        )
        match known:
            case DocumentCleanup():
                return await self._clean_documents(known, progress)
            case ResultCleanup():
                return await self._clean_results(progress)
            case UploadCleanup():
                return await self._clean_uploads(known, progress)
            case CloseQueries():
                age = timedelta(days=known.age_in_days)
                return _close_end("queries", await self.retention.close_queries(age, progress=progress))
            case CloseSessions():
                return await self._close_sessions(known, progress)
            case MetadataRefresh():
                return await self._refresh_metadata(known, task.owner_id, progress)
            case _:
                assert_never(known)

    async def _clean_documents(self, params: DocumentCleanup, progress: Progress) -> TaskEnd:
        counts = await self.retention.clean_up(history=timedelta(days=params.keep_days), progress=progress)
        deleted = counts["history entries"]
        return _finished_end(f"{deleted} documents deleted.", {"documents": deleted})

    async def _clean_results(self, progress: Progress) -> TaskEnd:
        counts = await self.retention.clean_results(progress)
        return _finished_end(f"{counts['results']} results deleted.", counts)

    async def _clean_uploads(self, params: UploadCleanup, progress: Progress) -> TaskEnd:
        age = timedelta(minutes=params.older_than_minutes)
        counts = dict(await self.orphans.clean_up(older_than=age))
        progress(0.5, f"{sum(counts.values())} uploads deleted.")
        counts |= await self.area.clean_up(older_than=age)
        deleted = sum(counts.values())
        return _finished_end(f"{deleted} uploads deleted.", {"uploads": deleted})

    async def _close_sessions(self, params: CloseSessions, progress: Progress) -> TaskEnd:
        connectors = await self.matching_keys(params.dialect)
        if connectors == []:
            raise InvalidParameter(f"Unknown dialect: {params.dialect}")
        age = timedelta(days=params.age_in_days)
        return _close_end("sessions", await self.retention.close_sessions(connectors, age, progress=progress))

    async def _refresh_metadata(self, params: MetadataRefresh, owner_id: int | None, progress: Progress) -> TaskEnd:
        """Refresh the index with the current permissions of the user who submitted the task."""
        if self.refresh is None:
            raise NotSupported("The metadata search index is disabled.")
        owner = None if owner_id is None else await self.users.user(owner_id)
        if owner is None:
            raise unknown_user("of the task")
        connector = self.connectors.resolve(owner, params.connector)
        tables = await self.refresh.refresh_now(owner, connector, progress)
        return _finished_end(f"{tables} tables read.", {"tables": tables})


def _finished_end(message: str, result: Mapping[str, Any]) -> TaskEnd:
    return TaskEnd(TaskState.FINISHED, message, result)


def _close_end(kind: str, report: CloseReport) -> TaskEnd:
    """Return the task's end. Its state is `failed` if any statement or session could not be closed."""
    message = f"{report.closed} {kind} closed. {report.already_closed} {kind} already closed."
    result = {kind: report.closed, "already_closed": report.already_closed}
    if report.in_use:
        message += f" {report.in_use} {kind} in use."
        result["in_use"] = report.in_use
    if report.failed:
        message += f" {len(report.failed)} {kind} could not be closed."
        result["failed"] = len(report.failed)
    return TaskEnd(TaskState.FAILED if report.failed else TaskState.FINISHED, message, result)


class _TaskRun:
    """A task that is running in this process."""

    def __init__(self, claimed: ClaimedTask, work: "asyncio.Task[TaskEnd]", report: "_ProgressReport") -> None:
        self.claimed = claimed
        self.work = work
        self.report = report
        self.is_canceled = False
        self.is_lost = False

    def cancel(self) -> None:
        """Stop the work because a user has requested it."""
        self.is_canceled = True
        self.work.cancel()

    def abandon(self) -> None:
        """Stop the work because another process has taken over the task, or the task has already ended."""
        self.is_lost = True
        self.work.cancel()


class _ProgressReport:
    """The progress of a task's work. It is stored with the next report."""

    def __init__(self) -> None:
        self.progress = 0
        self.message = ""
        self.changed = asyncio.Event()
        # The first report is sent immediately, because a cancel notice may have arrived before this process ran the
        # task.
        self.changed.set()

    def __call__(self, share: float, text: str) -> None:
        self.progress = min(max(round(100 * share), self.progress), 100)
        self.message = text
        self.changed.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """The maximum intervals between reports of a task and between checks for waiting tasks, and the time for tasks to
    finish on shutdown.
    """

    heartbeat: timedelta
    shutdown_grace: timedelta = timedelta(0)
    sweep_every: timedelta = timedelta(seconds=5)


class TaskRunner:
    """Runs claimed tasks. If a process dies, another one reruns its task, so every task must be repeatable."""

    def __init__(
        self, ownership: Ownership, records: TaskRecords, job: Job, times: TaskTimes, *, metrics: Metrics
    ) -> None:
        self._ownership = ownership
        self._records = records
        self._job = job
        self._heartbeat_s = times.heartbeat.total_seconds()
        self._grace_s = times.shutdown_grace.total_seconds()
        self._sweep_every_s = times.sweep_every.total_seconds()
        self._metrics = metrics
        self._runs: dict[UUID, _TaskRun] = {}
        self._tasks = Tasks()
        self._is_stopping = False
        self._woken = asyncio.Event()
        ownership.watch(TASKS)

    @property
    def active(self) -> int:
        return len(self._runs)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Find waiting tasks and run them one at a time while the context is open. Needs no broker.

        On exit, running tasks may finish within the shutdown grace period. Then they are released.
        """
        self._is_stopping = False
        try:
            async with background(self._sweep(), "task-sweep"):
                try:
                    yield
                finally:
                    await self.drain()
        finally:
            for run in self._runs.values():  # runs that a caller of `run_next` is still waiting for
                run.work.cancel()
            await self._tasks.aclose(grace_s=_RECORDED_WITHIN_S)

    async def drain(self, *, at_once: bool = False) -> None:
        """Stop claiming tasks, and let running tasks finish within the shutdown grace period.

        If `at_once` is set, there is no grace period. Repeated calls do nothing.
        """
        if not self._is_stopping:
            self._is_stopping = True
            if self._runs and not at_once:
                await asyncio.wait([run.work for run in self._runs.values()], timeout=self._grace_s)

    async def run_next(self) -> bool:
        """Claim a task and run it to completion. Return False if no task is waiting. Raises DatabaseUnavailable.

        If the caller is canceled, the task is released.
        """
        if self._is_stopping:
            return False
        owner = self._ownership
        await owner.require_current()
        claimed = await self._records.claim(owner=owner.id, may_take_over=owner.may_take_over)
        if claimed is None:
            return False
        log.info("task claimed", task=claimed.name, task_id=str(claimed.id), fence=claimed.fence)
        with owner.holding(TASKS, claimed.id, claimed.fence):
            if claimed.cancel_requested:  # the previous process died before it noticed the request
                await self._record_end(claimed, _CANCELED)
            else:
                await self._run(claimed)
        return True

    def notified(self, kind: str, subject: str) -> bool:
        """Handle a notice from any instance. Return False if it does not concern a task."""
        if kind != CANCEL:
            return False
        with suppress(ValueError):
            if (run := self._runs.get(UUID(subject))) is not None:
                run.cancel()
        return True

    def wake(self) -> None:
        """Make the sweep check for waiting tasks immediately."""
        self._woken.set()

    async def _sweep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_every_s * random.uniform(0.8, 1.0)):  # noqa: S311 no secret
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._run_waiting()
            except DatabaseUnavailable:
                log.warning("waiting tasks not read")
            except Exception:  # last resort of a task: the next round may succeed
                log.exception("waiting tasks not read")

    async def _run_waiting(self) -> None:
        while await self.run_next():
            pass

    async def _run(self, claimed: ClaimedTask) -> None:
        report = _ProgressReport()
        work = self._tasks.start(self._work(claimed, report), f"task-{claimed.name}")
        run = self._runs[claimed.id] = _TaskRun(claimed, work, report)
        recorded = self._tasks.start(self._supervise(run), "task-followed")
        try:
            await asyncio.shield(recorded)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.shield(recorded)
            raise

    async def _supervise(self, run: _TaskRun) -> None:
        """Report progress until the work has ended, then record its end."""
        claimed, work = run.claimed, run.work
        try:
            async with background(self._report(run), "task-reports"):
                await asyncio.wait({work})
            if run.is_lost:
                log.warning("task lost to another process", task=claimed.name, task_id=str(claimed.id))
            elif not work.cancelled():
                await self._record_end(claimed, work.result())
            elif run.is_canceled:
                await self._record_end(claimed, _CANCELED)
            else:  # this process is stopping
                await self._release(claimed)
        finally:
            del self._runs[claimed.id]

    async def _work(self, claimed: ClaimedTask, report: _ProgressReport) -> TaskEnd:
        try:
            return await self._job(claimed, report)
        except QueryServerError as error:
            log.warning("task failed", task=claimed.name, task_id=str(claimed.id), code=error.code)
            return TaskEnd(TaskState.FAILED, error.message)
        except Exception:  # last resort of a task: its end must be recorded
            log.exception("task failed", task=claimed.name, task_id=str(claimed.id))
            return _INTERNAL_ERROR

    async def _report(self, run: _TaskRun) -> None:
        """Store progress soon after each change, and check at each heartbeat whether the work may continue.

        Stops the work if a cancel is requested or another process has claimed the task.
        """
        report = run.report
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await report.changed.wait()
            report.changed.clear()
            try:
                cancel_requested = await self._records.report(
                    run.claimed, progress=report.progress, message=report.message
                )
            except DatabaseUnavailable:
                log.warning("progress of a task not recorded", task_id=str(run.claimed.id))
            else:
                if cancel_requested is None:
                    run.abandon()
                    return
                if cancel_requested:
                    run.cancel()
                    return
            await asyncio.sleep(min(_REPORT_EVERY_S, self._heartbeat_s))

    async def _record_end(self, claimed: ClaimedTask, end: TaskEnd) -> None:
        try:
            if await self._records.finish(claimed, end):
                self._metrics.tasks_ended.labels(claimed.name.value, end.state.value).inc()
                log.info("task ended", task=claimed.name, task_id=str(claimed.id), state=end.state)
        except DatabaseUnavailable:  # the claim expires, and the task runs again
            log.warning("end of a task not recorded", task=claimed.name, task_id=str(claimed.id))

    async def _release(self, claimed: ClaimedTask) -> None:
        try:
            await self._records.release(claimed)
        except DatabaseUnavailable:  # the claim expires
            log.warning("task not released", task_id=str(claimed.id))
