"""A store whose root directory has any number of entries, generated during the listing."""

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
    """Counts listing calls in `calls` and records the received cursors in `cursors`.

    `tells_remaining`: report the number of remaining entries, as HDFS does. After `late_after` calls, each further
    batch takes 60 s; after `fails_after` calls, each further batch raises `failure`. A cursor in `unknown` also raises
    `failure`, like a continuation token that has expired. `peak_bytes`: set it to a nonzero value to record the highest
    resident memory at any call.
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
        """Return the entry at position `number` in name order."""
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
        await asyncio.sleep(0)  # gives control to the event loop, as a network response would
        if directory.peak_bytes:
            directory.peak_bytes = max(directory.peak_bytes, resident_bytes())
        if directory.late_after is not None and directory.calls > directory.late_after:
            await asyncio.sleep(60)
        fails = directory.fails_after is not None and directory.calls > directory.fails_after
        if directory.failure and (fails or cursor in directory.unknown):
            raise directory.failure
