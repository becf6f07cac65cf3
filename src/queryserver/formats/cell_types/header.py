"""Whether the first record is a header (Contract importer 11), and names of columns."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Self

from queryserver.formats.cell_types.classes import ColumnFacts, classify, column_type, facts_of
from queryserver.formats.cell_types.header_evidence import evidence
from queryserver.formats.cell_types.header_words import common_words
from queryserver.formats.cell_types.written_forms import measured
from queryserver.formats.column_types import BaseType
from queryserver.formats.text_cells import BLANKS, CellKind, Cells

COMPARED_RECORDS = 100
"""How many records with a value are compared with the first one."""

MAX_NAME_CHARACTERS = 255

_LINE_BREAKS = re.compile("[\\n\\v\\f\\r\x85\u2028\u2029]+")
_YEARS = range(1500, 2200)
_NAME = re.compile(r"(?!.*(?:@[\w-]+\.|://))(?:[^\w]{0,3}[^\W\d][^\x00-\x1f\x7f-\x9f]{0,63}|[#%\u2116])")
_TEMPORAL = frozenset({CellKind.DATE, CellKind.TIMESTAMP, CellKind.TIME})
_NAMING = frozenset({CellKind.NULL, CellKind.TEXT, CellKind.INTEGER, CellKind.DECIMAL, CellKind.DOUBLE}) | _TEMPORAL
_NUMBERS = frozenset({BaseType.INT64, BaseType.FLOAT64, BaseType.DECIMAL, BaseType.BOOLEAN})
_ENOUGH = 0.5
"""Evidence of all columns together that makes a header."""
_STEPS = 3
_MOST_WITH_WORDS = 0.5
_MANY_WORDS = 0.6


def has_header(records: Iterable[Cells]) -> bool:
    """Whether the first record is a header. Reads on until COMPARED_RECORDS records with a value are found."""
    source = iter(records)
    header = next(source, None)
    if header is None:
        return False
    kinds = [classify(cell) for cell in header]
    if set(kinds) <= {CellKind.NULL} or set(kinds) - _NAMING:
        return False
    data = list(
        islice(
            (record for record in source if any(classify(cell) is not CellKind.NULL for cell in record)),
            COMPARED_RECORDS,
        )
    )
    named = [cell.strip(BLANKS) for cell, kind in zip(header, kinds, strict=True) if kind is not CellKind.NULL]
    is_unique = len({name.lower() for name in named}) == len(named)
    if any(kind not in {CellKind.NULL, CellKind.TEXT} for kind in kinds):
        columns = [_Column.below(data, position) for position in range(len(header))]
        return bool(data) and is_unique and _are_names(header, kinds, columns)
    if not data:
        return len(header) > 1 and len(named) == len(header) and is_unique and all(map(_NAME.fullmatch, named))
    found = 0.0
    for position, (cell, kind) in enumerate(zip(header, kinds, strict=True)):
        if kind is CellKind.NULL or not (column := _Column.below(data, position)).cells:
            continue
        if column.type is not BaseType.STRING:
            return True
        found += _weight(cell.strip(BLANKS), column.cells)
    # A title has fewer cells than the table below it.
    widths = Counter(map(len, data))
    return is_unique and found >= _ENOUGH and len(header) * 2 >= widths.most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class _Column:
    """What stands below a cell of the first record: the cells with a value, and their type."""

    cells: Sequence[str]
    type: BaseType

    @classmethod
    def below(cls, data: Sequence[Cells], position: int) -> Self:
        facts = ColumnFacts()
        cells: list[str] = []
        for cell in (record[position] for record in data if len(record) > position):
            known = facts_of(cell)
            facts.add_facts(known)
            if known.kind is not CellKind.NULL:
                cells.append(cell)
        base = column_type(facts, is_whole=False).base
        if base is BaseType.STRING:
            # By a format, or without words that mean NULL.
            base = column_type(measured(cells).facts, is_whole=False).base
        return cls([cell.strip(BLANKS) for cell in cells], base)


def _are_names(header: Cells, kinds: Sequence[CellKind], columns: Sequence[_Column]) -> bool:
    """Whether the dates, times and numbers of a first record are names of columns (Contract importer 11.2)."""
    by_kind = [place for place, kind in enumerate(kinds) if kind not in {CellKind.NULL, CellKind.TEXT}]
    dates = [place for place in by_kind if kinds[place] in _TEMPORAL]
    if dates:
        return len(dates) == len(by_kind) and _are_dates_of_columns(header, dates, columns)
    texts = [place for place, kind in enumerate(kinds) if kind is CellKind.TEXT]
    if not texts and not (header and kinds[0] is CellKind.NULL and columns[0].type is BaseType.STRING):
        return False
    if any(kinds[place] is not CellKind.INTEGER for place in by_kind):
        return False
    return _names_years([header[place] for place in by_kind], [columns[place] for place in by_kind]) or (
        _are_steps([int(header[place]) for place in by_kind])
        and any(
            columns[place].type is BaseType.STRING and _weight(header[place].strip(BLANKS), columns[place].cells) > 0
            for place in texts
        )
    )


def _are_dates_of_columns(header: Cells, dates: Sequence[int], columns: Sequence[_Column]) -> bool:
    """Over columns of numbers one is enough; over texts, several that rise or fall. Empty columns say nothing."""
    types = {columns[place].type for place in dates}
    if types <= _NUMBERS | {BaseType.NULL} and types & _NUMBERS:
        return True
    if not types <= _NUMBERS | {BaseType.NULL, BaseType.STRING} or BaseType.STRING not in types:
        return False
    texts = [header[place].strip(BLANKS) for place in dates]
    is_dated = any(classify(cell) in _TEMPORAL for place in dates for cell in columns[place].cells)
    return len(dates) > 1 and not is_dated and (texts == sorted(texts) or texts == sorted(texts, reverse=True))


def _names_years(names: Sequence[str], columns: Sequence[_Column]) -> bool:
    """Whether integers of a first record are years that rise or fall, over columns of values that are no years.

    One year is not enough: it may be a value.
    """
    years = [int(name) for name in names]
    if len(years) < 2 or not all(year in _YEARS for year in years):
        return False
    steps = [later - earlier for earlier, later in pairwise(years)]
    return (min(steps) > 0 or max(steps) < 0) and all(_are_no_years(column.cells) for column in columns)


def _are_no_years(values: Sequence[str]) -> bool:
    years = sum(len(value) == 4 and value.isdecimal() and int(value) in _YEARS for value in values)
    return years * 2 <= len(values)


def _are_steps(numbers: Sequence[int]) -> bool:
    """Whether they rise by equal steps: hours, ages, days of a month."""
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return len(numbers) >= _STEPS and len(steps) == 1 and min(steps) > 0


def _weight(header: str, cells: Sequence[str]) -> float:
    """How much a column of text speaks for a header (above 0) or against it."""
    if header in cells:
        return -1
    words = common_words(header)
    if words:
        below = sum(common_words(cell) > 0 for cell in cells) / len(cells)
        if below <= _MOST_WITH_WORDS:
            return 1 if words >= _MANY_WORDS else max(0.5 - below, evidence(header, cells))
    return evidence(header, cells)


def numbered_names(width: int) -> Sequence[str]:
    """`column_1`, `column_2` and so on: names of columns without a header."""
    return [f"column_{position}" for position in range(1, width + 1)]


def header_names(header: Cells, width: int) -> Sequence[str]:
    """Names from a header: one per column, all different even if case does not count.

    The first column of a name keeps it; the others get the first of `_2`, `_3`, … that no column has, be it further
    right.
    """
    cells = [*header[:width], *[""] * (width - len(header))]
    cleaned = [_LINE_BREAKS.sub(" ", str(cell).strip()).strip()[:MAX_NAME_CHARACTERS].rstrip() for cell in cells]
    wanted = [cell or f"column_{position}" for position, cell in enumerate(cleaned, 1)]
    taken = {name.lower() for name in wanted}
    seen: set[str] = set()
    tried: dict[str, int] = {}
    names: list[str] = []
    for name in wanted:
        names.append(_free_name(name, taken, tried) if name.lower() in seen else name)
        seen.add(name.lower())
    return names


def _free_name(name: str, taken: set[str], tried: dict[str, int]) -> str:
    """The name with the lowest number that is free; takes it. `tried`: the highest number of each name so far."""
    number = tried.get(name.lower(), 1)
    while True:
        number += 1
        suffix = f"_{number}"
        numbered = name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        if numbered.lower() not in taken:
            break
    tried[name.lower()] = number
    taken.add(numbered.lower())
    return numbered
