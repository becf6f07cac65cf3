"""The statements that this process runs: leases, take-over, shutdown (Contract platform 10.2)."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog

from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable, stopping
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Notices
from queryserver.platform.limits import Slots
from queryserver.platform.metrics import UNMEASURED, StatementMetrics
from queryserver.platform.stopping import (
    SESSIONS_CLOSED_WITHIN_S,
    STATEMENTS_RECORDED_WITHIN_S,
    STATEMENTS_STOPPED_WITHIN_S,
    stop_step,
)
from queryserver.results.segments import ResultStore
from queryserver.sql.splitter import changes_objects, refusal_where_read_only
from queryserver.statements.engine_sessions import HeldSessions, ImportOpener, SessionOpener
from queryserver.statements.execution import Execution, ExecutionSettings
from queryserver.statements.model import Assignment, Outcome, StatementState
from queryserver.statements.queue import CANCEL, CLOSE_SESSION, StateSignals
from queryserver.statements.rows import Reach, StatementLeases
from queryserver.statements.session_repository import CredentialBook, SessionRecords

log = structlog.get_logger(__name__)

_LEAST_S = 0.5
"""For one write at the end of a stop."""

_GONE = Outcome(
    StatementState.FAILED,
    error_code="outcome_unknown",
    message="The server that ran this statement is gone: it may or may not have taken effect.",
)


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """How much one process runs at once, and its rhythm."""

    per_connector: int = 16
    per_user: int = 8
    sessions_per_connector: int = 64
    sweep_every: timedelta = timedelta(seconds=5)
    shutdown_grace: timedelta = timedelta(seconds=30)
    recheck_every: timedelta = timedelta(seconds=5)
    """Within this time what disabled users run and hold here is ended."""


class Runner:
    """Runs statements under leases. Use `running()`: what is not finished at the end is stopped or handed over."""

    def __init__(
        self,
        owner: str,
        *,
        leases: StatementLeases,
        sessions: SessionRecords,
        results: ResultStore,
        users: UserDirectory,
        connectors: Connectors,
        credentials: CredentialBook,
        signals: StateSignals,
        execution: ExecutionSettings,
        limits: RunnerLimits,
        objects_changed: Callable[[int, str], Awaitable[None]] | None = None,
        imports: ImportOpener | None = None,
        metrics: StatementMetrics = UNMEASURED,
        import_lost: Callable[[], None] | None = None,
    ) -> None:
        self.owner = owner
        self._leases = leases
        self._sessions = sessions
        self._results = results
        self._users = users
        self._connectors = connectors
        self._signals = signals
        self._execution = execution
        self._limits = limits
        self._objects_changed = objects_changed
        self._metrics = metrics
        self._import_lost = import_lost
        self.held = HeldSessions(partial(sessions.close, owner=owner))
        self.opener = SessionOpener(
            owner=owner,
            held=self.held,
            slots=Slots(per_connector=limits.per_connector, per_user=limits.per_user),
            records=sessions,
            connectors=connectors,
            credentials=credentials,
            lease=execution.lease,
            max_kept=limits.per_user,
            max_named=limits.sessions_per_connector,
            imports=imports,
        )
        self._runs: dict[UUID, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._data_held: set[str] = set()
        self._draining = False
        self._drained = False
        self._others_may_be_late_until = 0.0

    @asynccontextmanager
    async def running(self, *, take_over_all: bool = False) -> AsyncGenerator[None]:
        """Keep leases alive and look for orphans while inside; drain at the end.

        `take_over_all`: no other process can be alive, so nothing waits for a lease to run out.
        """
        await self._hold(self._connectors.data_to_hold(), everything=take_over_all)
        await self._claim_orphans(everything=take_over_all)
        limits = self._limits
        keepers = [
            asyncio.create_task(self._every(self._heartbeat, self._renew), name="lease-heartbeat"),
            asyncio.create_task(self._every(limits.sweep_every, self._sweep), name="orphan-sweep"),
            asyncio.create_task(self._every(limits.recheck_every, self._end_disabled), name="disabled-users"),
            asyncio.create_task(self._follow_connectors(), name="connector-changes"),
        ]
        try:
            yield
        finally:
            await self.drain()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    def require_open(self) -> None:
        """Raises Stopping once this process begins no new work."""
        if self._draining:
            raise stopping("This server is stopping and starts no new work. Send the call again.")

    async def may_run(self, connector: Connector) -> bool:
        """Whether statements of this connector can run in this process; tries to get hold of its data if need be."""
        data = self._connectors.data_of(connector)
        return not self._draining and (data is None or await self.may_hold(data))

    async def may_hold(self, data: str) -> bool:
        """Whether this process has the data of that name; tries to get hold of them if need be."""
        if self._draining:
            return False
        if data not in self._data_held:
            await self._hold([data])
        return data in self._data_held

    def start(self, assignment: Assignment, user: User) -> None:
        """Run a claimed statement; after the grace of the stop it is left to another server."""
        if self._drained:
            # The call was accepted just before the stop began.
            release = self._leases.release(assignment.lease)
            self._keep(asyncio.create_task(_tolerantly(release), name="statement-left"))
            return
        statement_id = assignment.lease.statement_id
        execution = Execution(
            assignment,
            leases=self._leases,
            results=self._results,
            settings=self._execution,
            open_session=lambda claimed: self.opener.session(claimed, user),
            reattach=lambda claimed: self.opener.reattached(claimed, user),
            notify=partial(self._signals.notify, statement_id),
            before_end=self._before_end(assignment),
            metrics=self._metrics,
        )
        self._runs[statement_id] = execution
        task = asyncio.create_task(self._run(execution), name=f"statement-{statement_id}")
        self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Have the shutdown wait for the task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _before_end(self, assignment: Assignment) -> Callable[[], Awaitable[None]] | None:
        tell = self._objects_changed
        if tell is None or not changes_objects(assignment.statement, assignment.dialect):
            return None
        return partial(tell, assignment.user_id, assignment.connector)

    async def claim(self, statement_id: UUID) -> None:
        """Take a waiting statement that was announced, if it is for this process."""
        if self._draining:
            return
        assignment = await self._leases.claim(
            statement_id, owner=self.owner, lease=self._execution.lease, within=self._reach()
        )
        if assignment is not None:
            await self._start_claimed(assignment)

    def cancel(self, statement_id: UUID, *, message: str = "Canceled.") -> bool:
        """Stop a statement; False when it does not run here."""
        execution = self._runs.get(statement_id)
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
        """How many statements run or wait for a place here."""
        return len(self._runs)

    async def _run(self, execution: Execution) -> None:
        statement_id = execution.assignment.lease.statement_id
        try:
            await execution.run()
        finally:
            if self._runs.get(statement_id) is execution:
                del self._runs[statement_id]
            self._signals.notify(statement_id)

    async def _start_claimed(self, assignment: Assignment) -> None:
        """Run what was claimed, or say how it ended: a statement that may have been sent is never sent again."""
        if assignment.sent:
            outcome = await self._start_resumed(assignment)
        else:
            outcome = await self._start_unsent(assignment)
        if outcome is None:
            return
        if tell := self._before_end(assignment):
            await tell()
        await self._leases.finish(
            assignment.lease,
            outcome,
            retention=self._execution.retention,
            lines=[outcome.message],
            start_line=None,
        )
        self._metrics.statement_ended(assignment.dialect, outcome.state.value, 0.0)
        self._signals.notify(assignment.lease.statement_id)
        if assignment.import_plan is not None and self._import_lost is not None:
            self._import_lost()

    async def _start_resumed(self, assignment: Assignment) -> Outcome | None:
        """None, or why nobody can go on with what the engine has."""
        user = await self._users.user(assignment.user_id)
        if user is None or assignment.resumption is None:
            return _GONE
        if self._draining:
            await self._leases.hand_over(assignment.lease)
        else:
            self.start(assignment, user)
        return None

    async def _start_unsent(self, assignment: Assignment) -> Outcome | None:
        """None, or why the engine must not see the statement."""
        user = await self._users.user(assignment.user_id)
        connector = self._connectors.known(assignment.connector)
        if user is None:
            return _rejected("The user is no longer active.")
        if connector and connector.read_only:
            refusal = refusal_where_read_only(assignment.statement, assignment.dialect)
            if refusal is not None:
                return _rejected(refusal)
        if self._draining:
            await self._leases.release(assignment.lease)
        else:
            self.start(assignment, user)
        return None

    async def _renew(self) -> None:
        ours = list(self._runs)
        lease = self._execution.lease
        kept = await self._leases.renew(ours, owner=self.owner, lease=lease) if ours else {}
        for statement_id in ours:
            if kept.get(statement_id, True):
                # Asked for by another instance, or no longer ours: either way the work here ends.
                if statement_id not in kept:
                    self._metrics.lease_lost()
                self.cancel(statement_id)
        recorded = self.held.recorded()
        renewed = await self._sessions.renew(owner=self.owner, lease=lease)
        await self.held.reconcile(recorded, renewed)
        # What no connector means any more is left to run out, once nothing has it open.
        connectors = self._connectors
        self._data_held &= connectors.data_to_hold() | connectors.data_in_use()
        await self._hold(list(self._data_held))

    async def _end_disabled(self) -> None:
        """Cancel the statements and close the sessions here whose users were disabled or deleted."""
        owners = {execution.assignment.user_id for execution in self._runs.values()} | self.held.owners()
        # Asked for at once they share a query.
        users = await asyncio.gather(*(self._users.user(user_id) for user_id in owners))
        disabled = owners - {user.id for user in users if user is not None}
        for execution in list(self._runs.values()):
            if execution.assignment.user_id in disabled:
                execution.stop("Canceled: the user is no longer active.")
        if disabled & self.held.owners():
            # A session whose engine hangs closes late; whoever is disabled meanwhile must not wait for it.
            self._keep(asyncio.create_task(self.held.drop_owned_by(disabled), name="sessions-of-disabled-users"))

    async def _sweep(self) -> None:
        await self.held.drop_idle()
        if self._draining or time.monotonic() < self._others_may_be_late_until:
            return
        # What is here is not lost, even if an outage of the database let its lease run out.
        await self._renew()
        await self._sessions.close_lost()
        await self._hold(self._connectors.data_to_hold() - self._data_held)
        await self._claim_orphans()

    async def _follow_connectors(self) -> None:
        async for _ in self._connectors.changes():
            try:
                await self.held.drop_of(lambda key: self._connectors.known(key) is None)
                if not self._draining and time.monotonic() >= self._others_may_be_late_until:
                    # A statement for a new connector may have been announced before the connector was known here.
                    await self._claim_orphans()
            except Exception:  # the outer wall of a task: the next change must be heard
                log.exception("change of connectors not followed")

    async def _claim_orphans(self, *, everything: bool = False) -> None:
        orphans = await self._leases.claim_orphans(
            owner=self.owner, lease=self._execution.lease, within=self._reach(), everything=everything
        )
        for assignment in orphans:
            await self._start_claimed(assignment)

    def _reach(self) -> Reach:
        """A session that is open here takes its statements, also where its connector as it is now does not run."""
        return Reach(self._connectors.runnable_by(self._data_held), self.held.ids())

    async def _hold(self, names: Iterable[str], *, everything: bool = False) -> None:
        for name in names:
            held = await self._sessions.hold_engine(
                name, owner=self.owner, lease=self._execution.lease, everything=everything
            )
            if held:
                self._data_held.add(name)
            elif name in self._data_held:
                self._data_held.discard(name)
                await self._connectors.discard_engines(name)

    async def drain(self) -> None:
        """Let statements finish for the grace time, then stop them: within `REST_S` at most.

        What was not sent, and what another server can go on following, is left to it. Calls are still answered
        meanwhile; those that would start work are refused. Repeated, it does nothing.
        """
        if self._drained:
            await _ended(self._tasks, _LEAST_S)
            return
        self._draining = True
        grace_s = self._limits.shutdown_grace.total_seconds()
        with stop_step("statements may finish", within_s=grace_s, statements=len(self._runs)):
            await self._all_ended(grace_s)
        self._drained = True
        if self._tasks:
            with stop_step("statements are stopped", within_s=STATEMENTS_STOPPED_WITHIN_S, statements=len(self._runs)):
                await self._stop_all(STATEMENTS_STOPPED_WITHIN_S)
            with stop_step("unconfirmed ends are recorded", within_s=STATEMENTS_RECORDED_WITHIN_S):
                await self._give_up_all(STATEMENTS_RECORDED_WITHIN_S)
        self._signals.end_waits()
        with stop_step("sessions are closed", within_s=SESSIONS_CLOSED_WITHIN_S):
            await _within(self.held.aclose(), SESSIONS_CLOSED_WITHIN_S)
            # The next heartbeat must not take back what other servers may have from now on.
            self._data_held.clear()
            release = self._sessions.release_engines(owner=self.owner)
            await _within(_tolerantly(release), SESSIONS_CLOSED_WITHIN_S)

    async def _all_ended(self, within_s: float) -> None:
        """Wait for all statements, with those that calls accepted before the stop begin meanwhile."""
        end = time.monotonic() + within_s
        while self._tasks and (left_s := end - time.monotonic()) > 0:
            await _ended(self._tasks, left_s)

    async def _stop_all(self, within_s: float) -> None:
        """Stop or give away all statements; returns when all have ended, or after `within_s`."""
        end = time.monotonic() + within_s
        left = [execution for execution in list(self._runs.values()) if execution.detach()]
        others = [execution for execution in list(self._runs.values()) if execution not in left]
        await _within(asyncio.gather(*(self._stop_or_release(one) for one in others)), within_s)
        await _ended(self._tasks, end - time.monotonic())
        hand_overs = (_tolerantly(self._leases.hand_over(one.assignment.lease)) for one in left)
        await _within(asyncio.gather(*hand_overs), max(end - time.monotonic(), _LEAST_S))

    async def _stop_or_release(self, execution: Execution) -> None:
        if execution.was_sent or not await self._hand_over(execution):
            execution.stop("Canceled by the shutdown of the server.")

    async def _give_up_all(self, within_s: float) -> None:
        """Record an end for the statements whose engines have not confirmed any; their tasks end."""
        end = time.monotonic() + within_s
        await _within(asyncio.gather(*(one.give_up() for one in list(self._runs.values()))), within_s / 2)
        for task in self._tasks:
            task.cancel()
        await _ended(self._tasks, end - time.monotonic())

    async def _hand_over(self, execution: Execution) -> bool:
        """Leave an unsent statement to another server; False when it was sent meanwhile."""
        try:
            released = await self._leases.release(execution.assignment.lease)
        except DatabaseUnavailable:
            released = not execution.was_sent
        if released:
            execution.abandon()
        return released

    @property
    def _heartbeat(self) -> timedelta:
        return self._execution.lease / 3

    async def _every(self, period: timedelta, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat for ever; a failed round is the next one's business."""
        while True:
            # Servers started together must not sweep in step.
            await asyncio.sleep(period.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311 no secret
            try:
                await action()
            except DatabaseUnavailable:
                log.warning("round failed: the database is out of reach", action=action.__name__)
                # Leases ran out because nobody could renew them: their owners come first when it is back.
                late_s = self._heartbeat.total_seconds() + self._limits.sweep_every.total_seconds()
                self._others_may_be_late_until = time.monotonic() + late_s
            except Exception:  # the outer wall of a task: without a heartbeat every statement here would be lost
                log.exception("round failed", action=action.__name__)


def _rejected(message: str) -> Outcome:
    return Outcome(StatementState.FAILED, error_code="rejected", message=message)


async def _ended(tasks: Collection[asyncio.Task[None]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(list(tasks), timeout=max(within_s, 0))


async def _within(action: Awaitable[object], within_s: float) -> None:
    """Wait for it no longer than that; it is cancelled then."""
    try:
        async with asyncio.timeout(within_s):
            await action
    except TimeoutError:
        log.warning("given up at the stop", seconds=within_s)


async def _tolerantly(action: Awaitable[object]) -> None:
    try:
        await action
    except DatabaseUnavailable:
        log.warning("not told to the database at shutdown; leases run out by themselves")


_WAITING = "waiting"


class InlineQueue:
    """`statements.queue.StatementQueue` for a runner in this process, with a word to the others where they run it."""

    def __init__(self, runner: Runner, notices: Notices) -> None:
        self._runner = runner
        self._notices = notices
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def owner_for(self, connector: Connector, *, session_owner: str | None) -> str | None:
        self._runner.require_open()
        if session_owner not in (None, self._runner.owner) or not await self._runner.may_run(connector):
            return None
        return self._runner.owner

    def dispatch(self, assignment: Assignment, user: User) -> None:
        self._runner.start(assignment, user)

    async def announce(self, statement_id: UUID) -> None:
        await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        if not self._runner.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(CANCEL, str(statement_id))

    def heard(self, kind: str, subject: str) -> None:
        """A word from an instance, perhaps this one."""
        if kind == CANCEL:
            self._runner.cancel(UUID(subject))
        else:
            self._heard.put_nowait((kind, subject))

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Act on what is heard while inside."""
        worker = asyncio.create_task(self._act(), name="heard-notices")
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _act(self) -> None:
        """One after another: the statements of one session run in the order in which they were announced."""
        while True:
            kind, subject = await self._heard.get()
            try:
                if kind == _WAITING:
                    await self._runner.claim(UUID(subject))
                elif kind == CLOSE_SESSION:
                    await self._runner.close_session(int(subject))
            except (DatabaseUnavailable, EngineError) as error:
                log.warning("not done what was announced; the sweep will", kind=kind, code=error.code)
            except Exception:  # the outer wall of a task: the next notice is not to blame
                log.exception("notice failed", kind=kind)
