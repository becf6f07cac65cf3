"""Rows of a running statement on their way into the result store."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.domain.errors import QueryServerError, ResultStoreFailed
from queryserver.domain.result import Segment, TruncationReason
from queryserver.domain.statement import Lease, Resumption
from queryserver.formats import arrow_stream
from queryserver.interfaces.results import ResultStore

INLINE_BYTES = 32 * 1024
"""Results up to this size live inside the record itself: no file, no second look-up."""

SEGMENT_AGE_S = 1.0
"""Rows of a slow statement can be read after this time."""

_SEGMENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caps:
    """How much of a result is kept (Contract editor 6.4)."""

    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Spooled:
    """What was kept. `inline` holds a small result itself."""

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
        self._segments = stored.segments if stored else 0
        self._stored_bytes = stored.size_bytes if stored else 0
        # Of what another runner stored only the packed size is known.
        self._kept_bytes = self._stored_bytes
        self.rows = stored.rows if stored else 0
        self.truncated_reason: TruncationReason | None = None

    async def add(self, batch: pa.RecordBatch, token: str | None = None) -> None:
        """Keep what the caps allow; `truncated_reason` tells once something was dropped.

        `token` says where the engine goes on after this batch; it is made visible together with its rows.
        """
        kept = self._cut(batch)
        if kept.num_rows == 0:
            return
        if self._pending and not self._pending[0].schema.equals(kept.schema):
            await self._flush()
        self._token = token
        if not self._pending:
            self._pending_since = time.monotonic()
        self._pending.append(kept)
        self._pending_bytes += kept.nbytes
        self.rows += kept.num_rows
        if self._pending_bytes >= _SEGMENT_BYTES or time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
            await self._flush()

    async def flush_if_old(self) -> None:
        """Let rows be read that have waited long enough, so that a slow statement shows what it has."""
        if self._pending and time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
            await self._flush()

    async def store(self) -> None:
        """Make everything durable and visible that was added."""
        await self._flush()
        await self._stored()

    async def finish(self) -> Spooled:
        """Store what is left; everything counted in the answer is durable, or inline."""
        inline = self._as_inline()
        if inline is None:
            await self.store()
        size = self._stored_bytes if inline is None else len(inline)
        return Spooled(self.rows, size, self.truncated_reason, inline)

    async def aclose(self) -> None:
        """Stop storing; what is not visible yet never will be."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    def _cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.truncated_reason is not None:
            return batch.slice(0, 0)
        room = self._caps.rows - self.rows
        if batch.num_rows > room:
            self.truncated_reason = TruncationReason.ROW_LIMIT
            batch = batch.slice(0, room)
        if self._kept_bytes + batch.nbytes > self._caps.size_bytes:
            self.truncated_reason = TruncationReason.BYTE_LIMIT
            share = (self._caps.size_bytes - self._kept_bytes) / max(batch.nbytes, 1)
            batch = batch.slice(0, int(batch.num_rows * share))
        self._kept_bytes += batch.nbytes
        return batch

    def _as_inline(self) -> bytes | None:
        if self._segments or not self._pending or self._pending_bytes > INLINE_BYTES:
            return None
        encoded = arrow_stream.encode(pa.Table.from_batches(self._pending))
        return encoded if len(encoded) <= INLINE_BYTES else None

    async def _flush(self) -> None:
        if not self._pending:
            return
        await self._stored()
        table, start_row = pa.Table.from_batches(self._pending), self.rows - _rows(self._pending)
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
        except QueryServerError as error:
            raise ResultStoreFailed("The result could not be stored.") from error
        self._stored_bytes += segment.size_bytes
        await self._make_visible(segment, token)


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)
