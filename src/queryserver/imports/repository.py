"""Files in the upload area of the importer, and tables that imports must remove."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from queryserver.engines.protocol import TableName
from queryserver.imports.uploads import NewImportUpload, StoredImportUpload, UploadUsage
from queryserver.platform.database import Database


@dataclass(frozen=True, slots=True)
class ImportLeftover:
    """A table, and whose session with which connector reaches it."""

    statement_id: UUID
    user_id: int
    connector: str
    table: TableName


_LOCK = 0x71736975  # "qsiu"

_USAGE = """
select count(*) as files, coalesce(sum(size_bytes), 0)::bigint as size_bytes from import_uploads
where user_id = $1 and expires_at > now()
"""

_ADD = f"""
insert into import_uploads (digest, user_id, name, size_bytes, expires_at)
select $2, $1, $3, $4, now() + $5::interval from ({_USAGE}) as used
where used.files < $6 and used.size_bytes + $4 <= $7
returning expires_at
"""


class DatabaseImportUploads:
    """Records of all users, on all instances. Each method is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, user_id: int) -> UploadUsage:
        row = await self._database.row(_USAGE, user_id)
        return UploadUsage(0, 0) if row is None else UploadUsage(row["files"], row["size_bytes"])

    async def add(self, new: NewImportUpload, *, keep: timedelta, most: UploadUsage) -> datetime | None:
        async with self._database.transaction() as connection:
            # Counting and inserting are one step only for those who do it one after the other.
            await connection.execute("select pg_advisory_xact_lock($1, $2::bigint::integer)", _LOCK, new.user_id)
            return await connection.fetchval(
                _ADD, new.user_id, new.digest, new.name, new.size_bytes, keep, most.files, most.size_bytes
            )

    async def find(self, user_id: int, digest: bytes) -> StoredImportUpload | None:
        row = await self._database.row(
            """select name, size_bytes, expires_at - now() as left from import_uploads
            where digest = $1 and user_id = $2 and expires_at > now()""",
            digest,
            user_id,
        )
        return None if row is None else StoredImportUpload(row["name"], row["size_bytes"], row["left"])

    async def prolong(self, digest: bytes, *, keep: timedelta) -> bool:
        changed = await self._database.execute(
            "update import_uploads set expires_at = now() + $2::interval where digest = $1 and expires_at > now()",
            digest,
            keep,
        )
        return changed == 1

    async def count_expired(self) -> int:
        return await self._database.value("select count(*) from import_uploads where expires_at <= now()")

    async def take_expired(self, *, limit: int) -> Sequence[bytes]:
        rows = await self._database.fetch(
            """delete from import_uploads where digest in (
                select digest from import_uploads where expires_at <= now() limit $1 for update skip locked
            ) returning digest""",
            limit,
        )
        return [row["digest"] for row in rows]

    async def known(self, digests: Collection[bytes]) -> Collection[bytes]:
        rows = await self._database.fetch(
            "select digest from import_uploads where digest = any($1::bytea[])", list(digests)
        )
        return {row["digest"] for row in rows}


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
