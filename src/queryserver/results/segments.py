"""Stores results as Arrow segments. Concurrent readers of a segment share one load."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage, PathNotFound, StorageError, StorageUnavailable
from queryserver.files.protocol import CheckedWrites, Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.platform.caches import LruCache
from queryserver.platform.threads import Tasks
from queryserver.results import blocks
from queryserver.results.blocks import BlockIndex
from queryserver.results.disk_cache import DiskCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedLoads(Generic[K, V]):
    """Loads values into `cache`, once for all concurrent callers.

    Close it before the resources that the loads use.
    """

    def __init__(self, cache: LruCache[K, V]) -> None:
        self._cache = cache
        self._loads: dict[K, asyncio.Task[V]] = {}
        self._running = Tasks()

    async def close(self) -> None:
        """Stop the loads in progress. Their callers get StorageUnavailable. Idempotent."""
        await self._running.aclose()
        self._cache.clear()

    def cached(self, key: K) -> V | None:
        return self._cache.get(key)

    def put(self, key: K, value: V) -> None:
        self._cache.put(key, value)

    def is_loading(self, key: K) -> bool:
        """Return whether a load is in progress and was not forgotten since it started."""
        return key in self._loads

    async def get(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the cached value for `key`, or otherwise the result of `load`.

        Canceling one caller does not affect the others.
        """
        value = self._cache.get(key)
        if value is not None:
            return value
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._running.start(load(), "segment")
            task.add_done_callback(partial(self._loaded, key))
        waiting: Awaitable[V] = asyncio.shield(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            if task.cancelled():
                raise StorageUnavailable("The result store is closing.") from None
            raise

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drop matching values. Loads in progress still return to their callers, but are not cached."""
        for key in [key for key in self._cache if matches(key)]:
            self._cache.pop(key)
        for key in [key for key in self._loads if matches(key)]:
            del self._loads[key]

    def _loaded(self, key: K, task: asyncio.Task[V]) -> None:
        is_current = self._loads.get(key) is task
        if is_current:
            del self._loads[key]
        # Reading the exception marks it as retrieved, even if no caller is left to do so.
        if not task.cancelled() and task.exception() is None and is_current:
            self._cache.put(key, task.result())


_MIB = 1024 * 1024
_INDEX_BYTES = 4 * _MIB
# If a page needs more blocks, the whole segment is read.
_MAX_SINGLE_BLOCKS = 2
_WHOLE = -1
"""The block number that stands for the whole segment."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment with rows [start_row, start_row + rows) of a result. `size_bytes` is its size in the store."""

    number: int
    start_row: int
    rows: int
    size_bytes: int
    fence: int = 0
    """The fence number of the runner that stored the segment."""


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Identifies one segment, whose content never changes."""

    statement_id: UUID
    fence: int
    number: int

    @property
    def path(self) -> str:
        return f"{directory_of(self.statement_id)}/{self.name}"

    @property
    def name(self) -> str:
        return f"{self.fence}-{self.number}.arrow"


class ResultStore:
    """Stores and reads segments by statement and number. Raises StorageError, StorageUnavailable, PathNotFound.

    A segment is an Arrow IPC stream at `<2 digits>/<statement id>/<fence>-<number>.arrow` below `root`. Decoded rows
    are cached in memory up to `cache_bytes`, stored bytes in `disk_cache`. At most `max_loads` segments or blocks are
    read concurrently. Close the store before the storage.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        root: str = "",
        cache_bytes: int = 32 * _MIB,
        disk_cache: DiskCache | None = None,
        max_threads: int = 2,
        max_loads: int = 4,
    ) -> None:
        self._storage = storage
        self._root = root
        self._disk_cache = disk_cache
        tables = LruCache[tuple[SegmentKey, int], pa.Table](cache_bytes, weigh=pa.Table.get_total_buffer_size)
        self._tables = SharedLoads(tables)
        self._indexes = SharedLoads(LruCache[SegmentKey, BlockIndex](_INDEX_BYTES, weigh=lambda index: index.weight))
        self._slots = asyncio.Semaphore(max_loads)
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="segments")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the loads in progress, and end the threads. Readers get StorageUnavailable. Idempotent."""
        await self._indexes.close()
        await self._tables.close()
        # The wait is short: at worst, the threads are encoding or decoding one segment.
        await asyncio.to_thread(self._threads.shutdown)

    async def append(self, statement_id: UUID, *, fence: int, number: int, start_row: int, table: pa.Table) -> Segment:
        """Store a segment durably. A repeated call replaces the segment.

        `fence` is part of the name, so a runner that has lost its lease never overwrites the bytes of its successor.
        """
        stored = await self._in_thread(partial(blocks.encode, table))
        storage, path = self._storage, self._at(SegmentKey(statement_id, fence, number).path)
        # Segments and directories never have the same name, so the additional checks of `write` are unnecessary.
        write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
        written = await write(path, single_piece(stored), overwrite=True, size_bytes=len(stored))
        return Segment(number=number, start_row=start_row, rows=table.num_rows, size_bytes=written.size_bytes)

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        """Read a segment. It may come from the cache even if another process has deleted it."""
        key = SegmentKey(statement_id, fence, number)
        return await self._tables.get((key, _WHOLE), partial(self._load, key))

    async def rows(self, statement_id: UUID, *, fence: int, number: int, start_row: int, rows: int) -> pa.Table:
        """Return rows [start_row, start_row + rows) of a segment, counted from its first row.

        If only a few rows of a large segment are requested, only their blocks are read and decoded.
        """
        key = SegmentKey(statement_id, fence, number)
        whole = self._tables.cached((key, _WHOLE))
        if whole is not None:
            return whole.slice(start_row, rows)
        index = await self._indexes.get(key, partial(self._load_index, key, start_row))
        numbers = index.blocks_with(start_row, rows)
        if not 0 < len(numbers) <= _MAX_SINGLE_BLOCKS:
            return (await self.read(statement_id, fence=fence, number=number)).slice(start_row, rows)
        parts = [
            await self._tables.get((key, block), partial(self._load_block, key, index, block)) for block in numbers
        ]
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        return table.slice(start_row - index.blocks[numbers[0]].first_row, rows)

    async def head(self, statement_id: UUID, *, fence: int, number: int) -> bytes:
        """Return the head of a segment, which contains its schema. Reading the first 64 KiB usually suffices."""
        path = SegmentKey(statement_id, fence, number).path
        async with self._slots:
            head = await self._read(path, length=blocks.HEAD_BYTES)
            needed = blocks.head_length(head)
            return head[:needed] if len(head) >= needed else await self._read(path, length=needed)

    async def part(self, statement_id: UUID, start: int, stop: int, *, fence: int, number: int) -> bytes:
        """Return bytes [start, stop) of a stored segment, or fewer if the segment is shorter.

        The bytes are neither decoded nor checked.
        """
        key = SegmentKey(statement_id, fence, number)
        async with self._slots:
            cached = None
            if self._disk_cache is not None:
                cached = await self._disk_cache.read(key.statement_id, key.name, start, stop)
            return await self._read(key.path, offset=start, length=stop - start) if cached is None else cached

    async def open_file(self, statement_id: UUID, *, fence: int, number: int) -> int | None:
        """Return a file descriptor for a segment, which the caller must close. None if the store has no local files."""
        if not isinstance(self._storage, PrivateStorage):
            return None
        return await self._storage.open_file(self._at(SegmentKey(statement_id, fence, number).path))

    async def delete(self, statement_id: UUID) -> None:
        """Delete all segments of a statement, if there are any.

        Loads in progress still return to their readers, but are not cached.
        """
        try:
            with suppress(PathNotFound):
                await self._storage.delete(self._at(directory_of(statement_id)), recursive=True)
        finally:
            self._tables.forget(lambda key: key[0].statement_id == statement_id)
            self._indexes.forget(lambda key: key.statement_id == statement_id)
            if self._disk_cache is not None:
                await self._disk_cache.forget(statement_id)

    async def ping(self) -> None:
        """Write, read and delete a small object to check the store. Raises StorageError."""
        path, written = f"{PING_DIRECTORY}/{uuid4().hex}", b"ping"
        try:
            await self._storage.write(self._at(path), single_piece(written), overwrite=False)
        except InsufficientStorage:
            # A full disk still allows reading results, so the server counts as ready.
            return
        try:
            if await self._read(path) != written:
                raise StorageError("The result store returned different bytes than were written.")
        finally:
            await self._storage.delete(self._at(path), recursive=False)

    async def _load(self, key: SegmentKey) -> pa.Table:
        async with self._slots:
            stored = await self._stored(key)
            return await self._in_thread(partial(blocks.decode, stored))

    async def _load_index(self, key: SegmentKey, start_row: int) -> BlockIndex:
        """Locate the blocks. Also decode the first requested block, because its bytes are already loaded."""
        async with self._slots:
            stored = await self._stored(key)

            def work() -> tuple[BlockIndex, tuple[int, pa.Table] | None]:
                index = blocks.locate_blocks(stored)
                for number in index.blocks_with(start_row, 1):
                    block = index.blocks[number]
                    return index, (number, index.decode(number, memoryview(stored)[block.start : block.end]))
                return index, None

            index, first = await self._in_thread(work)
        if first is not None and self._indexes.is_loading(key):
            self._tables.put((key, first[0]), first[1])
        return index

    async def _load_block(self, key: SegmentKey, index: BlockIndex, number: int) -> pa.Table:
        block = index.blocks[number]
        async with self._slots:
            cached = None
            if self._disk_cache is not None:
                cached = await self._disk_cache.read(key.statement_id, key.name, block.start, block.end)
            if cached is None:
                cached = await self._read(key.path, offset=block.start, length=block.end - block.start)
            return await self._in_thread(partial(index.decode, number, cached))

    async def _stored(self, key: SegmentKey) -> bytes:
        """Return all bytes of a segment. A complete segment is added to the disk cache."""
        if self._disk_cache is None:
            return await self._read(key.path)
        stored = await self._disk_cache.read(key.statement_id, key.name)
        if stored is None:
            stored = await self._read(key.path)
            blocks.require_whole(stored)
            await self._disk_cache.put(key.statement_id, key.name, stored)
        return stored

    async def _read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        try:
            pieces = self._storage.read(self._at(path), offset=offset, length=length)
            return b"".join([piece async for piece in pieces])
        except (StorageError, PathNotFound):
            raise
        except QueryServerError as error:
            # Access was denied to this service, not to the user who reads the result.
            raise StorageError("The result store denied access to stored results.") from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def _in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)


PING_DIRECTORY = "ping"
"""Directory of the small objects that are written to check the store."""


def directory_of(statement_id: UUID) -> str:
    """Return the directory of a statement's segments."""
    # The last digits of a UUID are random in every version; the first ones are a timestamp in version 7. All 256
    # parent directories exist after a short time, so each statement then needs one mkdir. With 100,000 statements,
    # each of them has about 400 entries.
    return f"{statement_id.hex[-2:]}/{statement_id}"


async def single_piece(content: bytes) -> AsyncIterator[bytes]:
    """Yield the content as a single chunk, in the form that stores accept."""
    yield content
