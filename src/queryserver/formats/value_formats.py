"""How cells write dates and numbers that are not in the plain forms (Contract importer 12.5).

Formats of dates and timestamps are those of strftime, with `%Y %y %m %d %b %B %H %I %M %S %f %p` and any other
characters between them. Formats of numbers are the number 1234.5 as the file writes it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_FORMAT_CHARACTERS = 64

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip


class UnknownFormat(ValueError):
    """A text that is no format of values; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class DateFormat:
    """A format of dates, or with `has_time` of timestamps.

    `pattern` matches a whole cell for Python's `re` and for RE2. Its groups are named by the directives.
    """

    text: str
    pattern: str
    directives: frozenset[str]

    @property
    def has_time(self) -> bool:
        """Whether the cells are timestamps."""
        return bool(self.directives & {"H", "I"})


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format of numbers. `groups`: the characters that may separate groups of three digits; empty without groups."""

    text: str
    point: str
    groups: str = ""

    @property
    def pattern(self) -> str:
        """Matches a whole cell for Python's `re` and for RE2."""
        point = re.escape(self.point)
        plain = "(?:0|[1-9][0-9]*)"
        whole = plain
        if self.groups:
            # A number uses one character only: RE2 knows no references back, so there is a branch for each.
            grouped = "|".join(f"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+" for mark in self.groups)
            whole = f"(?:{grouped}|{plain})"
        return f"-?(?:{whole}(?:{point}[0-9]+)?|{point}[0-9]+)"


_SPACES = " \u00a0\u202f"

NUMBER_FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {
        one.text: one
        for one in (
            NumberFormat("1234.5", "."),
            NumberFormat("1234,5", ","),
            NumberFormat("1,234.5", ".", ","),
            NumberFormat("1.234,5", ",", "."),
            NumberFormat("1 234.5", ".", _SPACES),
            NumberFormat("1 234,5", ",", _SPACES),
            NumberFormat("1'234.5", ".", "'\u2019"),
        )
    }
)

_DIRECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "Y": "[0-9]{4}",
        "y": "[0-9]{2}",
        "m": "0?[1-9]|1[0-2]",
        "d": "0?[1-9]|[12][0-9]|3[01]",
        "b": "(?i:" + "|".join(month[:3] for month in MONTHS) + ")",
        "B": "(?i:" + "|".join(MONTHS) + ")",
        "H": "[01]?[0-9]|2[0-3]",
        "I": "0?[1-9]|1[0-2]",
        "M": "[0-5][0-9]",
        "S": "[0-5][0-9]",
        "f": "[0-9]{1,9}",
        "p": "(?i:am|pm)",
    }
)
_OF_DIGITS = re.compile("%[YymdHIMSf]")
# Directives of which a format has at most one.
_ALTERNATIVES = ("Yy", "mbB", "HI")


def date_format(text: str) -> DateFormat:
    """Raises UnknownFormat."""
    if len(text) > MAX_FORMAT_CHARACTERS:
        raise UnknownFormat(f"a format has at most {MAX_FORMAT_CHARACTERS} characters")
    pattern, seen, place = "", list[str](), 0
    while place < len(text):
        if text[place] != "%":
            pattern += re.escape(text[place])
            place += 1
            continue
        directive = text[place + 1 : place + 2]
        if directive not in _DIRECTIVES:
            known = " ".join(f"%{one}" for one in _DIRECTIVES)
            raise UnknownFormat(f'"%{directive}" is no directive; there are {known}')
        beside = (text[max(place - 2, 0) : place], text[place + 2 : place + 4])
        one = _DIRECTIVES[directive]
        # `1112024` has no meaning without marks: both digits of a part are needed there.
        one = one.replace("?[", "[") if any(map(_OF_DIGITS.fullmatch, beside)) else one
        pattern += f"(?P<{directive}>{one})"
        seen.append(directive)
        place += 2
    _check(seen)
    return DateFormat(text, pattern, frozenset(seen))


def _check(seen: list[str]) -> None:
    directives = set(seen)
    if len(directives) < len(seen) or any(len(directives & set(some)) > 1 for some in _ALTERNATIVES):
        raise UnknownFormat("a part of the date is there twice")
    if not (directives & set("Yy") and directives & set("mbB") and "d" in directives):
        raise UnknownFormat("a format needs a year, a month and a day")
    if ("I" in directives) != ("p" in directives):
        raise UnknownFormat("%I and %p go together")
    needs = {"M": "HI", "S": "M", "f": "S"}
    if any(one in directives and not directives & set(before) for one, before in needs.items()):
        raise UnknownFormat("a time begins with its hours, then minutes, seconds and their fraction")


def value_format(text: str) -> DateFormat | NumberFormat:
    """A format of either kind. Raises UnknownFormat."""
    if text in NUMBER_FORMATS:
        return NUMBER_FORMATS[text]
    if "%" not in text:
        shown = ", ".join(f'"{one}"' for one in NUMBER_FORMATS)
        raise UnknownFormat(f"neither a format of dates such as %d/%m/%Y nor one of the numbers {shown}")
    return date_format(text)
