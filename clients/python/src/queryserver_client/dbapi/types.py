"""PEP 249 type objects and constructors.

`type_code` in `Cursor.description` is the server's engine-independent type name, such as `INT_TYPE` (Contract editor
6.3). A type object is equal to each of its type names.
"""

import datetime as dt
from typing import Any


class TypeObject:
    """A group of types, which is equal to each of its type names."""

    def __init__(self, name: str, *codes: str) -> None:
        self._name = name
        self._codes = frozenset(codes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self._codes == other._codes
        return other in self._codes if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._codes)

    def __repr__(self) -> str:
        return self._name


STRING = TypeObject("STRING", "STRING_TYPE", "VARCHAR_TYPE", "CHAR_TYPE")
BINARY = TypeObject("BINARY", "BINARY_TYPE")
NUMBER = TypeObject(
    "NUMBER",
    "BOOLEAN_TYPE",
    "TINYINT_TYPE",
    "SMALLINT_TYPE",
    "INT_TYPE",
    "BIGINT_TYPE",
    "FLOAT_TYPE",
    "DOUBLE_TYPE",
    "DECIMAL_TYPE",
)
DATETIME = TypeObject("DATETIME", "DATE_TYPE", "TIMESTAMP_TYPE", "TIMESTAMPLOCALTZ_TYPE")
ROWID = TypeObject("ROWID")
"""None of the engines has a separate type for row ids."""

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 - the names are those of PEP 249
    """Return the local date for a Unix time in seconds."""
    return dt.date.fromtimestamp(ticks)  # noqa: DTZ012 - PEP 249 says local time


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802
    """Return the local time of day for a Unix time in seconds."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802
    """Return the local timestamp for a Unix time in seconds."""
    return dt.datetime.fromtimestamp(ticks)  # noqa: DTZ006 - PEP 249 says local time


Description = tuple[str, str, None, None, int | None, int | None, bool | None]


def described(name: str, code: str, native_type: str) -> Description:
    """Return one item of `Cursor.description`."""
    precision, scale = _digits(native_type) if code == "DECIMAL_TYPE" else (None, None)
    return name, code, None, None, precision, scale, None


def _digits(native_type: str) -> tuple[int | None, int | None]:
    """Return precision and scale of a type such as `decimal(10,2)`; None if they are not given."""
    _, bracket, inside = native_type.rstrip(") ").partition("(")
    numbers: list[Any] = [part.strip() for part in inside.split(",")] if bracket else []
    if not numbers or not all(part.isdecimal() for part in numbers):
        return None, None
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
