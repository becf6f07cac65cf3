"""One statement, from its claim to its terminal state (Contract editor 3.3)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeGuard, assert_never
from uuid import uuid4

import structlog

from queryserver.domain.errors import (
    DatabaseUnavailable,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    QueryServerError,
    SessionLost,
)
from queryserver.domain.result import Column, Segment
from queryserver.domain.statement import Assignment, Outcome, StatementState
from queryserver.domain.statement_kind import changes_data
from queryserver.interfaces.engine import EngineSession, OperationHandle, OperationState, OperationStatus
from queryserver.interfaces.results import ResultStore
from queryserver.interfaces.statements import StatementLeases
from queryserver.services.running.errors import LeaseLost
from queryserver.services.running.logbook import Logbook, storable
from queryserver.services.running.pauses import with_pauses
from queryserver.services.running.spool import SEGMENT_AGE_S, Caps, Spool

log = structlog.get_logger(__name__)

_QUICK_S = 0.05
_POLL_S = 1.0
_REPORT_EVERY_S = 1.0
_STOP_TRIES = 3


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Limits of one run."""

    result_max_bytes: int
    log_max_bytes: int
    retention: timedelta
    cancel_wait: timedelta
    lease: timedelta


@dataclass(frozen=True, slots=True)
class ExecutionTools:
    """What a run works with. `session` opens, or waits its turn in, the engine session of the statement."""

    leases: StatementLeases
    results: ResultStore
    settings: ExecutionSettings
    session: Callable[[Assignment], AbstractAsyncContextManager[EngineSession]]
    notify: Callable[[], None]


class Execution:
    """Runs one assignment. `stop` may be called at any time, from any task of the loop."""

    def __init__(self, assignment: Assignment, tools: ExecutionTools) -> None:
        self.assignment = assignment
        self._tools = tools
        self._log = Logbook(tools.settings.log_max_bytes)
        self._stop = asyncio.Event()
        self._stop_message = ""
        self._stopping: StatementState | None = None
        self._session: EngineSession | None = None
        self._handle: OperationHandle | None = None
        self._sent = assignment.sent
        self._accepted = False
        self._marked_running = False
        self._progress = 50
        self._settled = False
        if assignment.cancel_requested:
            self.stop("Canceled.")

    def stop(self, message: str) -> None:
        """Ask for the end of the statement; it ends as `canceled` once the engine has confirmed."""
        self._stop_message = self._stop_message or message
        self._stopping = self._stopping or StatementState.CANCELED
        self._stop.set()

    def abandon(self) -> None:
        """End the work on a statement that was given back unsent; nothing more is written."""
        self._settled = True
        self.stop("")

    @property
    def was_sent(self) -> bool:
        """Whether the engine has seen it, or may have."""
        return self._sent

    async def run(self) -> None:
        """Returns when the terminal state is recorded, or the lease is lost."""
        try:
            await self._finish_somehow(await self._supervised())
        except (LeaseLost, DatabaseUnavailable):
            # Another runner has it, it was canceled before it was sent, or the sweep will find it.
            log.info("run given up", operation_id=str(self.assignment.lease.statement_id))

    async def _supervised(self) -> Outcome:
        """The outcome of the work, which is stopped when asked for or when its time is over."""
        if self._seconds_left() == 0:
            self._stopping = self._stopping or StatementState.TIMED_OUT
        if self._stopping is not None:
            return self._stopped()
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._stopping = self._stopping or StatementState.TIMED_OUT
                await self._stop_work(work)
            try:
                return await work
            except asyncio.CancelledError:
                if self._stopping is None:
                    raise
                return self._stopped()
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    async def _stop_work(self, work: "asyncio.Task[Outcome]") -> None:
        """Tell the engine to stop until it confirms; in the end take its session away."""
        wait_s = self._tools.settings.cancel_wait.total_seconds()
        for _ in range(_STOP_TRIES if self._sent else 0):
            if self._session is not None and self._handle is not None:
                with suppress(EngineError):
                    await self._session.cancel(self._handle)
            done, _pending = await asyncio.wait({work}, timeout=wait_s)
            if done:
                return
            if self._stopping is StatementState.TIMED_OUT and not self._settled:
                # The client is told in time; the engine is still pressed to stop (Contract editor 3.3).
                await self._finish(self._stopped())
        work.cancel()
        await asyncio.wait({work}, timeout=wait_s)

    async def _work(self) -> Outcome:
        try:
            return await self._work_with_retries()
        except EngineError as error:
            return self._failed(error)
        except (LeaseLost, DatabaseUnavailable):
            raise
        except QueryServerError as error:
            return Outcome(StatementState.FAILED, error_code="result_store_failed", message=error.message)
        except Exception:  # the outer wall of a task: whatever happens, the statement ends with a reason
            error_id = uuid4().hex
            log.exception("statement failed inside the service", error_id=error_id)
            return Outcome(StatementState.FAILED, error_code="outcome_unknown", message=f"Internal error. ({error_id})")

    async def _work_with_retries(self) -> Outcome:
        """A statement is sent again only when the engine refused it before starting: once, in a new session."""
        try:
            return await self._attempt()
        except (EngineUnavailable, SessionLost):
            if self.assignment.in_named_session or self._accepted or self._stopping is not None:
                raise
            self._log.add("The engine could not take the statement, trying once more.")
            await asyncio.sleep(0.2)
            return await self._attempt()

    async def _attempt(self) -> Outcome:
        async with self._tools.session(self.assignment) as session:
            if not await self._written(lambda: self._tools.leases.mark_sent(self.assignment.lease)):
                # A cancel is asked for, or the statement is no longer ours: then nothing takes this outcome.
                self.stop("")
                return self._stopped()
            self._sent = True
            if self._stopping is not None:
                return self._stopped()
            async with _operation(session, self.assignment.statement) as handle:
                self._session, self._handle, self._accepted = session, handle, True
                if self._stopping is not None:
                    await session.cancel(handle)
                try:
                    return await self._follow(session, handle)
                finally:
                    self._session = self._handle = None

    async def _follow(self, session: EngineSession, handle: OperationHandle) -> Outcome:
        status = await session.poll(handle, wait_s=_QUICK_S)
        self._note(status)
        if status.state.is_terminal and not status.has_result_set:
            return await self._ended(session, handle, status)
        if not status.state.is_terminal:
            await self._mark_running(handle)
        async with _beside(self._report_regularly(session, handle)):
            while not status.state.is_terminal:
                status = await session.poll(handle, wait_s=_POLL_S)
            return await self._ended(session, handle, status)

    async def _ended(self, session: EngineSession, handle: OperationHandle, status: OperationStatus) -> Outcome:
        match status.state:
            case OperationState.FINISHED if status.has_result_set:
                outcome = await self._read(session, handle)
            case OperationState.FINISHED:
                outcome = Outcome(StatementState.SUCCESS, modified_row_count=status.modified_rows)
                self._log.add("Finished.")
            case OperationState.CANCELED:
                outcome = self._stopped() if self._stopping else _canceled_elsewhere()
            case OperationState.FAILED if self._never_started(status.error):
                self._accepted = False
                raise status.error
            case OperationState.FAILED:
                outcome = self._failed(status.error or EngineError("The statement failed."))
            case OperationState.PENDING | OperationState.RUNNING:
                raise AssertionError(status.state)
            case _:
                assert_never(status.state)
        with suppress(EngineError):
            self._log.add_engine(await session.logs(handle, start=self._log.engine_lines))
        return outcome

    async def _read(self, session: EngineSession, handle: OperationHandle) -> Outcome:
        columns = await session.columns(handle)
        caps = Caps(self.assignment.row_limit, self._tools.settings.result_max_bytes)
        to_the_end = changes_data(self.assignment.statement, self.assignment.dialect)
        spool = Spool(self._tools.results, self.assignment.lease, caps, self._segment_sink(handle, columns))
        try:
            async with aclosing(with_pauses(session.batches(handle), pause_s=SEGMENT_AGE_S)) as batches:
                async for batch in batches:
                    if batch is None:
                        await spool.flush_if_old()
                        continue
                    await spool.add(batch)
                    if spool.truncated_reason is not None and not to_the_end:
                        break
            spooled = await spool.finish()
        finally:
            await spool.aclose()
        status = await session.poll(handle)
        if spooled.truncated_reason:
            self._log.add(f"The result was cut ({spooled.truncated_reason.value}): {spooled.rows} rows are kept.")
        self._log.add(f"Finished: {spooled.rows} rows stored.")
        return Outcome(
            StatementState.AVAILABLE,
            has_result_set=True,
            columns=columns,
            rows=spooled.rows,
            size_bytes=spooled.size_bytes,
            truncated_reason=spooled.truncated_reason,
            modified_row_count=status.modified_rows,
            inline_result=spooled.inline,
        )

    def _segment_sink(
        self, handle: OperationHandle, columns: tuple[Column, ...]
    ) -> Callable[[Segment], Awaitable[None]]:
        async def make_visible(segment: Segment) -> None:
            await self._mark_running(handle)
            await self._write(lambda: self._tools.leases.add_segment(self.assignment.lease, segment, columns=columns))
            self._tools.notify()

        return make_visible

    async def _report_regularly(self, session: EngineSession, handle: OperationHandle) -> None:
        shown = None
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            await self._mark_running(handle)
            status = await session.poll(handle)
            self._log.add_engine(await session.logs(handle, start=self._log.engine_lines))
            self._note(status)
            if self._log.has_news or self._progress != shown:
                shown = self._progress
                await self._report()

    def _note(self, status: OperationStatus) -> None:
        """Engines that tell no progress are half way until they are done (Contract editor 7.1)."""
        self._progress = 50 if status.progress is None else min(status.progress, 99)

    async def _report(self) -> None:
        lease, progress = self.assignment.lease, self._progress
        with self._log.taken() as (start, lines):
            await self._write(
                lambda: self._tools.leases.report(lease, progress=progress, lines=lines, start_line=start)
            )
        before = self._log.overflow()
        if before is not None:
            await self._tools.leases.trim_logs(lease, before_line=before)
        self._tools.notify()

    async def _mark_running(self, handle: OperationHandle) -> None:
        if self._marked_running:
            return
        # Before the state, so that nobody sees a running statement without its progress.
        await self._report()
        await self._write(lambda: self._tools.leases.mark_running(self.assignment.lease, engine_handle=handle.token))
        if not self._marked_running:
            self._marked_running = True
            self._log.add(f"Running on {self.assignment.connector}.")
            self._tools.notify()

    async def _finish_somehow(self, outcome: Outcome) -> None:
        """Record the outcome, or at least the end: whatever an engine answers, a statement does not stay running."""
        try:
            await self._finish(outcome)
        except (LeaseLost, DatabaseUnavailable):
            raise
        except Exception:  # the outer wall of a task, as in `_work`
            error_id = uuid4().hex
            log.exception("outcome cannot be recorded", error_id=error_id)
            self._log.discard()
            message = f"The outcome could not be recorded. ({error_id})"
            await self._finish(Outcome(StatementState.FAILED, error_code="result_store_failed", message=message))

    async def _finish(self, outcome: Outcome) -> None:
        if self._settled:
            return
        if outcome.message:
            self._log.add_engine([outcome.message])
        retention = self._tools.settings.retention
        with self._log.taken() as (start, lines):
            await self._write(
                lambda: self._tools.leases.finish(
                    self.assignment.lease, outcome, retention=retention, lines=lines, start_line=start
                )
            )
        self._settled = True
        self._tools.notify()

    async def _write(self, write: Callable[[], Awaitable[bool]]) -> None:
        """Write to the record. Raises LeaseLost when it is no longer ours."""
        if not await self._written(write):
            raise LeaseLost

    async def _written(self, write: Callable[[], Awaitable[bool]]) -> bool:
        """Write to the record; an unreachable database is tried again while the lease can still be ours."""
        give_up = asyncio.get_running_loop().time() + self._tools.settings.lease.total_seconds()
        wait_s = 0.1
        while True:
            try:
                return await write()
            except DatabaseUnavailable:
                left_s = give_up - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise LeaseLost from None
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, 2.0)

    def _never_started(self, error: EngineError | None) -> TypeGuard[EngineError]:
        """Whether the engine says that the statement did not reach it, and nobody was told otherwise."""
        return isinstance(error, EngineUnavailable | SessionLost) and not self._marked_running

    def _failed(self, error: EngineError) -> Outcome:
        if self._stopping is not None:
            return self._stopped()
        message = storable(error.message)
        if isinstance(error, EngineTimeout):
            return Outcome(StatementState.TIMED_OUT, message=message)
        return Outcome(StatementState.FAILED, error_code=error.code, message=message)

    def _stopped(self) -> Outcome:
        if self._stopping is StatementState.TIMED_OUT:
            return Outcome(StatementState.TIMED_OUT, message="The statement exceeded its time limit.")
        return Outcome(StatementState.CANCELED, message=self._stop_message or "Canceled.")

    def _seconds_left(self) -> float:
        return max((self.assignment.deadline_at - datetime.now(UTC)).total_seconds(), 0)


@asynccontextmanager
async def _operation(session: EngineSession, statement: str) -> AsyncGenerator[OperationHandle]:
    """A submitted statement; whoever leaves early leaves nothing running."""
    handle = await session.submit(statement)
    try:
        yield handle
    except BaseException:
        # Includes CancelledError: the engine must not work for nobody. The adapter limits the time of both calls.
        await asyncio.shield(session.cancel(handle))
        raise
    finally:
        await asyncio.shield(session.close(handle))


@asynccontextmanager
async def _beside(coroutine: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Something that runs while inside. When it fails, the next write of the main work fails the same way."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _canceled_elsewhere() -> Outcome:
    return Outcome(
        StatementState.FAILED, error_code="engine_error", message="The statement was canceled at the engine."
    )
