"""Lists a store's results, independently of the database records."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from queryserver.errors.files import PathExists, PathNotFound
from queryserver.files.model import FileStatus
from queryserver.files.protocol import Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.results.segments import PINGS, single_piece

_SHARD_DIGITS = 2
_BATCH = 500
_OWNER = "owner"
"""An object with the id of the service database that owns these results."""


@dataclass(frozen=True, slots=True)
class StoredStatement:
    """A statement with a directory in the store."""

    id: UUID
    directory: FileStatus


class StoredResults:
    """Reads a result store's directories in batches."""

    def __init__(self, storage: Storage, root: str = "") -> None:
        self._storage = storage
        self._root = root

    async def belongs_to(self, database_id: str, *, claims: bool) -> bool:
        """Return whether the store belongs to the database. With `claims`, takes over a store without an owner.

        Another database's sweep would delete all results here, because it does not know any of them.
        """
        path = self._at(_OWNER)
        for _ in range(2):
            with suppress(PathNotFound):
                return b"".join([piece async for piece in self._storage.read(path)]) == database_id.encode()
            if not claims:
                return True
            with suppress(PathExists):
                await self._storage.write(path, single_piece(database_id.encode()), overwrite=False)
                return True
        return False

    async def statements(self) -> AsyncGenerator[Sequence[StoredStatement]]:
        """Yield all statements with a directory, in batches of at most 500. Other entries are skipped."""
        shards = [entry async for entry in self._entries("") if len(entry.name) == _SHARD_DIGITS]
        batch: list[StoredStatement] = []
        for shard in shards:
            async for entry in self._entries(shard.name):
                statement_id = _id_of(entry.name)
                if statement_id is not None and statement_id.hex.endswith(shard.name):
                    batch.append(StoredStatement(statement_id, entry))
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    async def last_written(self, stored: StoredStatement) -> datetime | None:
        """Return the time of the last write by the store's clock, or None if unknown."""
        name = f"{stored.id.hex[-_SHARD_DIGITS:]}/{stored.id}"
        times = [entry.modified_at async for entry in self._entries(name)]
        # Without files, only the directory has a time, which object stores do not provide.
        known = [time for time in (times or [stored.directory.modified_at]) if time is not None]
        return max(known, default=None)

    async def remove_orphans(self, older_than: timedelta, now: datetime, *, dry_run: bool = False) -> int:
        """Delete (or with `dry_run` only count) leftovers from crashed processes' writes and checks."""
        removed = 0
        async for entry in self._entries(PINGS):
            if entry.is_file and entry.modified_at is not None and now - entry.modified_at > older_than:
                removed += 1
                if not dry_run:
                    with suppress(PathNotFound):
                        await self._storage.delete(self._at(f"{PINGS}/{entry.name}"), recursive=False)
        if isinstance(self._storage, PrivateStorage):
            # Other stores hide incomplete files, or keep them in the statement's directory.
            removed += await self._storage.sweep_all_directories(older_than, dry_run=dry_run)
        return removed

    async def _entries(self, path: str) -> AsyncGenerator[FileStatus]:
        """Yield a directory's entries, or nothing if it does not exist."""
        with suppress(PathNotFound):
            async with aclosing(self._storage.list_directory(self._at(path))) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        yield entry

    def _at(self, path: str) -> str:
        return "/".join(part for part in (self._root, path) if part)


def _id_of(name: str) -> UUID | None:
    try:
        parsed = UUID(name)
    except ValueError:
        return None
    return parsed if str(parsed) == name else None
