"""What is known of tables that imports have made and that must not stay (Contract importer 13.4)."""

from dataclasses import dataclass
from uuid import UUID

from queryserver.interfaces.loading import TableName


@dataclass(frozen=True, slots=True)
class ImportLeftover:
    """A table, and whose session with which connector reaches it."""

    statement_id: UUID
    user_id: int
    connector: str
    table: TableName
