"""SQLAlchemy types for the values of this DB-API, and the conversion of engine type names to SQLAlchemy types."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from sqlalchemy import types as sqltypes

Process = Callable[[Any], Any]


class Numeric(sqltypes.Numeric[Any]):
    """Converts values to Decimal or float, as `asdecimal` requires; the DB-API may return either."""

    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Process:
        return _to_decimal if self.asdecimal else _to_float


class Float(sqltypes.Float[Any]):
    """Like Numeric, but rounds a float that becomes a Decimal to `decimal_return_scale` places."""

    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Process:
        if not self.asdecimal:
            return _to_float
        form = f"%.{self._effective_decimal_return_scale}f"
        return lambda value: value if value is None or isinstance(value, Decimal) else Decimal(form % value)


class Uuid(sqltypes.Uuid[Any]):
    """Sends and receives UUIDs as strings. If `native_uuid` is False, the engine stores their 32 digits."""

    @property
    def render_bind_cast(self) -> bool:
        """Whether to render a cast in dialects with casts.

        If the engine stores the digits, a cast to CHAR would keep only the first digit.
        """
        return self.native_uuid

    def bind_processor(self, dialect: Any) -> Process | None:
        if not self.native_uuid:
            return super().bind_processor(dialect)
        return lambda value: None if value is None else str(UUID(str(value)))

    def result_processor(self, dialect: Any, coltype: Any) -> Process | None:
        if not self.native_uuid:
            return super().result_processor(dialect, coltype)
        if not self.as_uuid:
            return lambda value: None if value is None else str(UUID(str(value)))
        return lambda value: value if value is None or isinstance(value, UUID) else UUID(str(value))


class Interval(sqltypes.Interval):
    """A timedelta, sent and received as text in the interval format of PostgreSQL and DuckDB."""

    def bind_processor(self, dialect: Any) -> Process:
        return interval_text

    def result_processor(self, dialect: Any, coltype: Any) -> Process:
        return interval_value


def _to_decimal(value: Any) -> Any:
    if value is None or isinstance(value, Decimal):
        return value
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return value


def _to_float(value: Any) -> Any:
    return value if value is None else float(value)


def interval_text(value: dt.timedelta | str | None) -> str | None:
    """Return a timedelta as an interval literal of PostgreSQL and DuckDB. Other values are returned unchanged."""
    if not isinstance(value, dt.timedelta):
        return value
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


_INTERVAL = re.compile(
    r"(?:(-?\d+) years? ?)?(?:(-?\d+) mon(?:th)?s? ?)?(?:(-?\d+) days? ?)?"
    r"(?:([+-])?(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
)


def interval_value(value: Any) -> Any:
    """Return the timedelta for text such as `1 day 02:03:04`.

    Text with years or months is returned unchanged, because a timedelta cannot represent these.
    """
    found = _INTERVAL.fullmatch(value.strip()) if isinstance(value, str) and value.strip() else None
    if found is None or found[1] or found[2]:
        return value
    sign = -1 if found[4] == "-" else 1
    clock = dt.timedelta(
        hours=int(found[5] or 0),
        minutes=int(found[6] or 0),
        seconds=int(found[7] or 0),
        microseconds=int((found[8] or "0").ljust(6, "0")),
    )
    return dt.timedelta(days=int(found[3] or 0)) + sign * clock


def type_of(text: str) -> sqltypes.TypeEngine[Any]:
    """Return the SQLAlchemy type for a type name such as `decimal(10,2)`, `array<int>` or `INTEGER[]`.

    Returns NullType for unknown types.
    """
    text = text.strip()
    if text.endswith("]") and "[" in text:
        return sqltypes.ARRAY(_element(text[: text.rindex("[")]))
    word, arguments = _split(text)
    if word in {"ARRAY", "LIST"} and arguments:
        return sqltypes.ARRAY(_element(arguments[0]))
    if word in {"DECIMAL", "NUMERIC"}:
        numbers = [int(one) for one in arguments[:2] if one.strip().isdecimal()]
        precision, scale = [*numbers, None, None][:2]
        return sqltypes.NUMERIC(precision, scale)
    if word in _TEXTS:
        length = int(arguments[0]) if arguments and arguments[0].strip().isdecimal() else None
        return _TEXTS[word](length)
    if word in {"TIMESTAMP", "DATETIME", "TIME"} and "TIME ZONE" in text.upper() and "WITHOUT" not in text.upper():
        return sqltypes.TIME(timezone=True) if word == "TIME" else sqltypes.TIMESTAMP(timezone=True)
    if word in {"TIMESTAMPTZ", "TIMETZ"}:
        return sqltypes.TIMESTAMP(timezone=True) if word == "TIMESTAMPTZ" else sqltypes.TIME(timezone=True)
    return _PLAIN.get(word, sqltypes.NullType)()


def _element(text: str) -> sqltypes.TypeEngine[Any]:
    """Return the element type of an array; for nested arrays, that of the innermost array, as SQLAlchemy expects."""
    kind = type_of(text)
    return kind.item_type if isinstance(kind, sqltypes.ARRAY) else kind


def _split(text: str) -> tuple[str, Sequence[str]]:
    """Split `name(a, b)` or `name<a, b>` into the name in upper case and the comma-separated arguments."""
    found = re.match(r"[A-Za-z_][A-Za-z_0-9]*(?: precision)?", text, re.IGNORECASE)
    if found is None:
        return "", ()
    rest = text[found.end() :].strip()
    closing = {"(": ")", "<": ">"}.get(rest[:1])
    if closing is None or closing not in rest:
        return found[0].upper(), ()
    return found[0].upper(), tuple(_parts(rest[1 : rest.rindex(closing)]))


def _parts(inside: str) -> Iterator[str]:
    depth = start = 0
    for place, letter in enumerate(inside):
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            yield inside[start:place].strip()
            start = place + 1
    yield inside[start:].strip()


_TEXTS: Mapping[str, type[sqltypes.String]] = {
    "CHAR": sqltypes.CHAR,
    "BPCHAR": sqltypes.CHAR,
    "VARCHAR": sqltypes.VARCHAR,
    "STRING": sqltypes.VARCHAR,
    "TEXT": sqltypes.TEXT,
    "CLOB": sqltypes.CLOB,
}
_PLAIN: Mapping[str, type[sqltypes.TypeEngine[Any]]] = {
    "BOOLEAN": sqltypes.BOOLEAN,
    "BOOL": sqltypes.BOOLEAN,
    "TINYINT": sqltypes.SMALLINT,
    "UTINYINT": sqltypes.SMALLINT,
    "SMALLINT": sqltypes.SMALLINT,
    "USMALLINT": sqltypes.INTEGER,
    "INT": sqltypes.INTEGER,
    "INTEGER": sqltypes.INTEGER,
    "UINTEGER": sqltypes.BIGINT,
    "BIGINT": sqltypes.BIGINT,
    "UBIGINT": sqltypes.BIGINT,
    "HUGEINT": sqltypes.NUMERIC,
    "UHUGEINT": sqltypes.NUMERIC,
    "UNSIGNED_TINYINT": sqltypes.SMALLINT,
    "UNSIGNED_SMALLINT": sqltypes.SMALLINT,
    "UNSIGNED_INT": sqltypes.INTEGER,
    "UNSIGNED_LONG": sqltypes.BIGINT,
    "FLOAT": sqltypes.FLOAT,
    "REAL": sqltypes.REAL,
    "UNSIGNED_FLOAT": sqltypes.FLOAT,
    "DOUBLE": sqltypes.DOUBLE,
    "DOUBLE PRECISION": sqltypes.DOUBLE,
    "UNSIGNED_DOUBLE": sqltypes.DOUBLE,
    "DATE": sqltypes.DATE,
    "TIME": sqltypes.TIME,
    "TIMESTAMP": sqltypes.TIMESTAMP,
    "TIMESTAMP_S": sqltypes.TIMESTAMP,
    "TIMESTAMP_MS": sqltypes.TIMESTAMP,
    "TIMESTAMP_NS": sqltypes.TIMESTAMP,
    "DATETIME": sqltypes.TIMESTAMP,
    "BLOB": sqltypes.BLOB,
    "BINARY": sqltypes.BINARY,
    "VARBINARY": sqltypes.VARBINARY,
    "BYTEA": sqltypes.BLOB,
    "UUID": sqltypes.UUID,
    "JSON": sqltypes.JSON,
    "INTERVAL": sqltypes.Interval,
}
