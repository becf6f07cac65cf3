"""Documents of a user, as the metadata search finds them: entries of the history (Contract platform 8.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


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
