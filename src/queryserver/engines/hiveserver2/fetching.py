"""The rows of one operation, batch by batch, the next one on its way while the last is used."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa

from queryserver.domain.errors.statements import OutcomeUnknown, RowTooLarge, cell_too_large
from queryserver.domain.result import ROW_CELLS
from queryserver.engines.chunks import BATCH_BYTES, pieces
from queryserver.engines.hiveserver2.decoding import record_batch
from queryserver.engines.hiveserver2.errors import EXPIRED, Purpose, ServerRefused, WireLost, call_errors, check
from queryserver.engines.hiveserver2.protocol.calls import (
    FetchType,
    TFetchOrientation,
    TFetchResultsReq,
    TFetchResultsResp,
)
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.protocol.methods import FETCH_RESULTS
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle
from queryserver.engines.hiveserver2.skimming import CellFound
from queryserver.engines.hiveserver2.transports import Overlong
from queryserver.engines.hiveserver2.types import WireColumn
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.engines.retrying import Retries

_FIRST_ROWS = 8
"""Rows may be megabytes wide, which is not known before the first of them have come."""

_GROWTH = 16
_MOST_ROWS = 10_000
"""What Hive gives at most."""

_MOST_CELLS = 250_000
"""Decoding so many holds the event loop for about 20 ms."""

_FEW_ROWS = 20_000
_HUGE_BYTES = 2 * BATCH_BYTES
"""While a batch above it is used, the next one is not requested: memory holds one of them per statement."""

_NOT_AGAIN = "Results have expired: the engine does not give the rows again that it gave before."
_CHANGED = "Results have expired: the engine gave fewer rows after the connection broke than before."

_Fetched = tuple[pa.RecordBatch, bool]
"""Rows, and whether more may follow."""


class Fetcher:
    """Reads the rows of a result in order, each once.

    FETCH_NEXT moves the cursor of the server, so it is not repeated when its answer is lost: the rows are fetched from
    the first one again (FETCH_FIRST), and those that came before are dropped. So it is done for a reader that goes on
    after another process, which has read `skip` rows (`again`). `can_repeat` tells whether the server gives all rows
    again then; where it does not, the outcome is unknown.

    Hive carries out two fetches of a result at once, which mixes their rows. So the second one waits until the first,
    whose connection broke, should be over: for as long as fetches have taken so far, and `Limits.settle_s` at least.
    """

    def __init__(
        self,
        wire: Wire,
        handle: TOperationHandle,
        *,
        tells_more: bool,
        can_repeat: Callable[[], Awaitable[bool]],
        skip: int = 0,
        again: bool,
    ) -> None:
        self._wire = wire
        self._can_repeat = can_repeat
        self.may_have_moved = again
        """Another process may have fetched rows."""
        self._handle = handle
        self._tells_more = tells_more
        self._known = skip
        """Rows from the first one on that are not wanted any more."""
        self._passed = 0
        """Rows that the server has given since its cursor was last at the first one."""
        self._orientation = TFetchOrientation.NEXT
        self._rows = _FIRST_ROWS
        self._most_rows = _MOST_ROWS
        self._ahead: asyncio.Task[_Fetched] | None = None
        self._peeked: _Fetched | None = None
        self._is_repeatable: bool | None = None
        self._longest_s = wire.limits.settle_s
        """The longest time that a fetch took, or had taken when it was lost."""
        self._is_closed = False
        self.columns: tuple[WireColumn, ...] = ()
        self.is_exhausted = False

    async def peek(self) -> bool:
        """Fetch the first rows and keep them; False: the server has not even columns for them. Raises EngineError."""
        with call_errors(Purpose.FOLLOW):
            batch, more, is_table = await self._fetch_new()
        self._peeked = batch, more
        return is_table

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows. Raises EngineError."""
        fetched, self._peeked = self._peeked, None
        batch, more = fetched or await self._arrived(self._request())
        while more:
            ahead = self._request() if batch.nbytes <= _HUGE_BYTES else None
            left = deque(pieces(batch))
            # No name may hold a huge batch while the next one comes.
            del batch
            while left:
                yield left.popleft()
            batch, more = await self._arrived(ahead or self._request())
        self.is_exhausted = True
        for piece in pieces(batch):
            yield piece

    async def close(self) -> None:
        """Give up what is on its way, and its repetitions. A reader gets OutcomeUnknown."""
        self._is_closed = True
        ahead, self._ahead, self._peeked = self._ahead, None, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait({ahead})
            if not ahead.cancelled():
                ahead.exception()

    def _request(self) -> asyncio.Task[_Fetched]:
        if self._is_closed:
            raise OutcomeUnknown(EXPIRED)
        self._ahead = asyncio.create_task(self._fetch(), name="rows ahead")
        return self._ahead

    async def _arrived(self, ahead: asyncio.Task[_Fetched]) -> _Fetched:
        """What was on its way. By `wait`: when it is given up, its reader must not look cancelled."""
        await asyncio.wait({ahead})
        if ahead.cancelled():
            raise OutcomeUnknown(EXPIRED)
        return ahead.result()

    async def _fetch(self) -> _Fetched:
        with call_errors(Purpose.FOLLOW):
            batch, more, _ = await self._fetch_new()
        return batch, more

    async def _fetch_new(self) -> tuple[pa.RecordBatch, bool, bool]:
        """The next rows that are wanted, whether more may follow, and whether the answer had columns.

        All breaks of the network until they come share one limit of time: an engine that loses every second answer
        does not hold its reader for ever.
        """
        retries: Retries | None = None
        if self.may_have_moved:
            await asyncio.sleep(self._longest_s)
            await self._rewind()
        while True:
            try:
                reply = await self._call()
            except WireLost as error:
                retries = retries or Retries(self._wire.limits.retry_s)
                # A server that has only been slow still works on the call.
                is_over = error.timed_out or error.is_refused or self._wire.is_released
                if is_over or not await retries.pause(least_s=self._longest_s if error.sent else 0):
                    raise
                if error.sent:
                    await self._rewind()
                continue
            except Overlong as error:
                await self._take_fewer(error)
                continue
            batch, more = self._wanted(reply)
            if batch.num_rows or not more:
                return batch, more, reply.results is not None and reply.results.columns is not None

    async def _call(self) -> TFetchResultsResp:
        request = TFetchResultsReq(
            operation_handle=self._handle,
            orientation=self._orientation,
            max_rows=self._rows,
            fetch_type=FetchType.ROWS,
        )
        wire = self._wire
        limit = wire.cell_max_bytes
        begun = time.monotonic()
        try:
            reply = await wire.call(FETCH_RESULTS, request, limit_s=wire.limits.fetch_s, largest_cell=limit)
            self._longest_s = max(self._longest_s, time.monotonic() - begun)
            check(reply.status)
        except WireLost as error:
            if error.sent:
                self._longest_s = max(self._longest_s, time.monotonic() - begun)
            raise
        except CellFound as error:
            names = [one.column.name for one in self.columns]
            name = names[error.column] if error.column < len(names) else None
            raise cell_too_large(limit_bytes=limit, row=self._passed + error.row, column=name) from error
        except ServerRefused as error:
            if self._passed < self._known:
                raise OutcomeUnknown(f"{_NOT_AGAIN} {error}") from error
            raise
        return reply

    def _wanted(self, reply: TFetchResultsResp) -> _Fetched:
        """The rows of an answer without those that came before."""
        self._orientation = TFetchOrientation.NEXT
        if reply.results is None:
            return record_batch_of_nothing(self.columns), bool(reply.has_more_rows)
        try:
            batch = record_batch(reply.results, self.columns)
        except (MalformedMessage, pa.ArrowException, OverflowError, TypeError) as error:
            raise WireLost(sent=True) from error
        self._learn(batch)
        more = bool(reply.has_more_rows) or (batch.num_rows > 0 and not self._tells_more)
        dropped = min(max(self._known - self._passed, 0), batch.num_rows)
        self._passed += batch.num_rows
        if not more and self._passed < self._known:
            raise OutcomeUnknown(_CHANGED)
        self._known = max(self._known, self._passed)
        return batch.slice(dropped), more

    async def _rewind(self) -> None:
        """Fetch from the first row again. Raises OutcomeUnknown where the server does not keep its rows."""
        if self._is_repeatable is None:
            self._is_repeatable = await self._can_repeat()
        if not self._is_repeatable:
            raise OutcomeUnknown(_NOT_AGAIN)
        self.may_have_moved = False
        self._orientation = TFetchOrientation.FIRST
        self._passed = 0

    async def _take_fewer(self, error: Overlong) -> None:
        """After an answer that was too long: fewer rows, from the first one again. Raises RowTooLarge for one row."""
        if self._rows == 1:
            limit = ROW_CELLS * self._wire.cell_max_bytes
            raise RowTooLarge(limit_bytes=limit, row=self._passed) from error
        fitting = self._rows * BATCH_BYTES // error.size
        self._most_rows = self._rows = max(min(fitting, self._rows // 2), 1)
        await self._rewind()

    def _learn(self, batch: pa.RecordBatch) -> None:
        """Ask for as many rows as weigh a batch, by the widths seen last."""
        if batch.num_rows == 0:
            return
        fitting = BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)
        by_cells = _MOST_CELLS // max(len(self.columns), 1)
        self._rows = max(min(fitting, by_cells, self._rows * _GROWTH, self._most_rows), 1)


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
            try:
                reply = await wire.call(FETCH_RESULTS, request, limit_s=wire.limits.other_s)
            except Overlong as error:
                return [*lines, f"{error.size} bytes of the log were left out."]
            check(reply.status)
            columns = (reply.results.columns if reply.results is not None else None) or []
            values = columns[0].string_val.values if columns and columns[0].string_val else []
            for value in values:
                lines += value.decode("utf-8", "replace").splitlines()
            if len(values) < _MOST_ROWS or len(lines) > _FEW_ROWS:
                return lines
            orientation = TFetchOrientation.NEXT
