"""Lists the results in a store, independently of the database records."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from queryserver.errors.files import PathExists, PathNotFound
from queryserver.files.model import FileStatus
from queryserver.files.protocol import Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.results.segments import PING_DIRECTORY, single_piece

_SHARD_DIGITS = 2
_BATCH = 500
_OWNER_FILE = "owner"
"""Name of an object that contains the id of the service database to which the results belong."""


@dataclass(frozen=True, slots=True)
class ResultDirectory:
    """The directory of one statement's result in the store."""

    id: UUID
    directory: FileStatus


class ResultListing:
    """Lists and cleans up the directories of a result store."""

    def __init__(self, storage: Storage, root: str = "") -> None:
        self._storage = storage
        self._root = root

    async def belongs_to(self, database_id: str, *, claims: bool) -> bool:
        """Return whether the store belongs to the database. If `claims` is set, claim a store that has no owner.

        A sweep with a different database would delete all results here, because that database has no records of them.
        """
        path = self._at(_OWNER_FILE)
        for _ in range(2):
            with suppress(PathNotFound):
                return b"".join([piece async for piece in self._storage.read(path)]) == database_id.encode()
            if not claims:
                return True
            with suppress(PathExists):
                await self._storage.write(path, single_piece(database_id.encode()), overwrite=False)
                return True
        return False

    async def statements(self) -> AsyncGenerator[Sequence[ResultDirectory]]:
        """Yield all statements that have a directory, in batches of up to 500. Skips other entries."""
        shards = [entry async for entry in self._entries("") if len(entry.name) == _SHARD_DIGITS]
        batch: list[ResultDirectory] = []
        for shard in shards:
            async for entry in self._entries(shard.name):
                statement_id = _parse_id(entry.name)
                if statement_id is not None and statement_id.hex.endswith(shard.name):
                    batch.append(ResultDirectory(statement_id, entry))
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    async def last_written(self, stored: ResultDirectory) -> datetime | None:
        """Return the time of the last write according to the store's clock. None if it is unknown."""
        name = f"{stored.id.hex[-_SHARD_DIGITS:]}/{stored.id}"
        times = [entry.modified_at async for entry in self._entries(name)]
        # If there are no files, only the directory has a time. Object stores provide none.
        known = [time for time in (times or [stored.directory.modified_at]) if time is not None]
        return max(known, default=None)

    async def remove_orphans(self, older_than: timedelta, now: datetime, *, dry_run: bool = False) -> int:
        """Delete orphaned files that crashed processes left while writing or checking the store. Return how many.

        If `dry_run` is set, only count them.
        """
        removed = 0
        async for entry in self._entries(PING_DIRECTORY):
            if entry.is_file and entry.modified_at is not None and now - entry.modified_at > older_than:
                removed += 1
                if not dry_run:
                    with suppress(PathNotFound):
                        await self._storage.delete(self._at(f"{PING_DIRECTORY}/{entry.name}"), recursive=False)
        if isinstance(self._storage, PrivateStorage):
            # Other stores hide incomplete files, or keep them in the directory of the statement.
            removed += await self._storage.sweep_all_directories(older_than, dry_run=dry_run)
        return removed

    async def _entries(self, path: str) -> AsyncGenerator[FileStatus]:
        """Yield the entries of a directory. Yields nothing if it does not exist."""
        with suppress(PathNotFound):
            async with aclosing(self._storage.list_directory(self._at(path))) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        yield entry

    def _at(self, path: str) -> str:
        return "/".join(part for part in (self._root, path) if part)


def _parse_id(name: str) -> UUID | None:
    try:
        parsed = UUID(name)
    except ValueError:
        return None
    return parsed if str(parsed) == name else None
