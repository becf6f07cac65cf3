"""The statements that this process runs: queue, leases, take-over, shutdown (Contract platform 10.2)."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable, stopping
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.fair_queue import Slots
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.stopping import (
    SESSIONS_CLOSED_WITHIN_S,
    STATEMENTS_RECORDED_WITHIN_S,
    STATEMENTS_STOPPED_WITHIN_S,
    stop_step,
)
from queryserver.platform.threads import background, every
from queryserver.results.segments import ResultStore
from queryserver.sql.splitter import changes_objects, refusal_where_read_only
from queryserver.statements.engine_sessions import CredentialBook, HeldSessions, ImportOpener, SessionOpener
from queryserver.statements.execution import Execution
from queryserver.statements.leases import StatementLeases
from queryserver.statements.lost import GONE, RETRIED, ended, may_run_again, unless_out_of_reach, within
from queryserver.statements.model import Assignment, ClaimScope, Intake, Lease, Outcome, QueuePlaces
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.session_reach import NO_REACH, Reach
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.signals import StateSignals
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

# For one write at the end of a stop.
_LEAST_S = 0.5
_KEPT_ONE_IN = 8
# A message wakes a worker, whatever statement it names.
_NO_STATEMENT = UUID(int=0)


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """How much one process runs at once, and its rhythm."""

    per_connector: int = 16
    per_user: int = 8
    sweep_every: timedelta = timedelta(seconds=5)
    shutdown_grace: timedelta = timedelta(seconds=30)
    recheck_every: timedelta = timedelta(seconds=5)
    """Within this time what disabled users run and hold here is ended."""
    capacity: int = 0
    """Statements that a worker runs at once. Those that it takes over from a lost one come in addition."""
    look_every: timedelta = timedelta(seconds=1)
    """How often a worker that has only kept places looks for whom they are kept: messages go to those with others."""

    @property
    def places(self) -> QueuePlaces:
        """With the task server the places of a connector and of a user count over all workers."""
        return QueuePlaces(self.per_connector, self.per_user)

    @property
    def kept(self) -> int:
        """How many places of a worker are kept for people who run nothing: one in eight, at least one of two."""
        return max(self.capacity // _KEPT_ONE_IN, 1) if self.capacity > 1 else 0


class Broker(Protocol):
    """Wakes other processes of the fleet. Returns at once, never raises; what it loses is found by sweeps."""

    @property
    def is_reachable(self) -> bool | None:
        """By the last call; None: none was made."""
        ...

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None: ...

    def statement_changed(self, statement_id: UUID) -> None: ...


@dataclass(eq=False, repr=False)
class Runner:
    """Runs statements under leases. Use `running()`: what has not finished at the end is stopped or handed over.

    `objects_changed` is called with user and connector after statements that may change tables; `import_lost` when an
    import ended because its server is gone.
    """

    owner: str
    leases: StatementLeases
    sessions: SessionRecords
    results: ResultStore
    users: UserDirectory
    connectors: Connectors
    credentials: CredentialBook
    signals: StateSignals
    editor: EditorSettings
    limits: RunnerLimits
    objects_changed: Callable[[int, str], Awaitable[None]] | None = None
    imports: ImportOpener | None = None
    reach: Reach = NO_REACH
    metrics: Metrics = UNMEASURED
    import_lost: Callable[[], None] | None = None
    intake: Intake = Intake.OWN
    broker: Broker | None = None
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _freed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _wanted: int = field(default=0, init=False)
    _runs: dict[UUID, Execution] = field(default_factory=dict[UUID, Execution], init=False)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]], init=False)
    _data_held: set[str] = field(default_factory=set[str], init=False)
    _draining: bool = field(default=False, init=False)
    _drained: bool = field(default=False, init=False)
    _no_sweep_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.held = HeldSessions(partial(self.sessions.close, owner=self.owner))
        self.opener = SessionOpener(
            owner=self.owner,
            held=self.held,
            slots=Slots(per_connector=self.limits.per_connector, per_user=self.limits.per_user),
            records=self.sessions,
            connectors=self.connectors,
            credentials=self.credentials,
            lease=self.editor.lease_timeout,
            max_kept=self.limits.per_user,
            max_named=self.editor.max_sessions_per_connector,
            imports=self.imports,
            reach=self.reach,
        )

    @asynccontextmanager
    async def running(self, *, take_over_all: bool = False) -> AsyncGenerator[None]:
        """Keep leases alive and take over orphans; drain at the end. `take_over_all`: no other process is alive."""
        if self.intake is Intake.BOUND:
            if take_over_all:
                await self.leases.expire_all()
                await self.sessions.expire_all()
        else:
            await self._hold(self.connectors.data_to_hold(), everything=take_over_all)
        await self._claim_orphans(everything=take_over_all and self.intake is Intake.OWN)
        limits = self.limits
        async with (
            background(self._every(self.editor.lease_timeout / 3, self._renew), "lease-heartbeat"),
            background(self._every(limits.sweep_every, self._sweep), "orphan-sweep"),
            background(self._every(limits.recheck_every, self._end_disabled), "disabled-users"),
            background(self._follow_connectors(), "connector-changes"),
            background(self._refill(), "queue-refill"),
            background(self._every(limits.look_every, self._take_first_ones), "queue-first-ones"),
        ):
            try:
                yield
            finally:
                await self.drain()

    def require_open(self) -> None:
        """Raises Stopping once this process begins no new work."""
        if self._draining:
            raise stopping("This server is stopping and starts no new work. Send the call again.")

    async def may_run(self, connector: Connector) -> bool:
        """Whether statements of this connector can run in this process; tries to acquire its data if needed."""
        data = self.connectors.data_of(connector)
        return not self._draining and (data is None or await self.may_hold(data))

    async def may_hold(self, data: str) -> bool:
        """Whether this process holds the data of that name; tries to acquire them if needed."""
        if self._draining:
            return False
        # Beside workers a server acquires none: it would keep it, and run the statements that are theirs.
        if data not in self._data_held and self.intake is not Intake.BOUND:
            await self._hold([data])
        return data in self._data_held

    def start(self, assignment: Assignment, user: User, script: ScriptRun | None = None) -> None:
        """Run a claimed statement; after the grace time of the stop it is left to another server.

        `script`: another statement of the same script ended here just before.
        """
        if self._drained:
            # The call was accepted just before the stop began.
            release = unless_out_of_reach(self.leases.release(assignment.lease))
            self._keep(asyncio.create_task(release, name="statement-left"))
            return
        lease = assignment.lease
        if lease.operation_id is not None and script is None:
            script = ScriptRun(self.leases, self.editor, is_shared=self._is_shared(assignment))
        execution = Execution(
            assignment,
            leases=self.leases,
            results=self.results,
            settings=self.editor,
            open_session=partial(self.opener.session, user=user),
            reattach=partial(self.opener.reattached, user=user),
            notify=partial(self._changed, lease),
            before_end=self._before_end(assignment),
            metrics=self.metrics,
            script=script,
        )
        self._runs[lease.statement_id] = execution
        task = asyncio.create_task(execution.run(), name=f"statement-{lease.statement_id}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._forget, execution))

    def holds(self, data: str | None) -> bool:
        """Whether this process has the data of that name; acquires nothing."""
        return not self._draining and data in self._data_held

    @property
    def room(self) -> int:
        """How many more statements of the queue this worker runs, whoever sent them."""
        return max(self._free_places - self.limits.kept - self._wanted, 0)

    @property
    def _has_only_kept_places(self) -> bool:
        return 0 < self._free_places <= self.limits.kept

    @property
    def _free_places(self) -> int:
        if self.intake is not Intake.QUEUED or self._draining:
            return 0
        return max(self.limits.capacity - self.active, 0)

    def take_one(self) -> None:
        """A statement waits in the queue: this worker takes one, in a task of its own that the stop waits for."""
        self._wanted += 1
        self._freed.set()

    async def take_waiting(self, most: int) -> int:
        """Run up to `most` statements of the queue, as far as there is room; the number. Raises DatabaseUnavailable."""
        async with self._taking:
            room = min(most, self._free_places)
            if room <= 0:
                return 0
            room_of_busy = min(room, max(self._free_places - self.limits.kept, 0))
            # To the end, also where the caller is canceled: a claim that nothing runs would block its place.
            taking = asyncio.create_task(self._take(room, room_of_busy), name="queue-claim")
            self._tasks.add(taking)
            taking.add_done_callback(self._tasks.discard)
            return await asyncio.shield(taking)

    async def _take(self, most: int, most_of_busy: int) -> int:
        found = await self.leases.claim_waiting(
            owner=self.owner,
            lease=self.editor.lease_timeout,
            connectors=self.connectors.runnable_by(self._data_held),
            places=self.limits.places,
            most=most,
            most_of_busy=most_of_busy,
        )
        for assignment in found:
            try:
                await self._start_claimed(assignment)
            except DatabaseUnavailable:
                log.warning(
                    "claimed and not started; its lease runs out", operation_id=str(assignment.lease.statement_id)
                )
        return len(found)

    async def _refill(self) -> None:
        """A place that becomes free takes what waits: its message may have come while no place was free."""
        while True:
            await self._freed.wait()
            self._freed.clear()
            wanted, self._wanted = max(self._wanted, 1), 0
            try:
                taken = await self.take_waiting(wanted)
                if not taken and self.broker and self._has_only_kept_places:
                    # What became free may be a share of a user or a connector: for a worker with other places.
                    self.broker.statement_waits(_NO_STATEMENT, fence=0)
            except DatabaseUnavailable:
                log.warning("nothing taken from the queue; the sweep will")
            except Exception:  # the outer wall of a task: the next free place must be used
                log.exception("nothing taken from the queue")

    async def _take_first_ones(self) -> None:
        if self._has_only_kept_places:
            await self.take_waiting(self._free_places)

    def runs(self, statement_id: UUID) -> bool:
        """Whether the statement runs, or waits for a slot, in this process."""
        return statement_id in self._runs

    def _changed(self, lease: Lease) -> None:
        execution = self._runs.get(lease.statement_id)
        may_have_ended = execution is None or execution.is_settled
        self._signal(lease.statement_id, may_have_ended=may_have_ended)
        if lease.operation_id is not None:
            goes_on = execution is not None and execution.following is not None
            self._signal(lease.operation_id, may_have_ended=may_have_ended and not goes_on)

    def _signal(self, statement_id: UUID, *, may_have_ended: bool) -> None:
        self.signals.notify(statement_id, may_have_ended=may_have_ended)
        if self.broker is not None:
            self.broker.statement_changed(statement_id)

    def _is_shared(self, assignment: Assignment) -> bool:
        connector = self.connectors.known(assignment.connector)
        return connector is not None and connector.limits.shared_session

    def _keep(self, task: asyncio.Task[None]) -> None:
        """The shutdown waits for the task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _before_end(self, assignment: Assignment) -> Callable[[], Awaitable[None]] | None:
        # An import always makes or fills a table.
        changes = assignment.import_plan is not None or changes_objects(assignment.statement, assignment.dialect)
        if self.objects_changed is None or not changes:
            return None
        return partial(self.objects_changed, assignment.user_id, assignment.connector)

    async def claim(self, statement_id: UUID) -> None:
        """Take a waiting statement that was announced, if it is for this process."""
        if self._draining:
            return
        lease, scope = self.editor.lease_timeout, self._claim_scope()
        found = await self.leases.claim(statement_id, owner=self.owner, lease=lease, within=scope)
        for assignment in found:
            await self._start_claimed(assignment)
        if not found and self._free_places:
            self.take_one()

    def cancel(self, statement_id: UUID, *, message: str = "Canceled.") -> bool:
        """Stop a statement, or the one that runs of a script; False when it does not run here."""
        execution = self._runs.get(statement_id) or next(
            (one for one in self._runs.values() if one.assignment.lease.operation_id == statement_id), None
        )
        if execution is None:
            return False
        execution.stop(message)
        return True

    async def close_session(self, session_id: int) -> bool:
        """Stop what runs in a session and close it; False when this process does not hold it."""
        for execution in list(self._runs.values()):
            if execution.assignment.session_id == session_id:
                execution.stop("Canceled: its session was closed.")
        return await self.held.drop(session_id)

    @property
    def active(self) -> int:
        """How many statements run or wait for a slot here."""
        return len(self._runs)

    def _forget(self, execution: Execution, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        statement_id = execution.assignment.lease.statement_id
        if self._runs.get(statement_id) is execution:
            del self._runs[statement_id]
        if not execution.is_settled:  # else it was signalled with the record of the end
            self._changed(execution.assignment.lease)
        if execution.script is not None:
            self._keep(asyncio.create_task(self._after_part(execution), name=f"after-{statement_id}"))
        if self.intake is Intake.QUEUED:
            self.take_one()

    async def _after_part(self, execution: Execution) -> None:
        """Go on with the script, or close the session of one that ends before its last statement."""
        done, following = execution.assignment, execution.following
        is_own = done.keeps_session and not (done.in_named_session or self._is_shared(done))
        closes = is_own and execution.is_settled and not self._draining
        try:
            if following is not None:
                await self._start_claimed(following, execution.script)
                if self.runs(following.lease.statement_id):
                    return
        except Exception as error:  # the outer wall of a task: its lease runs out, and it is claimed again
            log.warning("script not continued", operation_id=str(done.lease.operation_id), exc_info=error)
            closes = False
        await self.held.end_script(done.session_id, done.lease.operation_id or UUID(int=0), closes=closes)

    async def _start_claimed(self, assignment: Assignment, script: ScriptRun | None = None) -> None:
        """Run what was claimed, or record its end: a statement that may have been sent is never sent again.

        `script`: it is the next statement of a script that runs here, also while this process stops.
        """
        user = await self.users.user(assignment.user_id)
        if user is not None and assignment.api_token is not None:
            user = user.narrowed(assignment.api_token)
        connector = self.connectors.known(assignment.connector)
        outcome = refusal = None
        if assignment.sent and user is not None and await self._retried(assignment, connector):
            return
        if assignment.sent:
            outcome = GONE if user is None or assignment.resumption is None else None
        elif user is None:
            refusal = "The user is no longer active."
        elif connector and connector.read_only:
            refusal = refusal_where_read_only(assignment.statement, assignment.dialect)
        if refusal is not None:
            outcome = Outcome(StatementState.FAILED, error_code="rejected", message=refusal)
        if outcome is not None:
            await self._end_claimed(assignment, outcome)
        elif user is not None and (script is not None or not self._draining):
            self.start(assignment, user, script)
        elif assignment.sent:
            await self.leases.hand_over(assignment.lease)
        else:
            await self.leases.release(assignment.lease)

    async def _retried(self, assignment: Assignment, connector: Connector | None) -> bool:
        """Whether it waits once more: for a worker, or for the process that can run it."""
        lease = assignment.lease
        if connector is None or not may_run_again(assignment, connector):
            return False
        if not await self.leases.retry(lease, line=RETRIED):
            return False
        self._changed(lease)
        if self.broker is not None:
            self.broker.statement_waits(lease.statement_id, fence=lease.fence)
        else:
            await self.claim(lease.statement_id)
        return True

    async def _end_claimed(self, assignment: Assignment, outcome: Outcome) -> None:
        if before_end := self._before_end(assignment):
            await before_end()
        retention, lines = self.editor.result_retention, [outcome.message]
        await self.leases.finish(assignment.lease, outcome, retention=retention, lines=lines, start_line=None)
        self.metrics.statement_ended(assignment.dialect, outcome.state.value, 0.0)
        self._changed(assignment.lease)
        if assignment.import_plan is not None and self.import_lost is not None:
            self.import_lost()

    async def _renew(self) -> None:
        ours = list(self._runs)
        lease = self.editor.lease_timeout
        kept = await self.leases.renew(ours, owner=self.owner, lease=lease) if ours else {}
        for statement_id in ours:
            if kept.get(statement_id, True):
                # Requested at another instance, or no longer ours: in both cases the work here ends.
                if statement_id not in kept:
                    self.metrics.leases_lost.inc()
                self.cancel(statement_id)
        recorded = self.held.recorded()
        renewed = await self.sessions.renew(owner=self.owner, lease=lease)
        await self.held.reconcile(recorded, renewed)
        # The lease of data that no connector names any more runs out, once no engine has them open.
        self._data_held &= self.connectors.data_to_hold() | self.connectors.data_in_use()
        await self._hold(list(self._data_held))

    async def _end_disabled(self) -> None:
        """Cancel the statements and close the sessions here whose users were disabled or deleted."""
        owners = {execution.assignment.user_id for execution in self._runs.values()} | self.held.owners()
        # Concurrent calls share a query.
        users = await asyncio.gather(*(self.users.user(user_id) for user_id in owners))
        disabled = owners - {user.id for user in users if user is not None}
        for execution in list(self._runs.values()):
            if execution.assignment.user_id in disabled:
                execution.stop("Canceled: the user is no longer active.")
        if disabled & self.held.owners():
            # A session whose engine hangs closes late; the users that are disabled meanwhile must not wait for it.
            self._keep(asyncio.create_task(self.held.drop_owned_by(disabled), name="sessions-of-disabled-users"))

    async def _sweep(self) -> None:
        await self.held.drop_idle()
        if self._draining or time.monotonic() < self._no_sweep_until:
            return
        # What runs here is not lost, even if an outage of the database let its lease run out.
        await self._renew()
        await self.sessions.close_lost()
        await self.leases.end_broken_scripts()
        if self.intake is not Intake.BOUND:
            await self._hold(self.connectors.data_to_hold() - self._data_held)
        await self._claim_orphans()
        await self.take_waiting(self.limits.capacity)

    async def _follow_connectors(self) -> None:
        async for _ in self.connectors.changes():
            try:
                await self.held.drop_of(lambda key: self.connectors.known(key) is None)
                if not self._draining and time.monotonic() >= self._no_sweep_until:
                    # A statement for a new connector may have been announced before the connector was known here.
                    await self._claim_orphans()
                    await self.take_waiting(self.limits.capacity)
            except Exception:  # the outer wall of a task: the next change must be followed
                log.exception("change of connectors not followed")

    async def _claim_orphans(self, *, everything: bool = False) -> None:
        lease, scope = self.editor.lease_timeout, self._claim_scope()
        for assignment in await self.leases.claim_orphans(
            owner=self.owner, lease=lease, within=scope, everything=everything
        ):
            await self._start_claimed(assignment)

    def _claim_scope(self) -> ClaimScope:
        """A session that is open here takes its statements, also when its connector as it is now cannot run here."""
        match self.intake:
            case Intake.OWN:
                connectors = self.connectors.runnable_by(self._data_held)
            case Intake.BOUND:
                connectors = self.connectors.bound_to(self._data_held)
            case Intake.QUEUED:
                connectors = ()
        return ClaimScope(connectors, self.held.ids(), resumes=self.intake is not Intake.BOUND)

    async def _hold(self, names: Iterable[str], *, everything: bool = False) -> None:
        for name in names:
            lease = self.editor.lease_timeout
            if await self.sessions.hold_engine(name, owner=self.owner, lease=lease, everything=everything):
                self._data_held.add(name)
            elif name in self._data_held:
                self._data_held.discard(name)
                await self.connectors.discard_engines(name)

    async def drain(self, *, at_once: bool = False) -> None:
        """Let statements finish for the grace time, then stop them within `REST_S`; repeated, it does nothing.

        `at_once`: there is no grace time. Statements that were not sent, or that another server can follow, are left to
        it. Calls are still answered meanwhile; those that would start work are refused.
        """
        if self._drained:
            await ended(self._tasks, _LEAST_S)
            return
        self._draining = True
        grace_s = 0.0 if at_once else self.limits.shutdown_grace.total_seconds()
        with stop_step("statements may finish", within_s=grace_s, statements=len(self._runs)):
            end = time.monotonic() + grace_s
            # Calls that were accepted before the stop begin statements meanwhile.
            while self._tasks and (left_s := end - time.monotonic()) > 0:
                await ended(self._tasks, left_s)
        self._drained = True
        if self._tasks:
            with stop_step("statements are stopped", within_s=STATEMENTS_STOPPED_WITHIN_S, statements=len(self._runs)):
                await self._stop_all(STATEMENTS_STOPPED_WITHIN_S)
            with stop_step("unconfirmed ends are recorded", within_s=STATEMENTS_RECORDED_WITHIN_S):
                await self._give_up_all(STATEMENTS_RECORDED_WITHIN_S)
        self.signals.end_waits()
        with stop_step("sessions are closed", within_s=SESSIONS_CLOSED_WITHIN_S):
            await within(self.held.aclose(), SESSIONS_CLOSED_WITHIN_S)
            # The next heartbeat must not take back what other servers may hold from now on.
            self._data_held.clear()
            release = unless_out_of_reach(self.sessions.release_engines(owner=self.owner))
            await within(release, SESSIONS_CLOSED_WITHIN_S)

    async def _stop_all(self, within_s: float) -> None:
        """Stop or give away all statements; returns when all have ended, or after `within_s`."""
        end = time.monotonic() + within_s
        left = [execution for execution in list(self._runs.values()) if execution.detach()]
        others = [execution for execution in list(self._runs.values()) if execution not in left]
        await within(asyncio.gather(*(self._stop_or_release(one) for one in others)), within_s)
        await ended(self._tasks, end - time.monotonic())
        hand_overs = (unless_out_of_reach(self.leases.hand_over(one.assignment.lease)) for one in left)
        await within(asyncio.gather(*hand_overs), max(end - time.monotonic(), _LEAST_S))

    async def _stop_or_release(self, execution: Execution) -> None:
        """Leave an unsent statement to another server; stop one that was sent, or is sent meanwhile."""
        if not execution.was_sent:
            try:
                released = await self.leases.release(execution.assignment.lease)
            except DatabaseUnavailable:
                released = not execution.was_sent
            if released:
                execution.abandon()
                if self.broker is not None:
                    lease = execution.assignment.lease
                    self.broker.statement_waits(lease.statement_id, fence=lease.fence)
                return
        execution.stop("Canceled by the shutdown of the server.")

    async def _give_up_all(self, within_s: float) -> None:
        """Record an end for the statements whose engines have not confirmed any; their tasks end."""
        end = time.monotonic() + within_s
        await within(asyncio.gather(*(one.give_up() for one in list(self._runs.values()))), within_s / 2)
        for task in self._tasks:
            task.cancel()
        await ended(self._tasks, end - time.monotonic())

    async def _every(self, period: timedelta, action: Callable[[], Awaitable[None]]) -> None:
        async def noting_outages() -> None:
            try:
                await action()
            except DatabaseUnavailable:
                # No lease could be renewed: when the database is back, their owners come before the sweep.
                pause = self.editor.lease_timeout / 3 + self.limits.sweep_every
                self._no_sweep_until = time.monotonic() + pause.total_seconds()
                raise

        noting_outages.__name__ = action.__name__
        await every(period.total_seconds(), noting_outages)
