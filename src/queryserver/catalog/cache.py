"""Caches catalog metadata per user and connector, compressed, in the service database (Contract editor 10)."""

import asyncio
import hashlib
import zlib
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson
import structlog

from queryserver.catalog.queries import CatalogQuery
from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREAD_ABOVE_BYTES = 16 * 1024
_MAX_USER_BYTES = 32 * 1024 * 1024
_ROW_BYTES = 128  # overhead of a row in addition to its value
_MIN_SWEEP_S = 5.0


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identifies a cached value by user, connector and `digest`, a hash of the query."""

    user_id: int
    connector: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The cached value for a key (None if there is none), and the time of the lookup.

    `changed_at` is when the user last changed objects in the data source. Lookups with different `changed_at` must not
    share a result. All times are from the database clock.
    """

    key: CacheKey
    value: bytes | None
    looked_at: datetime
    changed_at: datetime | None


_FIND = """
select now() as looked_at, changed.at as changed_at, kept.value
from (select max(changed_at) as at from metadata_changes where user_id = $1 and connector = $2) as changed
left join metadata_answers as kept
    on kept.user_id = $1 and kept.connector = $2 and kept.digest = $3
    and kept.looked_at > now() - $4::interval and (changed.at is null or kept.looked_at > changed.at)
"""

_PUT = """
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


class MetadataCacheRecords:
    """Reads and writes cached values. Each method is one transaction and raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key: CacheKey, *, max_age: timedelta) -> CacheEntry:
        """Find a value that is younger than `max_age` and newer than the user's last object change."""
        row = await self._database.row(_FIND, key.user_id, key.connector, key.digest, max_age)
        if row is None:
            raise AssertionError("an aggregate always has a row")
        return CacheEntry(key, row["value"], row["looked_at"], row["changed_at"])

    async def put(self, key: CacheKey, value: bytes, *, looked_at: datetime, max_bytes: int) -> bool:
        """Store a query result. Return False if it is not stored.

        It is not stored if the user's cached values would exceed `max_bytes`, or if a newer result is already stored.
        """
        size = len(value) + _ROW_BYTES
        is_stored = await self._database.value(
            _PUT, key.user_id, key.connector, key.digest, value, size, looked_at, max_bytes
        )
        return is_stored is True

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Delete the user's values for a connector, and invalidate the results of running lookups."""
        await self._database.execute(_CHANGED, user_id, connector)

    async def sweep(self, *, older_than: timedelta) -> int:
        deleted = await self._database.execute(
            "delete from metadata_answers where looked_at < now() - $1::interval", older_than
        )
        await self._database.execute(
            "delete from metadata_changes where changed_at < now() - $1::interval", 2 * older_than
        )
        return deleted


class MetadataCache:
    """Reads and writes cached results. Failing to store a result raises nothing; the result is then not cached."""

    def __init__(self, records: MetadataCacheRecords, threads: Executor, *, max_age: timedelta) -> None:
        self._records = records
        self._threads = threads
        self._max_age = max_age
        self._period_s = max(max_age.total_seconds(), _MIN_SWEEP_S)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Delete old values periodically while the context is open."""
        return background(every(self._period_s, self._sweep), name="metadata-sweep")

    async def find(self, user: User, connector: Connector, login: str, query: CatalogQuery[Any]) -> CacheEntry:
        """Find a cached result. `login` is the user's name in a data source that requires personal credentials."""
        # The version is included, because another version of a connector may refer to another data source.
        digested = orjson.dumps([query.kind, query.names, login, connector.version])
        key = CacheKey(user.id, connector.key, hashlib.sha256(digested).digest())
        return await self._records.find(key, max_age=self._max_age)

    async def read(self, query: CatalogQuery[T], value: bytes) -> T:
        """Decompress and decode a cached value."""

        def unpack() -> T:
            return query.decode(zlib.decompress(value))

        if len(value) <= _THREAD_ABOVE_BYTES:
            return unpack()
        return await asyncio.get_running_loop().run_in_executor(self._threads, unpack)

    async def put(self, query: CatalogQuery[T], result: T, *, key: CacheKey, looked_at: datetime) -> None:
        """Store the result of a lookup that started at `looked_at`, unless the cache is disabled."""
        if not self._max_age:
            return

        def pack() -> bytes:
            return zlib.compress(query.encode(result), 1)

        value = await asyncio.get_running_loop().run_in_executor(self._threads, pack)
        try:
            await self._records.put(key, value, looked_at=looked_at, max_bytes=_MAX_USER_BYTES)
        except DatabaseUnavailable:
            log.warning("metadata not cached", kind=query.kind)

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Record that the user has changed objects, so that no process returns earlier values."""
        await self._records.objects_changed(user_id, connector)

    async def _sweep(self) -> None:
        await self._records.sweep(older_than=timedelta(seconds=self._period_s))
