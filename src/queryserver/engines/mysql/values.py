"""What MySQL declares about the columns of a result: names and types of Contract editor 6.3.

The server sends a type code, flags, a length in bytes and a character set; the declared type is put together from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from asyncmy.charset import charset_by_id
from asyncmy.constants import FIELD_TYPE, FLAG

from queryserver.errors.statements import StatementRejected
from queryserver.formats.columns import ResultType

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


@dataclass(frozen=True, slots=True)
class MysqlColumn:
    """A column, and the Arrow type that its values take unless one of them has no place in it."""

    name: str
    native_type: str
    result: ResultType
    arrow: pa.DataType


def declare(field: Any) -> MysqlColumn:
    """The declared type of one of asyncmy's field descriptors."""
    code = field.type_code
    if code in _INTEGERS:
        name, signed, unsigned = _INTEGERS[code]
        if field.flags & FLAG.UNSIGNED:
            return MysqlColumn(field.name, f"{name} unsigned", *unsigned)
        return MysqlColumn(field.name, name, *signed)
    if code in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        return _decimal(field)
    if code in _TIMES:
        name, result, arrow = _TIMES[code]
        digits = field.scale if name != "year" and 0 < field.scale < _NO_FRACTION else 0
        return MysqlColumn(field.name, f"{name}({digits})" if digits else name, result, arrow)
    if code == FIELD_TYPE.BIT:
        is_boolean = field.length == 1
        kind = (ResultType.BOOLEAN, pa.bool_()) if is_boolean else (ResultType.BINARY, pa.binary())
        return MysqlColumn(field.name, f"bit({field.length})", *kind)
    if field.flags & (FLAG.ENUM | FLAG.SET):
        return MysqlColumn(field.name, "enum" if field.flags & FLAG.ENUM else "set", ResultType.STRING, pa.string())
    if code in _STRINGS or code in _BLOBS:
        return _text(field) if field.charsetnr != _BINARY_CHARSET else _binary(field)
    if code in _PLAIN:
        return MysqlColumn(field.name, *_PLAIN[code])
    return MysqlColumn(field.name, f"type {code}", ResultType.USER_DEFINED, pa.binary())


def _decimal(field: Any) -> MysqlColumn:
    """The length counts the digits, a sign unless unsigned, and a point if there is a scale."""
    unsigned = bool(field.flags & FLAG.UNSIGNED)
    digits = field.length - (not unsigned) - (field.scale > 0)
    arrow = pa.decimal128(digits, field.scale) if field.scale <= digits <= _DECIMAL128_DIGITS else pa.string()
    name = f"decimal({digits},{field.scale}){' unsigned' if unsigned else ''}"
    return MysqlColumn(field.name, name, ResultType.DECIMAL, arrow)


def _text(field: Any) -> MysqlColumn:
    length = field.length // _bytes_per_character(field.charsetnr)
    if field.type_code in _BLOBS:
        return MysqlColumn(field.name, f"{_size(length)}text", ResultType.STRING, pa.string())
    if field.type_code == FIELD_TYPE.STRING:
        return MysqlColumn(field.name, f"char({length})", ResultType.CHAR, pa.string())
    return MysqlColumn(field.name, f"varchar({length})", ResultType.VARCHAR, pa.string())


def _binary(field: Any) -> MysqlColumn:
    name = f"{'binary' if field.type_code == FIELD_TYPE.STRING else 'varbinary'}({field.length})"
    if field.type_code in _BLOBS:
        name = f"{_size(field.length)}blob"
    return MysqlColumn(field.name, name, ResultType.BINARY, pa.binary())


def _size(length: int) -> str:
    return next((name for limit, name in _TEXT_SIZES if length <= limit), "long")


def _bytes_per_character(charset_id: int) -> int:
    """Lengths are in bytes of the result's character set; numbers that asyncmy does not know are newer utf8mb4 ones."""
    try:
        return _BYTES_PER_CHARACTER.get(charset_by_id(charset_id).name, 1)
    except KeyError:
        return 4


Values = Sequence[bytes | None]


class MysqlColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, declared: MysqlColumn) -> None:
        self._declared = declared
        self._arrow = declared.arrow
        self._is_decided = False

    def read(self, values: Values) -> pa.Array:
        """The next values: as text for the whole result when a first one has no place in the column's type.

        Raises StatementRejected for one that does not fit what the first chunk decided.
        """
        try:
            array = _read(self._arrow, values)
        except pa.ArrowInvalid as error:
            if self._is_decided or self._arrow == pa.string():
                raise StatementRejected(self._misfit()) from error
            self._arrow = pa.string()
            return self.read(values)
        self._is_decided = True
        return array

    def _misfit(self) -> str:
        name, native = self._declared.name, self._declared.native_type
        if self._arrow == pa.string():
            return f"column `{name}` holds text that is not UTF-8"
        return (
            f"column `{name}` holds a value that type {native} cannot carry (a date out of the calendar)"
            " after rows that could: cast the column to char"
        )


def _read(wanted: pa.DataType, values: Values) -> pa.Array:
    """Raises pa.ArrowInvalid."""
    if wanted == pa.binary():
        return pa.array(values, wanted)
    if wanted == pa.bool_():
        return pa.array([None if value is None else value != b"\0" for value in values], wanted)
    if wanted == pa.null():
        return pa.nulls(len(values))
    return pa.array(values, pa.string()).cast(wanted)
