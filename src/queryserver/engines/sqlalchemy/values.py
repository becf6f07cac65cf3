"""Determines column types from DBAPI's `cursor.description`.

The type code in the description may be a name, a class, a number, or missing. If the driver does not report a type, the
type is inferred from the values in the first rows (Contract editor 6.3).
"""

import datetime as dt
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from queryserver.engines.record_batches import ColumnReader, DeclaredColumn, Values
from queryserver.formats.arrow import PLAIN_TYPES, Column, ResultType

_PARAMETERS = re.compile(r"[(<].*", re.DOTALL)
_DECIMAL128_DIGITS = 38

_BY_NAME = {
    ResultType.BOOLEAN: "bool boolean",
    ResultType.TINYINT: "tinyint int8",
    ResultType.SMALLINT: "smallint int2 int16 year",
    ResultType.INT: "int integer int4 int32 mediumint",
    ResultType.BIGINT: "bigint int64 long",
    ResultType.FLOAT: "float float4 float32 real",
    ResultType.DOUBLE: "double float8 float64 double_precision",
    ResultType.DECIMAL: "decimal numeric number",
    ResultType.CHAR: "char character bpchar",
    ResultType.VARCHAR: "varchar character_varying nvarchar varchar2",
    ResultType.STRING: "string text clob json enum set time uuid",
    ResultType.DATE: "date",
    ResultType.TIMESTAMP: "timestamp datetime timestamp_ntz",
    ResultType.TIMESTAMP_TZ: "timestamptz timestamp_tz timestamp_ltz timestamp_with_time_zone",
    ResultType.BINARY: "binary varbinary blob bytea bytes raw",
    ResultType.ARRAY: "array",
    ResultType.MAP: "map",
    ResultType.STRUCT: "struct row tuple",
}
_TYPES = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}
_ARROW = {**PLAIN_TYPES, ResultType.TIMESTAMP_TZ: pa.timestamp("us", "UTC")}
# Type codes of the MySQL protocol, reported by the drivers of all engines that use this protocol.
_MYSQL = {
    0: "decimal", 1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint",
    9: "mediumint", 10: "date", 11: "time", 12: "datetime", 13: "year", 245: "json", 246: "decimal", 247: "enum",
    248: "set",
}  # fmt: skip
_PLAIN_VALUES = frozenset({
    ResultType.BOOLEAN, ResultType.BIGINT, ResultType.DOUBLE, ResultType.DECIMAL, ResultType.BINARY,
})  # fmt: skip
_BY_VALUE: tuple[tuple[tuple[type, ...], ResultType], ...] = (
    ((bool,), ResultType.BOOLEAN),
    ((int,), ResultType.BIGINT),
    ((float,), ResultType.DOUBLE),
    ((Decimal,), ResultType.DECIMAL),
    ((str,), ResultType.STRING),
    ((bytes, bytearray, memoryview), ResultType.BINARY),
    ((dt.datetime,), ResultType.TIMESTAMP),
    ((dt.date,), ResultType.DATE),
    ((list, tuple, set), ResultType.ARRAY),
    ((dict,), ResultType.MAP),
)


def declare(description: Sequence[Any], values: Sequence[Any], *, speaks_mysql: bool) -> DeclaredColumn:
    """Return the declared column for an entry of `cursor.description`.

    `values` are the column's values in the first rows.
    """
    code = description[1] if len(description) > 1 else None
    native = _native_name(code, speaks_mysql=speaks_mysql)
    by_value = _type_of_first(values)
    result = _TYPES.get(_plain(native)) or (
        # An unlisted name gets the type of the values if that type is simple.
        by_value if native == "" or by_value in _PLAIN_VALUES else ResultType.USER_DEFINED
    )
    if result is ResultType.BOOLEAN and by_value is not ResultType.BOOLEAN and any(one is not None for one in values):
        result = by_value
    return DeclaredColumn(Column(str(description[0]), result, native), _arrow(result, description))


def _native_name(code: object, *, speaks_mysql: bool) -> str:
    """Return the engine's type name; empty if the driver does not report it."""
    if isinstance(code, int):
        return _MYSQL.get(code, "") if speaks_mysql else ""
    if isinstance(code, type):
        return ""
    name = code if isinstance(code, str) else getattr(code, "name", "")
    return name.removesuffix("_TYPE").lower() if isinstance(name, str) else ""


def _plain(native: str) -> str:
    """Return the type name without length, precision and element types.

    The suffix of `timestamp(3) with time zone` is kept.
    """
    if "with" in native and "time zone" in native:
        return "timestamp_with_time_zone"
    return _PARAMETERS.sub("", native.removeprefix("nullable(")).strip().replace(" ", "_")


def _type_of_first(values: Iterable[Any]) -> ResultType:
    first = next((value for value in values if value is not None), None)
    if isinstance(first, dt.datetime) and first.tzinfo is not None:
        return ResultType.TIMESTAMP_TZ
    return next((kind for classes, kind in _BY_VALUE if isinstance(first, classes)), ResultType.STRING)


def _arrow(result: ResultType, description: Sequence[Any]) -> pa.DataType:
    if result is ResultType.DECIMAL:
        precision, scale = (*description, None, None, None, None)[4:6]
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= _DECIMAL128_DIGITS:
            return pa.decimal128(precision, scale) if precision else pa.string()
    return _ARROW.get(result, pa.string())


_CONVERSION_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)


def column_reader(declared: DeclaredColumn) -> ColumnReader:
    text = (
        f"column {declared.column.name} contains a value of a different type than earlier rows: cast the column to text"
    )
    return ColumnReader(declared.arrow, _read, text, misfits=_CONVERSION_ERRORS)


def _read(wanted: pa.DataType, values: Values) -> pa.Array:
    if wanted == pa.string():
        return pa.array([None if value is None else _text(value) for value in values], wanted)
    if wanted == pa.binary():
        return pa.array([None if value is None else bytes(memoryview(value)) for value in values], wanted)
    return pa.array(values, wanted)


def _text(value: object) -> str:
    """Format a value as text (Contract editor 6.3)."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="replace")
    if isinstance(value, (list, tuple, dict, set)):
        plain: object = list(value) if isinstance(value, set) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return json.dumps(plain, default=_text, ensure_ascii=False)
    if isinstance(value, dt.timedelta):
        return _time(value)
    return str(value)


def _time(value: dt.timedelta) -> str:
    """Format a time of day, or a duration such as `-838:59:59`. Microseconds are omitted if they are zero."""
    whole, micros = divmod(abs(value), dt.timedelta(seconds=1))
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if value < dt.timedelta(0) else ""
    fraction = f".{micros.microseconds:06d}" if micros else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
