"""Documents of a user, as the metadata search finds them: entries of the history (Contract platform 8.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from queryserver.domain.search_terms import Term


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """An entry. `excerpt` begins somewhat before the place in the statement that matched."""

    id: UUID
    history_id: int
    connector: str
    dialect: str
    recorded_at: datetime
    head: str
    """The beginning of the statement."""
    excerpt: str
    parent_uuid: str
    position: int


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The first documents in their order, how many there are, and how many are as new as each of the asked times."""

    first: Sequence[FoundDocument]
    total: int
    newer: Sequence[int]


class DocumentRecords(Protocol):
    """Reads history entries; raises DatabaseUnavailable."""

    async def search(
        self, user_id: int, terms: Sequence[Term], *, most: int, ages: Sequence[datetime]
    ) -> FoundDocuments:
        """Entries of that user with all terms in statement or name: best position first, then newest."""
        ...
