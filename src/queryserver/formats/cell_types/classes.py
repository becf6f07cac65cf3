"""The class of one cell, told from its text (Contract importer 12.1).

The patterns are plain enough for Python's `re` and for RE2 to read them alike, so that cells that are classified one
by one and whole columns of them cannot come out differently. Digits are 0-9 and nothing else; the calendar is in the
pattern of dates.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from queryserver.domain.importing import CellKind, QuotedText, TypedText

BLANKS = " \t\n\v\f\r"
"""Ignored around a cell: the white space of ASCII. A no-break space belongs to the text."""

MAX_INTEGER_DIGITS = 38
MAX_DOUBLE_DIGITS = 15
"""How many significant digits a decimal can hold, and how many a double keeps as they are."""

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY_OF_ANY_YEAR = (
    "(?:(?:0[13578]|1[02])SEP(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)SEP(?:0[1-9]|[12][0-9]|30)"
    "|02SEP(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DAY = f"(?:{_YEAR}SEP{_DAY_OF_ANY_YEAR}|{_LEAP_YEAR}SEP02SEP29)"
_DATE = f"(?:{_DAY.replace('SEP', '-')}|{_DAY.replace('SEP', '/')})"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])"
_SECONDS = r":[0-5][0-9](?:\.[0-9]{1,9})?"
_FRACTION = r"-?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)"

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "integer": "-?(?:0|[1-9][0-9]*)",
        "fraction": _FRACTION,
        "exponent": f"(?:{_FRACTION}|-?(?:0|[1-9][0-9]*))[eE][+-]?[0-9]{{1,3}}",
        "date": _DATE,
        "timestamp": f"{_DATE}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?:{_SECONDS})?{_OFFSET}?",
        "time": f"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?:{_SECONDS})?",
        "boolean": "[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]",
        "non_finite": "[+-]?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)",
        "missing": r"\\N",
        "null_word": "[nN][uU][lL][lL]",
    }
)
"""What the whole of a trimmed cell looks like, by form; no cell has two forms."""

_FORM = re.compile("|".join(f"(?P<{form}>{pattern})" for form, pattern in PATTERNS.items()))
# Most text is told apart by its first character alone.
_FIRST_CHARACTERS = frozenset("-+.0123456789tTfFnNiI\\")

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


class CellFacts(NamedTuple):
    """The class of a cell, and of numbers what the type of a column depends on.

    `integer_digits` and `fraction_digits` stand before and after the point, a lone 0 before it left out; numbers with
    an exponent have none. `is_wide`: an integer beyond 32 bits.
    """

    kind: CellKind
    integer_digits: int = 0
    fraction_digits: int = 0
    is_wide: bool = False
    has_exponent: bool = False


NULL = CellFacts(CellKind.NULL)
TEXT = CellFacts(CellKind.TEXT)

FACTS_OF_FORM: Mapping[str | None, CellFacts] = {
    None: TEXT,
    "exponent": CellFacts(CellKind.DOUBLE, has_exponent=True),
    "date": CellFacts(CellKind.DATE),
    "timestamp": CellFacts(CellKind.TIMESTAMP),
    "time": CellFacts(CellKind.TIME),
    "boolean": CellFacts(CellKind.BOOLEAN),
    "non_finite": CellFacts(CellKind.NON_FINITE),
    "missing": NULL,
    "null_word": NULL,
}
"""Of the forms that need no closer look; None is text."""
_NUMBERS = frozenset({CellKind.INTEGER, CellKind.DECIMAL, CellKind.DOUBLE})
_OF_KIND: Mapping[CellKind, CellFacts] = {kind: CellFacts(kind) for kind in CellKind}


def classify(cell: str) -> CellKind:
    """The class of a cell; a cell of a workbook has the one that the workbook gave it."""
    return cell.kind if isinstance(cell, TypedText) else facts_of(cell).kind


def facts_of(cell: str) -> CellFacts:
    """The class of a cell and what its number looks like."""
    text = cell.strip(BLANKS)
    if type(cell) is str:
        return facts_of_text(text)
    if isinstance(cell, TypedText):
        return _facts_of_typed(text, cell.kind)
    return facts_of_text(text, is_quoted=isinstance(cell, QuotedText))


def _facts_of_typed(text: str, kind: CellKind) -> CellFacts:
    if kind not in _NUMBERS:
        return _OF_KIND[kind]
    read = facts_of_text(text)
    return read._replace(kind=kind) if read.kind in _NUMBERS else CellFacts(kind)


def is_null_word(cell: str) -> bool:
    """Whether this is the word null, and was not quoted."""
    return type(cell) is str and cell.strip(BLANKS).lower() == "null"


def facts_of_text(text: str, *, is_quoted: bool = False) -> CellFacts:
    """As `facts_of`, of text without blanks around it. `is_quoted`: the word null is a text like any other."""
    if not text:
        return NULL
    form = form_of(text)
    if form == "integer":
        return _integer(text)
    if form == "fraction":
        return _fraction(text)
    return TEXT if is_quoted and form == "null_word" else FACTS_OF_FORM[form]


def form_of(text: str) -> str | None:
    """The key of the one pattern that all of the text matches; None if it is just text."""
    if text[:1] not in _FIRST_CHARACTERS:
        return None
    match = _FORM.fullmatch(text)
    return match.lastgroup if match else None


def _integer(text: str) -> CellFacts:
    digits = len(text) - text.startswith("-")
    if digits < len(_SHORT_INTEGERS):
        return _SHORT_INTEGERS[0 if text in {"0", "-0"} else digits]
    if digits > MAX_INTEGER_DIGITS:
        return TEXT
    value = int(text)
    kind = CellKind.INTEGER if value in _INT64 else CellKind.DECIMAL
    return CellFacts(kind, digits, is_wide=value not in _INT32)


_SHORT_INTEGERS = [CellFacts(CellKind.INTEGER, digits) for digits in range(10)]
"""Those of at most 9 digits fit 32 bits; 0 has none."""


def _fraction(text: str) -> CellFacts:
    """A double as far as it keeps all digits: those from the first that is not 0 on count."""
    whole, _, fraction = text.lstrip("-0").partition(".")
    significant = len(whole) + len(fraction) if whole else len(fraction.lstrip("0"))
    if significant > MAX_INTEGER_DIGITS:
        return TEXT
    kind = CellKind.DOUBLE if significant <= MAX_DOUBLE_DIGITS else CellKind.DECIMAL
    return CellFacts(kind, len(whole), len(fraction))
