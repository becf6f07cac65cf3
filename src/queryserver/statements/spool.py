"""Batches of a running statement, collected into segments of the result store (Contract editor 6.4)."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage
from queryserver.errors.statements import RowTooLarge, cell_too_large, disk_below_floor, result_store_failed
from queryserver.formats.columns import (
    ROW_CELLS,
    Segment,
    TruncationReason,
    encode,
    first_large_row,
    first_large_value,
    has_nested,
    parts,
)
from queryserver.results.segments import ResultStore
from queryserver.statements.model import Lease, Resumption

INLINE_BYTES = 32 * 1024
"""Results up to this size are stored inside the record itself: no file, no second query."""
SEGMENT_AGE_S = 1.0
"""Rows of a slow statement can be read after this time."""
_SEGMENT_BYTES = 4 * 1024 * 1024
# Batches with more columns are measured in a thread: Arrow takes some 6 µs for the size of each column.
_MANY_COLUMNS = 200

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Caps:
    """How much of a result is kept, and how large one value may be."""

    rows: int
    size_bytes: int
    cell_bytes: int


@dataclass(frozen=True, slots=True)
class Spooled:
    """What was kept; a small result is `inline` and has no segments."""

    rows: int
    size_bytes: int
    truncated_reason: TruncationReason | None
    inline: bytes | None


class Spool:
    """Collects batches into segments; while one is being stored the next one fills.

    Holds at most two segments and one batch. `make_visible` is called in order, each time bytes are durable.
    """

    def __init__(
        self,
        store: ResultStore,
        lease: Lease,
        caps: Caps,
        make_visible: Callable[[Segment, str | None], Awaitable[None]],
        *,
        stored: Resumption | None = None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._caps = caps
        self._make_visible = make_visible
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_since = time.monotonic()
        self._storing: asyncio.Task[None] | None = None
        self._token: str | None = None
        self._checked_schema: pa.Schema | None = None
        self._has_nested = False
        self._segments = stored.segments if stored else 0
        self._stored_bytes = stored.size_bytes if stored else 0
        # Of what another runner stored only the packed size is known.
        self._kept_bytes = self._stored_bytes
        self.rows = stored.rows if stored else 0
        self.truncated_reason: TruncationReason | None = None

    async def add(self, batch: pa.RecordBatch, token: str | None = None) -> None:
        """Keep what the caps allow; `truncated_reason` is set once something was dropped.

        `token` says where the engine continues after this batch; it is made visible together with its last rows.
        Raises cell_too_large, RowTooLarge; then nothing of the batch is kept.
        """
        divide = partial(self._divided, batch, is_one=token is not None)
        pieces = divide() if batch.num_columns <= _MANY_COLUMNS else await asyncio.to_thread(divide)
        for kept, size_bytes in pieces:
            if self._pending and not self._pending[0].schema.equals(kept.schema):
                await self._flush()
            self._token = token
            if not self._pending:
                self._pending_since = time.monotonic()
            self._pending.append(kept)
            self._pending_bytes += size_bytes
            self.rows += kept.num_rows
            if size_bytes > _SEGMENT_BYTES:
                # One huge row: nothing else is fetched until its memory is free again.
                await self.store()
            elif self._pending_bytes >= _SEGMENT_BYTES or time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
                await self._flush()

    async def flush_if_old(self) -> None:
        """Begin to store rows that have waited for `SEGMENT_AGE_S`."""
        if self._pending and time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
            await self._flush()

    async def store(self) -> None:
        """Make everything durable and visible that was added."""
        await self._flush()
        await self._stored()

    async def finish(self) -> Spooled:
        """Store the rest; everything that the answer counts is durable, or inline."""
        if self._pending and not self._segments and self._pending_bytes <= INLINE_BYTES:
            inline = encode(pa.Table.from_batches(self._pending))
            if len(inline) <= INLINE_BYTES:
                return Spooled(self.rows, len(inline), self.truncated_reason, inline)
        await self.store()
        return Spooled(self.rows, self._stored_bytes, self.truncated_reason, None)

    async def aclose(self) -> None:
        """Stop storing; what is not visible yet never will be."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    def _divided(self, batch: pa.RecordBatch, *, is_one: bool) -> list[tuple[pa.RecordBatch, int]]:
        """What the caps allow of the batch, in pieces for segments, each with its bytes; one piece if `is_one`.

        Rows and the mark after them are stored together, so only a batch without a mark may be divided.
        """
        if self.truncated_reason is not None:
            return []
        room = self._caps.rows - self.rows
        if batch.num_rows > room:
            self.truncated_reason = TruncationReason.ROW_LIMIT
            batch = batch.slice(0, room)
        size_bytes = batch.nbytes
        if self._checked_schema is None or not self._checked_schema.equals(batch.schema):
            self._checked_schema, self._has_nested = batch.schema, has_nested(batch.schema)
        if size_bytes > self._caps.cell_bytes or self._has_nested:
            self._require_small_cells(batch)
        if self._kept_bytes + size_bytes > self._caps.size_bytes:
            self.truncated_reason = TruncationReason.BYTE_LIMIT
            share = (self._caps.size_bytes - self._kept_bytes) / max(size_bytes, 1)
            batch = batch.slice(0, int(batch.num_rows * share))
            size_bytes = batch.nbytes
        self._kept_bytes += size_bytes
        if batch.num_rows == 0:
            return []
        if is_one or size_bytes <= _SEGMENT_BYTES:
            return [(batch, size_bytes)]
        return [(piece, piece.nbytes) for piece in parts(batch, _SEGMENT_BYTES)]

    def _require_small_cells(self, batch: pa.RecordBatch) -> None:
        limit = self._caps.cell_bytes
        if (found := first_large_value(batch, limit)) is not None:
            row, column = found
            raise cell_too_large(limit_bytes=limit, row=self.rows + row, column=batch.schema.names[column])
        if (large := first_large_row(batch, ROW_CELLS * limit)) is not None:
            raise RowTooLarge(limit_bytes=ROW_CELLS * limit, row=self.rows + large)

    async def _flush(self) -> None:
        if not self._pending:
            return
        await self._stored()
        table = pa.Table.from_batches(self._pending)
        start_row = self.rows - table.num_rows
        self._pending, self._pending_bytes = [], 0
        self._storing = asyncio.create_task(self._store_segment(self._segments, start_row, table, self._token))
        self._segments += 1

    async def _stored(self) -> None:
        if self._storing is not None:
            storing, self._storing = self._storing, None
            await storing

    async def _store_segment(self, number: int, start_row: int, table: pa.Table, token: str | None) -> None:
        lease = self._lease
        try:
            segment = await self._store.append(
                lease.statement_id, fence=lease.fence, number=number, start_row=start_row, table=table
            )
        except InsufficientStorage as error:
            raise disk_below_floor(error.message) from error
        except QueryServerError as error:
            raise result_store_failed("The result could not be stored.") from error
        self._stored_bytes += segment.size_bytes
        await self._make_visible(segment, token)


async def with_pauses(items: AsyncIterator[Item], *, pause_s: float) -> AsyncGenerator[Item | None]:
    """The items as they come, and None whenever none came for `pause_s`. Closes its source at the end."""
    coming: asyncio.Future[Item] | None = None
    try:
        while True:
            # Nothing is fetched ahead: a caller that stops here must not have to break off a fetch.
            coming = coming or asyncio.ensure_future(anext(items))
            await asyncio.wait({coming}, timeout=pause_s)
            if not coming.done():
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        if isinstance(items, AsyncGenerator):
            await items.aclose()
