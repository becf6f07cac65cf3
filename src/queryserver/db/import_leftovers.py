"""Tables that imports have made and that must not stay."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from queryserver.db.database import Database
from queryserver.interfaces.import_leftovers import ImportLeftover
from queryserver.interfaces.loading import TableName

_ABANDONED = """
select statement_id, user_id, connector, database, "table" from import_leftovers as left_over
where connector = any($1) and (claimed_until is null or claimed_until < now()) and not exists (
    select from statements where id = left_over.statement_id and state in ('waiting', 'running')
)
order by made_at limit $2
"""


class ImportLeftovers:
    """Records of all imports, on all instances. Each method is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def made(self, leftover: ImportLeftover) -> None:
        """Remember a table. Repeating it is harmless."""
        await self._database.execute(
            """insert into import_leftovers (statement_id, user_id, connector, database, "table")
            values ($1, $2, $3, $4, $5) on conflict do nothing""",
            leftover.statement_id,
            leftover.user_id,
            leftover.connector,
            leftover.table.database,
            leftover.table.name,
        )

    async def settled(self, statement_id: UUID, table: TableName) -> None:
        """Forget a table. Repeating it is harmless."""
        await self._database.execute(
            'delete from import_leftovers where statement_id = $1 and "table" = $2', statement_id, table.name
        )

    async def abandoned(self, connectors: Collection[str], *, limit: int) -> Sequence[ImportLeftover]:
        """Tables of imports that have ended, or whose record is gone, and that nobody is dropping."""
        rows = await self._database.fetch(_ABANDONED, list(connectors), limit)
        return [
            ImportLeftover(
                row["statement_id"], row["user_id"], row["connector"], TableName(row["database"], row["table"])
            )
            for row in rows
        ]

    async def claim(self, leftover: ImportLeftover, *, lease: timedelta) -> bool:
        """Be the only one to drop it for so long; False: it is settled, or somebody else's."""
        claimed = await self._database.execute(
            """update import_leftovers set claimed_until = now() + $3::interval
            where statement_id = $1 and "table" = $2 and (claimed_until is null or claimed_until < now())""",
            leftover.statement_id,
            leftover.table.name,
            lease,
        )
        return claimed == 1

    async def release(self, leftover: ImportLeftover) -> None:
        """Give it back: it could not be dropped."""
        await self._database.execute(
            'update import_leftovers set claimed_until = null where statement_id = $1 and "table" = $2',
            leftover.statement_id,
            leftover.table.name,
        )
