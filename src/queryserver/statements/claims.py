"""Claims statements for this process: announced statements, orphans, and the next statements of its scripts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.users import UserDirectory
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.classification import only_reads
from queryserver.statements.execution import Execution
from queryserver.statements.model import Assignment, ClaimScope, Outcome
from queryserver.statements.open_sessions import OpenSessions
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.running_statements import Broker, DataClaims, Intake, RunnerInstance, RunningStatements
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

_OUTCOME_UNKNOWN = Outcome(
    StatementState.FAILED,
    error_code="outcome_unknown",
    message="The server that ran this statement has failed. The statement may or may not have taken effect.",
)
_RETRIED = "The server that ran this statement has failed. The statement is read-only and will be run again."
_READ_AGAIN = "The server that ran this statement has failed. The stored result will be read again."


@dataclass(eq=False, repr=False, kw_only=True)
class StatementClaims:
    """Claims statements, then starts each of them or records its outcome.

    A statement that may already have reached an engine is sent again only if `_may_run_again` allows it.
    """

    instance: RunnerInstance
    owned: OwnedStatements
    users: UserDirectory
    connectors: Connectors
    data: DataClaims
    sessions: OpenSessions
    running: RunningStatements
    editor: EditorSettings
    metrics: Metrics
    broker: Broker | None
    import_lost: Callable[[], None] | None
    """Called after an import or export has failed because the process that ran it was lost."""

    async def claim(self, statement_id: UUID) -> bool:
        """Claim and start an announced statement. Return False if another process must run it."""
        if self.instance.is_draining:
            return False
        assignments = await self.owned.claim(statement_id, owner=self.instance.owner, within=self._scope())
        await self.start_all(assignments)
        return bool(assignments)

    async def claim_orphans(self) -> None:
        """Claim and start statements without a live owner."""
        await self.start_all(await self.owned.claim_orphans(owner=self.instance.owner, within=self._scope()))

    async def start_all(self, assignments: Iterable[Assignment]) -> None:
        """Start claimed statements. Those that cannot be started are released soon after."""
        for assignment in assignments:
            try:
                await self.start(assignment)
            except DatabaseUnavailable:
                self.owned.expire_soon(assignment.claim)
                operation_id = str(assignment.claim.statement_id)
                log.warning("statement claimed but not started; it will be claimed again", operation_id=operation_id)

    def _scope(self) -> ClaimScope:
        """Return the scope of the statements that this process may claim.

        A statement whose session is open here can be claimed even if its connector was changed or deleted.
        """
        bound = self.connectors.bound_to(self.data.names)
        match self.instance.intake:
            case Intake.OWN:
                connectors = self.connectors.runnable_by(self.data.names)
            case Intake.BOUND:
                connectors = bound
            case Intake.QUEUED:
                connectors = ()
        return ClaimScope(connectors, self.sessions.ids(), bound, resumes=self.instance.intake is not Intake.BOUND)

    async def start(self, assignment: Assignment, previous: Execution | None = None) -> None:
        """Run a claimed statement. If it must not or cannot run, record its outcome instead.

        `previous` is the execution of the script's preceding statement. If set, the statement starts even during a
        shutdown.
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
        elif connector is not None and assignment.source_operation is None:
            refusal = await self.connectors.read_only_refusal(
                connector, assignment.statement, read_only=assignment.read_only
            )
        if refusal is not None:
            outcome = Outcome(StatementState.FAILED, error_code="rejected", message=refusal)
        if outcome is not None:
            await self._end(assignment, outcome)
        elif user is not None and (previous is not None or not self.instance.is_draining):
            self.running.start(assignment, user, previous)
        elif assignment.sent:
            await self.owned.hand_over(assignment.claim)
        else:
            await self.owned.release(assignment.claim)

    async def _retry(self, assignment: Assignment, connector: Connector | None) -> bool:
        """Requeue a sent statement if it may run again. Return whether it was requeued."""
        claim = assignment.claim
        if connector is None or not _may_run_again(assignment, connector):
            return False
        line = _RETRIED if assignment.source_operation is None else _READ_AGAIN
        if not await self.owned.retry(claim, line=line):
            return False
        self.running.notify(claim)
        if self.broker is not None:
            self.broker.statement_waits(claim.statement_id, fence=claim.fence)
        else:
            await self.claim(claim.statement_id)
        return True

    async def _end(self, assignment: Assignment, outcome: Outcome) -> None:
        if before_end := self.running.before_end(assignment):
            await before_end()
        retention, lines = self.editor.result_retention, [outcome.message]
        await self.owned.finish(assignment.claim, outcome, retention=retention, lines=lines, start_line=None)
        self.metrics.statement_ended(assignment.dialect, outcome.state.value, 0.0)
        self.running.notify(assignment.claim)
        is_load = assignment.import_plan is not None or assignment.destination is not None
        if is_load and self.import_lost is not None:
            self.import_lost()

    async def continue_script(self, execution: Execution) -> None:
        """Start the script's next statement. If the script has ended, close its session."""
        assignment, next_statement = execution.assignment, execution.next_statement
        has_own_session = assignment.keeps_session and not (
            assignment.in_named_session or self.running.is_shared(assignment)
        )
        closes = has_own_session and execution.is_settled and not self.instance.is_draining
        try:
            if next_statement is not None:
                await self.start(next_statement, execution)
                if self.running.runs(next_statement.claim.statement_id):
                    return
        except Exception as error:  # last resort of a task: the statement is claimed again later
            log.warning(
                "script could not be continued", operation_id=str(assignment.claim.operation_id), exc_info=error
            )
            closes = False
        await self.sessions.end_script(
            assignment.session_id, assignment.claim.operation_id or UUID(int=0), closes=closes
        )


def _may_run_again(assignment: Assignment, connector: Connector) -> bool:
    """Return whether a sent statement that cannot be resumed may run once more (Contract editor 3.3 rule 3).

    A statement of a script or named session may not, because the session state is lost. A statement with stored rows
    may not, because a client may already have read them. A statement that reads a stored result may, because the engine
    is not asked again, unless its rows may already be in their destination.
    """
    is_alone = assignment.statements_count == 1 and not (assignment.in_named_session or assignment.keeps_session)
    is_untouched = assignment.rows == 0 and not assignment.cancel_requested and not assignment.was_retried
    if not (is_alone and is_untouched) or assignment.resumption is not None or assignment.import_plan is not None:
        return False
    if assignment.source_operation is not None:
        return not (assignment.destination or {}).get("is_published")
    return (
        connector.retries_reads
        and assignment.destination is None
        and only_reads(assignment.statement, assignment.dialect)
    )
