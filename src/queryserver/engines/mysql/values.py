"""Declares the types of MySQL columns (Contract editor 6.3), and reads the values of text and binary rows.

The server sends a type code, flags, a length in bytes and a character set, from which the declared type is derived.
asyncmy unpacks rows, except for dates and times in binary rows, because Python cannot represent 0000-00-00.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from asyncmy.charset import charset_by_id
from asyncmy.constants import FIELD_TYPE, FLAG

from queryserver.engines.record_batches import ColumnReader, DeclaredColumn, Values
from queryserver.formats.arrow import Column, ResultType

_BINARY_CHARSET = 63
_DECIMAL128_DIGITS = 38
_NO_FRACTION = 31
_BYTES_PER_CHARACTER = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "ucs2": 2, "utf16": 4, "utf32": 4}
_TEXT_SIZES = ((255, "tiny"), (65_535, ""), (16_777_215, "medium"))
_INTEGERS = {
    FIELD_TYPE.TINY: ("tinyint", (ResultType.TINYINT, pa.int8()), (ResultType.SMALLINT, pa.int16())),
    FIELD_TYPE.SHORT: ("smallint", (ResultType.SMALLINT, pa.int16()), (ResultType.INT, pa.int32())),
    FIELD_TYPE.INT24: ("mediumint", (ResultType.INT, pa.int32()), (ResultType.INT, pa.int32())),
    FIELD_TYPE.LONG: ("int", (ResultType.INT, pa.int32()), (ResultType.BIGINT, pa.int64())),
    FIELD_TYPE.LONGLONG: ("bigint", (ResultType.BIGINT, pa.int64()), (ResultType.BIGINT, pa.uint64())),
}
"""The type name, and the result types for signed and unsigned columns."""
_TIMES = {
    FIELD_TYPE.DATE: ("date", ResultType.DATE, pa.date32()),
    FIELD_TYPE.NEWDATE: ("date", ResultType.DATE, pa.date32()),
    FIELD_TYPE.TIME: ("time", ResultType.STRING, pa.string()),
    FIELD_TYPE.DATETIME: ("datetime", ResultType.TIMESTAMP, pa.timestamp("us")),
    FIELD_TYPE.TIMESTAMP: ("timestamp", ResultType.TIMESTAMP, pa.timestamp("us")),
    FIELD_TYPE.YEAR: ("year", ResultType.SMALLINT, pa.int16()),
}
_PLAIN = {
    FIELD_TYPE.FLOAT: ("float", ResultType.FLOAT, pa.float32()),
    FIELD_TYPE.DOUBLE: ("double", ResultType.DOUBLE, pa.float64()),
    FIELD_TYPE.JSON: ("json", ResultType.STRING, pa.string()),
    FIELD_TYPE.ENUM: ("enum", ResultType.STRING, pa.string()),
    FIELD_TYPE.SET: ("set", ResultType.STRING, pa.string()),
    FIELD_TYPE.NULL: ("null", ResultType.NULL, pa.null()),
    FIELD_TYPE.GEOMETRY: ("geometry", ResultType.USER_DEFINED, pa.binary()),
}
_STRINGS = frozenset({FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR})
_BLOBS = frozenset({
    FIELD_TYPE.TINY_BLOB, FIELD_TYPE.BLOB, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB,
})  # fmt: skip


def _column(field: Any, native_type: str, result: ResultType, arrow: pa.DataType) -> DeclaredColumn:
    return DeclaredColumn(Column(field.name, result, native_type), arrow)


def declare(field: Any) -> DeclaredColumn:
    code = field.type_code
    if code in _INTEGERS:
        name, signed, unsigned = _INTEGERS[code]
        if field.flags & FLAG.UNSIGNED:
            return _column(field, f"{name} unsigned", *unsigned)
        return _column(field, name, *signed)
    if code in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        return _decimal(field)
    if code in _TIMES:
        name, result, arrow = _TIMES[code]
        digits = field.scale if name != "year" and 0 < field.scale < _NO_FRACTION else 0
        return _column(field, f"{name}({digits})" if digits else name, result, arrow)
    if code == FIELD_TYPE.BIT:
        is_boolean = field.length == 1
        kind = (ResultType.BOOLEAN, pa.bool_()) if is_boolean else (ResultType.BINARY, pa.binary())
        return _column(field, f"bit({field.length})", *kind)
    if field.flags & (FLAG.ENUM | FLAG.SET):
        return _column(field, "enum" if field.flags & FLAG.ENUM else "set", ResultType.STRING, pa.string())
    if code in _STRINGS or code in _BLOBS:
        return _text(field) if field.charsetnr != _BINARY_CHARSET else _binary(field)
    if code in _PLAIN:
        return _column(field, *_PLAIN[code])
    return _column(field, f"type {code}", ResultType.USER_DEFINED, pa.binary())


def _decimal(field: Any) -> DeclaredColumn:
    """Declare a decimal column.

    The field's length includes the sign unless the column is unsigned, and the decimal point if the scale is not 0.
    """
    unsigned = bool(field.flags & FLAG.UNSIGNED)
    digits = field.length - (not unsigned) - (field.scale > 0)
    arrow = pa.decimal128(digits, field.scale) if field.scale <= digits <= _DECIMAL128_DIGITS else pa.string()
    name = f"decimal({digits},{field.scale}){' unsigned' if unsigned else ''}"
    return _column(field, name, ResultType.DECIMAL, arrow)


def _text(field: Any) -> DeclaredColumn:
    length = field.length // _bytes_per_character(field.charsetnr)
    if field.type_code in _BLOBS:
        return _column(field, f"{_size(length)}text", ResultType.STRING, pa.string())
    if field.type_code == FIELD_TYPE.STRING:
        return _column(field, f"char({length})", ResultType.CHAR, pa.string())
    return _column(field, f"varchar({length})", ResultType.VARCHAR, pa.string())


def _binary(field: Any) -> DeclaredColumn:
    name = f"{'binary' if field.type_code == FIELD_TYPE.STRING else 'varbinary'}({field.length})"
    if field.type_code in _BLOBS:
        name = f"{_size(field.length)}blob"
    return _column(field, name, ResultType.BINARY, pa.binary())


def _size(length: int) -> str:
    return next((name for limit, name in _TEXT_SIZES if length <= limit), "long")


def _bytes_per_character(charset_id: int) -> int:
    """Return the maximum number of bytes per character. IDs unknown to asyncmy belong to newer utf8mb4 collations."""
    try:
        return _BYTES_PER_CHARACTER.get(charset_by_id(charset_id).name, 1)
    except KeyError:
        return 4


def column_reader(declared: DeclaredColumn) -> ColumnReader:
    """Return a reader for column values that arrive as bytes."""
    return _fallback_reader(declared, _read_texts)


def _fallback_reader(declared: DeclaredColumn, read: Callable[[pa.DataType, Values], pa.Array]) -> ColumnReader:
    """Return a reader that calls `read`, which raises pa.ArrowInvalid for values outside the range of the column's
    type.
    """
    name, native = declared.column.name, declared.column.native_type
    refusal = (
        f"column `{name}` contains a value that type {native} cannot represent (an invalid date)"
        " after rows without such values: cast the column to char"
    )
    no_text = f"column `{name}` contains text that is not UTF-8"
    return ColumnReader(declared.arrow, read, refusal, text_refusal=no_text)


def _read_texts(wanted: pa.DataType, values: Values) -> pa.Array:
    """Parse values in the server's text format. Raises pa.ArrowInvalid for values that do not fit the type."""
    if wanted == pa.binary():
        return pa.array(values, wanted)
    if wanted == pa.bool_():
        return pa.array([None if value is None else value != b"\0" for value in values], wanted)
    if wanted == pa.null():
        return pa.nulls(len(values))
    return pa.array(values, pa.string()).cast(wanted)


Spec = tuple[int, bool, int, None, None]
"""asyncmy's column description: the type code, whether it is unsigned, and settings that leave strings undecoded."""

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
"""Byte widths of numbers; all other values are preceded by their length."""


def row_specs(fields: Sequence[Any]) -> tuple[Spec, ...]:
    """Return specs with which asyncmy unpacks numbers and returns all other values, such as dates, as bytes."""
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


_LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_NULL = 0xFB


def length_at(row: bytes, offset: int) -> tuple[int, int] | None:
    """Read a length and return it with the offset after it; None if bytes are missing.

    MySQL calls this format Protocol::LengthEncodedInteger.
    """
    if offset >= len(row):
        return None
    width = _LENGTH_BYTES.get(row[offset], 0)
    end = offset + 1 + width
    if end > len(row):
        return None
    return (int.from_bytes(row[offset + 1 : end], "little") if width else row[offset]), end


def long_text_value(row: bytes, limit: int) -> int | None:
    """Return the index of the first value longer than `limit` in a text row; `row` may be only its beginning."""
    offset, number = 0, 0
    while prefix := length_at(row, offset):
        is_null = row[offset] == _NULL
        length, offset = prefix
        if not is_null and length > limit:
            return number
        offset += 0 if is_null else length
        number += 1
    return None


def long_binary_value(row: bytes, limit: int, specs: Sequence[Spec]) -> int | None:
    """Do the same as `long_text_value` for a binary row: a header byte, a NULL bitmap, and the values."""
    offset = 1 + (len(specs) + 9) // 8
    nulls = int.from_bytes(row[1:offset], "little") >> 2
    for number, (code, *_) in enumerate(specs):
        if nulls >> number & 1:
            continue
        if code in _WIDTHS:
            offset += _WIDTHS[code]
            continue
        found = length_at(row, offset)
        if found is None:
            return None
        length, offset = found
        if length > limit:
            return number
        offset += length
    return None


_DATES = frozenset({FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE})
_DATETIMES = frozenset({FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP})
_MAX_FRACTION_DIGITS = 6


def binary_reader(field: Any, declared: DeclaredColumn) -> ColumnReader:
    """Return a reader for the column's values in binary rows."""
    code = field.type_code
    if code in _WIDTHS:
        return _fallback_reader(declared, _read_numbers)
    digits = field.scale if 0 < field.scale <= _MAX_FRACTION_DIGITS else 0
    if code in _DATES:
        return _fallback_reader(declared, partial(_read_dates, date, date_text))
    if code in _DATETIMES:
        return _fallback_reader(declared, partial(_read_dates, datetime, partial(datetime_text, digits=digits)))
    if code == FIELD_TYPE.TIME:
        return _fallback_reader(declared, partial(_read_as_texts, partial(time_text, digits=digits)))
    return column_reader(declared)


def _read_numbers(wanted: pa.DataType, values: Values) -> pa.Array:
    return pa.array(values, wanted)


_UNPACKERS = {size: struct.Struct(form).unpack for size, form in ((4, "<HBB"), (7, "<HBBBBB"), (11, "<HBBBBBI"))}
"""Unpacking functions by value length. The length varies because trailing zeros are not sent."""


def _read_dates(kind: type[date], text: Callable[[bytes], str], wanted: pa.DataType, values: Values) -> pa.Array:
    if wanted != pa.string():
        try:
            return pa.array(
                [None if value is None else kind(*_UNPACKERS[len(value)](value)) for value in values], wanted
            )
        except (KeyError, ValueError):  # not a valid calendar date
            pass
    return _read_as_texts(text, wanted, values)


def _read_as_texts(text: Callable[[bytes], str], wanted: pa.DataType, values: Values) -> pa.Array:
    return _read_texts(wanted, [None if value is None else text(value) for value in values])


def date_text(value: bytes) -> str:
    """Format a date as in the text protocol. `value` has 0, 4, 7 or 11 bytes."""
    value = value.ljust(4, b"\0")
    return f"{int.from_bytes(value[:2], 'little'):04}-{value[2]:02}-{value[3]:02}"


def datetime_text(value: bytes, digits: int) -> str:
    value = value.ljust(11, b"\0")
    clock = f"{value[4]:02}:{value[5]:02}:{value[6]:02}"
    return f"{date_text(value)} {clock}{_fraction_text(value[7:11], digits)}"


_CLOCK = struct.Struct("<BIBBB").unpack_from


def time_text(value: bytes, digits: int) -> str:
    """Format a time. `value` has 0, 8 or 12 bytes: sign, days, hours, minutes, seconds and microseconds."""
    negative, days, hours, minutes, seconds = _CLOCK(value.ljust(8, b"\0"))
    text = "%02d:%02d:%02d" % (days * 24 + hours, minutes, seconds)  # noqa: UP031 half the time of an f-string
    return f"{'-' if negative else ''}{text}{_fraction_text(value[8:], digits) if digits else ''}"


def _fraction_text(microseconds: bytes, digits: int) -> str:
    return f".{int.from_bytes(microseconds, 'little'):06}"[: digits + 1] if digits else ""
