"""Stores results as segments, which are Arrow IPC streams whose blocks can be decoded one by one.

A block is one record batch, or several small ones. Locating the blocks of a segment takes 0.1 ms, because only message
headers are read. Decoding a block with 2,000 rows takes 0.15 ms; decoding a whole segment with 27,000 rows takes 2.5
ms. Concurrent readers of a segment share one load.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage, PathNotFound, StorageError, StorageUnavailable
from queryserver.files.protocol import CheckedWrites, Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.formats.download.encoder import END_OF_STREAM
from queryserver.platform.caches import LruCache
from queryserver.platform.threads import Tasks
from queryserver.results.disk_cache import DiskCache

HEAD_BYTES = 64 * 1024
"""Number of bytes to read at the start of a segment to get its schema. Enough for nearly every schema."""
_PREFIX_BYTES = 8

# Measured with 1,000,000 rows of 10 mixed columns in 20 segments: encode and write with fsync / read and decode /
# size. None: 0.08 s / 5 ms / 97 MB. lz4: 0.13 s / 18 ms / 62 MB. zstd: 0.17 s / 54 ms / 47 MB. With lz4, decompression
# takes less than 1 ms per page.
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)

# Smaller blocks would make segments larger and slower to read as a whole, because each column of each block is
# compressed separately.
_MIN_BLOCK_BYTES = 256 * 1024
_MIN_BLOCK_ROWS = 512
# A larger segment contains huge rows. Its batches are not joined, because joining copies them.
_MAX_JOINED_BYTES = 16 * 1024 * 1024

# Field numbers in the tables `Message` and `RecordBatch` of Arrow's Message.fbs.
_MESSAGE_HEADER = 2
_BATCH_LENGTH = 0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [first_row, first_row + rows) of a segment, stored as bytes [start, end) of it."""

    first_row: int
    rows: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """The positions of a segment's blocks. `head` is the start of the segment, which contains the schema."""

    head: bytes
    blocks: tuple[Block, ...]

    @property
    def weight(self) -> int:
        """Approximate memory use in bytes."""
        return len(self.head) + 128 * len(self.blocks)

    def blocks_with(self, start_row: int, rows: int) -> range:
        """Return the numbers of the blocks that contain rows in [start_row, start_row + rows)."""
        numbers = [
            number
            for number, block in enumerate(self.blocks)
            if block.first_row < start_row + rows and start_row < block.first_row + block.rows
        ]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def decode(self, number: int, stored: bytes | memoryview) -> pa.Table:
        """Decode the rows of a block from its `stored` bytes. Raises StorageError."""
        block = self.blocks[number]
        if len(stored) != block.end - block.start:
            raise StorageError("A stored segment is incomplete.")
        # A block at position 0 is the entire stream, including the head and the end marker.
        table = _read_table(bytes(stored) if block.start == 0 else b"".join((self.head, stored, END_OF_STREAM)))
        if table.num_rows != block.rows:
            raise StorageError("The stored rows are damaged.")
        return table


def encode(table: pa.Table) -> bytes:
    """Encode rows as a segment, in blocks of about 256 KiB."""
    sink = pa.BufferOutputStream()
    size_bytes = table.nbytes
    rows = max(_MIN_BLOCK_ROWS, table.num_rows * _MIN_BLOCK_BYTES // max(size_bytes, 1))
    if size_bytes <= _MAX_JOINED_BYTES:
        # Engines return batches of a few hundred rows. One block for each of them would slow down every reader.
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):  # unions: their batches stay separate
            table = table.combine_chunks()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITE) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def decode(stored: bytes) -> pa.Table:
    """Decode all rows of a segment. Raises StorageError if it is damaged or incomplete."""
    require_whole(stored)
    return _read_table(stored)


def require_whole(stored: bytes) -> None:
    """Raise StorageError for a truncated segment. Arrow itself accepts a segment that ends between two batches."""
    if not stored.endswith(END_OF_STREAM):
        raise StorageError("A stored segment is incomplete.")


def head_length(head: bytes) -> int:
    """Return the length of a segment's head in bytes. `head` must contain at least the first 8 bytes."""
    return _PREFIX_BYTES + int.from_bytes(head[4:_PREFIX_BYTES], "little")


def decode_schema(head: bytes) -> pa.Schema:
    """Decode the schema from a segment's head, whose length `head_length` returns. Raises StorageError."""
    with _arrow_errors():
        return pa.ipc.read_schema(pa.py_buffer(head))


def locate_blocks(stored: bytes) -> BlockIndex:
    """Locate a segment's blocks. Raises StorageError if the segment is damaged or incomplete."""
    require_whole(stored)
    blocks: list[Block] = []
    source, has_dictionaries = pa.BufferReader(stored), False
    with _arrow_errors():
        pa.ipc.read_message(source)
        end_of_head = start = source.tell()
        row = block_row = 0
        while source.tell() < len(stored) - _PREFIX_BYTES:
            message = pa.ipc.read_message(source)
            has_dictionaries |= message.type == "dictionary"
            row += 0 if message.type == "dictionary" else _count_rows(memoryview(message.metadata))
            if row - block_row >= _MIN_BLOCK_ROWS or source.tell() - start >= _MIN_BLOCK_BYTES:
                blocks.append(Block(block_row, row - block_row, start, source.tell()))
                block_row, start = row, source.tell()
        if row > block_row:
            blocks.append(Block(block_row, row - block_row, start, source.tell()))
    if has_dictionaries:
        # Dictionaries are separate messages that precede the first batch using them, so the whole segment becomes one
        # block.
        return BlockIndex(b"", (Block(0, row, 0, len(stored)),))
    return BlockIndex(stored[:end_of_head], tuple(blocks))


def _read_table(stored: bytes) -> pa.Table:
    with _arrow_errors():
        table = pa.ipc.open_stream(stored, options=_READ).read_all()
        table.validate()
        return table


def _count_rows(message: memoryview) -> int:
    """Return the number of rows in a record batch, read from its FlatBuffers metadata (Arrow's Message.fbs)."""
    (root,) = struct.unpack_from("<I", message, 0)
    header = _field(message, root, _MESSAGE_HEADER)
    (distance,) = struct.unpack_from("<I", message, header)
    length = _field(message, header + distance, _BATCH_LENGTH)
    return struct.unpack_from("<q", message, length)[0] if length else 0


def _field(message: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a FlatBuffers table, or 0 if the field has its default value."""
    (distance,) = struct.unpack_from("<i", message, table)
    vtable = table - distance
    (size,) = struct.unpack_from("<H", message, vtable)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", message, vtable + at) if at < size else (0,)
    return table + offset if offset else 0


@contextmanager
def _arrow_errors() -> Generator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise StorageError("The stored rows are damaged.") from error


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
        """Return whether a load is in progress and has not been forgotten since it started."""
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

        `fence` is part of the name, so a runner that has lost its claim never overwrites the bytes of its successor.
        """
        stored = await self._in_thread(partial(encode, table))
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
            head = await self._read(path, length=HEAD_BYTES)
            needed = head_length(head)
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

    async def has_all(self, statement_id: UUID, segments: Sequence[Segment]) -> bool:
        """Return whether the store has these segments in their full size. Does not read them.

        Lists the directory of the statement, which takes one request per 1,000 segments in an object store.
        """
        sizes = dict[str, int]()
        try:
            listing = self._storage.list_directory(self._at(directory_of(statement_id)))
            async with aclosing(listing) as batches:
                async for batch in batches:
                    sizes |= {entry.name: entry.size_bytes for entry in batch.entries}
        except PathNotFound:
            return not segments
        except StorageError:
            raise
        except QueryServerError as error:
            raise StorageError("The result store denied access to stored results.") from error
        return all(
            sizes.get(SegmentKey(statement_id, one.fence, one.number).name) == one.size_bytes for one in segments
        )

    async def open_file(self, statement_id: UUID, *, fence: int, number: int) -> int | None:
        """Return a file descriptor for a segment, or None if the store has no local files. The caller must close it."""
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
            return await self._in_thread(partial(decode, stored))

    async def _load_index(self, key: SegmentKey, start_row: int) -> BlockIndex:
        """Locate the blocks. Also decode the first requested block, because its bytes are already loaded."""
        async with self._slots:
            stored = await self._stored(key)

            def work() -> tuple[BlockIndex, tuple[int, pa.Table] | None]:
                index = locate_blocks(stored)
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
            require_whole(stored)
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
    # The last digits of a UUID are random in every version. The first ones are a timestamp in version 7. All 256
    # parent directories exist after a short time, so each statement then needs one mkdir. With 100,000 statements,
    # each parent directory has about 400 entries.
    return f"{statement_id.hex[-2:]}/{statement_id}"


async def single_piece(content: bytes) -> AsyncIterator[bytes]:
    """Yield the content as a single chunk, in the form that stores accept."""
    yield content
