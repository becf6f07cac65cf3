"""Which formats of numbers show dates, times and durations (ECMA-376 part 1, 18.8.30 and 18.8.31)."""

import re

from queryserver.formats.workbooks.serials import Temporal

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
