"""Runs statements in this process, or notifies other processes of waiting statements (Contract platform 9.5, 10.2)."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Notices
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.shutdown import (
    SESSIONS_CLOSED_WITHIN_S,
    STATEMENTS_RECORDED_WITHIN_S,
    STATEMENTS_STOPPED_WITHIN_S,
    stop_step,
)
from queryserver.platform.threads import background, every
from queryserver.results.segments import ResultStore
from queryserver.statements.claims import StatementClaims
from queryserver.statements.execution import Execution
from queryserver.statements.external_access import NO_EXTERNAL_DATA, ExternalData
from queryserver.statements.model import Claim, ClaimScope, NewStatement, new_assignment
from queryserver.statements.open_sessions import ExportOpener, ImportOpener, OpenSessions, SessionOpener
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.rows import ENDED
from queryserver.statements.run_record import ClaimLost
from queryserver.statements.running_statements import (
    Broker,
    DataClaims,
    Intake,
    RunnerInstance,
    RunnerLimits,
    RunningStatements,
    StateSignals,
    unless_database_unavailable,
)
from queryserver.statements.session_options import SessionCredentials
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.traces import NO_TRACES, StatementTraces

log = structlog.get_logger(__name__)

# The minimum time left for the last writes of a shutdown.
_MIN_STEP_S = 0.5

# A placeholder, because a message wakes a worker regardless of the statement that it names.
_ANY_STATEMENT = UUID(int=0)

CANCEL = "cancel"
"""Notice that a cancel request was recorded. The subject is the statement id."""
CLOSE_SESSION = "close-session"
"""Notice that a session was closed. The subject is the session id."""
_WAITING = "waiting"


@dataclass(eq=False, repr=False, kw_only=True)
class RunnerShutdown:
    """Lets the statements of this process finish, then stops the remaining ones or leaves them to other processes."""

    instance: RunnerInstance
    owned: OwnedStatements
    data: DataClaims
    sessions: OpenSessions
    running: RunningStatements
    signals: StateSignals
    limits: RunnerLimits
    broker: Broker | None

    async def drain(self, *, at_once: bool = False) -> None:
        """Let statements finish within the grace period, then stop them. `at_once` skips the grace period.

        Statements that were not sent, or that another process can resume, are left to other processes. Calls are still
        served unless they would start new work. Idempotent.
        """
        tasks = self.running.tasks
        if self.instance.is_drained:
            await _all_ended(tasks, _MIN_STEP_S)
            return
        self.instance.is_draining = True
        grace_s = 0.0 if at_once else self.limits.shutdown_grace.total_seconds()
        with stop_step("statements may finish", within_s=grace_s, statements=self.running.active):
            end = time.monotonic() + grace_s
            # Calls accepted before the shutdown may still start statements.
            while tasks and (left_s := end - time.monotonic()) > 0:
                await _all_ended(tasks, left_s)
        self.instance.is_drained = True
        if tasks:
            within_s, active = STATEMENTS_STOPPED_WITHIN_S, self.running.active
            with stop_step("statements are stopped", within_s=within_s, statements=active):
                await self._stop_all(within_s)
            with stop_step("unconfirmed ends are recorded", within_s=STATEMENTS_RECORDED_WITHIN_S):
                await self._give_up_all(STATEMENTS_RECORDED_WITHIN_S)
        self.signals.end_waits()
        with stop_step("sessions are closed", within_s=SESSIONS_CLOSED_WITHIN_S):
            await _within(self.sessions.aclose(), SESSIONS_CLOSED_WITHIN_S)
            await _within(unless_database_unavailable(self.data.release()), SESSIONS_CLOSED_WITHIN_S)

    async def _stop_all(self, within_s: float) -> None:
        """Stop or hand over all statements. Returns when all have ended, or after `within_s`."""
        end = time.monotonic() + within_s
        detached = [execution for execution in self.running.executions() if execution.detach()]
        attached = [execution for execution in self.running.executions() if execution not in detached]
        await _within(asyncio.gather(*(self._stop_or_release(execution) for execution in attached)), within_s)
        await _all_ended(self.running.tasks, end - time.monotonic())
        hand_overs = (unless_database_unavailable(self.owned.hand_over(one.assignment.claim)) for one in detached)
        await _within(asyncio.gather(*hand_overs), max(end - time.monotonic(), _MIN_STEP_S))

    async def _stop_or_release(self, execution: Execution) -> None:
        """Release an unsent statement to another process. Stop a statement that was sent or is being sent.

        A stopped statement that reads a stored result returns to the queue.
        """
        if not execution.was_sent:
            try:
                async with asyncio.timeout(STATEMENTS_STOPPED_WITHIN_S / 2):  # the database may be unavailable
                    await execution.take_back()
                released = await self.owned.release(execution.assignment.claim)
            except (ClaimLost, DatabaseUnavailable, TimeoutError):
                released = not execution.was_sent
            if released:
                execution.abandon()
                if self.broker is not None:
                    claim = execution.assignment.claim
                    self.broker.statement_waits(claim.statement_id, fence=claim.fence)
                return
        execution.stop("Canceled because the server was shut down.", gives_back=True)

    async def _give_up_all(self, within_s: float) -> None:
        """Record an end for the statements whose end no engine has confirmed, then cancel all tasks."""
        end = time.monotonic() + within_s
        await _within(asyncio.gather(*(execution.give_up() for execution in self.running.executions())), within_s / 2)
        for task in self.running.tasks:
            task.cancel()
        await _all_ended(self.running.tasks, end - time.monotonic())


async def _all_ended(tasks: Collection[asyncio.Task[Any]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(list(tasks), timeout=max(within_s, 0))


async def _within(action: Awaitable[object], within_s: float) -> None:
    """Run the action. If it takes longer than `within_s`, cancel it."""
    try:
        async with asyncio.timeout(within_s):
            await action
    except TimeoutError:
        log.warning("abandoned at shutdown", seconds=within_s)


@dataclass(eq=False, repr=False, kw_only=True)
class QueueConsumer:
    """Takes statements from the queue while this worker has free slots. Inactive in processes that are not workers."""

    instance: RunnerInstance
    owned: OwnedStatements
    connectors: Connectors
    data: DataClaims
    claims: StatementClaims
    running: RunningStatements
    limits: RunnerLimits
    broker: Broker | None
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _announced: int = field(default=0, init=False)

    @property
    def unreserved_slots(self) -> int:
        """Number of additional statements, of any user, that this worker can take now."""
        return max(self._free_slots - self.limits.reserved - self._announced, 0)

    @property
    def _free_slots(self) -> int:
        if self.instance.intake is not Intake.QUEUED or self.instance.is_draining:
            return 0
        return max(self.limits.capacity - self.running.active, 0)

    @property
    def _has_reserved_slots_only(self) -> bool:
        return 0 < self._free_slots <= self.limits.reserved

    def wake(self) -> None:
        """Wake the consumer, because a statement is waiting or a slot has become free."""
        if self.instance.intake is Intake.QUEUED:
            self._announced += 1
            self._woken.set()

    async def take(self, limit: int) -> int:
        """Claim and start up to `limit` queued statements while slots are free.

        Return the number of claimed statements. Raises DatabaseUnavailable.
        """
        async with self._taking:
            free = min(limit, self._free_slots)
            if free <= 0:
                return 0
            free_for_all = min(free, max(self._free_slots - self.limits.reserved, 0))
            # The claim is not canceled with the caller: a statement that was claimed but not started would block its
            # slot.
            taking = self.running.add_task(self._take(free, free_for_all), "queue-claim")
            return await asyncio.shield(taking)

    async def _take(self, limit: int, max_for_busy_users: int) -> int:
        assignments = await self.owned.claim_waiting(
            owner=self.instance.owner,
            within=ClaimScope(
                self.connectors.runnable_by(self.data.names), bound=self.connectors.bound_to(self.data.names)
            ),
            slots=self.limits.slots,
            limit=limit,
            max_for_busy_users=max_for_busy_users,
        )
        await self.claims.start_all(assignments)
        return len(assignments)

    async def consume(self) -> None:
        """Take statements whenever one is announced or a slot becomes free. Never returns."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            announced, self._announced = max(self._announced, 1), 0
            try:
                started = await self.take(announced)
                if not started and self.broker and self._has_reserved_slots_only:
                    # A user or connector may be below its limit again, so a worker with unreserved free slots must
                    # check the queue.
                    self.broker.statement_waits(_ANY_STATEMENT, fence=0)
            except DatabaseUnavailable:
                log.warning("queue could not be read; the next sweep will read it")
            except Exception:  # last resort of a task: later announcements and free slots must still be handled
                log.exception("queue could not be read")

    async def take_for_reserved_slots(self) -> None:
        """Check the queue if only reserved slots are free. Messages wake only workers with unreserved free slots."""
        if self._has_reserved_slots_only:
            await self.take(self._free_slots)


@dataclass(frozen=True, slots=True)
class RunnerHooks:
    """The runner's callbacks into other capabilities."""

    objects_changed: Callable[[int, str], Awaitable[None]] | None = None
    """Called with the user id and the connector before the end of a statement that may change tables is recorded."""
    imports: ImportOpener | None = None
    """Opens the session of an import."""
    import_lost: Callable[[], None] | None = None
    """Called when an import has failed because the process that ran it was lost."""
    exports: ExportOpener | None = None
    """Opens the session of a statement whose rows go to files or tables."""


@dataclass(eq=False, repr=False)
class Runner:
    """Runs statements that it owns inside `running()`. On exit, unfinished statements are stopped or handed over."""

    instance: RunnerInstance
    owned: OwnedStatements
    session_records: SessionRecords
    results: ResultStore
    users: UserDirectory
    connectors: Connectors
    credentials: SessionCredentials
    signals: StateSignals
    editor: EditorSettings
    limits: RunnerLimits
    hooks: RunnerHooks = RunnerHooks()
    external_data: ExternalData = NO_EXTERNAL_DATA
    metrics: Metrics = NO_METRICS
    traces: StatementTraces = NO_TRACES
    broker: Broker | None = None
    _no_sweep_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        instance, limits = self.instance, self.limits
        self.sessions = OpenSessions(partial(self.session_records.close, owner=instance.owner))
        self.opener = self._opener()
        self.data = DataClaims(instance, self.session_records, self.connectors)
        self.statements = self._running_statements()
        self.claims = StatementClaims(
            instance=instance,
            owned=self.owned,
            users=self.users,
            connectors=self.connectors,
            data=self.data,
            sessions=self.sessions,
            running=self.statements,
            editor=self.editor,
            metrics=self.metrics,
            broker=self.broker,
            import_lost=self.hooks.import_lost,
        )
        self.queue = QueueConsumer(
            instance=instance,
            owned=self.owned,
            connectors=self.connectors,
            data=self.data,
            claims=self.claims,
            running=self.statements,
            limits=limits,
            broker=self.broker,
        )
        self.shutdown = RunnerShutdown(
            instance=instance,
            owned=self.owned,
            data=self.data,
            sessions=self.sessions,
            running=self.statements,
            signals=self.signals,
            limits=limits,
            broker=self.broker,
        )

    def _opener(self) -> SessionOpener:
        limits = self.limits
        return SessionOpener(
            owner=self.owner,
            sessions=self.sessions,
            slots=ConnectorSlots(per_connector=limits.per_connector, per_user=limits.per_user),
            records=self.session_records,
            connectors=self.connectors,
            credentials=self.credentials,
            max_kept=limits.per_user,
            max_named=self.editor.max_sessions_per_connector,
            imports=self.hooks.imports,
            exports=self.hooks.exports,
            external_data=self.external_data,
        )

    def _running_statements(self) -> RunningStatements:
        return RunningStatements(
            instance=self.instance,
            owned=self.owned,
            results=self.results,
            opener=self.opener,
            connectors=self.connectors,
            signals=self.signals,
            editor=self.editor,
            metrics=self.metrics,
            traces=self.traces,
            broker=self.broker,
            objects_changed=self.hooks.objects_changed,
            after_end=self._after_end,
        )

    @property
    def owner(self) -> str:
        """Name of this process as an owner of statements, sessions and data."""
        return self.instance.owner

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Claim orphans while the context is open. Drain on exit. The process must be registered as alive before."""
        if self.instance.intake is not Intake.BOUND:
            await self.data.acquire_configured()
        await self.claims.claim_orphans()
        limits, take_reserved = self.limits, self.queue.take_for_reserved_slots
        async with (
            background(self._every(self._check_every, self._check_owned), "owned-work"),
            background(self._every(limits.sweep_every, self._sweep), "orphan-sweep"),
            background(self._every(limits.recheck_every, self._end_disabled), "disabled-users"),
            background(self._handle_connector_changes(), "connector-changes"),
            background(self.queue.consume(), "queue-consumer"),
            background(self._every(limits.reserved_check_every, take_reserved), "queue-reserved-slots"),
        ):
            try:
                yield
            finally:
                await self.shutdown.drain()

    async def close_session(self, session_id: int) -> bool:
        """Cancel the statements of a session and close it. Return False if this process does not hold it."""
        self.statements.cancel_session(session_id)
        return await self.sessions.drop(session_id)

    def _after_end(self, execution: Execution) -> None:
        if execution.script is not None:
            name = f"after-{execution.assignment.claim.statement_id}"
            self.statements.add_task(self.claims.continue_script(execution), name)
        if execution.is_given_back and self.broker is not None:
            claim = execution.assignment.claim
            self.broker.statement_waits(claim.statement_id, fence=claim.fence)
        self.queue.wake()

    @property
    def _check_every(self) -> timedelta:
        return min(self.editor.lease_timeout / 3, self.limits.sweep_every)

    async def _check_owned(self) -> None:
        """Stop work that another process has claimed, or whose cancel was requested through another process."""
        if ids := self.statements.ids():
            owned = await self.owned.still_owned(ids, owner=self.owner)
            for statement_id in ids:
                if owned.get(statement_id, True):
                    if statement_id not in owned:
                        self.metrics.claims_lost.inc()
                    self.statements.cancel(statement_id)
        recorded = self.sessions.recorded_ids()
        await self.sessions.reconcile(recorded, await self.session_records.still_owned(recorded, owner=self.owner))
        await self.data.check()

    async def _end_disabled(self) -> None:
        """End the statements and sessions of users who were disabled or deleted."""
        owners = self.statements.users() | self.sessions.owners()
        disabled = owners - await self.users.active(owners)
        self.statements.cancel_statements_of(disabled)
        if disabled & self.sessions.owners():
            # Not awaited, because closing a session can take a long time if its engine hangs, and would delay the check
            # of other users.
            self.statements.add_task(self.sessions.drop_owned_by(disabled), "sessions-of-disabled-users")

    async def _sweep(self) -> None:
        await self.sessions.drop_idle()
        if self._must_skip_sweep:
            return
        await self.session_records.close_lost(owner=self.owner)
        await self.owned.end_broken_scripts()
        if self.instance.intake is not Intake.BOUND:
            await self.data.acquire_configured()
        await self._claim_all()

    @property
    def _must_skip_sweep(self) -> bool:
        is_too_early = time.monotonic() < self._no_sweep_until or not self.owned.ownership.may_take_over
        return self.instance.is_draining or is_too_early

    async def _claim_all(self) -> None:
        await self.claims.claim_orphans()
        await self.queue.take(self.limits.capacity)

    async def _handle_connector_changes(self) -> None:
        async for _ in self.connectors.changes():
            try:
                await self.sessions.drop_of_removed_connectors(lambda key: self.connectors.known(key) is None)
                if not self._must_skip_sweep:
                    # A statement of a new connector may have been announced here before the connector was known.
                    await self._claim_all()
            except Exception:  # last resort of a task: later changes must still be handled
                log.exception("connector change could not be handled")

    async def _every(self, period: timedelta, action: Callable[[], Awaitable[None]]) -> None:
        async def noting_outages() -> None:
            try:
                await action()
            except DatabaseUnavailable:
                # No process could send heartbeats. After the outage, each gets time for one before the next sweep.
                pause = self.editor.lease_timeout / 3 + self.limits.sweep_every
                self._no_sweep_until = time.monotonic() + pause.total_seconds()
                raise

        noting_outages.__name__ = action.__name__
        await every(period.total_seconds(), noting_outages)


class StatementDispatcher:
    """Starts recorded statements in this process, or notifies other instances that a statement is waiting.

    Notices are delivered at least once. Only one process runs the statement, because each must first claim its record.
    Lost notices are harmless: a runner's sweep finds the statement.
    """

    def __init__(self, runner: Runner, notices: Notices, broker: Broker | None = None) -> None:
        """Create a dispatcher. `broker` is set if workers run the statements."""
        self._runner = runner
        self._notices = notices
        self._broker = broker
        self.owner = runner.owner
        """The name of this process as an owner of statements."""
        self._received: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def owner_for(self, data: str | None, *, session_owner: str | None) -> str | None:
        """Return this process's owner name if a new statement will run here, otherwise None. Raises `stopping`.

        `data` names the data that its connector opens exclusively (`Connectors.data_of`).
        """
        runner = self._runner
        runner.instance.require_open()
        if runner.instance.intake is not Intake.OWN:
            return runner.owner if session_owner == runner.owner or runner.data.holds(data) else None
        if session_owner not in (None, runner.owner) or not (data is None or await runner.data.try_acquire(data)):
            return None
        return runner.owner

    @property
    def lapses(self) -> int:
        """How often this process may have counted as dead (`Ownership.lapses`)."""
        return self._runner.owned.ownership.lapses

    def sends_at_once(self, new: NewStatement) -> bool:
        """Return whether this process will send the new statement as soon as it is recorded."""
        is_plain = new.operation_id is None and new.import_plan is None and new.source_operation is None
        return is_plain and new.owner == self.owner and self._runner.opener.is_ready_for(new)

    async def dispatch(self, new: NewStatement, user: User, *, history_id: int, is_bound: bool) -> None:
        """Start a recorded statement if this process owns it, or announce it if it has no owner.

        Never raises. `is_bound` is passed to `announce`.
        """
        if new.owner is None:
            await self.announce(new.id, is_bound=is_bound)
            return
        claim = Claim(new.id, new.owner, fence=1, operation_id=new.operation_id)
        ends_at = time.monotonic() + new.timeout.total_seconds()
        self._runner.statements.start(new_assignment(new, claim, history_id=history_id, ends_at=ends_at), user)

    async def announce(self, statement_id: UUID, *, is_bound: bool) -> None:
        """Notify other instances that a statement is waiting. Never raises.

        If `is_bound` is set, only the instance that holds the statement's session or data can run it.
        """
        if self._broker is not None and not is_bound:
            self._broker.statement_waits(statement_id, fence=0)
        else:
            await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, owner: str | None) -> None:
        """Pass a recorded cancel request to the statement's runner, here or in the process `owner`. Never raises."""
        if not self._runner.statements.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(CANCEL, str(statement_id))

    def notified(self, kind: str, subject: str) -> None:
        """Act on a notice from any instance, including this one."""
        if kind in {CANCEL, ENDED}:
            if kind == CANCEL:
                self._runner.statements.cancel(UUID(subject))
            # Waiting calls are woken even on a cancel request, because it immediately ends a statement that was never
            # sent.
            self._runner.signals.notify(UUID(subject))
        else:
            self._received.put_nowait((kind, subject))

    def listening(self) -> AbstractAsyncContextManager[None]:
        return background(self._act(), "statement-notices")

    async def _act(self) -> None:
        """Process notices one at a time, because a session's statements must run in the order they are announced."""
        while True:
            kind, subject = await self._received.get()
            try:
                if kind == _WAITING:
                    if not await self._runner.claims.claim(UUID(subject)):
                        self._runner.queue.wake()
                elif kind == CLOSE_SESSION:
                    await self._runner.close_session(int(subject))
            except (DatabaseUnavailable, EngineError) as error:
                log.warning(
                    "notification could not be processed; the next sweep will do the work", kind=kind, code=error.code
                )
            except Exception:  # last resort of a task: later notices must still be processed
                log.exception("notification could not be processed", kind=kind)
