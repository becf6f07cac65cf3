"""A store whose root directory has any number of entries. They are generated while the directory is listed."""

import asyncio
import resource
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.storage import MemoryFileSystem, MemoryStorage

from queryserver.errors.base import QueryServerError
from queryserver.files.model import EntryKind, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import Batch, StorageTraits

_TIME = datetime(2025, 1, 1, tzinfo=UTC)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class LongDirectory(MemoryFileSystem):
    """A store with `entries` files in its root directory. It counts batches in `calls`, and records cursors in
    `cursors`.

    If `tells_remaining` is set, each batch contains the number of remaining entries, as on HDFS. After `late_after`
    batches, each further batch takes 60 s. After `fails_after` batches, each further batch raises `failure`. A batch at
    a cursor in `unknown` also raises `failure`, as if a continuation token had expired. If a test sets `peak_bytes` to
    a nonzero value, it is updated to the highest resident memory at the start of any batch.
    """

    def __init__(
        self, entries: int, scheme: Scheme = Scheme.S3A, *, in_order: bool = True, tells_remaining: bool = False
    ) -> None:
        super().__init__(scheme, StorageTraits(lists_in_order=in_order), ())
        self.entries = entries
        self.in_order = in_order
        self.tells_remaining = tells_remaining
        self.calls = 0
        self.cursors: list[str | None] = []
        self.late_after: int | None = None
        self.fails_after: int | None = None
        self.failure: QueryServerError | None = None
        self.unknown: set[str] = set()
        self.peak_bytes = 0

    def as_user(self, user: StorageUser) -> "_LongStorage":
        return _LongStorage(self, user)

    def entry(self, number: int) -> FileStatus:
        """Return the entry at index `number` in name order."""
        return FileStatus(
            path=f"{number:07}.csv",
            kind=EntryKind.FILE,
            size_bytes=number * 7919 % 100_003,
            modified_at=_TIME + timedelta(seconds=number // 10),
            owner=f"owner{number % 7}",
            group="all",
            permissions=0o644,
        )


class _LongStorage(MemoryStorage):
    def __init__(self, directory: LongDirectory, user: StorageUser) -> None:
        super().__init__(directory.tree, user, directory.traits)
        self._directory = directory

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        directory, end = self._directory, self._directory.entries
        directory.cursors.append(cursor)
        start = int(cursor or 0)
        while True:
            await self._record_call(cursor)
            stop = min(start + batch_size, end)
            numbers = range(start, stop) if directory.in_order else range(end - 1 - start, end - 1 - stop, -1)
            entries = tuple(map(directory.entry, numbers))
            yield Batch(entries, None if stop == end else str(stop), end - stop if directory.tells_remaining else None)
            if stop == end:
                return
            start = stop

    async def _record_call(self, cursor: str | None) -> None:
        directory = self._directory
        directory.calls += 1
        await asyncio.sleep(0)  # yields to the event loop, as waiting for a network response would
        if directory.peak_bytes:
            directory.peak_bytes = max(directory.peak_bytes, resident_bytes())
        if directory.late_after is not None and directory.calls > directory.late_after:
            await asyncio.sleep(60)
        fails = directory.fails_after is not None and directory.calls > directory.fails_after
        if directory.failure and (fails or cursor in directory.unknown):
            raise directory.failure
