"""Cells of workbooks as text with a class, and the dates that numbers are (Contract importer 12.2).

Dates, times and durations are numbers of days, in either of two calendars (ECMA-376 part 1, 18.17.4); the format of a
number says which of them it shows (18.8.30 and 18.8.31).
"""

import re
from datetime import date, datetime, time, timedelta
from enum import Enum, auto
from math import isfinite

from queryserver.domain.errors.files import FileTooComplex
from queryserver.domain.importing import MAX_FIELD_CHARACTERS, CellKind, TypedText

EMPTY = TypedText("", CellKind.NULL)
_TRUE, _FALSE = TypedText("true", CellKind.BOOLEAN), TypedText("false", CellKind.BOOLEAN)
_EXACT = 2**53

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


_BUILT_IN = (
    dict.fromkeys((14, 15, 16, 17), Temporal.DATE)
    | dict.fromkeys((18, 19, 20, 21, 45, 47), Temporal.TIME)
    | {22: Temporal.TIMESTAMP, 46: Temporal.DURATION}
    # What these show depends on the language of the program: mostly dates, some are times.
    | dict.fromkeys((*range(27, 37), *range(50, 59)), Temporal.MOMENT)
)

_NOT_SHOWN_AS_WRITTEN = re.compile(
    r"""
      "[^"]*"?                  # text
    | [\\_*].                   # one character as text, as a blank of its width, or repeated
    | \[(?!(?:h+|m+|s+)\])[^\]]*\]?    # colours, conditions, languages; but not elapsed hours, minutes, seconds
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_ELAPSED = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_HALF_DAY = re.compile(r"am/pm|a/p", re.IGNORECASE)
_FRACTION = re.compile(r"(?<=s)[.,]0+", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"e[+-]", re.IGNORECASE)
_GENERAL = re.compile(r"general|standard", re.IGNORECASE)
_MINUTES = re.compile(r"h[^a-z]*m{1,2}(?!m)|(?<!m)m{1,2}[^a-z]*s", re.IGNORECASE)

_MAX_CODE_CHARACTERS = 1000
"""Spreadsheets allow 255."""


def serial_cell(serial: float, temporal: Temporal, *, is_1904: bool) -> TypedText:
    """A number that is shown as a date, time or duration, if it is one."""
    return temporal_cell(serial, temporal, is_1904=is_1904) or number_cell(serial)


def number_cell(number: float) -> TypedText:
    """Whole numbers up to 2^53 are integers, all else is a double in its shortest form."""
    if -_EXACT <= number <= _EXACT and number == int(number):
        return TypedText(str(int(number)), CellKind.INTEGER)
    return TypedText(repr(number), CellKind.DOUBLE) if isfinite(number) else EMPTY


def boolean_cell(*, is_true: bool) -> TypedText:
    """`true` or `false`."""
    return _TRUE if is_true else _FALSE


def text_cell(text: str) -> TypedText:
    """Text as it is. Raises FileTooComplex above the limit of all cells (Contract importer 8.5)."""
    if len(text) > MAX_FIELD_CHARACTERS:
        raise FileTooComplex("A cell of the workbook has more than 1,048,576 characters.")
    return TypedText(text, CellKind.TEXT) if text else EMPTY


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


def temporal_of_format(number: int, code: str | None) -> Temporal | None:
    """What a format shows, by its number or, where the workbook defines it, by its code. None: a mere number."""
    return temporal_of_code(code) if code is not None else _BUILT_IN.get(number)


def temporal_of_code(code: str) -> Temporal | None:
    """What a format such as `[$-409]d. mmm yyyy;@` shows. Its first section counts."""
    plain = _NOT_SHOWN_AS_WRITTEN.sub("", code[:_MAX_CODE_CHARACTERS]).split(";")[0]
    if _ELAPSED.search(plain):
        return Temporal.DURATION
    plain, halves = _HALF_DAY.subn("h", plain)
    plain = _SCIENTIFIC.sub("0", _GENERAL.sub("", _FRACTION.sub("", plain))).lower()
    if any(place in plain for place in "0#?@"):
        return None
    without_minutes = _MINUTES.sub("h", plain)
    has_time = bool(halves) or any(letter in without_minutes for letter in "hs")
    # e, g and b are years of Japanese and Buddhist calendars.
    has_date = any(letter in without_minutes for letter in "ymdegb")
    if has_time and has_date:
        return Temporal.TIMESTAMP
    if has_date:
        return Temporal.DATE if any(letter in without_minutes for letter in "ymde") else None
    return Temporal.TIME if has_time else None
