"""Determines the class of a cell from its text (Contract importer 12.1), and the type of a column (12.4).

The patterns mean the same in Python's `re` and in RE2, so classifying single cells and whole columns gives the same
result. Only the ASCII characters 0-9 are digits. The date pattern includes the calendar rules.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from queryserver.formats.arrow import NULL as NULL_TYPE
from queryserver.formats.arrow import STRING, BaseType, ColumnType, kernels
from queryserver.formats.table_files import BLANKS, CellKind, QuotedText, TypedText

MAX_INTEGER_DIGITS = 38
MAX_DOUBLE_DIGITS = 15
"""Maximum number of significant digits that a decimal and a double, respectively, represent exactly."""

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
"""Patterns for entire trimmed cells, by form. The patterns are mutually exclusive."""

_FORM = re.compile("|".join(f"(?P<{form}>{pattern})" for form, pattern in PATTERNS.items()))
# The first character is enough to recognize most text cells.
_FIRST_CHARACTERS = frozenset("-+.0123456789tTfFnNiI\\")

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


class CellFacts(NamedTuple):
    """The class of a cell and, for a number, the properties that determine the type of its column.

    `integer_digits` and `fraction_digits` are the digits before and after the decimal point, not counting a single 0
    before it; both are 0 for numbers with an exponent. `is_wide` marks integers that exceed 32 bits.
    """

    kind: CellKind
    integer_digits: int = 0
    fraction_digits: int = 0
    is_wide: bool = False
    has_exponent: bool = False


NULL = CellFacts(CellKind.NULL)
TEXT = CellFacts(CellKind.TEXT)

FORM_FACTS: Mapping[str | None, CellFacts] = {
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
"""Facts for forms that need no further inspection; the key None stands for text."""
_NUMBERS = frozenset({CellKind.INTEGER, CellKind.DECIMAL, CellKind.DOUBLE})


def classify(cell: str) -> CellKind:
    """Return the class of a cell. For a workbook cell, the workbook determines it."""
    return cell.kind if isinstance(cell, TypedText) else cell_facts(cell).kind


def cell_facts(cell: str) -> CellFacts:
    text = cell.strip(BLANKS)
    if type(cell) is str:
        return text_facts(text)
    if isinstance(cell, TypedText):
        if cell.kind not in _NUMBERS:
            return CellFacts(cell.kind)
        read = text_facts(text)
        return read._replace(kind=cell.kind) if read.kind in _NUMBERS else CellFacts(cell.kind)
    return text_facts(text, is_quoted=isinstance(cell, QuotedText))


def is_null_word(cell: str) -> bool:
    """Return whether the cell is the unquoted word null, in any letter case."""
    return type(cell) is str and cell.strip(BLANKS).lower() == "null"


def text_facts(text: str, *, is_quoted: bool = False) -> CellFacts:
    """Return the facts of trimmed text. If `is_quoted` is set, the word null is text."""
    if not text:
        return NULL
    form = match_form(text)
    if form == "integer":
        return _integer(text)
    if form == "fraction":
        return _fraction(text)
    return TEXT if is_quoted and form == "null_word" else FORM_FACTS[form]


def match_form(text: str) -> str | None:
    """Return the form whose pattern matches the entire text, or None if there is none."""
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
"""Facts of integers by their number of digits, which is 0 for the value 0. Up to 9 digits fit into 32 bits."""


def _fraction(text: str) -> CellFacts:
    """Classify a fraction as double if a double can represent all significant digits, otherwise as decimal or text."""
    whole, _, fraction = text.lstrip("-0").partition(".")
    significant = len(whole) + len(fraction) if whole else len(fraction.lstrip("0"))
    if significant > MAX_INTEGER_DIGITS:
        return TEXT
    kind = CellKind.DOUBLE if significant <= MAX_DOUBLE_DIGITS else CellKind.DECIMAL
    return CellFacts(kind, len(whole), len(fraction))


_NUMERIC = _NUMBERS | {CellKind.NON_FINITE}
_TYPES_OF_KINDS = {
    frozenset({CellKind.BOOLEAN}): ColumnType(BaseType.BOOLEAN),
    frozenset({CellKind.DATE}): ColumnType(BaseType.DATE),
    frozenset({CellKind.TIMESTAMP}): ColumnType(BaseType.DATETIME),
    frozenset({CellKind.TIMESTAMP, CellKind.DATE}): ColumnType(BaseType.DATETIME),
    frozenset({CellKind.TIME}): ColumnType(BaseType.TIME),
    frozenset({CellKind.DURATION}): ColumnType(BaseType.DURATION),
}


@dataclass(slots=True)
class ColumnFacts:
    """The combined facts of a column's cells. NULL cells are ignored.

    `integer_digits` and `fraction_digits` are maxima over all numbers without an exponent. `longest_integer` is the
    maximum number of digits of integers with up to 64 bits. After a text cell, other facts are no longer updated.
    """

    kinds: set[CellKind] = field(default_factory=set[CellKind])
    integer_digits: int = 0
    fraction_digits: int = 0
    longest_integer: int = 0
    is_wide: bool = False
    has_exponent: bool = False

    @property
    def is_text(self) -> bool:
        """Whether a text cell was found, which makes the whole column text."""
        return CellKind.TEXT in self.kinds

    def add(self, cell: str) -> None:
        self.add_facts(cell_facts(cell))

    def add_all(self, cells: Iterable[str]) -> None:
        """Add cells, but stop after the first text cell."""
        for cell in cells:
            self.add_facts(cell_facts(cell))
            if self.is_text:
                return

    def add_facts(self, cell: CellFacts) -> None:
        if cell.kind is CellKind.NULL:
            return
        self.kinds.add(cell.kind)
        if cell.kind in _NUMBERS:
            self.integer_digits = max(self.integer_digits, cell.integer_digits)
            self.fraction_digits = max(self.fraction_digits, cell.fraction_digits)
            self.is_wide = self.is_wide or cell.is_wide
            self.has_exponent = self.has_exponent or cell.has_exponent
            if cell.kind is CellKind.INTEGER:
                self.longest_integer = max(self.longest_integer, cell.integer_digits)


def column_type(facts: ColumnFacts, *, is_whole: bool) -> ColumnType:
    """Return the type of a column. `is_whole` states that `facts` covers all its cells."""
    if not facts.kinds:
        return NULL_TYPE
    if not facts.kinds <= _NUMERIC:
        return _TYPES_OF_KINDS.get(frozenset(facts.kinds), STRING)
    if not facts.kinds & _NUMBERS:
        return STRING
    if facts.kinds == {CellKind.INTEGER}:
        # Unless all cells have been inspected, later cells may contain larger numbers.
        return ColumnType(BaseType.INT32 if is_whole and not facts.is_wide else BaseType.INT64)
    needs_decimal = CellKind.DECIMAL in facts.kinds or (
        CellKind.DOUBLE in facts.kinds and facts.longest_integer > MAX_DOUBLE_DIGITS
    )
    if not needs_decimal or facts.has_exponent or CellKind.NON_FINITE in facts.kinds:
        return ColumnType(BaseType.FLOAT64)
    precision = facts.integer_digits + facts.fraction_digits
    if precision > MAX_INTEGER_DIGITS:
        return STRING
    return ColumnType(BaseType.DECIMAL, precision, facts.fraction_digits)


_MIN_BULK_CELLS = 24
"""With fewer cells, a Python loop is faster than Arrow kernels."""

_PROBED_CELLS, _MAX_DISTINCT_PROBED = 400, 200
"""If the first 400 cells have at most 200 distinct values, only the distinct values of the column are classified."""

_DIGITS = "0123456789"


def column_facts(cells: Sequence[str]) -> ColumnFacts:
    """Return the facts of a column of text cells or workbook cells."""
    if len(cells) > _MIN_BULK_CELLS and not any(isinstance(cell, TypedText) for cell in cells):
        return array_facts(pa.array([None if is_null_word(cell) else cell for cell in cells], pa.string()))
    facts = ColumnFacts()
    facts.add_all(cells)
    return facts


def array_facts(cells: pa.StringArray) -> ColumnFacts:
    """Return the facts of a column of a Block, in which a cell with the word null can only be quoted text."""
    facts = ColumnFacts()
    rest = cells.drop_null()
    # Probe a few cells spread over the column, which is often enough to recognize text.
    probes = (rest[place].as_py().strip(BLANKS) for place in range(0, len(rest), max(1, len(rest) // 8)))
    if any(text_facts(text, is_quoted=True).kind is CellKind.TEXT for text in probes):
        facts.add_facts(TEXT)
        return facts
    rest = kernels.ascii_trim_whitespace(rest)
    if len(rest) > _PROBED_CELLS and len(kernels.unique(rest[:_PROBED_CELLS])) <= _MAX_DISTINCT_PROBED:
        rest = kernels.unique(rest)
    tried: set[str] = set()
    while len(rest) > _MIN_BULK_CELLS and not facts.is_text:
        form = match_form(rest[0].as_py()) or "text" if rest[0].as_py() else "missing"
        if form in tried or form not in _ANCHORED:
            break
        tried.add(form)
        rest = _count_form(facts, form, rest)
    _add_one_by_one(facts, rest)
    return facts


def _add_one_by_one(facts: ColumnFacts, cells: pa.StringArray) -> None:
    for text in kernels.unique(cells).to_pylist():
        if facts.is_text:
            return
        facts.add_facts(text_facts(text, is_quoted=True))


def _count_form(facts: ColumnFacts, form: str, cells: pa.StringArray) -> pa.StringArray:
    """Add the facts of all cells that have the form, and return the other cells."""
    fits = kernels.match_substring_regex(cells, _ANCHORED[form])
    if fits.true_count:
        count = _DIGIT_COUNTERS.get(form)
        if count is None:
            facts.add_facts(FORM_FACTS[form])
        else:
            count(facts, cells.filter(fits))
    return cells.filter(kernels.invert(fits))


_ANCHORED = {
    form: f"^(?:{pattern})$"
    for form, pattern in {**PATTERNS, "integer": "-?(?:0|[1-9][0-9]{0,18})", "missing": r"(?:\\N)?"}.items()
    if form != "null_word"
}
"""Patterns for Arrow kernels. Integers with more than 19 digits exceed 64 bits and are classified one by one."""


def _count_integers(facts: ColumnFacts, cells: pa.StringArray) -> None:
    try:
        values = kernels.cast(cells, pa.int64())
    except pa.ArrowInvalid:  # an integer exceeds 64 bits
        _add_one_by_one(facts, cells)
        return
    for value in kernels.min_max(values).as_py().values():
        shown = len(str(abs(value))) if value else 0
        facts.add_facts(CellFacts(CellKind.INTEGER, shown, is_wide=value not in _INT32))


def _count_fractions(facts: ColumnFacts, cells: pa.StringArray) -> None:
    unsigned = kernels.ascii_ltrim(cells, characters="-")
    behind = kernels.subtract(kernels.binary_length(kernels.ascii_ltrim(unsigned, characters=_DIGITS)), 1)
    stripped = kernels.binary_length(kernels.ascii_ltrim(unsigned, characters="0"))
    before = kernels.subtract(kernels.subtract(stripped, behind), 1)
    # Zeros between the decimal point and the first nonzero digit are not significant.
    bare = kernels.binary_length(kernels.ascii_ltrim(unsigned, characters="0."))
    significant = kernels.if_else(kernels.equal(before, 0), bare, kernels.add(before, behind))
    ends = kernels.min_max(significant).as_py()
    digits: tuple[int, int] = kernels.max(before).as_py(), kernels.max(behind).as_py()
    if ends["max"] > MAX_INTEGER_DIGITS:
        facts.add_facts(CellFacts(CellKind.TEXT))
    if ends["max"] > MAX_DOUBLE_DIGITS:
        facts.add_facts(CellFacts(CellKind.DECIMAL, *digits))
    if ends["min"] <= MAX_DOUBLE_DIGITS:
        facts.add_facts(CellFacts(CellKind.DOUBLE, *digits))


_DIGIT_COUNTERS: Mapping[str, Callable[[ColumnFacts, pa.StringArray], None]] = {
    "integer": _count_integers,
    "fraction": _count_fractions,
}
