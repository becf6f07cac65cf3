"""Claims statements for this process: from the queue, announced ones, orphans, and the next ones of its scripts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.users import UserDirectory
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.read_only import only_reads
from queryserver.sql.splitter import read_only_refusal
from queryserver.statements.execution import Execution
from queryserver.statements.leases import StatementLeases
from queryserver.statements.model import Assignment, ClaimScope, Outcome
from queryserver.statements.open_sessions import OpenSessions
from queryserver.statements.running_statements import (
    Broker,
    DataLeases,
    Intake,
    RunnerInstance,
    RunnerLimits,
    RunningStatements,
)
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

# Messages wake a worker regardless of the statement they name.
_ANY_STATEMENT = UUID(int=0)
_OUTCOME_UNKNOWN = Outcome(
    StatementState.FAILED,
    error_code="outcome_unknown",
    message="The server that ran this statement is gone: it may or may not have taken effect.",
)
_RETRIED = "The server that ran this statement is gone. It only reads, and is run once more."


@dataclass(eq=False, repr=False, kw_only=True)
class StatementClaims:
    """Claims statements, and starts each one or records its end.

    A statement that may have reached an engine is sent again only if `_may_run_again` allows it.
    """

    instance: RunnerInstance
    leases: StatementLeases
    users: UserDirectory
    connectors: Connectors
    data: DataLeases
    sessions: OpenSessions
    running: RunningStatements
    editor: EditorSettings
    metrics: Metrics
    broker: Broker | None
    import_lost: Callable[[], None] | None
    """Called when an import ended because its process was lost."""

    async def claim(self, statement_id: UUID) -> bool:
        """Claim and start an announced statement; False if another process must run it."""
        if self.instance.is_draining:
            return False
        lease, owner = self.editor.lease_timeout, self.instance.owner
        assignments = await self.leases.claim(statement_id, owner=owner, lease=lease, within=self._scope())
        for assignment in assignments:
            await self.start(assignment)
        return bool(assignments)

    async def claim_orphans(self, *, take_over_all: bool = False) -> None:
        """Claim and start statements without a live owner; with `take_over_all`, all other processes' statements."""
        lease, owner = self.editor.lease_timeout, self.instance.owner
        for assignment in await self.leases.claim_orphans(
            owner=owner, lease=lease, within=self._scope(), ignore_leases=take_over_all
        ):
            await self.start(assignment)

    def _scope(self) -> ClaimScope:
        """Return the statements to claim.

        Open sessions run their statements even if their connector was changed or deleted.
        """
        match self.instance.intake:
            case Intake.OWN:
                connectors = self.connectors.runnable_by(self.data.names)
            case Intake.BOUND:
                connectors = self.connectors.bound_to(self.data.names)
            case Intake.QUEUED:
                connectors = ()
        return ClaimScope(connectors, self.sessions.ids(), resumes=self.instance.intake is not Intake.BOUND)

    async def start(self, assignment: Assignment, script: ScriptRun | None = None) -> None:
        """Run a claimed statement, or record its end.

        With `script`, the statement continues a script that runs here, and is started even during a shutdown.
        """
        user = await self.users.user(assignment.user_id)
        if user is not None and assignment.api_token is not None:
            user = user.narrowed(assignment.api_token)
        connector = self.connectors.known(assignment.connector)
        outcome = refusal = None
        if assignment.sent and user is not None and await self._retry(assignment, connector):
            return
        if assignment.sent:
            outcome = _OUTCOME_UNKNOWN if user is None or assignment.resumption is None else None
        elif user is None:
            refusal = "The user is no longer active."
        elif connector and connector.read_only:
            refusal = read_only_refusal(assignment.statement, assignment.dialect)
        if refusal is not None:
            outcome = Outcome(StatementState.FAILED, error_code="rejected", message=refusal)
        if outcome is not None:
            await self._end(assignment, outcome)
        elif user is not None and (script is not None or not self.instance.is_draining):
            self.running.start(assignment, user, script)
        elif assignment.sent:
            await self.leases.hand_over(assignment.lease)
        else:
            await self.leases.release(assignment.lease)

    async def _retry(self, assignment: Assignment, connector: Connector | None) -> bool:
        """Queue the statement again if it may run again; False if its end must be recorded."""
        lease = assignment.lease
        if connector is None or not _may_run_again(assignment, connector):
            return False
        if not await self.leases.retry(lease, line=_RETRIED):
            return False
        self.running.notify(lease)
        if self.broker is not None:
            self.broker.statement_waits(lease.statement_id, fence=lease.fence)
        else:
            await self.claim(lease.statement_id)
        return True

    async def _end(self, assignment: Assignment, outcome: Outcome) -> None:
        if before_end := self.running.before_end(assignment):
            await before_end()
        retention, lines = self.editor.result_retention, [outcome.message]
        await self.leases.finish(assignment.lease, outcome, retention=retention, lines=lines, start_line=None)
        self.metrics.statement_ended(assignment.dialect, outcome.state.value, 0.0)
        self.running.notify(assignment.lease)
        if assignment.import_plan is not None and self.import_lost is not None:
            self.import_lost()

    async def continue_script(self, execution: Execution) -> None:
        """Start the next statement of the script, or close the session of a script that has ended."""
        assignment, next_statement = execution.assignment, execution.next_statement
        has_own_session = assignment.keeps_session and not (
            assignment.in_named_session or self.running.is_shared(assignment)
        )
        closes = has_own_session and execution.is_settled and not self.instance.is_draining
        try:
            if next_statement is not None:
                await self.start(next_statement, execution.script)
                if self.running.runs(next_statement.lease.statement_id):
                    return
        except Exception as error:  # last resort of a task: the lease expires, and the statement is claimed again
            log.warning("script not continued", operation_id=str(assignment.lease.operation_id), exc_info=error)
            closes = False
        await self.sessions.end_script(
            assignment.session_id, assignment.lease.operation_id or UUID(int=0), closes=closes
        )


def _may_run_again(assignment: Assignment, connector: Connector) -> bool:
    """Return whether a sent statement that cannot be resumed runs once more (Contract editor 3.3 rule 3).

    Statements in a script or named session do not, because its state is lost. Statements with stored rows do not,
    because a client may have read the rows.
    """
    is_alone = assignment.statements_count == 1 and not (assignment.in_named_session or assignment.keeps_session)
    is_untouched = assignment.rows == 0 and not assignment.cancel_requested and not assignment.was_retried
    if not (connector.retries_reads and is_alone and is_untouched):
        return False
    if assignment.resumption is not None or assignment.import_plan is not None:
        return False
    return only_reads(assignment.statement, assignment.dialect)


@dataclass(eq=False, repr=False, kw_only=True)
class QueueConsumer:
    """Takes statements from the queue while this worker has free slots. Does nothing in other processes."""

    instance: RunnerInstance
    leases: StatementLeases
    connectors: Connectors
    data: DataLeases
    claims: StatementClaims
    running: RunningStatements
    editor: EditorSettings
    limits: RunnerLimits
    broker: Broker | None
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _wakened: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _announced: int = field(default=0, init=False)

    @property
    def room(self) -> int:
        """Return how many more statements of any user this worker can take now."""
        return max(self._free_slots - self.limits.reserved - self._announced, 0)

    @property
    def _free_slots(self) -> int:
        if self.instance.intake is not Intake.QUEUED or self.instance.is_draining:
            return 0
        return max(self.limits.capacity - self.running.active, 0)

    @property
    def _has_reserved_slots_only(self) -> bool:
        return 0 < self._free_slots <= self.limits.reserved

    def take_one(self) -> None:
        """Wake the consumer, because a statement waits or a slot became free."""
        if self.instance.intake is Intake.QUEUED:
            self._announced += 1
            self._wakened.set()

    async def take(self, most: int) -> int:
        """Start up to `most` queued statements as slots allow; returns their number. Raises DatabaseUnavailable."""
        async with self._taking:
            free = min(most, self._free_slots)
            if free <= 0:
                return 0
            free_for_all = min(free, max(self._free_slots - self.limits.reserved, 0))
            # The claim is not canceled with the caller, because a claimed but idle statement would block its slot.
            taking = self.running.add_task(self._take(free, free_for_all), "queue-claim")
            return await asyncio.shield(taking)

    async def _take(self, most: int, most_of_busy: int) -> int:
        assignments = await self.leases.claim_waiting(
            owner=self.instance.owner,
            lease=self.editor.lease_timeout,
            connectors=self.connectors.runnable_by(self.data.names),
            slots=self.limits.slots,
            most=most,
            most_of_busy=most_of_busy,
        )
        for assignment in assignments:
            try:
                await self.claims.start(assignment)
            except DatabaseUnavailable:
                log.warning(
                    "claimed and not started; its lease runs out", operation_id=str(assignment.lease.statement_id)
                )
        return len(assignments)

    async def consume(self) -> None:
        """Take statements whenever one is announced or a slot becomes free. Never returns."""
        while True:
            await self._wakened.wait()
            self._wakened.clear()
            announced, self._announced = max(self._announced, 1), 0
            try:
                started = await self.take(announced)
                if not started and self.broker and self._has_reserved_slots_only:
                    # A user or connector may be below its limit again, so a worker with other free slots must check.
                    self.broker.statement_waits(_ANY_STATEMENT, fence=0)
            except DatabaseUnavailable:
                log.warning("nothing taken from the queue; the sweep will")
            except Exception:  # last resort of a task: the next free slot must be used
                log.exception("nothing taken from the queue")

    async def take_for_reserved_slots(self) -> None:
        """Check the queue if only reserved slots are free, since messages wake workers with other free slots."""
        if self._has_reserved_slots_only:
            await self.take(self._free_slots)
