"""Executes and cancels one statement on an Avatica connection, and converts its rows to Arrow.

If a statement is canceled while its first rows are fetched, the server may return an incomplete result that looks
complete. Rows that arrive after a cancel request are therefore discarded.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from queryserver.engines.phoenix import protocol
from queryserver.engines.phoenix.connection import EventOccurred, PhoenixConnection, ResultT, wait_unless
from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.record_batches import ColumnReader, DeclaredColumn, Rows, record_batch
from queryserver.engines.sessions import DriverStatement, Stopped
from queryserver.engines.statement_tags import leading_comment
from queryserver.errors.statements import EngineError, OutcomeUnknown, SessionLost, StatementRejected
from queryserver.formats.arrow import PLAIN_TYPES, Column, ResultType
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.phoenix_queries import read_only_refusal
from queryserver.sql.scanner import first_word

_ARRAY = " ARRAY"
_DECIMAL_DIGITS = 38

# Dates arrive as days, and times as milliseconds. Phoenix sends no finer fractions.
_ARROW = {**PLAIN_TYPES, ResultType.STRING: pa.time32("ms"), ResultType.TIMESTAMP: pa.timestamp("ms")}
_PLAIN = {
    name: (result, _ARROW[result])
    for result, names in {
        ResultType.BOOLEAN: "BOOLEAN",
        ResultType.TINYINT: "TINYINT UNSIGNED_TINYINT",
        ResultType.SMALLINT: "SMALLINT UNSIGNED_SMALLINT",
        ResultType.INT: "INTEGER UNSIGNED_INT",
        ResultType.BIGINT: "BIGINT UNSIGNED_LONG",
        ResultType.FLOAT: "FLOAT UNSIGNED_FLOAT",
        ResultType.DOUBLE: "DOUBLE UNSIGNED_DOUBLE",
        ResultType.DATE: "DATE UNSIGNED_DATE",
        ResultType.STRING: "TIME UNSIGNED_TIME",
        ResultType.TIMESTAMP: "TIMESTAMP UNSIGNED_TIMESTAMP",
        ResultType.BINARY: "VARBINARY BINARY",
    }.items()
    for name in names.split()
}


def declare(metadata: protocol.AvaticaColumn) -> DeclaredColumn:
    base, array, rest = metadata.type_name.partition(_ARRAY)
    native = native_type(base, metadata.precision, metadata.scale)
    result, arrow = _PLAIN.get(base, (ResultType.USER_DEFINED, pa.string()))
    if base == "DECIMAL":
        result = ResultType.DECIMAL
        # If no size is declared, each value has its own scale. Sums may have more digits than declared.
        if metadata.precision and metadata.scale <= _DECIMAL_DIGITS:
            arrow = pa.decimal128(_DECIMAL_DIGITS, metadata.scale)
    elif base == "VARCHAR":
        result = ResultType.VARCHAR if metadata.precision else ResultType.STRING
    elif base == "CHAR":
        result = ResultType.CHAR
    if array:
        native, result, arrow = f"{native}{_ARRAY}{rest}", ResultType.ARRAY, pa.list_(arrow)
    return DeclaredColumn(Column(metadata.label, result, native), arrow)


def native_type(name: str, size: int | None, scale: int | None) -> str:
    """Return the type name as written in CREATE TABLE."""
    base, array, rest = name.partition(_ARRAY)
    if base == "DECIMAL" and size:
        base = f"DECIMAL({size},{scale or 0})"
    elif base in {"BINARY", "CHAR", "VARCHAR"} and size:
        base = f"{base}({size})"
    return base + array + rest


_DAY_MS = 86_400_000

Value = object


def row_values(row: bytes) -> list[Value]:
    """Decode the values of a `Row`. Raises Malformed."""
    return [cell_value(cell) for number, cell in protocol.fields(row) if number == 1 and isinstance(cell, bytes)]


class AvaticaRowReader:
    """Reads the rows of one result. `read` raises StatementRejected and Malformed."""

    def __init__(self, declared: Sequence[DeclaredColumn]) -> None:
        self._names = [one.column.name for one in declared]
        self._readers = list(map(_column_reader, declared))

    def read(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        values = list(map(row_values, rows))
        if any(len(cells) != len(self._names) for cells in values):
            raise protocol.Malformed
        return record_batch(values, self._names, [one.read for one in self._readers])


def _column_reader(declared: DeclaredColumn) -> ColumnReader:
    """Return a reader for one column. Decimals become strings if they do not fit the declared type."""
    text = f"column {declared.column.name} contains a value that type {declared.column.native_type} cannot represent"
    misfits = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ArithmeticError)
    may_be_text = pa.types.is_decimal(declared.arrow)
    return ColumnReader(declared.arrow, _array, text, misfits=misfits, may_be_text=may_be_text)


def _array(wanted: pa.DataType, values: Sequence[Value]) -> pa.Array:
    return pa.array([_fitting(wanted, value) for value in values], wanted)


def _fitting(wanted: pa.DataType, value: Value) -> Value:
    if value is None:
        return None
    if isinstance(value, list):
        of_items = wanted.field(0).type
        return [_fitting(of_items, item) for item in value]
    if isinstance(value, Decimal):
        return format(value, "f") if wanted == pa.string() else value
    if isinstance(value, str) or wanted != pa.string():
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def cell_value(data: bytes) -> Value:
    """Decode a `ColumnValue`: a typed value, or the values of an array. Raises Malformed."""
    cell = protocol.Message(data)
    for value in cell.each(4):
        return typed_value(value)
    # Before version 1.6, Avatica sent single values and arrays in field 1. Newer servers send an array in both fields.
    old, items = (list(map(typed_value, cell.each(field))) for field in (1, 2))
    return old[0] if len(old) == 1 and not cell.number(3) else items or old


def typed_value(data: bytes) -> Value:
    """Decode a `TypedValue`. The server omits fields that have their type's default value. Raises Malformed."""
    if data[:3] == b"\x08\x15\x1a":  # a string, by far the most frequent kind
        length, at = protocol.read_varint(data, 3)
        if at + length == len(data):
            return data[at:].decode(errors="replace")
    value = protocol.Message(data)
    return None if value.number(7) else _READERS.get(value.number(1), _whole)(value)


def _whole(value: protocol.Message) -> int:
    return protocol.zigzag(value.number(4))


# Decoders by value of Avatica's `Rep` enum, which determines the encoding. All other values are integers.
_READERS: Mapping[int, Callable[[protocol.Message], Value]] = {
    **dict.fromkeys((0, 8), lambda value: bool(value.number(2))),
    **dict.fromkeys((6, 7, 14, 15), lambda value: struct.unpack("<d", value.octets(6) or bytes(8))[0]),
    **dict.fromkeys((2, 10, 21, 22), lambda value: value.text(3)),
    **dict.fromkeys((25, 26), lambda value: Decimal(value.text(3))),
    16: lambda value: _whole(value) % _DAY_MS,  # a time
    18: lambda value: _whole(value) // _DAY_MS,  # a date
    20: lambda value: value.octets(5),
    24: lambda _: None,
    27: lambda value: list(map(typed_value, value.each(8))),
}


_Execution: TypeAlias = Callable[[], Coroutine[Any, Any, protocol.ExecuteResult]]

FIRST_ROWS = 4  # few, because the row width is unknown and the Query Server holds several copies of a frame


class PhoenixStatement(DriverStatement):
    """A statement on a connection, with a comment that names the caller and the operation of `context`.

    `prefix` is sent before the statement. It must be one that changes nothing, such as `EXPLAIN `.
    """

    def __init__(
        self,
        connection: PhoenixConnection,
        sql: str | BoundStatement,
        context: StatementContext = NO_CONTEXT,
        *,
        prefix: str = "",
    ) -> None:
        self._connection = connection
        self._before = leading_comment(context) + prefix
        self._read_only = None if prefix else context.read_only
        self._sql = sql_text(sql, protocol.mark)
        order = sql.values_in_order if isinstance(sql, BoundStatement) else ()
        self._values = [one for one in order if not isinstance(one.value, tuple)]
        self._keyword = first_word(prefix + self._sql, line_comments=("--", "//"))
        self._statement: int | None = None
        self._reader = AvaticaRowReader(())
        self._ready: Sequence[bytes] = ()
        self._is_read = False
        self._rows_read = 0
        self._stop_sent = False
        self._stopped = asyncio.Event()

    async def execute(self, raise_if_stopped: Callable[[], None]) -> None:
        if self._connection.is_lost:
            raise SessionLost("The Phoenix session no longer exists; the statement was not started.")
        if self._read_only and (refusal := read_only_refusal(self._sql)) is not None:
            raise StatementRejected(refusal)
        if self._read_only is not None:
            # Before each statement, because an earlier one may have needed the other mode.
            await self._connection.set_read_only(self._read_only)
        with protocol.without_text(self._before):
            execution = await (self._prepared() if self._values else self._unprepared())
            try:
                raise_if_stopped()
                executed = await self._unless_stopped(execution())
            except EngineError:
                await self._release()
                raise
        self.is_open = bool(executed.columns)
        declared = [declare(column) for column in executed.columns]
        self.columns = tuple(column.column for column in declared)
        self._reader = AvaticaRowReader(declared)
        if not declared and self._keyword in {"UPSERT", "DELETE"}:
            self.modified_rows = executed.update_count
        self._store_frame(executed.frame)
        if not self.is_open:
            await self._release()

    async def _unprepared(self) -> _Execution:
        self._statement = statement = await self._connection.new_statement()
        return lambda: self._connection.execute(statement, self._before + self._sql, rows=FIRST_ROWS)

    async def _prepared(self) -> _Execution:
        values = list(map(protocol.typed_value, self._values))
        handle = await self._connection.prepared(self._before + self._sql)
        self._statement = protocol.Message(handle).number(2)
        return lambda: self._connection.execute_prepared(handle, values, rows=FIRST_ROWS)

    async def fetch(self, count: int) -> Rows:
        if not self.is_open:
            return ()
        if not self._ready and not self._is_read:
            if self._statement is None:
                raise OutcomeUnknown("The statement no longer exists on the engine.")
            request = self._connection.fetch(self._statement, offset=self._rows_read, rows=count)
            self._store_frame(await self._unless_stopped(request))
        rows, self._ready = self._ready, ()
        self._rows_read += len(rows)
        if self._stop_sent:
            raise Stopped
        if self._is_read:
            await self.end(keep=True)
        return rows

    def size_bytes(self, rows: Sequence[bytes]) -> int:
        return sum(map(len, rows))

    def read(self, rows: Rows) -> pa.RecordBatch:
        with protocol.avatica_errors(protocol.Phase.SENT):
            return self._reader.read([bytes(row) for row in rows])

    async def interrupt(self) -> None:
        if self._statement is None or self._stopped.is_set() or self._connection.is_lost:
            return
        # Set before the request is sent, because the response to the interrupted request may arrive first.
        self._stop_sent = True
        if await self._connection.stop():
            self._stopped.set()

    def was_interrupted(self, error: EngineError) -> bool:
        unknown = isinstance(error.__cause__, protocol.StatementMissing | protocol.ServerError)
        return self._stop_sent and (unknown or isinstance(error, StatementRejected))

    async def end(self, *, keep: bool) -> None:  # noqa: ARG002 a change is complete before its first row
        self.is_open = False
        self._ready = ()
        await self._release()

    async def _release(self) -> None:
        statement, self._statement = self._statement, None
        if statement is not None and not self._connection.is_lost and not self._stopped.is_set():
            await self._connection.close_statement(statement)

    async def _unless_stopped(self, exchange: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Wait for the exchange's result.

        Raises Stopped or OutcomeUnknown if the statement is canceled and no response arrives.
        """
        try:
            # Once the server has confirmed the cancellation, it may never respond to the interrupted request.
            return await wait_unless(self._stopped, exchange, grace_s=1.5)
        except EventOccurred:
            if self._keyword in {"SELECT", "WITH", "EXPLAIN"}:
                raise Stopped from None
            message = "Phoenix did not cancel the statement in time; it may or may not have taken effect."
            raise OutcomeUnknown(message) from None

    def _store_frame(self, frame: protocol.AvaticaFrame) -> None:
        self._ready = frame.rows
        self._is_read = frame.done or not frame.rows
