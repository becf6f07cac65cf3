"""A store with misbehaving files. Reads may be endless, interrupted, too short, too long or slow."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.fakes.storage import MemoryFileSystem, MemoryStorage

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import EntryChanged
from queryserver.files.model import EntryKind, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import PIECE_BYTES

MODIFIED_AT = datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Oddity:
    """A file whose reported size is `size_bytes`. Its content repeats `pattern`."""

    size_bytes: int
    sent_bytes: int | None = None
    """The number of bytes sent before the end or before `failure`. None stands for `size_bytes`."""
    failure: QueryServerError | None = None
    """The error raised after the last byte."""
    pause_s: float = 0.0
    """The delay before each chunk, in seconds."""
    pattern: bytes = b"0123456789abcde\n"
    tag: str = ""


class OddStorage(MemoryStorage):
    """Serves the files in `odd` as their `Oddity` specifies, and all other files from memory."""

    odd: dict[str, Oddity]
    touched: list[str]

    async def stat(self, path: str) -> FileStatus:
        one = self.odd.get(path)
        if one is None:
            return await super().stat(path)
        return FileStatus(path, EntryKind.FILE, one.size_bytes, MODIFIED_AT, permissions=0o644, tag=one.tag)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        self.touched.append(path)
        one = self.odd.get(path)
        if one is None:
            async for piece in super().read(path, offset=offset, length=length, version=version):
                yield piece
            return
        sent = one.size_bytes if one.sent_bytes is None else one.sent_bytes
        end = sent if length is None else min(sent, offset + length)
        repeated = one.pattern * (PIECE_BYTES // len(one.pattern) + 2)
        for start in range(offset, end, PIECE_BYTES):
            await asyncio.sleep(one.pause_s)
            if version is not None and not (await self.stat(path)).is_same_content(version):
                raise EntryChanged(f"{path} was modified concurrently.")
            skipped = start % len(one.pattern)
            yield repeated[skipped : skipped + min(PIECE_BYTES, end - start)]
        if one.failure is not None:
            raise one.failure


class OddFileSystem(MemoryFileSystem):
    """A MemoryFileSystem with misbehaving files. `touched` records the path of every read."""

    def __init__(self, scheme: Scheme = Scheme.HDFS) -> None:
        super().__init__(scheme)
        self.odd: dict[str, Oddity] = {}
        self.touched: list[str] = []

    def as_user(self, user: StorageUser) -> OddStorage:
        made = OddStorage(self.tree, user, self.traits)
        made.odd = self.odd
        made.touched = self.touched
        return made
