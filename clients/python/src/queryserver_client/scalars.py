"""Converts scalar values of typed JSON to Python values without losing digits (Contract editor 6.3).

A value that no Python type can represent stays a string: a date after the year 9999, a timestamp with nonzero
nanoseconds, `infinity`, or a time zone that this machine does not know.
"""

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

Cell = Callable[[Any], Any]

_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d+))?\s*(.*)")
_OFFSET = re.compile(r"([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?")


def decoder_of_words(words: tuple[str, ...]) -> Cell | None:
    """Return the function that decodes values of an engine type, whose words are in lower case.

    None if the values need no decoding.
    """
    first = words[0]
    if first in {"time", "timestamp"} and "zone" in words and "without" not in words:
        return timestamp if first == "timestamp" else None
    return _BY_FIRST_WORD.get(first)


def decimal(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return Decimal(cell)
    except InvalidOperation:
        return cell


def double(cell: Any) -> Any:
    return _FLOATS.get(cell, cell) if isinstance(cell, str) else cell


def binary(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return base64.b64decode(cell, validate=True)
    except binascii.Error:
        return cell  # text in a binary column of sqlite, where each value has its own type


def date(cell: Any) -> Any:
    try:
        return dt.date.fromisoformat(cell) if len(cell) == 10 else cell
    except (TypeError, ValueError):
        return cell


def time(cell: Any) -> Any:
    found = _TIME.fullmatch(cell) if isinstance(cell, str) else None
    micros = _microseconds(found[4]) if found else None
    if found is None or micros is None:
        return cell
    try:
        return dt.time(int(found[1]), int(found[2]), int(found[3]), micros)
    except ValueError:
        return cell  # a duration of mysql, such as 100:00:00


def timestamp(cell: Any) -> Any:
    """Return a datetime; aware if the text has a time zone."""
    found = _TIMESTAMP.fullmatch(cell) if isinstance(cell, str) else None
    if found is None:
        return cell
    micros = _microseconds(found[7])
    zone = _zone(found[8]) if found[8] else None
    if micros is None or (found[8] and zone is None):
        return cell
    year, month, day, hour, minute, second = (int(found[place]) for place in range(1, 7))
    try:
        return dt.datetime(year, month, day, hour, minute, second, micros, zone)
    except ValueError:
        return cell  # such as mysql's 0000-00-00, or the time 24:00:00


def wide_integer(cell: Any) -> Any:
    try:
        return int(cell)
    except ValueError:
        return cell


def _microseconds(fraction: str | None) -> int | None:
    """Return fractional seconds as microseconds; None if further digits are not zero."""
    if not fraction:
        return 0
    if fraction[6:].strip("0"):
        return None
    return int(fraction[:6].ljust(6, "0"))


def _zone(text: str) -> dt.tzinfo | None:
    """Return the time zone for an offset or a name; None if this machine does not know it."""
    if text in {"UTC", "Z"}:
        return dt.timezone.utc
    if found := _OFFSET.fullmatch(text):
        hours, minutes, seconds = (int(found[place] or 0) for place in (2, 3, 4))
        offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        try:
            return dt.timezone(-offset if found[1] == "-" else offset) if offset else dt.timezone.utc
        except ValueError:
            return None
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        return None


_BY_FIRST_WORD: Mapping[str, Cell] = {
    **dict.fromkeys(("decimal", "dec", "numeric"), decimal),
    **dict.fromkeys(("hugeint", "uhugeint"), wide_integer),
    **dict.fromkeys(("float", "double", "real", "float4", "float8"), double),
    **dict.fromkeys(("binary", "varbinary", "blob", "bytea"), binary),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_s", "timestamp_ms", "timestamp_ns", "datetime"), timestamp),
    "date": date,
    "time": time,
}
