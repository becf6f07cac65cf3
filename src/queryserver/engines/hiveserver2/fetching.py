"""The rows of one operation, batch by batch, the next one on its way while the last is used."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pyarrow as pa

from queryserver.engines.connections import Retries
from queryserver.engines.hiveserver2.connection import Wire
from queryserver.engines.hiveserver2.errors import EXPIRED, Purpose, ServerRefused, WireLost, call_errors, check
from queryserver.engines.hiveserver2.protocol.messages import FETCH_RESULTS, MalformedMessage
from queryserver.engines.hiveserver2.protocol.structs import (
    FetchType,
    TColumn,
    TColumnDesc,
    TFetchOrientation,
    TFetchResultsReq,
    TFetchResultsResp,
    TOperationHandle,
    TPrimitiveTypeEntry,
    TRowSet,
    TTypeDesc,
    TTypeId,
)
from queryserver.engines.hiveserver2.transports import CellFound, Overlong
from queryserver.engines.statement_texts import BATCH_BYTES, pieces
from queryserver.errors.statements import OutcomeUnknown, RowTooLarge, cell_too_large
from queryserver.formats.columns import ROW_CELLS, Column, ResultType, kernels

_MAX_DIGITS = 38

_PRIMITIVES: dict[int, tuple[ResultType, str]] = {
    TTypeId.BOOLEAN: (ResultType.BOOLEAN, "boolean"),
    TTypeId.TINYINT: (ResultType.TINYINT, "tinyint"),
    TTypeId.SMALLINT: (ResultType.SMALLINT, "smallint"),
    TTypeId.INT: (ResultType.INT, "int"),
    TTypeId.BIGINT: (ResultType.BIGINT, "bigint"),
    TTypeId.FLOAT: (ResultType.FLOAT, "float"),
    TTypeId.DOUBLE: (ResultType.DOUBLE, "double"),
    TTypeId.STRING: (ResultType.STRING, "string"),
    TTypeId.TIMESTAMP: (ResultType.TIMESTAMP, "timestamp"),
    TTypeId.BINARY: (ResultType.BINARY, "binary"),
    TTypeId.ARRAY: (ResultType.ARRAY, "array"),
    TTypeId.MAP: (ResultType.MAP, "map"),
    TTypeId.STRUCT: (ResultType.STRUCT, "struct"),
    TTypeId.UNION: (ResultType.UNION, "uniontype"),
    TTypeId.DECIMAL: (ResultType.DECIMAL, "decimal"),
    TTypeId.NULL: (ResultType.NULL, "void"),
    TTypeId.DATE: (ResultType.DATE, "date"),
    TTypeId.VARCHAR: (ResultType.VARCHAR, "varchar"),
    TTypeId.CHAR: (ResultType.CHAR, "char"),
    TTypeId.INTERVAL_YEAR_MONTH: (ResultType.INTERVAL_YEAR_MONTH, "interval year to month"),
    TTypeId.INTERVAL_DAY_TIME: (ResultType.INTERVAL_DAY_TIME, "interval day to second"),
    TTypeId.TIMESTAMP_LOCAL_TZ: (ResultType.TIMESTAMP_TZ, "timestamp with local time zone"),
}
_UNKNOWN = (ResultType.USER_DEFINED, "user defined")


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column as it is declared, and the number of its type on the wire."""

    column: Column
    type_id: int
    arrow: pa.DataType
    """What its values should become; text where they come as text."""


def wire_column(described: TColumnDesc) -> WireColumn:
    """The column that a server describes."""
    type_id, kind, native = _type_of(described.type_desc)
    arrow = _ARROW.get(type_id, pa.string())
    if type_id == TTypeId.DECIMAL:
        arrow = _decimal(_primitive(described.type_desc))
    return WireColumn(Column(described.column_name, kind, native, described.comment or ""), type_id, arrow)


_ARROW: dict[int, pa.DataType] = {
    TTypeId.BOOLEAN: pa.bool_(),
    TTypeId.TINYINT: pa.int8(),
    TTypeId.SMALLINT: pa.int16(),
    TTypeId.INT: pa.int32(),
    TTypeId.BIGINT: pa.int64(),
    TTypeId.FLOAT: pa.float32(),
    TTypeId.DOUBLE: pa.float64(),
    TTypeId.TIMESTAMP: pa.timestamp("us"),
    TTypeId.BINARY: pa.binary(),
    TTypeId.DATE: pa.date32(),
}


def _type_of(described: TTypeDesc) -> tuple[int, ResultType, str]:
    primitive = _primitive(described)
    if primitive is not None:
        kind, name = _PRIMITIVES.get(primitive.type, _UNKNOWN)
        return primitive.type, kind, name + _qualifiers(primitive)
    entry = described.types[0] if described.types else None
    type_id = TTypeId.USER_DEFINED
    if entry is not None:
        nested = ((entry.array, TTypeId.ARRAY), (entry.map, TTypeId.MAP), (entry.struct, TTypeId.STRUCT))
        type_id = next((number for found, number in nested if found is not None), type_id)
        type_id = TTypeId.UNION if entry.union is not None else type_id
    kind, _ = _PRIMITIVES.get(type_id, _UNKNOWN)
    return type_id, kind, _native(described, 0)


def _native(described: TTypeDesc, position: int) -> str:
    """The text of a type that is described in full: `array<map<string,int>>`."""
    if not 0 <= position < len(described.types):
        return "?"
    entry = described.types[position]
    if entry.primitive is not None:
        return _PRIMITIVES.get(entry.primitive.type, _UNKNOWN)[1] + _qualifiers(entry.primitive)
    if entry.user_defined is not None:
        return entry.user_defined.type_class_name
    # Inner types stand behind their owner, so that no description goes round in circles.
    inner = [(name, number) for name, number in _inner(described, position) if number > position]
    texts = [f"{name}{_native(described, number)}" for name, number in inner]
    word = "array" if entry.array else "map" if entry.map else "struct" if entry.struct else "uniontype"
    return f"{word}<{','.join(texts)}>"


def _inner(described: TTypeDesc, position: int) -> list[tuple[str, int]]:
    entry = described.types[position]
    if entry.array is not None:
        return [("", entry.array.object_type)]
    if entry.map is not None:
        return [("", entry.map.key_type), ("", entry.map.value_type)]
    if entry.struct is not None:
        return [(f"{name}:", number) for name, number in entry.struct.name_to_type.items()]
    return [("", number) for number in entry.union.name_to_type.values()] if entry.union is not None else []


def _primitive(described: TTypeDesc) -> TPrimitiveTypeEntry | None:
    return described.types[0].primitive if described.types else None


def _qualifiers(entry: TPrimitiveTypeEntry) -> str:
    if entry.type == TTypeId.DECIMAL:
        precision, scale = _number(entry, "precision"), _number(entry, "scale")
        return "" if precision is None else f"({precision},{scale or 0})"
    length = _number(entry, "characterMaximumLength") if entry.type in {TTypeId.VARCHAR, TTypeId.CHAR} else None
    return "" if length is None else f"({length})"


def _number(entry: TPrimitiveTypeEntry, name: str) -> int | None:
    qualifiers = entry.type_qualifiers.qualifiers if entry.type_qualifiers is not None else {}
    value = qualifiers.get(name)
    return value.i32_value if value is not None else None


def _decimal(entry: TPrimitiveTypeEntry | None) -> pa.DataType:
    precision = _number(entry, "precision") if entry is not None else None
    scale = (_number(entry, "scale") if entry is not None else None) or 0
    if precision is None or not 0 < precision <= _MAX_DIGITS or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)


_ZERO_FRACTION = r"\.0+( |$)"


def record_batch(rows: TRowSet, columns: tuple[WireColumn, ...]) -> pa.RecordBatch:
    """The rows of one answer. Raises MalformedMessage when they do not fit the columns."""
    found = rows.columns or []
    if not found:
        return pa.RecordBatch.from_arrays([pa.array([], one.arrow) for one in columns], _names(columns))
    if len(found) != len(columns):
        raise MalformedMessage("the rows have other columns than the result")
    arrays = [_array(values, one) for values, one in zip(found, columns, strict=True)]
    if len({len(array) for array in arrays}) > 1:
        raise MalformedMessage("columns of different length")
    return pa.RecordBatch.from_arrays(arrays, _names(columns))


def _names(columns: tuple[WireColumn, ...]) -> list[str]:
    return [one.column.name for one in columns]


def _array(values: TColumn, declared: WireColumn) -> pa.Array:
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
        (values.double_val, pa.float32() if declared.type_id == TTypeId.FLOAT else pa.float64()),
    )
    for column, kind in numbers:
        if column is not None:
            return pa.array(column.values, kind, mask=null_mask(column.nulls, len(column.values)))
    raise MalformedMessage("a column without values")


def null_mask(nulls: bytes, length: int) -> pa.BooleanArray | None:
    """True where a value is NULL; None when none is. The bits begin with the lowest and may be fewer than values."""
    if not nulls.strip(b"\0"):
        return None
    # Arrow keeps booleans in the same way.
    bits = nulls.ljust((length + 7) // 8, b"\0")
    return pa.BooleanArray.from_buffers(pa.bool_(), length, [None, pa.py_buffer(bits)])


def _from_text(raw: pa.Array, declared: WireColumn) -> pa.Array:
    if pa.types.is_binary(declared.arrow):
        return raw
    text = _utf8(raw)
    if pa.types.is_string(declared.arrow):
        is_zoned = declared.type_id == TTypeId.TIMESTAMP_LOCAL_TZ
        return kernels.replace_substring_regex(text, _ZERO_FRACTION, r"\1") if is_zoned else text
    return _typed(text, declared.arrow)


def _utf8(raw: pa.Array) -> pa.Array:
    """The bytes as text; what is no UTF-8 gets replacement characters."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _typed(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values that the texts stand for; where one has none (a year beyond Arrow, say), all stay text."""
    kinds = [kind, pa.timestamp("ns")] if pa.types.is_timestamp(kind) else [kind]
    for one in kinds:
        try:
            return text.cast(one)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return kernels.replace_substring_regex(text, _ZERO_FRACTION, r"\1") if pa.types.is_timestamp(kind) else text


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
