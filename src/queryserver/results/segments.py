"""Results as Arrow segments in any Storage (design, idea 1)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from queryserver.domain.errors.files import InsufficientStorage, PathNotFound, StorageError
from queryserver.domain.result import Segment
from queryserver.interfaces.storage import Storage
from queryserver.results import coding
from queryserver.results.cache import SegmentCache, SegmentKey

_MIB = 1024 * 1024
_HEAD_BYTES = 64 * 1024

Decoded = TypeVar("Decoded")


class SegmentStore:
    """One IPC stream per segment, at `<2 digits>/<statement id>/<fence>-<number>.arrow`.

    Decoded segments are kept up to `cache_bytes`; at most `max_loads` are read at a time. To be closed by its owner,
    before the storage.
    """

    def __init__(
        self, storage: Storage, *, cache_bytes: int = 32 * _MIB, max_threads: int = 2, max_loads: int = 4
    ) -> None:
        self._storage = storage
        self._cache = SegmentCache(cache_bytes)
        self._loads = asyncio.Semaphore(max_loads)
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="segments")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reads under way, end the threads, forget the cache. Idempotent."""
        await self._cache.close()
        # Arrow's coding of one segment is all that the threads can still be busy with.
        await asyncio.to_thread(self._threads.shutdown)

    async def append(self, statement_id: UUID, *, fence: int, number: int, start_row: int, table: pa.Table) -> Segment:
        """See the Protocol. Repeating a call replaces the segment, so a lost answer can be asked for again."""
        stored = await self._in_thread(partial(coding.encode, table))
        path = _path(SegmentKey(statement_id, fence, number))
        written = await self._storage.write(path, _body(stored), overwrite=True, size_bytes=len(stored))
        return Segment(number=number, start_row=start_row, rows=table.num_rows, size_bytes=written.size_bytes)

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        """See the Protocol. Of results deleted by another process, segments may still be read from the cache."""
        key = SegmentKey(statement_id, fence, number)
        return await self._cache.get(key, partial(self._load, key))

    async def schema(self, statement_id: UUID, *, fence: int, number: int) -> pa.Schema:
        """See the Protocol. Reads the first 64 KiB."""
        key = SegmentKey(statement_id, fence, number)
        if (table := self._cache.peek(key)) is not None:
            return table.schema
        head = await self._read(_path(key), length=_HEAD_BYTES)
        if len(head) < (needed := coding.schema_bytes(head)):
            head = await self._read(_path(key), length=needed)
        return coding.decode_schema(head)

    async def delete(self, statement_id: UUID) -> None:
        """See the Protocol."""
        try:
            with suppress(PathNotFound):
                await self._storage.delete(_directory(statement_id), recursive=True)
        finally:
            self._cache.forget(statement_id)

    async def ping(self) -> None:
        """See the Protocol."""
        path, written = f"ping/{uuid4().hex}", b"ping"
        try:
            await self._storage.write(path, _body(written), overwrite=False)
        except InsufficientStorage:
            # Results can still be read: a server that counted as not ready would take that away, too.
            return
        try:
            if await self._read(path) != written:
                raise StorageError("The result store does not give back what was written.")
        finally:
            await self._storage.delete(path, recursive=False)

    async def _load(self, key: SegmentKey) -> pa.Table:
        async with self._loads:
            stored = await self._read(_path(key))
            return await self._in_thread(partial(coding.decode, stored))

    async def _read(self, path: str, *, length: int | None = None) -> bytes:
        return b"".join([piece async for piece in self._storage.read(path, length=length)])

    async def _in_thread(self, call: Callable[[], Decoded]) -> Decoded:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _directory(statement_id: UUID) -> str:
    # The last digits are random in every version of UUID; the first ones tell the time in version 7.
    # 256 directories soon exist, so that a statement costs one mkdir, and 100,000 statements are 400 to each.
    return f"{statement_id.hex[-2:]}/{statement_id}"


def _path(key: SegmentKey) -> str:
    return f"{_directory(key.statement_id)}/{key.fence}-{key.number}.arrow"


async def _body(stored: bytes) -> AsyncIterator[bytes]:
    yield stored
