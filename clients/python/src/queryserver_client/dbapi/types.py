"""Type objects and constructors of PEP 249.

`type_code` in `Cursor.description` is the name that the server has for a type of any engine, such as `INT_TYPE`
(Contract editor 6.3). A type object equals each of its names.
"""

import datetime as dt
from typing import Any


class TypeObject:
    """Equals the names of its types."""

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
"""No engine here has a type of its own for the ids of rows."""

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 - the names are those of PEP 249
    """The date, in the zone of this machine, of a number of seconds since 1970."""
    return dt.date.fromtimestamp(ticks)  # noqa: DTZ012 - PEP 249 says local time


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802
    """The time of day, in the zone of this machine, of a number of seconds since 1970."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802
    """The moment, in the zone of this machine, of a number of seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks)  # noqa: DTZ006 - PEP 249 says local time


Description = tuple[str, str, None, None, int | None, int | None, bool | None]


def described(name: str, code: str, native_type: str) -> Description:
    """One item of `Cursor.description`."""
    precision, scale = _digits(native_type) if code == "DECIMAL_TYPE" else (None, None)
    return name, code, None, None, precision, scale, None


def _digits(native_type: str) -> tuple[int | None, int | None]:
    """Of `decimal(10,2)`; unknown without brackets."""
    _, bracket, inside = native_type.rstrip(") ").partition("(")
    numbers: list[Any] = [part.strip() for part in inside.split(",")] if bracket else []
    if not numbers or not all(part.isdecimal() for part in numbers):
        return None, None
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
