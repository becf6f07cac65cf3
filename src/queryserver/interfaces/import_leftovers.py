"""What is known of tables that imports have made and that must not stay (Contract importer 13.4)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from queryserver.interfaces.loading import TableName


@dataclass(frozen=True, slots=True)
class ImportLeftover:
    """A table, and whose session with which connector reaches it."""

    statement_id: UUID
    user_id: int
    connector: str
    table: TableName


class ImportLeftovers(Protocol):
    """Records of all imports, on all instances. Each method is one transaction; all raise DatabaseUnavailable."""

    async def made(self, leftover: ImportLeftover) -> None:
        """Remember a table. Repeating it is harmless."""
        ...

    async def settled(self, statement_id: UUID, table: TableName) -> None:
        """Forget a table. Repeating it is harmless."""
        ...

    async def abandoned(self, connectors: Collection[str], *, limit: int) -> Sequence[ImportLeftover]:
        """Tables of imports that have ended, or whose record is gone, and that nobody is dropping."""
        ...

    async def claim(self, leftover: ImportLeftover, *, lease: timedelta) -> bool:
        """Be the only one to drop it for so long; False: it is settled, or somebody else's."""
        ...

    async def release(self, leftover: ImportLeftover) -> None:
        """Give it back: it could not be dropped."""
        ...
