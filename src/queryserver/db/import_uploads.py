"""Files in the upload area of the importer."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from queryserver.db.database import Database
from queryserver.interfaces.import_uploads import NewImportUpload, StoredImportUpload, UploadUsage

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
