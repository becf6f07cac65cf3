"""Values of Arrow as parameters of a prepared statement: Avatica's `TypedValue` (Protocol Buffers Reference)."""

import math
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.loading_texts import cell_texts
from queryserver.engines.phoenix.protobuf import FIXED64, VARINT, number, octets, text, varint

# Numbers of Avatica's enumeration `Rep`.
_BOOLEAN, _LONG, _DOUBLE, _TIME, _TIMESTAMP, _DATE, _STRING, _NULL, _BIG_DECIMAL = 8, 13, 15, 16, 17, 18, 21, 24, 26
_BYTE_STRING = 20
# Numbers of the fields of `TypedValue` in which values lie.
_BOOL_VALUE, _STRING_VALUE, _NUMBER_VALUE, _BYTES_VALUE, _DOUBLE_VALUE, _IS_NULL = 2, 3, 4, 5, 6, 7

_GREGORIAN = datetime(1582, 10, 15)  # noqa: DTZ001 Java reads days before it in texts by the Julian calendar
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 timestamps of imports have no zone
_MILLISECOND = timedelta(milliseconds=1)
_MS_US = 1000
_LARGEST = 2**63 - 1

Write = Callable[[Any], bytes]


class _Unfit(ValueError):
    """Why Phoenix cannot hold a value."""


def parameter_rows(names: Sequence[str], batch: pa.RecordBatch) -> list[bytes]:
    """The rows of a batch, each an `UpdateBatch`. Raises StatementRejected for values that Phoenix cannot hold."""
    columns = [_parameters(name, column) for name, column in zip(names, batch.columns, strict=True)]
    return [b"".join(row) for row in zip(*columns, strict=True)]


def numbered(rows: Sequence[bytes], first: int) -> list[bytes]:
    """The rows with one more parameter at their end: `first`, `first` + 1, …"""
    return [row + octets(1, _long(place)) for place, row in enumerate(rows, first)]


def _parameters(name: str, column: pa.Array) -> list[bytes]:
    write, values = _writing(column)
    null = octets(1, number(1, _NULL) + number(_IS_NULL, 1))
    try:
        return [null if value is None else octets(1, write(value)) for value in values.to_pylist()]
    except _Unfit as error:
        raise StatementRejected(f'Column "{name}" has a value that Phoenix cannot hold: {error}.') from error


def _writing(column: pa.Array) -> tuple[Write, pa.Array]:
    """How values are written, and the values."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return _bool, column
    if pa.types.is_integer(kind):
        return _long, column
    if pa.types.is_floating(kind):
        return _double, column
    if pa.types.is_decimal(kind):
        return _decimal, column
    if pa.types.is_date(kind):
        return _days, column.cast(pa.int32())
    if pa.types.is_time(kind):
        return _clock, column.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return _timestamp, column
    if pa.types.is_binary(kind):
        return _bytes, column
    return _text, cell_texts(column)


def _bool(value: bool) -> bytes:
    return number(1, _BOOLEAN) + number(_BOOL_VALUE, value)


def _whole(rep: int, value: int) -> bytes:
    return number(1, rep) + varint(_NUMBER_VALUE << 3 | VARINT) + varint((value << 1) ^ (value >> 63))


def _long(value: int) -> bytes:
    if value > _LARGEST:
        raise _Unfit(f"it is above {_LARGEST}")
    return _whole(_LONG, value)


def _double(value: float) -> bytes:
    if not math.isfinite(value):
        raise _Unfit("it is no finite number")
    return number(1, _DOUBLE) + varint(_DOUBLE_VALUE << 3 | FIXED64) + struct.pack("<d", value)


def _decimal(value: Decimal) -> bytes:
    return number(1, _BIG_DECIMAL) + text(_STRING_VALUE, format(value, "f"))


def _days(value: int) -> bytes:
    return _whole(_DATE, value)


def _clock(microseconds: int) -> bytes:
    if microseconds % _MS_US:
        raise _Unfit("its time is finer than milliseconds")
    return _whole(_TIME, microseconds // _MS_US)


def _timestamp(value: datetime) -> bytes:
    """Numbers are milliseconds; only a text carries more."""
    if value >= _GREGORIAN:
        return _text(value.isoformat(" "))
    if value.microsecond % _MS_US:
        raise _Unfit("its time is finer than milliseconds, before the year 1583")
    return _whole(_TIMESTAMP, (value - _EPOCH) // _MILLISECOND)


def _bytes(value: bytes) -> bytes:
    return number(1, _BYTE_STRING) + octets(_BYTES_VALUE, value)


def _text(value: str) -> bytes:
    return number(1, _STRING) + text(_STRING_VALUE, value)
