"""The query history (Contract editor 11)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from queryserver.db.statements.records import StatementRecords
from queryserver.domain.statement import HistoryEntry
from queryserver.domain.user import User
from queryserver.interfaces.statements import HistoryFilter
from queryserver.services.connectors import Connectors


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """Which entries a caller wants; `page` counts from 1."""

    doc_type: str | None = None
    text: str | None = None
    connector: str | None = None
    page: int = 1
    limit: int = 50


class History:
    """Only the caller's own statements, newest first."""

    def __init__(self, records: StatementRecords, connectors: Connectors) -> None:
        self._records = records
        self._connectors = connectors

    async def page(self, user: User, asked: HistoryQuestion) -> tuple[int, Sequence[HistoryEntry]]:
        """How many entries match, and one page of them; waiting ones with their place in the queue."""
        keys, dialect = self._connectors.matching(asked.doc_type) if asked.doc_type else (None, None)
        if asked.connector is not None:
            keys = tuple(key for key in (asked.connector,) if keys is None or key in keys)
        count, entries = await self._records.history(
            user.id,
            HistoryFilter(connectors=keys, dialect=dialect, text=asked.text),
            offset=(asked.page - 1) * asked.limit,
            limit=asked.limit,
        )
        return count, await asyncio.gather(*(self._placed(entry) for entry in entries))

    async def _placed(self, entry: HistoryEntry) -> HistoryEntry:
        if not entry.is_queued:
            return entry
        return replace(entry, queue_position=await self._records.queue_position(entry.id))
