"""Whether the first record is a header (Contract importer 11), and names of columns."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from queryserver.formats.cell_types.classes import ColumnFacts, classify, column_type, facts_of
from queryserver.formats.cell_types.written_forms import measured
from queryserver.imports.model import BLANKS, BaseType, CellKind, Cells

COMPARED_RECORDS = 100
"""How many records with a value are compared with the first one."""

MAX_NAME_CHARACTERS = 255

_LINE_BREAKS = re.compile("[\\n\\v\\f\\r\x85\u2028\u2029]+")
_WORDS = """
    id ids uuid guid key code name names first last middle full user username login email mail phone mobile fax address
    street city town state province region country county zip postal postcode lat lon lng latitude longitude date day
    month year time timestamp datetime created updated modified start end begin hour minute second duration age sex
    gender birth dob title description desc comment comments note notes text label type kind category class group status
    flag active enabled value amount price cost total sum count qty quantity number num rate ratio percent pct score
    rank level size length width height weight unit currency balance tax discount revenue sales salary income order
    product item sku brand model color customer client account company department dept team manager employee job role
    project task parent child source target url link path file host ip port version index row column col field header
    attribute property tag tags language lang min max avg mean average median std
"""
_COMMON_WORDS = frozenset(_WORDS.split())
_LETTER_RUN = re.compile(r"[^\W\d_]+")
_LOWER_TO_UPPER = re.compile(r"(?<=[a-z])(?=[A-Z])")
_YEARS = range(1500, 2200)
_NAME = re.compile(r"[^\W\d][\w ./()#%-]{0,63}")


def has_header(records: Iterable[Cells]) -> bool:
    """Whether the first record is a header. Reads on until COMPARED_RECORDS records with a value are found."""
    source = iter(records)
    header = next(source, None)
    if header is None:
        return False
    kinds = {classify(cell) for cell in header}
    if kinds <= {CellKind.NULL} or kinds - {CellKind.NULL, CellKind.TEXT, CellKind.INTEGER}:
        return False
    data = list(
        islice(
            (record for record in source if any(classify(cell) is not CellKind.NULL for cell in record)),
            COMPARED_RECORDS,
        )
    )
    if CellKind.INTEGER in kinds and not (CellKind.TEXT in kinds and _names_years(header, data)):
        return False
    named = [cell.strip(BLANKS) for cell in header if classify(cell) is not CellKind.NULL]
    is_unique = len({name.lower() for name in named}) == len(named)
    if not data:
        return len(header) > 1 and len(named) == len(header) and is_unique and all(map(_NAME.fullmatch, named))
    sum_of_weights = 0.0
    for position, cell in enumerate(header):
        weight = _weight(cell, data, position)
        if weight is None:
            return True
        sum_of_weights += weight
    return is_unique and sum_of_weights > 0


def _names_years(header: Cells, data: Sequence[Cells]) -> bool:
    """Whether all integers of a first record are years that rise or fall, over columns of values that are no years.

    One year is not enough: it may be a value.
    """
    places = [place for place, cell in enumerate(header) if classify(cell) is CellKind.INTEGER]
    years = [int(header[place]) for place in places]
    if len(years) < 2 or not all(year in _YEARS for year in years):
        return False
    steps = [later - earlier for earlier, later in pairwise(years)]
    if not (min(steps) > 0 or max(steps) < 0):
        return False
    return all(_are_no_years([record[place] for record in data if len(record) > place]) for place in places)


def _are_no_years(cells: Sequence[str]) -> bool:
    values = [cell.strip(BLANKS) for cell in cells if classify(cell) is not CellKind.NULL]
    years = sum(len(value) == 4 and value.isdecimal() and int(value) in _YEARS for value in values)
    return years * 2 <= len(values)


def _weight(header_cell: str, data: Sequence[Cells], position: int) -> float | None:
    """How much a column speaks for a header (above 0) or against it; None if it is no text: then there is one."""
    facts = ColumnFacts()
    cells: list[str] = []
    for cell in (record[position] for record in data if len(record) > position):
        known = facts_of(cell)
        facts.add_facts(known)
        if known.kind is not CellKind.NULL:
            cells.append(cell)
    if classify(header_cell) is CellKind.NULL or not cells:
        return 0
    if column_type(facts, is_whole=False).base is not BaseType.STRING:
        return None
    if column_type(measured(cells).facts, is_whole=False).base is not BaseType.STRING:
        return None  # by a format, or without words that mean NULL
    header_cell, cells = header_cell.strip(BLANKS), [cell.strip(BLANKS) for cell in cells]
    if header_cell in cells:
        return -1
    if _has_common_word(header_cell) and sum(map(_has_common_word, cells)) * 2 <= len(cells):
        return 1
    lengths = {len(cell) for cell in cells}
    if len(cells) < 2 or len(lengths) > 1:
        return 0
    return -0.5 if len(header_cell) in lengths else 0.5


def _has_common_word(cell: str) -> bool:
    return any(
        part.lower() in _COMMON_WORDS for run in _LETTER_RUN.findall(cell) for part in _LOWER_TO_UPPER.split(run)
    )


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
