"""Caches the bytes of remote segments on the local disk for the lifetime of one process."""

import asyncio
import fcntl
import os
import shutil
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID, uuid4

import structlog

from queryserver.errors.files import InsufficientStorage
from queryserver.platform.caches import LruCache
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor
from queryserver.platform.threads import Tasks, every

log = structlog.get_logger(__name__)

_MAX_COPY_AGE_S = 600.0
"""Maximum age of a copy, because other processes do not announce deletions. Rereading takes one request."""
_SWEEP_EVERY_S = 60.0

_LOCK = "lock"
_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """The expected size and checksum of a cached file. A file that differs is not used."""

    size_bytes: int
    checksum: int


class DiskCache:
    """Caches at most `max_bytes` in files with mode 0600 below `parent`, and evicts the least recently used files.

    Each process creates a directory with a lock file at the first `put`, and removes it on exit. Directories of
    crashed processes are removed when another process starts, and at regular intervals. A copy expires `life_s`
    seconds after it was written, even if it is read frequently. Methods never raise: content that cannot be written or
    was altered is treated as not cached.
    """

    def __init__(
        self,
        parent: Path,
        max_bytes: int,
        *,
        floor: DiskFloor = NO_FLOOR,
        life_s: float = _MAX_COPY_AGE_S,
        sweep_every_s: float = _SWEEP_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parent = parent
        self._directory = parent / uuid4().hex
        self._max_bytes = max_bytes
        self._floor = floor
        self._files = LruCache[tuple[UUID, str], _CachedFile](
            max_bytes, weigh=lambda cached: cached.size_bytes, life_s=life_s, clock=clock
        )
        self._sweep_every_s = sweep_every_s
        self._tasks = Tasks()
        self._lock_file = -1
        # A single thread keeps index and files consistent without locks.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="result-cache")

    async def __aenter__(self) -> Self:
        await self._in_thread(self._remove_orphans, None)
        self._tasks.start(every(self._sweep_every_s, self._sweep), "result-cache")
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._tasks.aclose()
        await self._in_thread(self._remove_own, None)
        self._thread.shutdown()

    async def read(self, statement_id: UUID, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Return bytes [start, end) of a segment, by default all of them, or None if the segment is not cached."""
        return await self._in_thread(lambda: self._read((statement_id, name), start, end), None)

    async def put(self, statement_id: UUID, name: str, stored: bytes) -> None:
        """Cache a segment's bytes, unless the disk is full."""
        await self._in_thread(lambda: self._put((statement_id, name), stored), None)

    async def forget(self, statement_id: UUID) -> None:
        """Remove all of a statement's segments."""

        def remove() -> None:
            for key in [key for key in self._files if key[0] == statement_id]:
                self._drop(key)

        await self._in_thread(remove, None)

    async def _sweep(self) -> None:
        await self._in_thread(self._remove_old, None)
        await self._in_thread(self._remove_orphans, None)

    async def _in_thread(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except (OSError, InsufficientStorage) as error:
            log.debug("result cache access failed", reason=type(error).__name__)
            return otherwise

    def _read(self, key: tuple[UUID, str], start: int, end: int | None) -> bytes | None:
        cached = self._files.get(key)
        if cached is None:
            self._remove(key)  # it may have just expired
            return None
        is_valid = False
        try:
            with self._file(key).open("rb", buffering=0) as file:
                length = (cached.size_bytes if end is None else end) - start
                content = os.pread(file.fileno(), length, start)
                is_valid = os.fstat(file.fileno()).st_size == cached.size_bytes and len(content) == length
            # The checksum covers only the whole segment. A byte range is checked by its length, and later by decoding
            # it.
            is_valid = is_valid and (end is not None or zlib.crc32(content) == cached.checksum)
            return content if is_valid else None
        finally:
            if not is_valid:
                self._drop(key)

    def _put(self, key: tuple[UUID, str], stored: bytes) -> None:
        if len(stored) > self._max_bytes:
            return
        self._open()
        self._floor.require(self._directory, len(stored))
        self._drop(key)
        file = self._file(key)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
        try:
            remaining = memoryview(stored)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
        except OSError:
            file.unlink()
            raise
        finally:
            os.close(descriptor)
        for dropped in self._files.put(key, _CachedFile(len(stored), zlib.crc32(stored))):
            self._remove(dropped)

    def _drop(self, key: tuple[UUID, str]) -> None:
        if self._files.pop(key) is not None:
            self._remove(key)

    def _remove(self, key: tuple[UUID, str]) -> None:
        self._file(key).unlink(missing_ok=True)

    def _remove_old(self) -> None:
        for key in self._files.drop_old():
            self._remove(key)

    def _file(self, key: tuple[UUID, str]) -> Path:
        return self._directory / f"{key[0]}-{key[1]}"

    def _open(self) -> None:
        """Create the directory, and hold its lock until the process ends."""
        if self._lock_file >= 0:
            return
        self._parent.mkdir(_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        self._directory.mkdir(_PRIVATE_DIRECTORY, exist_ok=True)
        lock_file = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT, _PRIVATE_FILE)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a starting process considers this directory orphaned and is removing it
            os.close(lock_file)
            raise
        self._lock_file = lock_file

    def _remove_own(self) -> None:
        self._files.clear()
        if self._lock_file >= 0:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock_file)
            self._lock_file = -1

    def _remove_orphans(self) -> None:
        for directory in self._parent.iterdir() if self._parent.is_dir() else ():
            # Another process is creating or removing a directory that has no lock file.
            with suppress(OSError):
                lock_file = os.open(directory / _LOCK, os.O_RDWR)
                try:
                    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(lock_file)
