"""A recorded statement on its way to a runner, whatever it is."""

import base64
import secrets
from dataclasses import dataclass
from datetime import timedelta

from queryserver.db.statements.records import StatementRecords
from queryserver.domain.connector import Connector
from queryserver.domain.statement import Assignment, Lease, NewStatement, Outcome, StatementRecord, StatementState
from queryserver.domain.statement_kind import refusal_where_read_only
from queryserver.domain.user import User
from queryserver.interfaces.statements import Recorded, StatementLeases
from queryserver.interfaces.tasks import StatementQueue


@dataclass(frozen=True, slots=True)
class HandingOver:
    """What it works with."""

    records: StatementRecords
    leases: StatementLeases
    queue: StatementQueue


async def hand_over(
    parts: HandingOver, user: User, connector: Connector, new: NewStatement, recorded: Recorded
) -> Recorded:
    """Let a runner have a statement that was just recorded; one that the connector forbids ends here."""
    if new.owner is None:
        await parts.queue.announce(new.id)
        return recorded
    lease = Lease(new.id, new.owner, fence=1)
    refusal = refusal_where_read_only(new.handle.statement, connector.dialect) if connector.read_only else None
    if refusal is not None:
        outcome = Outcome(StatementState.FAILED, error_code="rejected", message=refusal)
        await parts.leases.finish(lease, outcome, retention=timedelta(0), lines=[outcome.message], start_line=1)
        refused = await parts.records.read(new.id)
        return Recorded(refused or recorded.record, replayed=False)
    parts.queue.dispatch(_assignment(new, lease, recorded.record), user)
    return recorded


def opaque_token() -> str:
    """A name that nobody guesses."""
    return base64.b64encode(secrets.token_bytes(16)).decode()


def new_session_guid() -> str:
    """Two opaque halves, as clients of Hue know them."""
    return f"{secrets.token_hex(8)}:{secrets.token_hex(8)}"


def _assignment(new: NewStatement, lease: Lease, record: StatementRecord) -> Assignment:
    return Assignment(
        lease=lease,
        user_id=new.user_id,
        connector=new.connector,
        dialect=new.dialect,
        statement=new.handle.statement,
        database=new.database,
        settings=new.settings,
        session_id=new.handle.session_id,
        in_named_session=new.in_named_session,
        keeps_session=new.keeps_session,
        row_limit=new.row_limit,
        deadline_at=record.deadline_at,
        sent=False,
        cancel_requested=False,
        history_id=record.status.history_id,
        import_plan=new.import_plan,
        token=new.token,
        limit_source=new.limit_source,
        log_lines=1,
    )
