"""Dates, times and durations of workbooks: numbers of days, in either of two calendars (ECMA-376 part 1, 18.17.4)."""

import re
from datetime import date, datetime, time, timedelta
from enum import Enum, auto

from queryserver.domain.importing import CellKind, TypedText

_DAY_MS = 86_400_000
_EPOCH_1900 = datetime(1899, 12, 30)  # noqa: DTZ001 cells have no zone
_EPOCH_1904 = datetime(1904, 1, 1)  # noqa: DTZ001 as above
_LEAP_DAY_1900 = 60
"""29 February 1900, which the first spreadsheets believed in. Serials before it lie one day later than they say."""

_LAST_SERIAL_1900, _LAST_SERIAL_1904 = 2_958_466, 2_957_004
"""The first days that are not before 10000-01-01."""

_ISO_DURATION = re.compile(r"P(?:(\d{1,9})D)?T?(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?", re.ASCII)


class Temporal(Enum):
    """What the format of a number shows."""

    DATE = auto()
    TIME = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    MOMENT = auto()
    """A date or a time or both: the format does not tell."""


def temporal_cell(serial: float, temporal: Temporal, *, is_1904: bool) -> TypedText | None:
    """The cell; None for numbers outside the calendar, which stay numbers.

    Rounded to milliseconds, as spreadsheets show them: a double cannot tell 10:30:01 better than to a microsecond.
    """
    if temporal is Temporal.DURATION:
        return duration_cell(serial) if abs(serial) < _LAST_SERIAL_1900 else None
    if not 0 <= serial < (_LAST_SERIAL_1904 if is_1904 else _LAST_SERIAL_1900):
        return None
    total_ms = round(serial * _DAY_MS)
    if serial < 1 and not (is_1904 and temporal in (Temporal.DATE, Temporal.TIMESTAMP)):
        return TypedText(_clock(min(total_ms, _DAY_MS - 1)), CellKind.TIME)
    if temporal is Temporal.TIMESTAMP or temporal is Temporal.TIME or total_ms % _DAY_MS:
        return timestamp_cell(_moment(total_ms, is_1904=is_1904))
    return TypedText(_moment(total_ms, is_1904=is_1904).date().isoformat(), CellKind.DATE)


def iso_cell(text: str) -> TypedText | None:
    """A cell that holds its date or time as text (`t="d"`, ISO 8601); None for what is none."""
    try:
        if "T" in text and not text.startswith("P"):
            return timestamp_cell(datetime.fromisoformat(text).replace(tzinfo=None))
        if "-" in text:
            return TypedText(date.fromisoformat(text).isoformat(), CellKind.DATE)
        if ":" in text:
            return time_cell(time.fromisoformat(text))
    except ValueError:
        return None
    parts = _ISO_DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return duration_cell(days + hours / 24 + minutes / 1440 + seconds / 86400)


def timestamp_cell(moment: datetime) -> TypedText:
    """`2024-01-15 10:30:00`, with a fraction of six digits if there is one."""
    return TypedText(moment.isoformat(sep=" "), CellKind.TIMESTAMP)


def time_cell(clock: time) -> TypedText:
    """`08:05:00`, with a fraction of six digits if there is one."""
    return TypedText(clock.replace(tzinfo=None).isoformat(), CellKind.TIME)


def duration_cell(days: float) -> TypedText:
    """`30:00:00`: hours may exceed 24."""
    total_ms = round(days * _DAY_MS)
    sign = "-" if total_ms < 0 else ""
    return TypedText(sign + _clock(abs(total_ms)), CellKind.DURATION)


def _moment(total_ms: int, *, is_1904: bool) -> datetime:
    if is_1904:
        return _EPOCH_1904 + timedelta(milliseconds=total_ms)
    early = timedelta(days=1) if total_ms < _LEAP_DAY_1900 * _DAY_MS else timedelta()
    return _EPOCH_1900 + early + timedelta(milliseconds=total_ms)


def _clock(total_ms: int) -> str:
    seconds, ms = divmod(total_ms, 1000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    fraction = f".{ms:03}000" if ms else ""
    return f"{hours:02}:{minute:02}:{second:02}{fraction}"
