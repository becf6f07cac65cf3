"""Statements whose values the server binds (COM_STMT_EXECUTE), the binary rows that it sends for them, lengths in rows.

asyncmy packs the values and unpacks rows; dates and times are unpacked here, as Python has no 0000-00-00.
"""

import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from asyncmy.constants import FIELD_TYPE, FLAG
from asyncmy.protocol import pack_binary_params

from queryserver.engines.mysql.values import column_reader, misfit_reader, read_texts
from queryserver.engines.values import ColumnReader, DeclaredColumn, Values
from queryserver.sql.literals import MYSQL
from queryserver.sql.parameters import Parameter, digits_of
from queryserver.sql.places import Bound

COM_STMT_EXECUTE = 0x17

Spec = tuple[int, bool, int, None, None]
"""How asyncmy unpacks a column: type, whether it is unsigned, and no decoding of texts."""

PLAIN = frozenset({"SELECT", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "EXPLAIN", "DESCRIBE", "DESC"})
"""The first words of what is prepared. None of them changes how the session reads texts.

MariaDB prepares others, too: it keeps a trigger with the marks of values in its text, and gives the OUT parameters of
a procedure as rows.
"""
_VALUES = re.compile(r"\bVALUES\b", re.IGNORECASE)
_ROWS = re.compile(r"\b(?:INSERT|REPLACE)\b[^()'\"]*(?:\([^()]*\))?\s*VALUES?\s*\((.*)", re.IGNORECASE | re.DOTALL)
_VALUE_OF_COLUMN = re.compile(r"\bVALUES\s*\(\s*[\w`$.]+\s*\)", re.IGNORECASE)
_QUERY = re.compile(r"\b(?:SELECT|WITH)\b", re.IGNORECASE)
_UNLIKE_LITERALS = re.compile(
    r"/\*M?!"  # executed comments, of which nothing is known
    r"|\bTIME(?:STAMP)?\s*\("  # have no fraction where they do not know the value yet
    r"|\b(?:ROW_COUNT|FOUND_ROWS)\s*\(",  # are lost by what is sent before the statement
    re.IGNORECASE,
)
_BEFORE_MARK = re.compile(r"(\w+|[`\"])\s+\(\?\)")
_BEFORE_EXPRESSION = re.compile(
    "SELECT|DISTINCT|ALL|WHERE|HAVING|ON|AND|OR|XOR|NOT|IS|LIKE|RLIKE|REGEXP|BETWEEN|CASE|WHEN|THEN|ELSE|DIV|MOD|BINARY"
    "|INTERVAL|ESCAPE|BY|LIMIT|OFFSET|FROM|FOR|LEADING|TRAILING|BOTH|RETURNING",
    re.IGNORECASE,
)
"""`DATE ?` and `MD5 ?` are no syntax, but `DATE (?)` and `MD5 (?)` are calls."""
_MOST_SCALE = 30
"""Of a decimal of MySQL; MariaDB has 38."""


def may_be_prepared(statement: Bound, keyword: str) -> bool:
    """Whether marks mean the same as values in this statement, which begins with `keyword`.

    A table of `VALUES` that is no list of rows to insert has, on MariaDB, the types that it has without the values:
    `VALUES (?), (2)` makes 0 of a text. In doubt, such as for a word in quotes, the answer is False.
    """
    text = statement.statement
    if keyword not in PLAIN or _UNLIKE_LITERALS.search(text) or not any(map(is_bound, statement.values)):
        return False
    if _VALUES.search(text):
        rows = None if _QUERY.search(text) else _ROWS.search(text)
        if rows is None or _VALUES.search(_VALUE_OF_COLUMN.sub("", rows[1])):
            return False
    return all(map(_BEFORE_EXPRESSION.fullmatch, _BEFORE_MARK.findall(statement.written(mark))))


def is_bound(one: Parameter) -> bool:
    """Whole numbers, TRUE, FALSE and NULL are written.

    Bound they are wider and no Booleans, and MariaDB takes a LIMIT of -1 as none.
    """
    is_whole = isinstance(one.value, Decimal) and digits_of(one.value)[1] == 0
    return not (is_whole or isinstance(one.value, int | None))


def mark(number: int, one: Parameter) -> str:
    """What stands in the place of a value, with the type that its literal has.

    The brackets are for MariaDB: `LIMIT ?` takes a text, `LIMIT (?)` is no syntax, as with the literal.
    """
    if not is_bound(one):
        return MYSQL.write(number, one)
    match one.value:
        case datetime(tzinfo=None) as value:
            return f"CAST(? AS DATETIME({_fraction(value)}))"
        case datetime() as value:  # only newer servers take an offset
            return f"CONVERT_TZ(CAST(? AS DATETIME({_fraction(value)})), '+00:00', @@session.time_zone)"
        case time() as value:
            return f"CAST(? AS TIME({_fraction(value)}))"
        case date():
            return "CAST(? AS DATE)"  # else a variable has its bytes
        case bytes():
            return "CAST(? AS BINARY)"
        case Decimal() as value:
            precision, scale = digits_of(value)
            return f"CAST(? AS DECIMAL({max(precision, scale + 1)},{scale}))" if scale <= _MOST_SCALE else "(?)"
        case _:
            return "(?)"


def _fraction(value: datetime | time) -> int:
    return len(f"{value.microsecond:06}".rstrip("0"))


def packed(values: Sequence[Parameter]) -> bytes:
    """Those of the values that are bound, as the body of COM_STMT_EXECUTE has them."""
    return pack_binary_params(tuple(_sent(one) for one in values if is_bound(one)), "utf8")


def _sent(one: Parameter) -> object:
    if isinstance(one.value, datetime) and one.value.tzinfo is not None:
        return one.value.astimezone(UTC).replace(tzinfo=None)
    return one.value


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


_LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_NULL = 0xFB


def length_at(row: bytes, place: int) -> tuple[int, int] | None:
    """A length and where it ends (MySQL: Protocol::LengthEncodedInteger); None when its bytes are not there."""
    if place >= len(row):
        return None
    width = _LENGTH_BYTES.get(row[place], 0)
    end = place + 1 + width
    if end > len(row):
        return None
    return (int.from_bytes(row[place + 1 : end], "little") if width else row[place]), end


def long_text_value(row: bytes, limit: int) -> int | None:
    """The number of the first value of a text row that is longer than `limit`, as far as its bytes are there."""
    place, number = 0, 0
    while found := length_at(row, place):
        is_null = row[place] == _NULL
        length, place = found
        if not is_null and length > limit:
            return number
        place += 0 if is_null else length
        number += 1
    return None


def long_binary_value(row: bytes, limit: int, specs: Sequence[Spec]) -> int | None:
    """As `long_text_value`, of a binary row: a byte, a bit for each NULL, and the other values."""
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


_DATES = frozenset({FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE})
_DATETIMES = frozenset({FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP})
_MOST_DIGITS = 6


def binary_reader(field: Any, declared: DeclaredColumn) -> ColumnReader:
    """What reads the column's values out of binary rows."""
    code = field.type_code
    if code in _WIDTHS:
        return misfit_reader(declared, _read_numbers)
    digits = field.scale if 0 < field.scale <= _MOST_DIGITS else 0
    if code in _DATES:
        return misfit_reader(declared, partial(_read_moments, date, date_text))
    if code in _DATETIMES:
        return misfit_reader(declared, partial(_read_moments, datetime, partial(datetime_text, digits=digits)))
    if code == FIELD_TYPE.TIME:
        return misfit_reader(declared, partial(_read_as_texts, partial(time_text, digits=digits)))
    return column_reader(declared)


def _read_numbers(wanted: pa.DataType, values: Values) -> pa.Array:
    return pa.array(values, wanted)


_PARTS = {size: struct.Struct(form).unpack for size, form in ((4, "<HBB"), (7, "<HBBBBB"), (11, "<HBBBBBI"))}
"""Zeros at the end are not sent."""


def _read_moments(kind: type[date], text: Callable[[bytes], str], wanted: pa.DataType, values: Values) -> pa.Array:
    if wanted != pa.string():
        try:
            return pa.array([None if value is None else kind(*_PARTS[len(value)](value)) for value in values], wanted)
        except (KeyError, ValueError):  # out of the calendar
            pass
    return _read_as_texts(text, wanted, values)


def _read_as_texts(text: Callable[[bytes], str], wanted: pa.DataType, values: Values) -> pa.Array:
    return read_texts(wanted, [None if value is None else text(value) for value in values])


def date_text(value: bytes) -> str:
    """As the text protocol writes it; `value` has 0, 4, 7 or 11 bytes."""
    value = value.ljust(4, b"\0")
    return f"{int.from_bytes(value[:2], 'little'):04}-{value[2]:02}-{value[3]:02}"


def datetime_text(value: bytes, digits: int) -> str:
    value = value.ljust(11, b"\0")
    clock = f"{value[4]:02}:{value[5]:02}:{value[6]:02}"
    return f"{date_text(value)} {clock}{_fraction_text(value[7:11], digits)}"


_CLOCK = struct.Struct("<BIBBB").unpack_from


def time_text(value: bytes, digits: int) -> str:
    """`value`: whether it is negative, days, hours, minutes, seconds and microseconds: 0, 8 or 12 bytes."""
    negative, days, hours, minutes, seconds = _CLOCK(value.ljust(8, b"\0"))
    text = "%02d:%02d:%02d" % (days * 24 + hours, minutes, seconds)  # noqa: UP031 half the time of an f-string
    return f"{'-' if negative else ''}{text}{_fraction_text(value[8:], digits) if digits else ''}"


def _fraction_text(microseconds: bytes, digits: int) -> str:
    return f".{int.from_bytes(microseconds, 'little'):06}"[: digits + 1] if digits else ""
