"""What MySQL declares about the columns of a result: names and types of Contract editor 6.3.

The server sends a type code, flags, a length in bytes and a character set; the declared type is put together from them.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from asyncmy.charset import charset_by_id
from asyncmy.constants import FIELD_TYPE, FLAG

from queryserver.engines.values import ColumnReader, DeclaredColumn, Values
from queryserver.formats.columns import Column, ResultType

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
"""Name, and the types with and without a sign."""
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
    """The length counts the digits, a sign unless unsigned, and a point if there is a scale."""
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
    """Lengths are in bytes of the result's character set; numbers that asyncmy does not know are newer utf8mb4 ones."""
    try:
        return _BYTES_PER_CHARACTER.get(charset_by_id(charset_id).name, 1)
    except KeyError:
        return 4


def column_reader(declared: DeclaredColumn) -> ColumnReader:
    """What reads the column's values, which come as bytes."""
    return misfit_reader(declared, read_texts)


def misfit_reader(declared: DeclaredColumn, read: Callable[[pa.DataType, Values], pa.Array]) -> ColumnReader:
    """`read` raises pa.ArrowInvalid for values that the column's type cannot carry."""
    name, native = declared.column.name, declared.column.native_type
    refusal = (
        f"column `{name}` holds a value that type {native} cannot carry (a date out of the calendar)"
        " after rows that could: cast the column to char"
    )
    no_text = f"column `{name}` holds text that is not UTF-8"
    return ColumnReader(declared.arrow, read, refusal, text_refusal=no_text)


def read_texts(wanted: pa.DataType, values: Values) -> pa.Array:
    """Values as the server writes them. Raises pa.ArrowInvalid."""
    if wanted == pa.binary():
        return pa.array(values, wanted)
    if wanted == pa.bool_():
        return pa.array([None if value is None else value != b"\0" for value in values], wanted)
    if wanted == pa.null():
        return pa.nulls(len(values))
    return pa.array(values, pa.string()).cast(wanted)
