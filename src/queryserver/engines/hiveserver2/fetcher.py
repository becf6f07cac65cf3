"""Fetches an operation's rows, converts them to Arrow, and reads ahead while the caller processes a batch."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa

from queryserver.engines.connections import Retries, cancel_tasks
from queryserver.engines.hiveserver2 import structs
from queryserver.engines.hiveserver2.connection import Wire
from queryserver.engines.hiveserver2.errors import EXPIRED, ConnectionLost, Purpose, ServerRefused, call_errors
from queryserver.engines.hiveserver2.messages import FETCH_RESULTS, MalformedMessage
from queryserver.engines.hiveserver2.transports import CellTooLarge, ReplyTooLarge
from queryserver.engines.record_batches import BATCH_BYTES, DeclaredColumn, slice_batch
from queryserver.errors.statements import OutcomeUnknown, RowTooLarge, cell_too_large
from queryserver.formats.arrow import PLAIN_TYPES, ROW_SIZE_FACTOR, Column, ResultType, kernels

_MAX_DIGITS = 38

_RESULTS: dict[int, ResultType] = {
    **{one: ResultType[one.name] for one in structs.TTypeId if one.name in ResultType.__members__},
    structs.TTypeId.TIMESTAMP_LOCAL_TZ: ResultType.TIMESTAMP_TZ,
}
_NATIVE = {  # native names that differ from the lower-case result type
    ResultType.UNION: "uniontype",
    ResultType.NULL: "void",
    ResultType.INTERVAL_YEAR_MONTH: "interval year to month",
    ResultType.INTERVAL_DAY_TIME: "interval day to second",
    ResultType.TIMESTAMP_TZ: "timestamp with local time zone",
    ResultType.USER_DEFINED: "user defined",
}


def wire_column(described: structs.TColumnDesc) -> DeclaredColumn:
    types = described.type_desc.types
    entry = types[0].primitive if types else None
    type_id = structs.TTypeId.USER_DEFINED if entry is None else entry.type
    kind = _RESULTS.get(type_id, ResultType.USER_DEFINED)
    native, arrow = _NATIVE.get(kind, kind.name.lower()), PLAIN_TYPES.get(kind, pa.string())
    if entry is not None:
        native += _qualifiers(entry)
        if type_id == structs.TTypeId.DECIMAL:
            precision, scale = _number(entry, "precision"), _number(entry, "scale") or 0
            if precision is not None and 0 < precision <= _MAX_DIGITS and 0 <= scale <= precision:
                arrow = pa.decimal128(precision, scale)
    return DeclaredColumn(Column(described.column_name, kind, native, described.comment or ""), arrow)


def _qualifiers(entry: structs.TPrimitiveTypeEntry) -> str:
    if entry.type == structs.TTypeId.DECIMAL:
        precision, scale = _number(entry, "precision"), _number(entry, "scale")
        return "" if precision is None else f"({precision},{scale or 0})"
    is_text = entry.type in {structs.TTypeId.VARCHAR, structs.TTypeId.CHAR}
    length = _number(entry, "characterMaximumLength") if is_text else None
    return "" if length is None else f"({length})"


def _number(entry: structs.TPrimitiveTypeEntry, name: str) -> int | None:
    qualifiers = entry.type_qualifiers.qualifiers if entry.type_qualifiers is not None else {}
    value = qualifiers.get(name)
    return value.i32_value if value is not None else None


def record_batch(rows: structs.TRowSet, columns: tuple[DeclaredColumn, ...]) -> pa.RecordBatch:
    """Convert the rows of one reply. Raises MalformedMessage if they do not match the columns."""
    value_columns = rows.columns or []
    names = [one.column.name for one in columns]
    if not value_columns:
        return pa.RecordBatch.from_arrays([pa.array([], one.arrow) for one in columns], names)
    if len(value_columns) != len(columns):
        raise MalformedMessage("the rows have other columns than the result")
    arrays = [_array(values, one) for values, one in zip(value_columns, columns, strict=True)]
    if len({len(array) for array in arrays}) > 1:
        raise MalformedMessage("columns of different length")
    return pa.RecordBatch.from_arrays(arrays, names)


def _array(values: structs.TColumn, declared: DeclaredColumn) -> pa.Array:
    if (text := values.string_val) is not None:
        raw = pa.array(text.values, pa.binary(), mask=null_mask(text.nulls, len(text.values)))
        return _from_text(raw, declared)
    if (binary := values.binary_val) is not None:
        return pa.array(binary.values, pa.binary(), mask=null_mask(binary.nulls, len(binary.values)))
    numbers = (
        (values.bool_val, pa.bool_()),
        (values.byte_val, pa.int8()),
        (values.i16_val, pa.int16()),
        (values.i32_val, pa.int32()),
        (values.i64_val, pa.int64()),
        (values.double_val, pa.float32() if declared.arrow == pa.float32() else pa.float64()),
    )
    for column, kind in numbers:
        if column is not None:
            return pa.array(column.values, kind, mask=null_mask(column.nulls, len(column.values)))
    raise MalformedMessage("a column without values")


def null_mask(nulls: bytes, length: int) -> pa.BooleanArray | None:
    """Build a mask that is true for NULL values; return None if there are none.

    In `nulls`, the lowest bit of each byte comes first, and there may be fewer bits than rows.
    """
    if not nulls.strip(b"\0"):
        return None
    bits = nulls.ljust((length + 7) // 8, b"\0")  # Arrow stores booleans in the same layout
    return pa.BooleanArray.from_buffers(pa.bool_(), length, [None, pa.py_buffer(bits)])


def _from_text(raw: pa.Array, declared: DeclaredColumn) -> pa.Array:
    """Parse strings into the column's type.

    If a string cannot be converted (for example, a year outside Arrow's range), all values stay strings.
    """
    if pa.types.is_binary(declared.arrow):
        return raw
    try:
        text = raw.cast(pa.string())
    except pa.ArrowInvalid:  # invalid UTF-8 becomes replacement characters
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        text = pa.array(texts, pa.string())
    has_fraction = declared.column.type is ResultType.TIMESTAMP_TZ
    if not pa.types.is_string(declared.arrow):
        has_fraction = pa.types.is_timestamp(declared.arrow)
        for kind in [declared.arrow, pa.timestamp("ns")] if has_fraction else [declared.arrow]:
            try:
                return text.cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
    return kernels.replace_substring_regex(text, r"\.0+( |$)", r"\1") if has_fraction else text


_FIRST_ROWS = 8  # few, because the row width is unknown before the first fetch and may be megabytes
_GROWTH = 16
_MAX_ROWS = 10_000  # Hive returns at most this many rows per call
_MAX_CELLS = 250_000  # decoding this many blocks the event loop for about 20 ms
_MAX_LOG_LINES = 20_000
_HUGE_BYTES = 2 * BATCH_BYTES
"""After a larger batch, no rows are read ahead, so that each statement keeps only one such batch in memory."""

_ROWS_LOST = "Results have expired: the engine cannot return earlier rows again."

_Fetched = tuple[pa.RecordBatch, bool]
"""A batch, and whether more batches may follow."""


class Fetcher:
    """Reads the rows of a result in order, each once.

    FETCH_NEXT moves the server's cursor, so it cannot be retried if its reply is lost. Instead, the rows are fetched
    from the start again (FETCH_FIRST), and the rows already read are skipped. The same happens if this process resumes
    a statement (`again`) after another process has read `skip` rows. `can_repeat` reports whether the server can return
    all rows again; if it cannot, reading fails with OutcomeUnknown.

    Hive runs concurrent fetches of a result in parallel, which would mix up their rows. After a broken connection, the
    next fetch therefore waits until the interrupted fetch should have ended: as long as the longest fetch so far took,
    and at least `Limits.settle_s`.
    """

    def __init__(
        self,
        wire: Wire,
        handle: structs.TOperationHandle,
        *,
        has_reliable_more_rows: bool,
        can_repeat: Callable[[], Awaitable[bool]],
        skip: int = 0,
        again: bool,
    ) -> None:
        self._wire = wire
        self._can_repeat = can_repeat
        self.cursor_may_have_moved = again  # another process may have fetched rows
        self._handle = handle
        self._has_reliable_more_rows = has_reliable_more_rows
        self._read_before = skip  # rows read so far, counted from the first row of the result
        self._rows_since_start = 0  # rows returned by the server since its cursor was last at the start
        self._orientation = structs.TFetchOrientation.NEXT
        self._rows = _FIRST_ROWS
        self._max_rows = _MAX_ROWS
        self._ahead: asyncio.Task[_Fetched] | None = None
        self._peeked: _Fetched | None = None
        self._is_repeatable: bool | None = None
        self._longest_s = wire.limits.settle_s  # longest fetch so far, including fetches whose reply was lost
        self._is_closed = False
        self.columns: tuple[DeclaredColumn, ...] = ()
        self.is_exhausted = False

    async def peek(self) -> bool:
        """Fetch the first rows in advance. Return False if the reply has no columns. Raises EngineError."""
        with call_errors(Purpose.FOLLOW):
            batch, more, is_table = await self._fetch_new()
        self._peeked = batch, more
        return is_table

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows in batches. Raises EngineError."""
        fetched, self._peeked = self._peeked, None
        batch, more = fetched or await self._wait_for(self._request())
        while more:
            ahead = self._request() if batch.nbytes <= _HUGE_BYTES else None
            left = deque(slice_batch(batch))
            # Release a huge batch before the next one is received.
            del batch
            while left:
                yield left.popleft()
            batch, more = await self._wait_for(ahead or self._request())
        self.is_exhausted = True
        for piece in slice_batch(batch):
            yield piece

    async def close(self) -> None:
        """Cancel the request in progress. A caller that is waiting for it gets OutcomeUnknown."""
        self._is_closed = True
        ahead, self._ahead, self._peeked = self._ahead, None, None
        await cancel_tasks(ahead)

    def _request(self) -> asyncio.Task[_Fetched]:
        if self._is_closed:
            raise OutcomeUnknown(EXPIRED)
        self._ahead = asyncio.create_task(self._fetch(), name="rows ahead")
        return self._ahead

    async def _wait_for(self, ahead: asyncio.Task[_Fetched]) -> _Fetched:
        await asyncio.wait({ahead})  # unlike `await`, does not cancel the caller if the request is canceled
        if ahead.cancelled():
            raise OutcomeUnknown(EXPIRED)
        return ahead.result()

    async def _fetch(self) -> _Fetched:
        with call_errors(Purpose.FOLLOW):
            batch, more, _ = await self._fetch_new()
        return batch, more

    async def _fetch_new(self) -> tuple[pa.RecordBatch, bool, bool]:
        """Fetch the next rows. Return them, whether more may follow, and whether the reply had columns.

        All network failures share one time limit, so that an engine that loses every second reply cannot keep the
        caller waiting forever.
        """
        retries: Retries | None = None
        if self.cursor_may_have_moved:
            await asyncio.sleep(self._longest_s)
            await self._rewind()
        while True:
            try:
                reply = await self._call()
            except ConnectionLost as error:
                retries = retries or Retries(self._wire.limits.retry_s)
                # After a timeout, the server may still be processing the call.
                is_over = error.timed_out or error.is_refused or self._wire.is_released
                if is_over or not await retries.pause(min_s=self._longest_s if error.sent else 0):
                    raise
                if error.sent:
                    await self._rewind()
                continue
            except ReplyTooLarge as error:
                if self._rows == 1:
                    limit = ROW_SIZE_FACTOR * self._wire.cell_max_bytes
                    raise RowTooLarge(limit_bytes=limit, row=self._rows_since_start) from error
                # Retry with fewer rows per fetch, from the start.
                self._max_rows = self._rows = max(min(self._rows * BATCH_BYTES // error.size, self._rows // 2), 1)
                await self._rewind()
                continue
            batch, more = self._new_rows(reply)
            if batch.num_rows or not more:
                return batch, more, reply.results is not None and reply.results.columns is not None

    async def _call(self) -> structs.TFetchResultsResp:
        request = structs.TFetchResultsReq(
            operation_handle=self._handle,
            orientation=self._orientation,
            max_rows=self._rows,
            fetch_type=structs.FetchType.ROWS,
        )
        wire, limit = self._wire, self._wire.cell_max_bytes
        begun = time.monotonic()
        try:
            reply = await wire.call(FETCH_RESULTS, request, limit_s=wire.limits.fetch_s, largest_cell=limit)
            self._longest_s = max(self._longest_s, time.monotonic() - begun)
        except ConnectionLost as error:
            if error.sent:
                self._longest_s = max(self._longest_s, time.monotonic() - begun)
            raise
        except CellTooLarge as error:
            names = [one.column.name for one in self.columns]
            name = names[error.column] if error.column < len(names) else None
            raise cell_too_large(limit_bytes=limit, row=self._rows_since_start + error.row, column=name) from error
        except ServerRefused as error:
            if self._rows_since_start < self._read_before:
                raise OutcomeUnknown(f"{_ROWS_LOST} {error}") from error
            raise
        return reply

    def _new_rows(self, reply: structs.TFetchResultsResp) -> _Fetched:
        """Convert a reply's rows, drop rows that were read before, and adjust the size of the next fetch."""
        self._orientation = structs.TFetchOrientation.NEXT
        if reply.results is None:
            return record_batch(structs.TRowSet(), self.columns), bool(reply.has_more_rows)
        try:
            batch = record_batch(reply.results, self.columns)
        except (MalformedMessage, pa.ArrowException, OverflowError, TypeError) as error:
            raise ConnectionLost(sent=True) from error
        if batch.num_rows:  # at this row width, the next fetch should fill one batch
            fitting = BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)
            by_cells = _MAX_CELLS // max(len(self.columns), 1)
            self._rows = max(min(fitting, by_cells, self._rows * _GROWTH, self._max_rows), 1)
        more = bool(reply.has_more_rows) or (batch.num_rows > 0 and not self._has_reliable_more_rows)
        dropped = min(max(self._read_before - self._rows_since_start, 0), batch.num_rows)
        self._rows_since_start += batch.num_rows
        if not more and self._rows_since_start < self._read_before:
            raise OutcomeUnknown("Results have expired: after a reconnect, the engine returned fewer rows than before.")
        self._read_before = max(self._read_before, self._rows_since_start)
        return batch.slice(dropped), more

    async def _rewind(self) -> None:
        """Restart from the first row. Raises OutcomeUnknown if the server cannot return the rows again."""
        if self._is_repeatable is None:
            self._is_repeatable = await self._can_repeat()
        if not self._is_repeatable:
            raise OutcomeUnknown(_ROWS_LOST)
        self.cursor_may_have_moved = False
        self._orientation = structs.TFetchOrientation.FIRST
        self._rows_since_start = 0


async def log_lines(wire: Wire, handle: structs.TOperationHandle, *, first: bool) -> list[str]:
    """Return the whole log if `first` is set, otherwise the lines added since the last call. Raises EngineError."""
    lines: list[str] = []
    orientation = structs.TFetchOrientation.FIRST if first else structs.TFetchOrientation.NEXT
    with call_errors(Purpose.FOLLOW):
        while True:
            request = structs.TFetchResultsReq(
                operation_handle=handle, orientation=orientation, max_rows=_MAX_ROWS, fetch_type=structs.FetchType.LOG
            )
            try:
                reply = await wire.call(FETCH_RESULTS, request, limit_s=wire.limits.other_s)
            except ReplyTooLarge as error:
                return [*lines, f"{error.size} bytes of the log were omitted."]
            columns = (reply.results.columns if reply.results is not None else None) or []
            values = columns[0].string_val.values if columns and columns[0].string_val else []
            for value in values:
                lines += value.decode("utf-8", "replace").splitlines()
            if len(values) < _MAX_ROWS or len(lines) > _MAX_LOG_LINES:
                return lines
            orientation = structs.TFetchOrientation.NEXT
