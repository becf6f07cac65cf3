"""Statements of all users, for administrators."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from queryserver.domain.statement_overview import OverviewDetails, OverviewEntry, OverviewFilter


class StatementOverview(Protocol):
    """Reads records. Both raise DatabaseUnavailable."""

    async def page(self, chosen: OverviewFilter, *, limit: int) -> Sequence[OverviewEntry]:
        """At most `limit` of the statements that fit, newest first."""
        ...

    async def details(self, statement_id: UUID) -> OverviewDetails | None:
        """One statement with its text."""
        ...
