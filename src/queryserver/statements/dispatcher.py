"""Records new statements, chooses the process that runs them, and exchanges notices about them between instances."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.platform.database import Notices
from queryserver.platform.logs import AUDIT
from queryserver.platform.threads import background
from queryserver.sql.splitter import read_only_refusal
from queryserver.statements.assignments import Lease, Outcome, assignment_of
from queryserver.statements.intake import Broker, Intake
from queryserver.statements.lease_queries import ENDED
from queryserver.statements.leases import StatementLeases
from queryserver.statements.model import NewStatement, RecordedStatement
from queryserver.statements.repository import StatementRecords
from queryserver.statements.runner import Runner
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

CANCEL = "cancel"
"""Notice about a recorded cancel request; the subject is the statement id."""
CLOSE_SESSION = "close-session"
"""Notice about a closed session; the subject is the session id."""
_WAITING = "waiting"


class StatementDispatcher:
    """Starts recorded statements in this process, or notifies the other instances that they wait.

    Notices are delivered at least once, and the claim in the record lets only one process run the statement. Lost
    notices are harmless: a runner's sweep finds the statement.
    """

    def __init__(self, runner: Runner, notices: Notices, broker: Broker | None = None) -> None:
        """`broker` is set if workers run the statements."""
        self._runner = runner
        self._notices = notices
        self._broker = broker
        self.owner = runner.owner
        """The name of this process as an owner of statements."""
        self._received: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def owner_for(self, data: str | None, *, session_owner: str | None) -> str | None:
        """Return the owner of a new statement if it runs in this process, else None. Raises Stopping.

        `data` names the data that its connector opens exclusively (`Connectors.data_of`).
        """
        runner = self._runner
        runner.instance.require_open()
        if runner.instance.intake is not Intake.OWN:
            return runner.owner if session_owner == runner.owner or runner.data.holds(data) else None
        if session_owner not in (None, runner.owner) or not (data is None or await runner.data.may_hold(data)):
            return None
        return runner.owner

    async def dispatch(self, new: NewStatement, user: User, *, history_id: int, is_bound: bool) -> None:
        """Start a statement that was recorded with the owner of this process, or announce one without an owner.

        Never raises. `is_bound` is passed to `announce`.
        """
        if new.owner is None:
            await self.announce(new.id, is_bound=is_bound)
            return
        lease = Lease(new.id, new.owner, fence=1, operation_id=new.operation_id)
        ends_at = time.monotonic() + new.timeout.total_seconds()
        self._runner.statements.start(assignment_of(new, lease, history_id=history_id, ends_at=ends_at), user)

    async def announce(self, statement_id: UUID, *, is_bound: bool) -> None:
        """Notify the other instances that a statement waits. Never raises.

        With `is_bound`, only the instance that holds the statement's session or data can run it.
        """
        if self._broker is not None and not is_bound:
            self._broker.statement_waits(statement_id, fence=0)
        else:
            await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, owner: str | None) -> None:
        """Notify the runner `owner` of a recorded cancel request. Never raises."""
        if not self._runner.statements.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(CANCEL, str(statement_id))

    def notified(self, kind: str, subject: str) -> None:
        """Act on a notice from any instance, including this one."""
        if kind in {CANCEL, ENDED}:
            if kind == CANCEL:
                self._runner.statements.cancel(UUID(subject))
            # Cancel requests also end statements that were never sent.
            self._runner.signals.notify(UUID(subject))
        else:
            self._received.put_nowait((kind, subject))

    def listening(self) -> AbstractAsyncContextManager[None]:
        return background(self._act(), "statement-notices")

    async def _act(self) -> None:
        """Process notices one by one, because the statements of a session run in the order of their announcement."""
        while True:
            kind, subject = await self._received.get()
            try:
                if kind == _WAITING:
                    if not await self._runner.claims.claim(UUID(subject)):
                        self._runner.queue.take_one()
                elif kind == CLOSE_SESSION:
                    await self._runner.close_session(int(subject))
            except (DatabaseUnavailable, EngineError) as error:
                log.warning("notice not processed; the sweep will do its work", kind=kind, code=error.code)
            except Exception:  # last resort of a task: later notices must still be processed
                log.exception("notice failed", kind=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRecorder:
    """Records statements before anything is sent to an engine, then dispatches them."""

    records: StatementRecords
    leases: StatementLeases
    dispatcher: StatementDispatcher
    ends_are_mailed: bool = False
    """Whether owners get mail about long-running statements (Contract platform 10.5)."""

    def notification(self, url: str | None) -> Mapping[str, Any] | None:
        """Return the `notify` value of a new statement, which `tasks/deliveries.py` uses when the statement ends."""
        return {"url": url} if url or self.ends_are_mailed else None

    async def record(
        self,
        user: User,
        connector: Connector,
        new: NewStatement,
        *,
        audited_as: str,
        is_bound: bool,
        part: NewStatement | None = None,
    ) -> RecordedStatement:
        """Record and start a statement, or reject a statement that changes data of a read-only connector.

        `audited_as` is the operation in the audit log. With `is_bound`, only the process that holds the statement's
        session or data can run it. If `new` is the operation of a script, `part` is its first statement.
        """
        first = part or new
        refusal = read_only_refusal(first.handle.statement, connector.dialect) if connector.read_only else None
        if refusal is not None and first.owner is None and not is_bound:
            first = replace(first, owner=self.dispatcher.owner)  # no worker is needed to reject it
        recorded = await self.records.record(first) if part is None else await self.records.record(new, first)
        if recorded.replayed:
            return recorded
        AUDIT.record(user.username, audited_as, connector.key, facts={"operation_id": str(new.id)})
        if refusal is not None and first.owner is not None:
            await self._refuse(first, first.owner, refusal, start_line=1 + len(new.log_lines))
            return RecordedStatement(await self.records.read(new.id) or recorded.record, replayed=False)
        history_id = recorded.record.status.history_id
        await self.dispatcher.dispatch(first, user, history_id=history_id, is_bound=is_bound)
        return recorded

    async def _refuse(self, new: NewStatement, owner: str, message: str, *, start_line: int) -> None:
        """End a recorded statement without running it."""
        lease = Lease(new.id, owner, fence=1, operation_id=new.operation_id)
        outcome = Outcome(StatementState.FAILED, error_code="rejected", message=message)
        await self.leases.finish(lease, outcome, retention=timedelta(0), lines=[message], start_line=start_line)
