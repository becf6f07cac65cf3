"""Rows of Avatica to record batches with one Arrow type per column.

A number with more decimal places than its column declares has no place in the column's Arrow type. When one stands in
the first chunk, the column is text for the whole result; when the first one comes later, the statement fails.
"""

import struct
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.phoenix.declared import DeclaredColumn
from queryserver.engines.phoenix.protobuf import Malformed, fields, read_varint, zigzag

_DAY_MS = 86_400_000

# Numbers of Avatica's enumeration `Rep`: how a value is written.
_BOOLEANS = frozenset({0, 8})
_DOUBLES = frozenset({6, 7, 14, 15})
_TIME, _DATE, _OCTETS, _NULL, _ARRAY = 16, 18, 20, 24, 27
_TEXTS = frozenset({2, 10, 21, 22, 25, 26})

Value = object


def row_values(row: bytes) -> list[Value]:
    """The values of a `Row`. Raises Malformed."""
    return [cell_value(cell) for number, cell in fields(row) if number == 1 and isinstance(cell, bytes)]


class RowReader:
    """Reads the rows of one result. Raises StatementRejected, Malformed."""

    def __init__(self, declared: Sequence[DeclaredColumn]) -> None:
        self._names = [column.name for column in declared]
        self._readers = [_ColumnReader(column) for column in declared]

    def read(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """The next rows as one batch."""
        columns: list[list[Value]] = [[] for _ in self._readers]
        for row in rows:
            cells = row_values(row)
            if len(cells) != len(columns):
                raise Malformed
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
        arrays = [reader.read(values) for reader, values in zip(self._readers, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)


class _ColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, declared: DeclaredColumn) -> None:
        self._declared = declared
        self._arrow = declared.arrow
        self._is_decided = False

    def read(self, values: Sequence[Value]) -> pa.Array:
        """The next values. Raises StatementRejected for one that does not fit what the first chunk decided."""
        try:
            array = _array(self._arrow, values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ArithmeticError) as error:
            if self._is_decided or not pa.types.is_decimal(self._arrow):
                raise StatementRejected(self._misfit()) from error
            self._arrow = pa.string()
            array = _array(self._arrow, values)
        self._is_decided = True
        return array

    def _misfit(self) -> str:
        name, native = self._declared.name, self._declared.native_type
        return f"column {name} holds a value that type {native} cannot carry"


def _array(wanted: pa.DataType, values: Sequence[Value]) -> pa.Array:
    return pa.array([_fitting(wanted, value) for value in values], wanted)


def _fitting(wanted: pa.DataType, value: Value) -> Value:
    """The value as Arrow wants it."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_fitting(wanted.value_type, item) for item in value]
    if isinstance(value, Decimal):
        return format(value, "f") if wanted == pa.string() else value
    if isinstance(value, str) or wanted != pa.string():
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def cell_value(data: bytes) -> Value:
    """A `ColumnValue`: a typed value, or the values of an array."""
    old: list[Value] = []
    items: list[Value] = []
    is_array = False
    for number, value in fields(data):
        if number == 4 and isinstance(value, bytes):
            return typed_value(value)
        # Field 1 is how Avatica before 1.6 wrote either of them; newer servers send an array both ways.
        if number in (1, 2) and isinstance(value, bytes):
            (old if number == 1 else items).append(typed_value(value))
        elif number == 3:
            is_array = bool(value)
    if is_array or len(old) != 1:
        return items or old
    return old[0]


def typed_value(data: bytes) -> Value:
    """A `TypedValue`. Fields that hold the empty value of their type are not sent."""
    if data[:3] == b"\x08\x15\x1a":  # a text, by far the most frequent
        length, at = read_varint(data, 3)
        if at + length == len(data):
            return data[at:].decode(errors="replace")
    parts: dict[int, int | bytes] = {}
    items: list[Value] = []
    for number, value in fields(data):
        parts[number] = value
        if number == 8 and isinstance(value, bytes):
            items.append(typed_value(value))
    rep = parts.get(1, 0)
    if parts.get(7) or rep == _NULL:
        return None
    if rep == _ARRAY:
        return items
    return _scalar(rep, parts)


def _scalar(rep: int | bytes, parts: dict[int, int | bytes]) -> Value:
    if rep in _BOOLEANS:
        return bool(parts.get(2, 0))
    if rep in _DOUBLES:
        return struct.unpack("<d", _octets(parts.get(6, bytes(8))))[0]
    if rep in _TEXTS:
        text = _octets(parts.get(3, b"")).decode(errors="replace")
        return Decimal(text) if rep in (25, 26) else text
    if rep == _OCTETS:
        return _octets(parts.get(5, b""))
    number = parts.get(4, 0)
    if isinstance(number, bytes):
        raise Malformed
    whole = zigzag(number)
    if rep == _DATE:
        return whole // _DAY_MS
    return whole % _DAY_MS if rep == _TIME else whole


def _octets(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Malformed
    return value
