"""The rows of one operation, batch by batch, the next one on its way while the last is used."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from queryserver.domain.errors import OutcomeUnknown
from queryserver.engines.chunks import BATCH_BYTES, pieces
from queryserver.engines.hiveserver2.decoding import record_batch
from queryserver.engines.hiveserver2.errors import EXPIRED, Purpose, WireLost, call_errors, check
from queryserver.engines.hiveserver2.protocol.calls import FetchType, TFetchOrientation, TFetchResultsReq
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.protocol.methods import FETCH_RESULTS
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle
from queryserver.engines.hiveserver2.types import WireColumn
from queryserver.engines.hiveserver2.wire import Wire

_FIRST_ROWS = 32
"""Rows may be megabytes wide, and nobody knows before the first have come."""

_GROWTH = 16
_MOST_ROWS = 10_000
"""What Hive gives at most."""

_MOST_CELLS = 250_000
"""Decoding so many holds the event loop for about 20 ms."""

_FEW_ROWS = 20_000


class Fetcher:
    """Reads rows forward, once. `skip` are rows at the start that were read before."""

    def __init__(self, wire: Wire, handle: TOperationHandle, *, tells_more: bool, skip: int = 0, again: bool) -> None:
        self._wire = wire
        self._handle = handle
        self._tells_more = tells_more
        self._skip = skip
        self._orientation = TFetchOrientation.FIRST if again else TFetchOrientation.NEXT
        self._rows = _FIRST_ROWS
        self._ahead: asyncio.Task[tuple[pa.RecordBatch, bool]] | None = None
        self._peeked: tuple[pa.RecordBatch, bool] | None = None
        self.columns: tuple[WireColumn, ...] = ()
        self.rows_given = 0
        self.is_exhausted = False

    async def peek(self) -> bool:
        """Fetch the first rows and keep them; False: the server has not even columns for them. Raises EngineError."""
        with call_errors(Purpose.FOLLOW):
            rows, more, is_table = await self._fetch_raw()
        self._peeked = rows, more
        return is_table

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows. Raises EngineError."""
        batch, more = self._peeked or await self._fetch()
        self._peeked = None
        while more:
            self._ahead = asyncio.create_task(self._fetch(), name="rows ahead")
            for piece in self._wanted(batch):
                self.rows_given += piece.num_rows
                yield piece
            batch, more = await self._arrived(self._ahead)
        self.is_exhausted = True
        for piece in self._wanted(batch):
            self.rows_given += piece.num_rows
            yield piece

    async def close(self) -> None:
        """Give up what is on its way."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait({self._ahead})
            if not self._ahead.cancelled():
                self._ahead.exception()

    async def _arrived(self, ahead: asyncio.Task[tuple[pa.RecordBatch, bool]]) -> tuple[pa.RecordBatch, bool]:
        """What was on its way. By `wait`: when it is given up, its reader must not look cancelled."""
        await asyncio.wait({ahead})
        if ahead.cancelled():
            raise OutcomeUnknown(EXPIRED)
        return ahead.result()

    def _wanted(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """What is left of a batch after the rows to skip, in bounded pieces."""
        skipped = min(self._skip, batch.num_rows)
        self._skip -= skipped
        return [piece for piece in pieces(batch.slice(skipped)) if piece.num_rows]

    async def _fetch(self) -> tuple[pa.RecordBatch, bool]:
        with call_errors(Purpose.FOLLOW):
            batch, more, _ = await self._fetch_raw()
        return batch, more

    async def _fetch_raw(self) -> tuple[pa.RecordBatch, bool, bool]:
        request = TFetchResultsReq(
            operation_handle=self._handle,
            orientation=self._orientation,
            max_rows=self._rows,
            fetch_type=FetchType.ROWS,
        )
        reply = await self._wire.call(FETCH_RESULTS, request, limit_s=self._wire.limits.fetch_s)
        check(reply.status)
        self._orientation = TFetchOrientation.NEXT
        if reply.results is None:
            return record_batch_of_nothing(self.columns), bool(reply.has_more_rows), False
        try:
            batch = record_batch(reply.results, self.columns)
        except (MalformedMessage, pa.ArrowException, OverflowError, TypeError) as error:
            raise WireLost(sent=True) from error
        self._learn(batch)
        more = bool(reply.has_more_rows) or (batch.num_rows > 0 and not self._tells_more)
        return batch, more, reply.results.columns is not None

    def _learn(self, batch: pa.RecordBatch) -> None:
        """Ask for as many rows as weigh a batch, by the widths seen last."""
        if batch.num_rows == 0:
            return
        fitting = BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)
        by_cells = _MOST_CELLS // max(len(self.columns), 1)
        self._rows = max(min(fitting, by_cells, self._rows * _GROWTH, _MOST_ROWS), 1)


def record_batch_of_nothing(columns: tuple[WireColumn, ...]) -> pa.RecordBatch:
    """No rows."""
    names = [one.column.name for one in columns]
    return pa.RecordBatch.from_arrays([pa.array([], one.arrow) for one in columns], names)


async def log_lines(wire: Wire, handle: TOperationHandle, *, first: bool) -> list[str]:
    """The log from its begin, or what has come since the last call. Raises EngineError."""
    lines: list[str] = []
    orientation = TFetchOrientation.FIRST if first else TFetchOrientation.NEXT
    with call_errors(Purpose.FOLLOW):
        while True:
            request = TFetchResultsReq(
                operation_handle=handle, orientation=orientation, max_rows=_MOST_ROWS, fetch_type=FetchType.LOG
            )
            reply = await wire.call(FETCH_RESULTS, request, limit_s=wire.limits.other_s)
            check(reply.status)
            columns = (reply.results.columns if reply.results is not None else None) or []
            values = columns[0].string_val.values if columns and columns[0].string_val else []
            for value in values:
                lines += value.decode("utf-8", "replace").splitlines()
            if len(values) < _MOST_ROWS or len(lines) > _FEW_ROWS:
                return lines
            orientation = TFetchOrientation.NEXT
