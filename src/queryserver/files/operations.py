"""Long operations, which continue after the client has disconnected or stopped waiting (Contract storage 7.6)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

import structlog

from queryserver.errors.base import DatabaseUnavailable, MissingParameter, QueryServerError
from queryserver.errors.files import too_many_entries
from queryserver.errors.statements import OperationNotFound
from queryserver.files.access import Caller
from queryserver.files.model import LongOperationState, LongOperationStatus
from queryserver.files.repository import OPERATIONS, OperationRecords
from queryserver.platform.ownership import Ownership
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MAX_SHOWN_CHARACTERS = 40  # client-supplied ids are truncated to this length in error messages

Body = Mapping[str, Any] | str
"""The final response body of a call: a JSON object or a string."""

_CRASHED_BODY: Mapping[str, Any] = {
    "status": -1,
    "code": "internal_error",
    "message": "The server that ran this operation stopped; the operation may be partially complete.",
}
_INTERNAL_ERROR_BODY: Mapping[str, Any] = {"status": -1, "code": "internal_error", "message": "Internal error."}


@dataclass(slots=True)
class Progress:
    """The progress of an operation, counted in items and updated by the running work."""

    operation_id: UUID | None = None
    done: int = 0
    total: int | None = None

    def expect(self, items: int) -> None:
        self.total = (self.total or 0) + items

    def advance(self, items: int = 1) -> None:
        self.done += items


@dataclass(frozen=True, slots=True)
class ContinuedOperation:
    """An operation that continues after the 202 response. Clients poll its outcome with `operation_id`."""

    operation_id: UUID
    path: str


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """The work that one call performs. `kind` is, for example, `storage.move`; `path` appears in the 202 response."""

    kind: str
    path: str
    run: Callable[[Progress], Awaitable[T]]
    body: Callable[[T], Body]
    """Creates the final response body from the result. A `status` other than 0 marks the operation as failed."""


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Update intervals of operation records, and how long shutdown waits for running work."""

    report_every: timedelta = timedelta(seconds=1)
    sweep_every: timedelta = timedelta(seconds=10)
    shutdown_grace: timedelta = timedelta(seconds=30)


class LongOperations:
    """Runs each operation in its own task. When `running()` exits, unfinished operations have a grace period before
    they are canceled.
    """

    def __init__(self, records: OperationRecords, ownership: Ownership, times: OperationTimes | None = None) -> None:
        self._records = records
        self._ownership = ownership
        self._times = times or OperationTimes()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: dict[UUID, Progress] = {}
        ownership.watch(OPERATIONS, lambda: [str(operation_id) for operation_id in self._running])

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run operations until the context exits, and periodically close operations that crashed processes left
        open.
        """
        try:
            async with background(
                every(self._times.sweep_every.total_seconds(), self.sweep), "storage-operations-sweep"
            ):
                yield
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._times.shutdown_grace.total_seconds())
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(self, caller: Caller, work: Work[T], *, wait_s: int | None = None) -> T | ContinuedOperation:
        """Return the result of the work, or a ContinuedOperation if the work takes longer than `wait_s` (None: no
        limit).

        Canceling this call does not cancel the work. Raises the errors of the work.
        """
        operation_id = uuid4()
        progress = Progress(operation_id)

        async def perform() -> T:
            return await work.run(progress)

        task = self._spawn(perform(), name=work.kind)
        if (await asyncio.wait({task}, timeout=wait_s))[0]:
            return task.result()
        await self._ownership.require_current()
        await self._records.begin(
            operation_id, user_id=caller.user.id, kind=work.kind, path=work.path, owner=self._ownership.id
        )
        self._running[operation_id] = progress
        self._spawn(self._supervise(operation_id, work, progress, task), name=f"{work.kind}-follower")
        return ContinuedOperation(operation_id, work.path)

    async def status(self, caller: Caller, operation_id: str) -> LongOperationStatus:
        """Return the status of one of the caller's operations. Raises OperationNotFound."""
        try:
            requested_id = UUID(operation_id)
        except ValueError:
            raise OperationNotFound(operation_id[:_MAX_SHOWN_CHARACTERS]) from None
        status = await self._records.read(requested_id, user_id=caller.user.id)
        if status is None:
            raise OperationNotFound(operation_id)
        if status.state is LongOperationState.RUNNING and (progress := self._running.get(requested_id)):
            return LongOperationStatus(requested_id, status.state, progress.done, progress.total, None)
        return status

    async def sweep(self) -> int:
        """Mark the open operations of crashed processes as failed. Return their number."""
        if not self._ownership.may_take_over:
            return 0
        return await self._records.give_up(_CRASHED_BODY, owner=self._ownership.id)

    async def _supervise(self, operation_id: UUID, work: Work[T], progress: Progress, task: "asyncio.Task[T]") -> None:
        """Report progress until the work ends, then record its outcome. If the work is canceled, the sweep closes the
        record.
        """
        reported: tuple[int, int | None] = (0, None)
        try:
            has_ended = False
            while not has_ended:
                waiting = asyncio.wait({task}, timeout=self._times.report_every.total_seconds())
                has_ended = bool((await waiting)[0])
                if reported != (progress.done, progress.total) and await self._report(operation_id, progress):
                    reported = (progress.done, progress.total)
            if task.cancelled():
                with suppress(DatabaseUnavailable):
                    await self._records.release(operation_id)
                return
            error = task.exception()
            if error is None:
                body = work.body(task.result())
            else:
                body = failure_body(error) if isinstance(error, QueryServerError) else _INTERNAL_ERROR_BODY
            await self._record(operation_id, body)
        finally:
            del self._running[operation_id]

    async def _report(self, operation_id: UUID, progress: Progress) -> bool:
        try:
            await self._records.report(operation_id, done=progress.done, total=progress.total)
        except DatabaseUnavailable:
            log.warning("progress not recorded", operation_id=str(operation_id))
            return False
        return True

    async def _record(self, operation_id: UUID, body: Body) -> None:
        """Record the outcome. Until then, it exists only in this process, so retry as long as the database is
        unavailable.
        """
        failed = isinstance(body, Mapping) and body.get("status", 0) != 0
        state = LongOperationState.FAILED if failed else LongOperationState.DONE
        while True:
            try:
                return await self._records.end(operation_id, state=state, result=body)
            except DatabaseUnavailable:
                log.warning("operation outcome not recorded yet", operation_id=str(operation_id))
                await asyncio.sleep(self._times.report_every.total_seconds())

    def _spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._log_failure)
        return task

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        """Log unexpected errors, because no caller may be left to receive them."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, QueryServerError):
            log.error("operation failed", operation=task.get_name(), exc_info=error)


def failure_body(error: QueryServerError) -> Mapping[str, Any]:
    """Return the response body of a failed call (Contract storage 3)."""
    body: dict[str, Any] = {"status": -1, "code": error.code, "message": error.message}
    if error.details is not None:
        body["details"] = dict(error.details)
    return body


MAX_ITEMS = 1000

Outcomes = Mapping[str, T | QueryServerError]
"""The result or error of each item, keyed by the item as written in the request, in request order."""


def distinct_items(sent: Sequence[str], *, parameter: str = "path") -> Sequence[str]:
    """Return the items without duplicates, in order. Raises MissingParameter if there are none, and too_many_entries if
    there are more than 1000.
    """
    items = list(dict.fromkeys(sent))
    if not items:
        raise MissingParameter(f"{parameter} is required.")
    if len(items) > MAX_ITEMS:
        raise too_many_entries(f"At most {MAX_ITEMS} items are allowed per request.")
    return items


async def process_each(items: Sequence[str], work: Callable[[str], Awaitable[T]], progress: Progress) -> Outcomes[T]:
    """Process the items one after the other, because later items may depend on earlier ones. Continue after errors."""
    outcomes: dict[str, T | QueryServerError] = {}
    progress.expect(len(items))
    for item in items:
        try:
            outcomes[item] = await work(item)
        except QueryServerError as error:
            outcomes[item] = error
        progress.advance()
    return outcomes
