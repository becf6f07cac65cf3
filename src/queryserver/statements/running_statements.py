"""Manages the statements that run in this process, their limits, and the data that only this process may open.

Also wakes calls that wait for statement changes. Source: Contract platform 10.1, 10.2.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import StatementContext
from queryserver.errors.base import DatabaseUnavailable, stopping
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.threads import background
from queryserver.results.segments import ResultStore
from queryserver.sql.classification import changes_objects
from queryserver.statements.cost_guard import CostGuard, cost_guard
from queryserver.statements.execution import Execution
from queryserver.statements.model import Assignment, Claim, SlotLimits, StatementStatus
from queryserver.statements.open_sessions import SessionOpener
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.states import StatementState
from queryserver.statements.traces import StatementTraces

log = structlog.get_logger(__name__)

# Deleted statements count as changed, so that waiting calls can report that they no longer exist.
_CHANGED = """
select distinct watched.id from unnest($1::uuid[], $2::text[]) as watched (id, seen) left join statements using (id)
where state is null or state not in ('waiting', 'running') or state <> seen
"""

T = TypeVar("T")

_SLOTS_PER_RESERVED_SLOT = 8


@dataclass(slots=True, eq=False)
class Watch:
    """Signals changes of a statement that happen after the watch was created.

    Create the watch before reading the record, so that no change is missed.
    """

    statement_id: UUID
    ends_only: bool
    seen_state: StatementState | None = None
    """The state that the caller has read and waits to change, or None if the caller waits for rows or for the end."""
    final_status: StatementStatus | None = None
    """The status with which the statement has ended, if this process has recorded the end."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def signal_change(self) -> None:
        self._changed.set()

    async def changed_within(self, within_s: float) -> bool:
        """Wait up to `within_s` for a change. Return whether the statement has changed since the last call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed


class StateSignals:
    """Wakes the calls in this process that wait for statements.

    Changes are signaled by the runner for statements that run here, and by messages from other processes.
    `StateChangePoller` finds changes whose message was lost.
    """

    def __init__(self) -> None:
        self._watches: defaultdict[UUID, set[Watch]] = defaultdict(set)
        self.has_watches = asyncio.Event()
        self.waits_are_over = False
        """Set when the server stops. Calls that wait for statements of other servers then return the current state."""

    def notify(self, statement_id: UUID, *, may_have_ended: bool = True) -> None:
        """Wake the calls that wait for the statement."""
        for watch in self._watches.get(statement_id, ()):
            if may_have_ended or not watch.ends_only:
                watch.signal_change()

    def ended(self, status: StatementStatus) -> None:
        """Give the status of a statement that ended here to the calls that wait for it, which saves them a query.

        Does not wake them, because the end must first be settled.
        """
        for watch in self._watches.get(status.id, ()):
            watch.final_status = status

    def notify_all(self) -> None:
        """Wake all calls, because any statement may have changed."""
        for statement_id in self._watches:
            self.notify(statement_id)

    def end_waits(self) -> None:
        """End all current and future waits."""
        self.waits_are_over = True
        self.notify_all()

    @contextmanager
    def watch(self, statement_id: UUID, *, ends_only: bool = False) -> Generator[Watch]:
        """Watch the statement inside the block. If `ends_only` is set, ignore changes that cannot be its end."""
        watch = Watch(statement_id, ends_only)
        self._watches[statement_id].add(watch)
        self.has_watches.set()
        try:
            yield watch
        finally:
            self._watches[statement_id].discard(watch)
            if not self._watches[statement_id]:
                del self._watches[statement_id]
            if not self._watches:
                self.has_watches.clear()

    def watched(self) -> set[tuple[UUID, StatementState | None]]:
        """Return the watched statements, each with the state that the caller has seen."""
        return {
            (statement_id, watch.seen_state) for statement_id, watches in self._watches.items() for watch in watches
        }


@dataclass(eq=False)
class StateChangePoller:
    """Finds changes of watched statements that were not signaled, in one query per round. Active inside `running()`.

    Statements that run here are polled less often: they change without a signal only if their claim is lost.
    """

    database: Database = field(repr=False)
    signals: StateSignals
    runs_here: Callable[[UUID], bool]
    every_s: float = 0.5
    own_every_s: float = 5.0

    def running(self) -> AbstractAsyncContextManager[None]:
        return background(self._poll(), "changed-states")

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        own_due = loop.time()
        while True:
            await self.signals.has_watches.wait()
            await asyncio.sleep(self.every_s)
            watched = self.signals.watched()
            if loop.time() >= own_due:
                own_due = loop.time() + self.own_every_s
            else:
                watched = {watch for watch in watched if not self.runs_here(watch[0])}
            try:
                for statement_id in await self._changed(list(watched)):
                    self.signals.notify(statement_id)
            except DatabaseUnavailable:
                # Each waiting call then reads the record itself and raises the error, as a new call would.
                self.signals.notify_all()
            except Exception:  # last resort of a task: calls must not wait until they time out
                log.exception("statement changes could not be read")
                self.signals.notify_all()

    async def _changed(self, watched: Sequence[tuple[UUID, StatementState | None]]) -> Sequence[UUID]:
        if not watched:
            return ()
        rows = await self.database.fetch(_CHANGED, [one for one, _ in watched], [seen for _, seen in watched])
        return [row["id"] for row in rows]


class Intake(StrEnum):
    """The new statements that a process runs (Contract platform 10.1)."""

    OWN = "own"
    """Statements that the process itself records. Used without a task server."""
    QUEUED = "queued"
    """Statements from the queue that all workers share."""
    BOUND = "bound"
    """Only statements whose session or data this process holds. Workers run all other statements."""


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits on the concurrent statements of one process, and the intervals of its background tasks."""

    per_connector: int = 16
    per_user: int = 8
    sweep_every: timedelta = timedelta(seconds=5)
    shutdown_grace: timedelta = timedelta(seconds=30)
    recheck_every: timedelta = timedelta(seconds=5)
    """Interval between checks that end the statements and sessions of disabled users."""
    capacity: int = 0
    """Maximum number of concurrent statements of a worker. Statements taken over from a lost worker do not count."""
    reserved_check_every: timedelta = timedelta(seconds=1)
    """Interval between queue checks while only reserved slots are free. The broker then wakes only other workers."""

    @property
    def slots(self) -> SlotLimits:
        """The limits per connector and per user. With a task server, they apply to all workers together."""
        return SlotLimits(self.per_connector, self.per_user)

    @property
    def reserved(self) -> int:
        """Number of slots reserved for users without running statements.

        One slot in eight is reserved, but at least one if there are several slots.
        """
        return max(self.capacity // _SLOTS_PER_RESERVED_SLOT, 1) if self.capacity > 1 else 0


@dataclass(eq=False)
class RunnerInstance:
    """This process as an owner of statements: its name, its intake, and how far its shutdown has progressed."""

    owner: str
    intake: Intake
    is_draining: bool = False
    """Whether the process starts no new work. Running statements may still finish."""
    is_drained: bool = False
    """Whether the grace period has expired, so that the process starts no statements at all."""

    def require_open(self) -> None:
        """Raise the error `stopping` if this process no longer starts new work."""
        if self.is_draining:
            raise stopping("This server is stopping and starts no new work. Retry the call.")


class Broker(Protocol):
    """Wakes other processes of the fleet. Never blocks or raises. Sweeps make up for lost messages."""

    @property
    def is_reachable(self) -> bool | None:
        """Whether the last call succeeded, or None before the first call."""
        ...

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None: ...

    def statement_changed(self, statement_id: UUID) -> None: ...


@dataclass(eq=False)
class DataClaims:
    """The data that only this process may open, identified by the names that `Connectors.data_of` returns."""

    instance: RunnerInstance
    records: SessionRecords
    connectors: Connectors
    _names: set[str] = field(default_factory=set[str], init=False)

    @property
    def names(self) -> frozenset[str]:
        """Names of the data that this process holds."""
        return frozenset(self._names)

    def holds(self, name: str | None) -> bool:
        """Return whether this process already holds the data and still starts new work."""
        return not self.instance.is_draining and name in self._names

    async def can_run(self, connector: Connector) -> bool:
        """Return whether this process can run the connector's statements. Acquires the connector's data if possible."""
        name = self.connectors.data_of(connector)
        return not self.instance.is_draining and (name is None or await self.try_acquire(name))

    async def try_acquire(self, name: str) -> bool:
        """Acquire the data unless another process holds it. Return whether this process holds it."""
        if self.instance.is_draining:
            return False
        # A server with workers acquires no data. Otherwise it would run statements that workers should run.
        if name not in self._names and self.instance.intake is not Intake.BOUND:
            await self.acquire([name])
        return name in self._names

    async def acquire_configured(self) -> None:
        """Try to acquire the data of all connectors."""
        await self.acquire(self.connectors.data_to_hold() - self._names)

    async def acquire(self, names: Iterable[str]) -> None:
        """Try to acquire data. Closes the engines of data that this process has lost to another process."""
        for name in names:
            if await self.records.hold_engine(name, owner=self.instance.owner):
                self._names.add(name)
            elif name in self._names:
                self._names.discard(name)
                await self.connectors.discard_engines(name)

    async def check(self) -> None:
        """Close the engines of lost data. Stop holding data that no connector uses and no engine has open."""
        self._names &= self.connectors.data_to_hold() | self.connectors.data_in_use()
        if self._names:
            await self.acquire(self._names - set(await self.records.engines_of(self.instance.owner)))

    async def release(self) -> None:
        """Release all data."""
        # Cleared first, so that `check` does not acquire it again.
        self._names.clear()
        await self.records.release_engines(owner=self.instance.owner)


@dataclass(eq=False, repr=False, kw_only=True)
class RunningStatements:
    """Starts executions, each in its own task, and cancels them.

    `objects_changed` is called with the user id and the connector before the end of a statement that may change tables
    is recorded. `after_end` is called once an execution is over.
    """

    instance: RunnerInstance
    owned: OwnedStatements
    results: ResultStore
    opener: SessionOpener
    connectors: Connectors
    signals: StateSignals
    editor: EditorSettings
    metrics: Metrics
    traces: StatementTraces
    broker: Broker | None
    objects_changed: Callable[[int, str], Awaitable[None]] | None
    after_end: Callable[[Execution], None]
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]], init=False)
    """All tasks that a shutdown must wait for."""
    _executions: dict[UUID, Execution] = field(default_factory=dict[UUID, Execution], init=False)

    def start(self, assignment: Assignment, user: User, previous: Execution | None = None) -> None:
        """Run a claimed statement. After the grace period of a shutdown, release it to another process instead.

        `previous` is the execution of the script's preceding statement, if it ran in this process.
        """
        if self.instance.is_drained:
            # The call was accepted just before the shutdown began.
            self.add_task(unless_database_unavailable(self._leave(assignment)), "statement-left")
            return
        claim = assignment.claim
        script = previous.script if previous is not None else None
        if claim.operation_id is not None and script is None:
            script = ScriptRun(self.owned, self.editor, is_shared=self.is_shared(assignment))
        guard = cost_guard(assignment, user, self.connectors.known(assignment.connector), self.editor)
        execution = Execution(
            assignment,
            owned=self.owned,
            results=self.results,
            settings=self.editor,
            open_session=partial(self.opener.session, user=user),
            reattach=partial(self.opener.reattach, user=user),
            context=self._context(assignment, user, guard),
            guard=guard,
            notify=partial(self.notify, claim),
            before_end=self.before_end(assignment),
            metrics=self.metrics,
            trace=self.traces.begin(assignment, self.connectors.known(assignment.connector)),
            script=script,
            previous_log=previous.log if previous is not None else None,
        )
        self._executions[claim.statement_id] = execution
        task = self.add_task(execution.run(), f"statement-{claim.statement_id}")
        task.add_done_callback(lambda _: self._remove(execution))

    def _context(self, assignment: Assignment, user: User, guard: CostGuard) -> StatementContext:
        connector = self.connectors.known(assignment.connector)
        return StatementContext(
            user=user.username,
            operation_id=str(assignment.client_operation_id),
            connector=assignment.connector,
            traceparent=assignment.traceparent or "",
            read_only=assignment.read_only or (connector is not None and connector.read_only),
            max_scanned_bytes=guard.byte_limit.most if guard.byte_limit is not None else None,
        )

    async def _leave(self, assignment: Assignment) -> None:
        """Release a statement that was not sent to another process."""
        if assignment.sent_ahead:
            await self.owned.take_back(assignment.claim)
        await self.owned.release(assignment.claim)

    def add_task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that a shutdown must wait for."""
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _remove(self, execution: Execution) -> None:
        claim = execution.assignment.claim
        if self._executions.get(claim.statement_id) is execution:
            del self._executions[claim.statement_id]
        if not execution.is_settled:  # otherwise, recording the end has already woken the waiting calls
            self.notify(claim)
        execution.trace.close()
        self.after_end(execution)

    @property
    def active(self) -> int:
        """Number of statements that run here or wait here for a slot."""
        return len(self._executions)

    def runs(self, statement_id: UUID) -> bool:
        """Return whether the statement runs here or waits here for a slot."""
        return statement_id in self._executions

    def ids(self) -> list[UUID]:
        """Return the ids of the statements that run here or wait here for a slot."""
        return list(self._executions)

    def users(self) -> set[int]:
        """Return the ids of the users whose statements run here or wait here for a slot."""
        return {execution.assignment.user_id for execution in self._executions.values()}

    def executions(self) -> list[Execution]:
        return list(self._executions.values())

    def cancel(self, statement_id: UUID, *, message: str = "Canceled.") -> bool:
        """Cancel a statement, or the active statement of a script. Return False if it does not run here."""
        execution = self._executions.get(statement_id) or next(
            (one for one in self._executions.values() if one.assignment.claim.operation_id == statement_id), None
        )
        if execution is None:
            return False
        execution.stop(message)
        return True

    def cancel_session(self, session_id: int) -> None:
        """Cancel the statements of a session that is being closed."""
        for execution in self.executions():
            if execution.assignment.session_id == session_id:
                execution.stop("Canceled because the session was closed.")

    def cancel_statements_of(self, disabled: Collection[int]) -> None:
        """Cancel the statements of these users, who were disabled or deleted."""
        for execution in self.executions():
            if execution.assignment.user_id in disabled:
                execution.stop("Canceled because the user is no longer active.")

    def notify(self, claim: Claim) -> None:
        """Wake the calls that wait for changes of the statement: here, and in other processes through the broker."""
        execution = self._executions.get(claim.statement_id)
        may_have_ended = execution is None or execution.is_settled
        self._signal(claim.statement_id, may_have_ended=may_have_ended)
        if claim.operation_id is not None:
            goes_on = execution is not None and execution.next_statement is not None
            self._signal(claim.operation_id, may_have_ended=may_have_ended and not goes_on)

    def _signal(self, statement_id: UUID, *, may_have_ended: bool) -> None:
        self.signals.notify(statement_id, may_have_ended=may_have_ended)
        if self.broker is not None:
            self.broker.statement_changed(statement_id)

    def is_shared(self, assignment: Assignment) -> bool:
        """Return whether the statement's session is shared by all statements with the same session options."""
        connector = self.connectors.known(assignment.connector)
        return connector is not None and connector.limits.shared_session

    def before_end(self, assignment: Assignment) -> Callable[[], Awaitable[None]] | None:
        """Return the callback to run before any client can see the end, or None if the statement changes no objects."""
        changed = set[str]()
        # An import always creates or fills a table, and so does an export whose destination names a connector.
        if assignment.import_plan is not None or changes_objects(assignment.statement, assignment.dialect):
            changed.add(assignment.connector)
        if (target := (assignment.destination or {}).get("connector")) is not None:
            changed.add(target)
        objects_changed = self.objects_changed
        if objects_changed is None or not changed:
            return None

        async def note_changes() -> None:
            for connector in changed:
                await objects_changed(assignment.user_id, connector)

        return note_changes


async def unless_database_unavailable(write: Awaitable[object]) -> None:
    """Perform a write at shutdown. Ignores DatabaseUnavailable, because other processes claim the work anyway."""
    try:
        await write
    except DatabaseUnavailable:
        log.warning("shutdown not recorded: database unreachable; other processes will claim the work")
