"""Records a new statement, and starts or refuses it (Contract editor 4, 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from queryserver.connectors.model import Connector
from queryserver.identity.model import User
from queryserver.platform.logs import AUDIT
from queryserver.sql.splitter import read_only_refusal
from queryserver.statements.assignments import Lease, Outcome
from queryserver.statements.dispatcher import StatementDispatcher
from queryserver.statements.leases import StatementLeases
from queryserver.statements.model import NewStatement, RecordedStatement
from queryserver.statements.repository import StatementRecords
from queryserver.statements.states import StatementState


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRecorder:
    """Records statements before anything is sent to an engine, then dispatches them."""

    records: StatementRecords
    leases: StatementLeases
    dispatcher: StatementDispatcher
    ends_are_mailed: bool = False
    """Whether owners get mail about long-running statements (Contract platform 10.5)."""

    def notification(self, url: str | None) -> Mapping[str, Any] | None:
        """The `notify` of a new statement, used by `tasks/deliveries.py` at its end."""
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
        """Record and start a statement, or refuse one that changes data of a read-only connector.

        `audited_as` is the operation in the audit log. With `is_bound`, only the process that holds its session or its
        data can run it. If `new` is the operation of a script, `part` is its first statement.
        """
        first = part or new
        refusal = read_only_refusal(first.handle.statement, connector.dialect) if connector.read_only else None
        if refusal is not None and first.owner is None and not is_bound:
            first = replace(first, owner=self.dispatcher.owner)  # no worker is needed to refuse it
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
