"""Where in a text its table stands: lines above it, comment lines, the width of its records (Contract importer 10.8).

Titles, notes and blank lines stand above many tables. They are recognised by the records that one separator makes.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queryserver.formats.cell_types.classes import CellKind, classify
from queryserver.formats.cell_types.header import has_header
from queryserver.formats.delimited.cutting import RecordCutter
from queryserver.formats.delimited.records import Record
from queryserver.formats.table_files import BLANKS, Delimiters

SEPARATOR_LINE = re.compile(r'\ufeff?"?sep=(.)"?(?:\r\n|\n|\r)', re.IGNORECASE)
"""A first line that Excel writes and reads: it names the separator."""

_PREFIXES = ("#", "//", "%", "--", "!")
_CONTENT_WIDTHS = 8
"""So many different widths at most are compared."""
_MIN_SHARE = 0.8
_MAX_SPARSE_SHARE = 0.1
_MIN_RAGGED_SHARE = 0.95
_CERTAIN_RECORDS = 3
_MOST_NOTES = 3
_MOST_LABELS = 10
"""So many lines of a name and a value at most stand above a table, which has at least three columns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The records of a sample as a table. `first`: the index among all of them of the first one of the table."""

    records: Sequence[Record]
    width: int
    first: int = 0
    comment: str = ""

    def share(self) -> float:
        """The share of the records that have the width, but for blank cells behind it."""
        records = self.records
        fitting = sum(_fits(record, self.width) for record in records)
        # A header may be narrower than its rows.
        if records and 1 < len(records[0]) < self.width and all(map(_has_text, records[0])):
            fitting += 1
        return fitting / len(records) if records else 0.0

    def is_ragged(self) -> bool:
        """Whether the first record names more columns than most records have, which are of several widths."""
        records = self.records
        names = [cell.strip(BLANKS).lower() for cell in records[0]] if records else []
        if len(records) <= _CERTAIN_RECORDS or len(names) < _CERTAIN_RECORDS or self.first:
            return False
        is_named = all(names) and len(set(names)) == len(names)
        several = sum(1 < len(record) <= len(names) for record in records)
        return is_named and several >= _MIN_RAGGED_SHARE * len(records)


def layout_of(
    records: Sequence[Record], text: str, delimiters: Delimiters, *, finds_lines_above: bool, comment: str | None
) -> Layout:
    """The table among the first records of a text, which were cut with these delimiters and without skipping lines.

    `finds_lines_above`: whether some may stand above the table. `comment`: what comment lines begin with, None: it is
    detected.
    """
    if not records:
        return Layout(records, 0)
    comment, table, numbers = _without_comments(records, comment, delimiters.field)

    def follows_blank_line(number: int) -> bool:
        return _follows_blank_line(text, delimiters, numbers[number])

    table = table[: len(table) - _lines_below(table, follows_blank_line)]

    def with_width(width: int) -> Layout:
        first = _records_above(table, width, follows_blank_line) if finds_lines_above else 0
        return Layout(table[first:], width, numbers[first] if first or not comment else 0, comment)

    # Rows whose last cells are blank fit a smaller width, too, but not the header above them; and of many lines above a
    # table most records may have the width.
    rest = table[len(table) // 2 :]
    widths = dict.fromkeys((usual_width(table), _most_frequent_width(table), _most_frequent_width(rest)))
    layouts = list(map(with_width, widths))
    return max(layouts, key=Layout.share) if len(layouts) > 1 else layouts[0]


def usual_width(records: Sequence[Record]) -> int:
    """The most frequent width of two or more, of equals the largest; blank cells at the end may be left out.

    1 if all records have one cell, 0 if there are none.
    """
    widths = Counter(map(len, records))
    candidates = [width for width, _ in widths.most_common(_CONTENT_WIDTHS) if width > 1]
    if len(candidates) > 1:
        return max(candidates, key=lambda width: (sum(_fits(record, width) for record in records), width))
    return candidates[0] if candidates else min(len(records), 1)


def _most_frequent_width(records: Sequence[Record]) -> int:
    widths = Counter(len(record) for record in records if len(record) > 1)
    return max(widths, key=lambda width: (widths[width], width), default=min(len(records), 1))


def _fits(record: Record, width: int) -> bool:
    length = len(record)
    return length == width or (length > width and not any(map(_has_text, record[width:])))


def _has_text(cell: str) -> bool:
    return bool(cell.strip(BLANKS))


def _lines_below(records: Sequence[Record], follows_blank_line: Callable[[int], bool]) -> int:
    """How many of the last records are notes: single cells behind a blank line, no more than the records above it."""
    first = len(records)
    while first and len(records[first - 1]) == 1:
        first -= 1
    count = len(records) - first
    # The first ones may stand in the table yet, as rows of one value.
    while count and count <= len(records) // 2 and len(records) - count >= _CERTAIN_RECORDS:
        if follows_blank_line(len(records) - count):
            return count
        count -= 1
    return 0


def _without_comments(
    records: Sequence[Record], given: str | None, field: str
) -> tuple[str, Sequence[Record], Sequence[int]]:
    """What comment lines begin with (`""`: there are none), the other records, and their indexes."""
    everything = "", records, range(len(records))
    if given is not None:
        rest = [number for number, record in enumerate(records) if not (given and record[0].startswith(given))]
        return given, [records[number] for number in rest], rest
    prefix = next((one for one in _PREFIXES if records[0][0].startswith(one)), "#")
    marked = [number for number, record in enumerate(records) if record[0].startswith(prefix)]
    if not marked or len(marked) == len(records):
        return everything
    others = [number for number in range(len(records)) if not records[number][0].startswith(prefix)]
    table = [records[number] for number in others]
    width = usual_width(table)
    if width > 1:
        # What is as wide as the table may be a row, `#1,a`, or the header, `# id,name`; else it is a sentence.
        wide = [records[number] for number in marked if _fits(records[number], width)]
        # Where blanks separate, the mark is a cell of its own.
        is_comment = all(field.join(record[:2]).startswith(f"{prefix} ") for record in wide)
        if is_comment and wide and not has_header(table):
            is_comment = not has_header([wide[-1], *table])
    else:
        is_comment = marked == list(range(len(marked))) and all(" " in records[number][0] for number in marked)
    return (prefix, table, others) if is_comment else everything


def rows_above(rows: Sequence[Sequence[str]], places: Sequence[int]) -> int:
    """How many of the first rows of a worksheet, all of one width, stand above its table; `places`: where they are."""
    width = max(map(len, rows), default=0)
    records, is_above = list[Record](), True
    for row in rows[: len(places)]:
        is_above = is_above and sum(map(_has_text, row)) < 2
        records.append([cell for cell in row if _has_text(cell)] if is_above else list(row))
    return _records_above(records, width, lambda number: places[number] - places[number - 1] > 1)


def _records_above(records: Sequence[Record], width: int, follows_blank_line: Callable[[int], bool]) -> int:
    """How many records stand above the table."""
    if width < 2:
        return 0
    return _lines_of_other_form(records, width, follows_blank_line) or _notes_above(records, follows_blank_line)


def _lines_of_other_form(records: Sequence[Record], width: int, follows_blank_line: Callable[[int], bool]) -> int:
    """How many records, narrower than the table or nearly blank, stand above it."""
    wide = (number for number, record in enumerate(records) if len(record) >= width)
    first = next((number for number in wide if not _is_sparse(records[number], width)), 0)
    if first and sum(_is_sparse(record, width) for record in records[first:]) > _MAX_SPARSE_SHARE * len(records):
        first = next((number for number, record in enumerate(records) if len(record) >= width), 0)
    table = records[first:]
    if not first or len(table) < 2 or Layout(table, width).share() < _MIN_SHARE:
        return 0
    if has_header(table):
        return first
    # The last record may be a header that is narrower than its rows.
    last = records[first - 1]
    is_narrow = len(last) > 1 and all(map(_has_text, last)) and has_header(records[first - 1 :])
    if is_narrow:
        first -= 1
    above = [cell for record in records[:first] for cell in record if _has_text(cell)]
    if any(classify(cell) is not CellKind.TEXT for cell in above) or (
        len(above) > first and not follows_blank_line(first)
    ):
        return 0
    if is_narrow:
        return first
    names = [cell.strip(BLANKS).lower() for cell in table[0]]
    is_named = all(names) and len(set(names)) == width and all(classify(cell) is CellKind.TEXT for cell in table[0])
    if follows_blank_line(first) or (is_named and len(table) >= _CERTAIN_RECORDS):
        return first
    return first if first > 1 and not is_named else 0


def _notes_above(records: Sequence[Record], follows_blank_line: Callable[[int], bool]) -> int:
    """How many records, perhaps as wide as the table, are notes above a blank line and a header.

    A few of text alone, or more of them with a name and a value each, such as `Printed,2024-01-31,`.
    """
    is_text = is_labelled = True
    for number in range(1, min(_MOST_LABELS + 1, len(records) - 1)):
        cells = [cell for cell in records[number - 1] if _has_text(cell)]
        kinds = [classify(cell) for cell in cells]
        is_text = is_text and number <= _MOST_NOTES and set(kinds) <= {CellKind.TEXT}
        is_labelled = is_labelled and len(cells) < _CERTAIN_RECORDS and kinds[:1] in ([], [CellKind.TEXT])
        if not is_text and not is_labelled:
            return 0
        names = sum(map(_has_text, records[number]))
        if not names or (cells and not follows_blank_line(number)):
            continue
        above, table = records[:number], records[number:]
        # A row of blank cells may stand below a header, too.
        is_full = not cells and any(sum(map(_has_text, record)) >= names for record in above)
        if is_full or not has_header(table):
            return 0
        # Two columns above three may be a table, too, with a header of its own.
        is_labelled = is_labelled and names >= _CERTAIN_RECORDS and (_has_label(above) or not has_header(above))
        return number if is_text or is_labelled else 0
    return 0


def _has_label(records: Sequence[Record]) -> bool:
    return any(record[0].strip(BLANKS).endswith(":") for record in records)


def _is_sparse(record: Record, width: int) -> bool:
    """Whether a record is as wide as the table and nearly blank: a title that a spreadsheet has saved."""
    if len(record) < width:
        return False
    values = sum(map(_has_text, record))
    return values == 0 or (width > 2 and values <= max(1, width // 4))


def lines_above(text: str, delimiters: Delimiters, count: int) -> int:
    """How many lines, blank ones included, the first `count` records of a text and what is between them take."""
    return text.count(delimiters.record, 0, _start_of(text, delimiters, count)) if count else 0


def _start_of(text: str, delimiters: Delimiters, count: int) -> int:
    """Where the record begins that follows the first `count` ones."""
    cutter, position = RecordCutter(delimiters, max_columns=len(text) + 1), 0
    while position < len(text):
        end = cutter.cut(text, position, final=True) or len(text)
        if len(cutter.cells) > 1 or any(map(_has_text, cutter.cells)):
            if not count:
                break
            count -= 1
        position = end
    return position


def _follows_blank_line(text: str, delimiters: Delimiters, count: int) -> bool:
    start, record = _start_of(text, delimiters, count), delimiters.record
    line = text.rfind(record, 0, max(start - len(record), 0))
    return line >= 0 and not text[line:start].strip(BLANKS + record)
