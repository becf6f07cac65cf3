"""Statements of all users: what administrators see and stop (Contract platform 7.9)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from uuid import UUID

import structlog

from queryserver.db.statements.overview import StatementOverview
from queryserver.db.statements.records import StatementRecords
from queryserver.domain.errors.statements import OperationNotFound
from queryserver.domain.statement_end import StatementEnd
from queryserver.domain.statement_overview import OverviewDetails, OverviewEntry, OverviewFilter
from queryserver.services.auditing import AuditTrail

_LOOK_EVERY_S = 0.25

AskToStop: TypeAlias = Callable[[UUID, str | None], Awaitable[None]]
"""Passes a recorded cancel on to the process that has the statement, which is the second argument."""


class StatementAdministration:
    """Who may call this is decided by the caller."""

    def __init__(
        self, overview: StatementOverview, records: StatementRecords, ask_to_stop: AskToStop, audit: AuditTrail
    ) -> None:
        self._overview = overview
        self._records = records
        self._ask_to_stop = ask_to_stop
        self._audit = audit

    async def page(self, chosen: OverviewFilter, *, limit: int) -> tuple[Sequence[OverviewEntry], int | None]:
        """Statements newest first, and `after` for the next page; None: there is none."""
        found = await self._overview.page(chosen, limit=limit + 1)
        page = found[:limit]
        return page, page[-1].history_id if len(found) > limit else None

    async def details(self, statement_id: UUID, *, by: str) -> OverviewDetails:
        """One statement with its text; that it was shown is an audit event. Raises OperationNotFound."""
        found = await self._read(statement_id)
        facts = {"operation_id": str(statement_id), "owner": found.entry.user}
        self._audit.record(by, "statement.show", found.entry.connector, facts=facts)
        return found

    async def stop(self, statement_id: UUID, *, by: str, wait_s: float) -> OverviewEntry:
        """Cancel a statement and wait for its end, or for `wait_s`; no effect on one that has ended.

        Raises OperationNotFound.
        """
        found = (await self._read(statement_id)).entry
        if found.state.is_terminal:
            return found
        facts = {"operation_id": str(statement_id), "owner": found.user}
        self._audit.record(by, "statement.cancel", found.connector, facts=facts)
        status = await self._records.request_cancel(statement_id, by=by)
        if status is not None and not status.state.is_terminal:
            await self._ask_to_stop(statement_id, status.owner)
        give_up = asyncio.get_running_loop().time() + wait_s
        while True:
            found = (await self._read(statement_id)).entry
            if found.state.is_terminal or asyncio.get_running_loop().time() >= give_up:
                return found
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _read(self, statement_id: UUID) -> OverviewDetails:
        found = await self._overview.details(statement_id)
        if found is None:
            raise OperationNotFound(str(statement_id))
        return found


log = structlog.get_logger(__name__)


class StatementEnds:
    """Writes an audit event for each end, and a line of the log where the audit has a file of its own."""

    def __init__(self, audit: AuditTrail, *, with_log_line: bool) -> None:
        self._audit = audit
        self._with_log_line = with_log_line

    def record(self, end: StatementEnd) -> None:
        """Write the end; `size` of the event is that of the stored rows."""
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        self._audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if self._with_log_line:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)
