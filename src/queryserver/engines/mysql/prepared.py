"""Statements whose values the server binds (COM_STMT_EXECUTE), and the binary rows that it sends for them.

asyncmy packs the values and unpacks rows; dates and times are unpacked here, as Python has no 0000-00-00.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from asyncmy.constants import FIELD_TYPE, FLAG
from asyncmy.protocol import pack_binary_params

from queryserver.engines.mysql.values import column_reader, misfit_reader, read_texts
from queryserver.engines.values import ColumnReader, DeclaredColumn, Values
from queryserver.sql.parameters import Parameter, digits_of

COM_STMT_EXECUTE = 0x17

Spec = tuple[int, bool, int, None, None]
"""How asyncmy unpacks a column: type, whether it is unsigned, and no decoding of texts."""

_NO_CURSOR_ONCE = b"\x00\x01\x00\x00\x00"
_MOST_SCALE = 30
"""Of a decimal of MySQL; MariaDB has 38."""
_WIDTHS = {
    FIELD_TYPE.TINY: 1,
    FIELD_TYPE.SHORT: 2,
    FIELD_TYPE.YEAR: 2,
    FIELD_TYPE.LONG: 4,
    FIELD_TYPE.INT24: 4,
    FIELD_TYPE.LONGLONG: 8,
    FIELD_TYPE.FLOAT: 4,
    FIELD_TYPE.DOUBLE: 8,
}
"""Bytes of numbers; all else stands behind its length."""
_DATES = frozenset({FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE})
_DATETIMES = frozenset({FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP})
_MOST_DIGITS = 6


def mark(_number: int, one: Parameter) -> str:
    """What stands in the place of a value: its type is that of its literal, which MySQL would widen."""
    match one.value:
        case datetime(tzinfo=None) as value:
            return f"CAST(? AS DATETIME({_fraction(value.microsecond)}))"
        case datetime() as value:
            # Only newer servers take an offset.
            digits = _fraction(value.microsecond)
            return f"CONVERT_TZ(CAST(? AS DATETIME({digits})), '+00:00', @@session.time_zone)"
        case time() as value:
            return f"CAST(? AS TIME({_fraction(value.microsecond)}))"
        case Decimal() as value:
            precision, scale = digits_of(value)
            return f"CAST(? AS DECIMAL({precision},{scale}))" if scale <= _MOST_SCALE else "?"
        case _:
            return "?"


def _fraction(microseconds: int) -> int:
    return len(f"{microseconds:06}".rstrip("0"))


def execution(statement_id: int, values: Sequence[Parameter]) -> bytes:
    """The body of COM_STMT_EXECUTE, for marks of `mark`."""
    sent = tuple(map(_sent, values))
    return statement_id.to_bytes(4, "little") + _NO_CURSOR_ONCE + pack_binary_params(sent, "utf8")


def _sent(one: Parameter) -> object:
    if isinstance(one.value, datetime) and one.value.tzinfo is not None:
        return one.value.astimezone(UTC).replace(tzinfo=None)
    return one.value


def row_specs(fields: Sequence[Any]) -> tuple[Spec, ...]:
    """For asyncmy: numbers as they are; all else, dates and times too, as the bytes behind their length."""
    return tuple(
        (
            field.type_code if field.type_code in _WIDTHS else FIELD_TYPE.VAR_STRING,
            bool(field.flags & FLAG.UNSIGNED),
            0,
            None,
            None,
        )
        for field in fields
    )


def first_long_value(row: bytes, limit: int, specs: Sequence[Spec]) -> int | None:
    """The number of the first value of a binary row that is longer than `limit`, as far as its bytes are there."""
    place = 1 + (len(specs) + 9) // 8
    nulls = int.from_bytes(row[1:place], "little") >> 2
    for number, (code, *_) in enumerate(specs):
        if nulls >> number & 1:
            continue
        if code in _WIDTHS:
            place += _WIDTHS[code]
            continue
        found = length_at(row, place)
        if found is None:
            return None
        length, place = found
        if length > limit:
            return number
        place += length
    return None


_LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def length_at(row: bytes, place: int) -> tuple[int, int] | None:
    """A length and where it ends (MySQL: Protocol::LengthEncodedInteger); None when its bytes are not there."""
    if place >= len(row):
        return None
    width = _LENGTH_BYTES.get(row[place], 0)
    end = place + 1 + width
    if end > len(row):
        return None
    return (int.from_bytes(row[place + 1 : end], "little") if width else row[place]), end


def binary_reader(field: Any, declared: DeclaredColumn) -> ColumnReader:
    """What reads the column's values out of binary rows."""
    code = field.type_code
    if code in _WIDTHS:
        return misfit_reader(declared, _read_numbers)
    digits = min(field.scale, _MOST_DIGITS) if field.scale > 0 else 0
    if code in _DATES:
        return misfit_reader(declared, partial(_read_moments, date_text))
    if code in _DATETIMES:
        return misfit_reader(declared, partial(_read_moments, partial(datetime_text, digits=digits)))
    if code == FIELD_TYPE.TIME:
        return misfit_reader(declared, partial(_read_moments, partial(time_text, digits=digits)))
    return column_reader(declared)


def _read_numbers(wanted: pa.DataType, values: Values) -> pa.Array:
    return pa.array(values, wanted)


def _read_moments(text: Callable[[bytes], str], wanted: pa.DataType, values: Values) -> pa.Array:
    return read_texts(wanted, [None if value is None else text(value) for value in values])


def date_text(value: bytes) -> str:
    """As the text protocol writes it. Zeros at the end are not sent: `value` has 0, 4, 7 or 11 bytes."""
    value = value.ljust(4, b"\0")
    return f"{int.from_bytes(value[:2], 'little'):04}-{value[2]:02}-{value[3]:02}"


def datetime_text(value: bytes, digits: int) -> str:
    value = value.ljust(11, b"\0")
    clock = f"{value[4]:02}:{value[5]:02}:{value[6]:02}"
    return f"{date_text(value)} {clock}{_fraction_text(value[7:11], digits)}"


def time_text(value: bytes, digits: int) -> str:
    """`value`: whether it is negative, days, hours, minutes, seconds and microseconds: 0, 8 or 12 bytes."""
    value = value.ljust(12, b"\0")
    hours = int.from_bytes(value[1:5], "little") * 24 + value[5]
    clock = f"{hours:02}:{value[6]:02}:{value[7]:02}"
    return f"{'-' if value[0] else ''}{clock}{_fraction_text(value[8:12], digits)}"


def _fraction_text(microseconds: bytes, digits: int) -> str:
    return f".{int.from_bytes(microseconds, 'little'):06}"[: digits + 1] if digits else ""
