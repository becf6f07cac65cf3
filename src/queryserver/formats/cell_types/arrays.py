"""Facts of whole Arrow columns of cells: what `ColumnFacts.add` finds out cell by cell, some ten times as fast.

A column is tested for the form of its first cell, what does not fit for the form of the first that did not, and so on.
The patterns are those of `classes`, run by RE2; what no test settles is classified one by one.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from queryserver.domain.importing import CellKind, TypedText
from queryserver.formats.cell_types.classes import (
    BLANKS,
    FACTS_OF_FORM,
    MAX_DOUBLE_DIGITS,
    MAX_INTEGER_DIGITS,
    PATTERNS,
    CellFacts,
    facts_of_text,
    form_of,
    is_null_word,
)
from queryserver.formats.cell_types.columns import ColumnFacts
from queryserver.formats.cells_kernels import kernels

_FEW = 24
"""Below this a loop is faster than the kernels."""

_PROBED, _REPEATING = 400, 40
"""A column with at most so many different cells among the first that are probed is reduced to its different cells."""

_NULL_TEXTS = pa.array(["", "\\N"])
_INT32 = range(-(2**31), 2**31)
_FIRST_DAY = -719_162
"""0001-01-01 in days since 1970-01-01; Arrow reads a year 0 as well."""
_MICROSECONDS_OF_A_DAY = 86_400_000_000
_DIGITS = "0123456789"


def facts_of_cells(cells: Sequence[str]) -> ColumnFacts:
    """The facts of a column of cells of any kind."""
    if len(cells) > _FEW and not any(isinstance(cell, TypedText) for cell in cells):
        return facts_of_array(pa.array([None if is_null_word(cell) else cell for cell in cells], pa.string()))
    facts = ColumnFacts()
    facts.add_all(cells)
    return facts


def facts_of_array(cells: pa.StringArray) -> ColumnFacts:
    """The facts of a column of a Block: null cells are nulls, all others are taken as if they had been quoted."""
    facts = ColumnFacts()
    rest = cells.drop_null()
    if _has_text(rest):
        facts.add_facts(CellFacts(CellKind.TEXT))
        return facts
    rest = kernels.ascii_trim_whitespace(rest)
    if len(rest) > _PROBED and len(kernels.unique(rest[:_PROBED])) <= _REPEATING:
        rest = kernels.unique(rest)
    tried: set[str] = set()
    while len(rest) > _FEW and not facts.is_text:
        form = form_of(rest[0].as_py()) or "text" if rest[0].as_py() else "missing"
        if form in tried or form not in _ANCHORED:
            break
        tried.add(form)
        rest = _measure(facts, form, rest)
    _add_one_by_one(facts, rest)
    return facts


def _has_text(cells: pa.StringArray) -> bool:
    """Whether a few cells from all over the column tell already that it is text."""
    step = max(1, len(cells) // 8)
    probes = (cells[position].as_py().strip(BLANKS) for position in range(0, len(cells), step))
    return any(facts_of_text(text, is_quoted=True).kind is CellKind.TEXT for text in probes)


def _add_one_by_one(facts: ColumnFacts, cells: pa.StringArray) -> None:
    for text in kernels.unique(cells).to_pylist():
        if facts.is_text:
            return
        facts.add_facts(facts_of_text(text, is_quoted=True))


def _measure(facts: ColumnFacts, form: str, cells: pa.StringArray) -> pa.StringArray:
    """Count the cells of a form; the others are left."""
    if form == "missing":
        return cells.filter(kernels.invert(kernels.is_in(cells, value_set=_NULL_TEXTS)))
    count_all = _COUNTED_AT_ONCE.get(form)
    if count_all is not None and count_all(facts, cells):
        return cells[:0]
    fits = kernels.match_substring_regex(cells, _ANCHORED[form])
    if not fits.true_count:
        return cells
    fitting = cells.filter(fits)
    if count_all is None or not count_all(facts, fitting):
        facts.add_facts(FACTS_OF_FORM[form])
    return cells.filter(kernels.invert(fits))


_ANCHORED = {
    form: f"^(?:{pattern})$"
    for form, pattern in {**PATTERNS, "integer": "-?(?:0|[1-9][0-9]{0,18})"}.items()
    if form != "null_word"
}
"""Longer integers than of 19 digits are beyond 64 bits: they are left to be classified one by one."""


def _count_integers(facts: ColumnFacts, cells: pa.StringArray) -> bool:
    digits = kernels.ascii_ltrim(cells, characters="-")
    length = kernels.binary_length(digits)
    if (
        not kernels.all(kernels.ascii_is_decimal(digits)).as_py()
        or kernels.max(kernels.subtract(kernels.binary_length(cells), length)).as_py() > 1
        or kernels.any(kernels.and_(kernels.starts_with(digits, "0"), kernels.greater(length, 1))).as_py()
    ):
        return False
    try:
        values = kernels.cast(cells, pa.int64())
    except pa.ArrowInvalid:  # one is beyond 64 bits
        _add_one_by_one(facts, cells)
        return True
    ends = kernels.min_max(values).as_py()
    for value in (ends["min"], ends["max"]):
        shown = len(str(abs(value))) if value else 0
        facts.add_facts(CellFacts(CellKind.INTEGER, shown, is_wide=value not in _INT32))
    return True


def _count_fractions(facts: ColumnFacts, cells: pa.StringArray) -> bool:
    """Digits are trimmed away from both sides of the point, which must be all that is left."""
    unsigned = kernels.ascii_ltrim(cells, characters="-")
    fraction = kernels.ascii_ltrim(unsigned, characters=_DIGITS)
    length = kernels.binary_length(unsigned)
    if (
        not kernels.all(kernels.equal(kernels.ascii_rtrim(fraction, characters=_DIGITS), ".")).as_py()
        or kernels.max(kernels.subtract(kernels.binary_length(cells), length)).as_py() > 1
        or kernels.min(length).as_py() < 2
    ):
        return False
    stripped = kernels.binary_length(kernels.ascii_ltrim(unsigned, characters="0"))
    zeros = kernels.subtract(length, stripped)
    behind = kernels.subtract(kernels.binary_length(fraction), 1)
    before = kernels.subtract(kernels.subtract(stripped, behind), 1)
    # A leading 0 must be the only digit before the point.
    if kernels.max(zeros).as_py() > 1 or kernels.max(kernels.multiply(zeros, before)).as_py() > 0:
        return False
    significant = kernels.add(before, behind)
    if kernels.max(significant).as_py() > MAX_DOUBLE_DIGITS:
        # Zeros between the point and the first other digit do not count.
        bare = kernels.binary_length(kernels.ascii_ltrim(unsigned, characters="0."))
        significant = kernels.if_else(kernels.equal(before, 0), bare, significant)
    ends = kernels.min_max(significant).as_py()
    digits: tuple[int, int] = kernels.max(before).as_py(), kernels.max(behind).as_py()
    if ends["max"] > MAX_INTEGER_DIGITS:
        facts.add_facts(CellFacts(CellKind.TEXT))
    if ends["max"] > MAX_DOUBLE_DIGITS:
        facts.add_facts(CellFacts(CellKind.DECIMAL, *digits))
    if ends["min"] <= MAX_DOUBLE_DIGITS:
        facts.add_facts(CellFacts(CellKind.DOUBLE, *digits))
    return True


def _count_dates(facts: ColumnFacts, cells: pa.StringArray) -> bool:
    """Arrow reads `YYYY-MM-DD`, and no other form."""
    return _count_read(facts, "date", cells, pa.date32(), pa.int32(), _FIRST_DAY)


def _count_timestamps(facts: ColumnFacts, cells: pa.StringArray) -> bool:
    """Of these lengths Arrow reads full seconds with a fraction, and full seconds with `Z`, and no other form."""
    length = kernels.min_max(kernels.binary_length(cells)).as_py()
    if length["min"] == length["max"] == len("2024-01-15T10:30:00Z"):
        zoned = pa.timestamp("us", "UTC")
        return _count_read(facts, "timestamp", cells, zoned, pa.int64(), _FIRST_DAY * _MICROSECONDS_OF_A_DAY)
    if length["min"] < len("2024-01-15T10:30:00"):
        return False
    return _count_read(facts, "timestamp", cells, pa.timestamp("us"), pa.int64(), _FIRST_DAY * _MICROSECONDS_OF_A_DAY)


def _count_read(
    facts: ColumnFacts, form: str, cells: pa.StringArray, read: pa.DataType, number: pa.DataType, first: int
) -> bool:
    """Count cells if Arrow can read all of them as the type, none of them before the `first` value."""
    try:
        values = kernels.cast(cells, read)
    except pa.ArrowInvalid:
        return False
    if kernels.min(kernels.cast(values, number)).as_py() < first:
        return False
    facts.add_facts(FACTS_OF_FORM[form])
    return True


_COUNTED_AT_ONCE: Mapping[str, Callable[[ColumnFacts, pa.StringArray], bool]] = {
    "integer": _count_integers,
    "fraction": _count_fractions,
    "date": _count_dates,
    "timestamp": _count_timestamps,
}
"""Count a column in a fraction of the time of the pattern. False: nothing is counted, and the pattern must tell."""
