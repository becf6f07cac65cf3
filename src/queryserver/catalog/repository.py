"""Cached answers of catalogues, and reads that another process answers.

A change of objects leaves its time. An answer counts only if its read began later, so an answer that was read while the
objects changed is never returned, whenever it is stored.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from queryserver.platform.database import Database


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Whose answer it is, of which connector; `digest` stands for what was asked."""

    user_id: int
    connector: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What is kept under a key, if anything, and the moment of the look.

    `changed_at` is the last change of objects that the user made there: two looks with different ones must not share
    an answer. All times are the database's.
    """

    value: bytes | None
    looked_at: datetime
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ForwardedLook:
    """What a process is asked; `request` is for the services of the process that takes it."""

    user_id: int
    request: bytes


_LOOK = """
select now() as looked_at, changed.at as changed_at, kept.value
from (select max(changed_at) as at from metadata_changes where user_id = $1 and connector = $2) as changed
left join metadata_answers as kept
    on kept.user_id = $1 and kept.connector = $2 and kept.digest = $3
    and kept.looked_at > now() - $4::interval and (changed.at is null or kept.looked_at > changed.at)
"""

_KEEP = """
insert into metadata_answers as kept (user_id, connector, digest, value, size_bytes, looked_at)
select $1::bigint, $2::text, $3::bytea, $4::bytea, $5::integer, $6::timestamptz
where $5 + (
    select coalesce(sum(size_bytes), 0) from metadata_answers
    where user_id = $1 and not (connector = $2 and digest = $3)
) <= $7
on conflict (user_id, connector, digest) do update
    set value = excluded.value, size_bytes = excluded.size_bytes, looked_at = excluded.looked_at
    where kept.looked_at < excluded.looked_at
returning true
"""

_CHANGED = """
with gone as (delete from metadata_answers where user_id = $1 and connector = $2)
insert into metadata_changes (user_id, connector, changed_at) values ($1, $2, clock_timestamp())
on conflict (user_id, connector) do update set changed_at = greatest(metadata_changes.changed_at, excluded.changed_at)
"""

_ROW_BYTES = 128  # what a row costs beside its value


class MetadataCacheRecords:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self, key: CacheKey, *, max_age: timedelta) -> CacheLook:
        """An answer that is not older than `max_age`, nor than the user's last change of objects."""
        row = await self._database.row(_LOOK, key.user_id, key.connector, key.digest, max_age)
        if row is None:
            raise AssertionError("an aggregate always has a row")
        return CacheLook(row["value"], row["looked_at"], row["changed_at"])

    async def keep(self, key: CacheKey, value: bytes, *, looked_at: datetime, max_bytes: int) -> bool:
        """Keep an answer; `looked_at` comes from the look that found none, before the engine was asked.

        False when the user's answers fill `max_bytes`: then nothing is kept.
        """
        size = len(value) + _ROW_BYTES
        kept = await self._database.value(
            _KEEP, key.user_id, key.connector, key.digest, value, size, looked_at, max_bytes
        )
        return kept is True

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Forget the user's answers of a connector, those under way included."""
        await self._database.execute(_CHANGED, user_id, connector)

    async def sweep(self, *, older_than: timedelta) -> int:
        """Delete what nobody can be given any more."""
        deleted = await self._database.execute(
            "delete from metadata_answers where looked_at < now() - $1::interval", older_than
        )
        await self._database.execute(
            "delete from metadata_changes where changed_at < now() - $1::interval", 2 * older_than
        )
        return deleted


# What its asker could not delete, because it died, goes with the next look.
_ASK = """
with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)
"""


class ForwardedLooks:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def holder(self, connector: str) -> str | None:
        """The living process that holds the data of this name (`EngineCapabilities.data_name`)."""
        return await self._database.value(
            "select owner from engine_owners where connector = $1 and lease_until > now()", connector
        )

    async def ask(self, look_id: UUID, look: ForwardedLook, *, of: str) -> None:
        """Leave a look for the process `of`."""
        await self._database.execute(_ASK, look_id, of, look.user_id, look.request)

    async def take(self, look_id: UUID, *, by: str) -> ForwardedLook | None:
        """The look, once, if it is for this process and still wanted."""
        row = await self._database.row(
            """update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
            returning user_id, request""",
            look_id,
            by,
        )
        return ForwardedLook(row["user_id"], row["request"]) if row else None

    async def answer(self, look_id: UUID, answer: bytes) -> None:
        """Leave the answer for whoever asked; nothing happens when nobody waits any more."""
        await self._database.execute("update forwarded_looks set answer = $2 where id = $1", look_id, answer)

    async def read(self, look_id: UUID) -> bytes | None:
        """The answer, once it is there."""
        return await self._database.value("select answer from forwarded_looks where id = $1", look_id)

    async def forget(self, look_id: UUID) -> None:
        """Nobody waits any more."""
        await self._database.execute("delete from forwarded_looks where id = $1", look_id)
