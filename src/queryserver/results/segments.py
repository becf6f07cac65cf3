"""Results as Arrow segments in any store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from queryserver.errors.files import InsufficientStorage, PathNotFound, StorageError, StorageUnavailable
from queryserver.files.protocol import Storage
from queryserver.formats.columns import Segment
from queryserver.platform.limits import LruCache
from queryserver.platform.threads import Tasks

_MIB = 1024 * 1024
_HEAD_BYTES = 64 * 1024
_PREFIX_BYTES = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

# 1,000,000 rows of 10 mixed columns in 20 segments, encoded, written with fsync / read and decoded / size:
# none 0.08 s / 5 ms / 97 MB, lz4 0.13 s / 18 ms / 62 MB, zstd 0.17 s / 54 ms / 47 MB. A page never waits 1 ms for lz4.
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Key:
    """Names one segment. Its content never changes."""

    statement_id: UUID
    fence: int
    number: int

    @property
    def path(self) -> str:
        return f"{_directory(self.statement_id)}/{self.fence}-{self.number}.arrow"


class ResultStore:
    """Segments of rows by statement and number. Raises StorageError, StorageUnavailable, PathNotFound.

    A segment is one IPC stream, at `<2 digits>/<statement id>/<fence>-<number>.arrow`. Decoded segments are cached up
    to `cache_bytes`; at most `max_loads` are read at a time. Concurrent readers of one segment share its load. Close it
    before the storage.
    """

    def __init__(
        self, storage: Storage, *, cache_bytes: int = 32 * _MIB, max_threads: int = 2, max_loads: int = 4
    ) -> None:
        self._storage = storage
        self._tables = LruCache[_Key, pa.Table](cache_bytes, weigh=pa.Table.get_total_buffer_size)
        self._loads: dict[_Key, asyncio.Task[pa.Table]] = {}
        self._running = Tasks()
        self._places = asyncio.Semaphore(max_loads)
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="segments")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop loads under way, whose readers get StorageUnavailable; end the threads. Idempotent."""
        await self._running.aclose()
        self._tables.clear()
        # The threads can only be busy with Arrow's coding of one segment.
        await asyncio.to_thread(self._threads.shutdown)

    async def append(self, statement_id: UUID, *, fence: int, number: int, start_row: int, table: pa.Table) -> Segment:
        """Store one segment, which survives a crash of the machine then. A repeated call replaces it.

        `fence` is part of the name, so that a runner that lost its lease never touches its successor's bytes.
        """
        stored = await self._in_thread(partial(_encode, table))
        path = _Key(statement_id, fence, number).path
        written = await self._storage.write(path, _body(stored), overwrite=True, size_bytes=len(stored))
        return Segment(number=number, start_row=start_row, rows=table.num_rows, size_bytes=written.size_bytes)

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        """One segment, as stored; one that another process has deleted may still be read from the cache."""
        key = _Key(statement_id, fence, number)
        table = self._tables.get(key)
        if table is not None:
            return table
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._running.start(self._load(key), "segment")
            task.add_done_callback(partial(self._loaded, key))
        try:
            # A reader that goes away does not stop the load for the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise StorageUnavailable("The result store is closing.") from None
            raise

    async def schema(self, statement_id: UUID, *, fence: int, number: int) -> pa.Schema:
        """The Arrow types of one segment; of one that is not cached, the first 64 KiB are read."""
        key = _Key(statement_id, fence, number)
        if (table := self._tables.get(key)) is not None:
            return table.schema
        head = await self._read(key.path, length=_HEAD_BYTES)
        needed = _PREFIX_BYTES + int.from_bytes(head[4:_PREFIX_BYTES], "little")
        if len(head) < needed:
            head = await self._read(key.path, length=needed)
        with _arrow_errors():
            return pa.ipc.read_schema(pa.py_buffer(head))

    async def delete(self, statement_id: UUID) -> None:
        """Delete all segments of a statement; nothing happens when there are none.

        Loads under way still answer their readers, and are not cached.
        """
        try:
            with suppress(PathNotFound):
                await self._storage.delete(_directory(statement_id), recursive=True)
        finally:
            for key in [key for key in self._tables if key.statement_id == statement_id]:
                self._tables.pop(key)
            for key in [key for key in self._loads if key.statement_id == statement_id]:
                del self._loads[key]

    async def ping(self) -> None:
        """Write, read and delete a small object."""
        path, written = f"ping/{uuid4().hex}", b"ping"
        try:
            await self._storage.write(path, _body(written), overwrite=False)
        except InsufficientStorage:
            # Results can still be read: the server must not count as not ready.
            return
        try:
            if await self._read(path) != written:
                raise StorageError("The result store does not give back what was written.")
        finally:
            await self._storage.delete(path, recursive=False)

    async def _load(self, key: _Key) -> pa.Table:
        async with self._places:
            stored = await self._read(key.path)
            return await self._in_thread(partial(_decode, stored))

    def _loaded(self, key: _Key, task: asyncio.Task[pa.Table]) -> None:
        is_current = self._loads.get(key) is task
        if is_current:
            del self._loads[key]
        # Reading the error marks it as retrieved, also when every reader has gone away.
        if not task.cancelled() and task.exception() is None and is_current:
            self._tables.put(key, task.result())

    async def _read(self, path: str, *, length: int | None = None) -> bytes:
        return b"".join([piece async for piece in self._storage.read(path, length=length)])

    def _in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)


def _directory(statement_id: UUID) -> str:
    # The last digits are random in every version of UUID; the first ones are a time in version 7.
    # 256 directories soon exist, so that a statement costs one mkdir, and 100,000 statements are 400 to each.
    return f"{statement_id.hex[-2:]}/{statement_id}"


async def _body(stored: bytes) -> AsyncIterator[bytes]:
    yield stored


def _encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITE) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _decode(stored: bytes) -> pa.Table:
    """The table of a segment. Raises StorageError when its bytes are damaged or incomplete."""
    # Arrow takes a stream that ends between two batches for a shorter one.
    if not stored.endswith(_END_OF_STREAM):
        raise StorageError("A stored segment is incomplete.")
    with _arrow_errors():
        table = pa.ipc.open_stream(stored, options=_READ).read_all()
        table.validate()
        return table


@contextmanager
def _arrow_errors() -> Generator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise StorageError("Stored rows are damaged.") from error
