"""Runs one statement from its claim to its terminal state (Contract editor 3.3)."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeGuard, assert_never
from uuid import uuid4

import structlog

from queryserver.engines.protocol import (
    EngineSession,
    LiteralSession,
    OperationHandle,
    OperationState,
    OperationStatus,
    ResumableSession,
    RowsSession,
    StatementContext,
)
from queryserver.errors.base import DatabaseUnavailable, QueryServerError, TooManyRequests
from queryserver.errors.files import InsufficientStorage
from queryserver.errors.statements import (
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    ErrorLocation,
    OutcomeUnknown,
    ResultRefused,
    SessionLost,
    StatementRejected,
)
from queryserver.formats.arrow import limit_texts
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.threads import background
from queryserver.results.segments import ResultStore, Segment
from queryserver.sql.classification import changes_data
from queryserver.sql.markers import BoundStatement
from queryserver.sql.positions import Position, position_of
from queryserver.sql.statements import bind
from queryserver.statements.cost_guard import NO_GUARD, CostGuard
from queryserver.statements.model import Assignment, Outcome
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.run_record import (
    SEGMENT_AGE_S,
    ClaimLost,
    ResultLimits,
    RunRecord,
    Spool,
    StatementLog,
    storable_text,
    with_pauses,
)
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.states import StatementState, Truncation, TruncationReason
from queryserver.statements.stored_session import StoredSession
from queryserver.statements.traces import NO_TRACE, StatementTrace

log = structlog.get_logger(__name__)

# A statement that ends within this time goes directly from `waiting` to its terminal state, which saves a write. If the
# engine can resume the operation, that write also stores from where, so it is made sooner.
_QUICK_STATEMENT_S = 0.25
_QUICK_RESUMABLE_S = 0.05
# A statement that was recorded as sent from the start, but still has no session after this time, becomes unsent again.
_SENT_AHEAD_S = 0.2
_POLL_S = 1.0
_REPORT_EVERY_S = 1.0
_STOP_TRIES = 3
_REATTACH_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# After this time, each page is stored before the next one is fetched, so that another runner can resume after any
# page. Until then, small results stay in the statement record, and several pages share a segment.
_STORE_EACH_PAGE_AFTER_S = 2.0

AttachedOperation = tuple[EngineSession, OperationHandle]
"""A session, and the operation in it that another runner left running on the engine."""


@dataclass(eq=False, repr=False)
class Execution:
    """Runs one assignment. `stop` may be called at any time, from any task of the event loop.

    `open_session` opens the statement's engine session or waits until the statement may use it. `reattach` finds the
    operation that another runner left running on the engine. `before_end` runs before any user can see that the
    statement has ended.
    """

    assignment: Assignment
    owned: OwnedStatements
    results: ResultStore
    settings: EditorSettings
    open_session: Callable[[Assignment], AbstractAsyncContextManager[EngineSession]]
    reattach: Callable[[Assignment], AbstractAsyncContextManager[AttachedOperation]]
    context: StatementContext
    notify: Callable[[], None]
    before_end: Callable[[], Awaitable[None]] | None = None
    metrics: Metrics = NO_METRICS
    trace: StatementTrace = NO_TRACE
    guard: CostGuard = NO_GUARD
    script: ScriptRun | None = None
    previous_log: StatementLog | None = None
    """The log of the script's previous statement, which this statement appends to."""
    _started_at: float = field(default_factory=time.monotonic, init=False)
    _stop: "asyncio.Future[None]" = field(init=False)
    """Done once a stop has been requested."""
    _stop_message: str = field(default="", init=False)
    _stopping: StatementState | None = field(default=None, init=False)
    _gives_back: bool = field(default=False, init=False)
    """Whether the statement returns to the queue once it has stopped."""
    _session: EngineSession | None = field(default=None, init=False)
    _handle: OperationHandle | None = field(default=None, init=False)
    _polling: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _token: str | None = field(default=None, init=False)
    """The position from which another runner can resume. It covers exactly the stored rows and log lines."""
    _is_reading: bool = field(default=False, init=False)
    _detached: bool = field(default=False, init=False)
    _progress: int = field(default=50, init=False)
    _bound: BoundStatement | None = field(default=None, init=False)
    """The statement with its parameter values, or None if it has no parameters."""

    def __post_init__(self) -> None:
        self._stop = asyncio.get_running_loop().create_future()
        self._record = RunRecord(
            self.assignment,
            self.owned,
            editor=self.settings,
            notify=self.notify,
            before_end=self.before_end,
            metrics=self.metrics,
            script=self.script,
            previous_log=self.previous_log,
            trace=self.trace,
        )
        self.log = self._record.log
        self.was_sent = self.assignment.sent
        """Whether the engine has received, or may have received, the statement."""
        self._accepted = self.assignment.resumption is not None
        if self.assignment.cancel_requested:
            self.stop("Canceled.")

    @property
    def is_settled(self) -> bool:
        """Whether the outcome has been recorded, or recording it has been left to another runner."""
        return self._record.is_settled

    @property
    def next_statement(self) -> Assignment | None:
        """The script's next statement, which was recorded together with the end of this one."""
        return self._record.next_statement

    @property
    def is_given_back(self) -> bool:
        """Whether the statement has returned to the queue."""
        return self._record.is_given_back

    def stop(self, message: str, *, gives_back: bool = False) -> None:
        """Request cancellation. The statement becomes `canceled` once the engine has confirmed the cancellation.

        If `gives_back` is set, a statement that may run again from the start returns to the queue instead.
        """
        if self._stopping is None:
            self._gives_back = gives_back and self.assignment.is_repeatable
        self._stop_message = self._stop_message or message
        self._stopping = self._stopping or StatementState.CANCELED
        if not self._stop.done():
            self._stop.set_result(None)

    def abandon(self) -> None:
        """Stop working on a statement that was left to another runner. Nothing more is recorded."""
        self._record.is_settled = True
        self.stop("")

    def detach(self) -> bool:
        """Leave the statement running on the engine for another runner. Return False if that is not possible."""
        if not (isinstance(self._session, ResumableSession) and self._record.is_running) or self._stopping is not None:
            return False
        if self._bound is not None and self._bound.rows:
            return False
        self._session.detach()
        self._detached = True
        self.abandon()
        return True

    async def take_back(self) -> None:
        """Record that the statement has not been sent yet, if the record says otherwise. Raises ClaimLost."""
        await self._record.take_back()

    async def give_up(self) -> None:
        """Record the end without the engine's confirmation, because this process is stopping. Never raises.

        A statement that was to return to the queue is left to the process that takes over, as after a crash.
        """
        if self._gives_back:
            self.abandon()
            return
        message = (
            "The server was stopped before the engine confirmed the end."
            " The statement may or may not have taken effect."
        )
        outcome = Outcome(StatementState.FAILED, error_code="outcome_unknown", message=message)
        with suppress(ClaimLost, DatabaseUnavailable):
            await self._record.finish(outcome, engine_is_done=False)

    async def run(self) -> None:
        """Run the statement until its terminal state is recorded or the claim is lost."""
        try:
            outcome = await self._run_supervised()
            if not self._record.is_settled:
                await self._finish_or_fail(outcome)
        except (ClaimLost, DatabaseUnavailable) as error:
            # Another runner owns the statement, it was canceled before it was sent, or a sweep will claim it.
            if isinstance(error, ClaimLost) and self._stopping is None:
                self.metrics.claims_lost.inc()
            self.owned.expire_soon(self.assignment.claim)
            reason = "claim lost" if isinstance(error, ClaimLost) else "database unavailable"
            log.info("run abandoned", operation_id=str(self.assignment.claim.statement_id), reason=reason)

    async def _run_supervised(self) -> Outcome:
        """Run the statement, and stop it on request or at its deadline. Return the outcome."""
        if self._seconds_left() == 0:
            self._stopping = self._stopping or StatementState.TIMED_OUT
        if self._stopping is not None and not self._accepted:
            return self._stopped()
        work = asyncio.create_task(self._work())
        try:
            if self.assignment.sent_ahead:
                within_s = min(_SENT_AHEAD_S, self._seconds_left())
                await asyncio.wait({work, self._stop}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
                if not (work.done() or self._stop.done() or self.was_sent):
                    await self._record.take_back()
            await asyncio.wait({work, self._stop}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
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
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._record.engine_continues:
                await self._record.engine_is_done()

    async def _stop_work(self, work: "asyncio.Task[Outcome]") -> None:
        """Cancel the statement on the engine, in up to three attempts.

        If the engine never confirms the cancellation, cancel the task, which closes the session.
        """
        wait_s = self.settings.cancel_wait.total_seconds()
        for _ in range(_STOP_TRIES if self.was_sent and not self._detached else 0):
            if self._session is not None and self._handle is not None:
                with suppress(EngineError):
                    await self._session.cancel(self._handle)
            if (await asyncio.wait({work}, timeout=wait_s))[0]:
                return
            if self._stopping is StatementState.TIMED_OUT:
                # Clients see the end promptly while cancellation on the engine continues (Contract editor 3.3).
                await self._record.finish(self._stopped(), engine_is_done=False)
        work.cancel()
        await asyncio.wait({work}, timeout=wait_s)

    async def _work(self) -> Outcome:
        try:
            if self.assignment.resumption:
                return await self._resume()
            try:
                return await self._first_attempt()
            except (EngineUnavailable, SessionLost):
                # A statement that the engine did not start is sent once more, in a new session.
                assignment = self.assignment
                if (
                    assignment.in_named_session
                    or assignment.needs_session
                    or self._accepted
                    or self._stopping is not None
                ):
                    raise
            self.log.add("The engine did not accept the statement; retrying once.")
            await asyncio.sleep(0.2)
            return await self._attempt()
        except EngineError as error:
            return self._failed(error)
        except (ClaimLost, DatabaseUnavailable):
            raise
        except (InsufficientStorage, TooManyRequests) as error:  # the message states when to retry
            return Outcome(StatementState.FAILED, error_code=error.code, message=error.message)
        except QueryServerError as error:
            return Outcome(StatementState.FAILED, error_code="result_store_failed", message=error.message)
        except Exception:  # last resort of a task: the statement must end with a reason
            error_id = uuid4().hex
            log.exception("statement failed with an internal error", error_id=error_id)
            return Outcome(StatementState.FAILED, error_code="outcome_unknown", message=f"Internal error. ({error_id})")

    async def _first_attempt(self) -> Outcome:
        """Run the statement. If the stored result that it was to reuse cannot be read, ask the engine instead."""
        try:
            return await self._attempt()
        except ResultRefused as error:
            if self.assignment.reused_from is None or self.was_sent:
                raise
            self.log.add(f"The stored result cannot be reused, so the data source is asked: {error.message}")
        await self._record.clear_source()
        self.assignment = replace(self.assignment, source_operation=None, reused_from=None)
        return await self._attempt()

    async def _attempt(self) -> Outcome:
        if self.assignment.lacks_parameters:
            raise StatementRejected(
                "The parameter values cannot be decrypted, because their key is missing. Send the statement again."
            )
        await self._bind()
        statement = self._bound or self.assignment.statement
        async with self.open_session(self.assignment) as session:
            await self.guard.check(self.assignment, session, statement, self._record)
            if not await self._record.mark_sent():
                # A cancel was requested, or the claim was lost. In both cases, this outcome is not recorded.
                self.stop("")
                return self._stopped()
            self.was_sent = True
            if self._stopping is not None:
                return self._stopped()
            if self._bound is not None and self._bound.rows and not takes_rows(session):
                return await self._run_for_each_row(session, self._bound)
            handle = await session.submit(statement, self.trace.engine_context(self.context))
            self._accepted = True
            async with self._operation(session, handle):
                return await self._follow(session, handle)

    async def _run_for_each_row(self, session: EngineSession, statement: BoundStatement) -> Outcome:
        """Run the statement once per row of parameter values, in order, on an engine that takes one row at a time."""
        modified: int | None = None
        for number, row in enumerate(statement.rows):
            statement.row = number
            handle = await session.submit(row, self.trace.engine_context(self.context))
            self._accepted = True
            # No token is stored. Another runner could only resume the current row, and the remaining rows would be
            # lost.
            async with self._operation(session, handle):
                status = await session.poll(handle, wait_s=_QUICK_STATEMENT_S)
                while not status.state.is_terminal:
                    await self._record.mark_running(self._progress, None)
                    status = await session.poll(handle, wait_s=_POLL_S)
                self._progress = min(99, 100 * (number + 1) // len(statement.rows))
                if status.state is not OperationState.FINISHED or self._stopping is not None:
                    return await self._record_outcome(session, handle, replace(status, has_result_set=False))
                if status.modified_rows is not None:
                    modified = (modified or 0) + status.modified_rows
        outcome = Outcome(StatementState.SUCCESS, modified_row_count=modified)
        await self._finish_or_fail(outcome)
        return outcome

    async def _resume(self) -> Outcome:
        """Resume an operation that another runner left running. If the engine is unreachable, retry for 30 seconds."""
        self.log.add("Another server has taken over this statement.")
        await self._bind()
        for wait_s in (*_REATTACH_WAITS_S, None):
            try:
                async with self.reattach(self.assignment) as (session, handle), self._operation(session, handle):
                    if self._bound is not None and isinstance(session, LiteralSession):
                        session.written(self._bound)  # lets `mask_values` mask the parameter values
                    return await self._follow(session, handle)
            except EngineUnavailable as error:
                if wait_s is None:
                    raise OutcomeUnknown(f"Results have expired: {error.message}") from error
                await asyncio.sleep(wait_s)
        raise AssertionError

    @asynccontextmanager
    async def _operation(self, session: EngineSession, handle: OperationHandle) -> AsyncGenerator[None]:
        """Close the operation after the block, and cancel it first if the block fails.

        An operation that another runner resumes is neither canceled nor closed.
        """
        self._session, self._handle = session, handle
        try:
            if self._stopping is not None:
                await session.cancel(handle)
            yield
        except BaseException:  # including CancelledError: the engine must not keep running the operation
            if not self._detached:
                # The original error matters more than an error from canceling.
                with suppress(EngineError):
                    await asyncio.shield(session.cancel(handle))
            raise
        finally:
            self._session = self._handle = None
            if not self._detached:
                await asyncio.shield(session.close(handle))

    async def _follow(self, session: EngineSession, handle: OperationHandle) -> Outcome:
        began = time.monotonic()
        status = await self._poll(session, handle, wait_s=_QUICK_RESUMABLE_S)
        until = began + (_QUICK_STATEMENT_S if self._token is None else _QUICK_RESUMABLE_S)
        while not status.state.is_terminal and (left_s := until - time.monotonic()) > 0:
            status = await self._poll(session, handle, wait_s=left_s)
        self._update_progress(status)
        if status.state.is_terminal and not status.has_result_set:
            return await self._record_outcome(session, handle, status)
        if not status.state.is_terminal:
            await self._record.mark_running(self._progress, self._token)
        # A failed report needs no handling: the next write to the record fails in the same way.
        async with background(self._report_regularly(session, handle), "statement-reports"):
            while not status.state.is_terminal:
                status = await self._poll(session, handle, wait_s=_POLL_S)
            return await self._record_outcome(session, handle, status)

    async def _poll(self, session: EngineSession, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """Poll the status and store the operation's checkpoint before the next request to the engine."""
        async with self._polling:
            status = await session.poll(handle, wait_s=wait_s)
            self._record.scanned_bytes = status.scanned_bytes
            if not self._is_reading:
                self._token = _token(session, handle)
                if self._token is not None:
                    await self._record.record_token(self._progress, self._token)
        return status

    async def _record_outcome(
        self, session: EngineSession, handle: OperationHandle, status: OperationStatus
    ) -> Outcome:
        """Record and return the outcome. It is recorded before the operation is closed, so it is never lost."""
        match status.state:
            case OperationState.FINISHED if status.has_result_set:
                with self.trace.reading():
                    outcome = await self._read_rows(session, handle)
            case OperationState.FINISHED:
                outcome = Outcome(StatementState.SUCCESS, modified_row_count=status.modified_rows)
            case OperationState.CANCELED if self._stopping:
                outcome = self._stopped()
            case OperationState.CANCELED:
                outcome = Outcome(StatementState.FAILED, "engine_error", "The statement was canceled in the engine.")
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
            if lines := await session.logs(handle, start=self.log.engine_lines):
                self.log.add_engine(self._mask_values(lines))
        await self._finish_or_fail(outcome)
        return outcome

    async def _read_rows(self, session: EngineSession, handle: OperationHandle) -> Outcome:
        self._is_reading = True
        engine_columns = await session.columns(handle)
        columns = limit_texts(engine_columns)
        settings, assignment = self.settings, self.assignment
        # Cached, because the function parses the whole statement.
        may_change = cache(partial(changes_data, assignment.statement, assignment.dialect))

        async def make_visible(segment: Segment, token: str | None) -> None:
            await self._record.mark_running(self._progress, self._token)
            await self._record.add_segment(segment, columns, token)
            self._token = token

        caps = ResultLimits(assignment.row_limit, settings.result_max_bytes, settings.cell_max_bytes)
        spool = Spool(self.results, assignment.claim, caps, make_visible, assignment.resumption, self.trace)
        token = self._token
        try:
            async with aclosing(with_pauses(session.batches(handle), pause_s=SEGMENT_AGE_S)) as batches:
                async for batch in batches:
                    if batch is None:
                        await spool.flush_if_old()
                        continue
                    token, token_before = _token(session, handle), token
                    if columns != engine_columns and batch.num_columns == len(columns):
                        # Recorded column names may be truncated. Every stored segment must use the recorded names.
                        batch = batch.rename_columns([column.name for column in columns])  # noqa: PLW2901
                    await spool.add(batch, token)
                    if token != token_before and time.monotonic() - self._started_at > _STORE_EACH_PAGE_AFTER_S:
                        await spool.store()
                        await self._record.record_token(self._progress, token)
                    if spool.truncated_reason is not None and not may_change():
                        break
            spooled = await spool.finish()
        finally:
            await spool.aclose()
        message, rows, truncated_reason = "", spooled.rows, spooled.truncated_reason or _known_truncation(session)
        if truncated_reason is not None:
            message = Truncation(truncated_reason, assignment.limit_source).message(
                rows=rows, max_rows=settings.result_max_rows, max_bytes=caps.size_bytes, may_change=may_change()
            )
        return Outcome(
            StatementState.AVAILABLE,
            message=message,
            has_result_set=True,
            columns=columns,
            rows=rows,
            size_bytes=spooled.size_bytes,
            truncated_reason=truncated_reason,
            modified_row_count=(await self._poll(session, handle)).modified_rows,
            inline_result=spooled.inline,
        )

    async def _report_regularly(self, session: EngineSession, handle: OperationHandle) -> None:
        reported = None
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            await self._record.mark_running(self._progress, self._token)
            status = await self._poll(session, handle)
            self.log.add_engine(self._mask_values(await session.logs(handle, start=self.log.engine_lines)))
            self._update_progress(status)
            if self.log.has_new_lines or self._progress != reported:
                reported = self._progress
                await self._record.report(self._progress, None)

    def _update_progress(self, status: OperationStatus) -> None:
        """Set the progress for the next report. It is 50 if the engine reports no progress (Contract editor 7.1)."""
        self._progress = 50 if status.progress is None else min(status.progress, 99)

    async def _finish_or_fail(self, outcome: Outcome) -> None:
        """Record the outcome. If that fails, record a failure instead, so that the statement never stays `running`."""
        try:
            if not (self._gives_back and outcome.state is StatementState.CANCELED and await self._record.give_back()):
                await self._record.finish(outcome)
        except (ClaimLost, DatabaseUnavailable):
            raise
        except Exception:  # last resort of a task, as in `_work`
            error_id = uuid4().hex
            log.exception("outcome could not be recorded", error_id=error_id)
            self.log.discard()
            message = f"The outcome could not be recorded. ({error_id})"
            await self._record.finish(Outcome(StatementState.FAILED, error_code="result_store_failed", message=message))

    def _never_started(self, error: EngineError | None) -> TypeGuard[EngineError]:
        """Return whether the statement never reached the engine, and no client has seen it running."""
        return isinstance(error, EngineUnavailable | SessionLost) and not self._record.is_running

    def _failed(self, error: EngineError) -> Outcome:
        if self._stopping is not None:
            return self._stopped()
        assignment = self.assignment
        self.metrics.engine_failed(assignment.dialect, error.code)
        [message] = self._mask_values([storable_text(error.message) or "The data source gave no reason."])
        if self._bound is not None and self._bound.rows and self.was_sent:
            message = f"{message}\nRow {self._bound.row + 1} of {len(self._bound.rows)} of parameter_rows."
        if isinstance(error, EngineTimeout):
            return Outcome(StatementState.TIMED_OUT, message=message)
        position = None
        # Positions in other SQL, such as SQL that opens a session or imports a file, do not apply to the client's
        # statement.
        if self.was_sent and assignment.import_plan is None:
            position = self._position(error.location)
        return Outcome(
            StatementState.FAILED,
            error_code=error.code,
            message=message,
            error_position=position,
            error_sqlstate=error.sqlstate,
        )

    async def _bind(self) -> None:
        if (parameters := self.assignment.parameters) is not None:
            self._bound = await bind(self.assignment.statement, self.assignment.dialect, parameters)

    def _position(self, location: ErrorLocation | None) -> Position | None:
        if self._bound is None:
            return position_of(location, self.assignment.statement)
        # After a resumption, this process does not know the SQL that the other runner sent.
        return None if self.assignment.resumption else self._bound.position(location)

    def _mask_values(self, lines: Sequence[str]) -> Sequence[str]:
        """Mask parameter values in engine messages, which may quote the statement."""
        bound = self._bound
        return [bound.mask_values(line) for line in lines] if bound else lines

    def _stopped(self) -> Outcome:
        if self._stopping is StatementState.TIMED_OUT:
            limit = f" of {self.assignment.time_limit_s} s" if self.assignment.statements_count == 1 else ""
            return Outcome(StatementState.TIMED_OUT, message=f"The statement exceeded its time limit{limit}.")
        return Outcome(StatementState.CANCELED, message=self._stop_message or "Canceled.")

    def _seconds_left(self) -> float:
        return max(self.assignment.ends_at - time.monotonic(), 0)


def takes_rows(session: EngineSession) -> bool:
    """Return whether the engine session can run one statement with many rows of parameter values."""
    return isinstance(session, RowsSession) and session.takes_rows


def _known_truncation(session: EngineSession) -> TruncationReason | None:
    """Return why the stored result that the session reads was truncated, if it reads one that was."""
    return session.truncated_reason if isinstance(session, StoredSession) else None


def _token(session: EngineSession, handle: OperationHandle) -> str | None:
    """Return the position from which another runner can resume, or None if the session does not support this."""
    return session.resume_token(handle) if isinstance(session, ResumableSession) else None
