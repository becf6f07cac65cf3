"""Locates the table in a text: detects the lines above it, comment lines, and the number of columns (Contract importer
10.8).

Many tables have titles, notes and blank lines above them. They are detected in the records that result from splitting
the text at a candidate separator.
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
"""A first line that declares the separator, as Excel writes and reads it."""

_PREFIXES = ("#", "//", "%", "--", "!")
_MAX_COMPARED_WIDTHS = 8
"""Maximum number of distinct record widths that are compared."""
_MIN_FITTING_SHARE = 0.8
_MAX_SPARSE_SHARE = 0.1
_MIN_RAGGED_SHARE = 0.95
_MIN_CERTAIN = 3
_MAX_NOTES = 3
_MAX_LABELS = 10
"""Maximum number of lines above a table that contain a name and a value. The table must have at least three columns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The table found in a sample. `first` is the index of its first record among all records of the sample."""

    records: Sequence[Record]
    width: int
    first: int = 0
    comment: str = ""

    def fitting_share(self) -> float:
        """Return the fraction of records that have the table's width, ignoring blank cells after the last column."""
        records = self.records
        fitting = sum(_has_width(record, self.width) for record in records)
        # The header may be narrower than the rows.
        if records and 1 < len(records[0]) < self.width and all(map(_has_text, records[0])):
            fitting += 1
        return fitting / len(records) if records else 0.0

    def is_ragged(self) -> bool:
        """Return whether the first record is a header and the others have various widths, none of them larger."""
        records = self.records
        names = [cell.strip(BLANKS).lower() for cell in records[0]] if records else []
        if len(records) <= _MIN_CERTAIN or len(names) < _MIN_CERTAIN or self.first:
            return False
        is_named = all(names) and len(set(names)) == len(names)
        several = sum(1 < len(record) <= len(names) for record in records)
        return is_named and several >= _MIN_RAGGED_SHARE * len(records)


def detect_layout(
    records: Sequence[Record], text: str, delimiters: Delimiters, *, finds_lines_above: bool, comment: str | None
) -> Layout:
    """Find the table among the first records of a text, which were cut with these delimiters without skipping lines.

    If `finds_lines_above` is false, the table begins at the first record. `comment` is the prefix of comment lines;
    None means that it is detected.
    """
    if not records:
        return Layout(records, 0)
    comment, table, numbers = _without_comments(records, comment, delimiters.field)

    def follows_blank_line(number: int) -> bool:
        return _follows_blank_line(text, delimiters, numbers[number])

    table = table[: len(table) - _count_notes_below(table, follows_blank_line)]

    def with_width(width: int) -> Layout:
        first = _count_records_above(table, width, follows_blank_line) if finds_lines_above else 0
        return Layout(table[first:], width, numbers[first] if first or not comment else 0, comment)

    # If the last cells of rows are blank, the rows also fit a smaller width, but their header does not. If many lines
    # precede the table, the width of these lines may be the most frequent one.
    rest = table[len(table) // 2 :]
    widths = dict.fromkeys((table_width(table), _most_frequent_width(table), _most_frequent_width(rest)))
    layouts = list(map(with_width, widths))
    return max(layouts, key=Layout.fitting_share) if len(layouts) > 1 else layouts[0]


def table_width(records: Sequence[Record]) -> int:
    """Return the width that fits most records, ignoring blank cells at their ends. If several widths fit equally well,
    return the largest.

    A width of 1 is returned only if all records have one cell, and 0 if there are no records.
    """
    widths = Counter(map(len, records))
    candidates = [width for width, _ in widths.most_common(_MAX_COMPARED_WIDTHS) if width > 1]
    if len(candidates) > 1:
        return max(candidates, key=lambda width: (sum(_has_width(record, width) for record in records), width))
    return candidates[0] if candidates else min(len(records), 1)


def _most_frequent_width(records: Sequence[Record]) -> int:
    widths = Counter(len(record) for record in records if len(record) > 1)
    return max(widths, key=lambda width: (widths[width], width), default=min(len(records), 1))


def _has_width(record: Record, width: int) -> bool:
    length = len(record)
    return length == width or (length > width and not any(map(_has_text, record[width:])))


def _has_text(cell: str) -> bool:
    return bool(cell.strip(BLANKS))


def _count_notes_below(records: Sequence[Record], follows_blank_line: Callable[[int], bool]) -> int:
    """Count the notes below the table. Notes are single cells after a blank line, and there must be at least as many
    records above that line.
    """
    first = len(records)
    while first and len(records[first - 1]) == 1:
        first -= 1
    count = len(records) - first
    # The first of these single cells may still be rows of the table.
    while count and count <= len(records) // 2 and len(records) - count >= _MIN_CERTAIN:
        if follows_blank_line(len(records) - count):
            return count
        count -= 1
    return 0


def _without_comments(
    records: Sequence[Record], declared: str | None, field: str
) -> tuple[str, Sequence[Record], Sequence[int]]:
    """Return the prefix of comment lines (`""` if there are none), the other records, and their indexes."""
    unchanged = "", records, range(len(records))
    if declared is not None:
        rest = [number for number, record in enumerate(records) if not (declared and record[0].startswith(declared))]
        return declared, [records[number] for number in rest], rest
    prefix = next((one for one in _PREFIXES if records[0][0].startswith(one)), "#")
    marked = [number for number, record in enumerate(records) if record[0].startswith(prefix)]
    if not marked or len(marked) == len(records):
        return unchanged
    others = [number for number in range(len(records)) if not records[number][0].startswith(prefix)]
    table = [records[number] for number in others]
    width = table_width(table)
    if width > 1:
        # A marked line as wide as the table may be a row (`#1,a`) or the header (`# id,name`). Others are sentences.
        wide = [records[number] for number in marked if _has_width(records[number], width)]
        # If the separator is a blank, the prefix is a cell of its own.
        is_comment = all(field.join(record[:2]).startswith(f"{prefix} ") for record in wide)
        if is_comment and wide and not has_header(table):
            is_comment = not has_header([wide[-1], *table])
    else:
        is_comment = marked == list(range(len(marked))) and all(" " in records[number][0] for number in marked)
    return (prefix, table, others) if is_comment else unchanged


def count_rows_above(rows: Sequence[Sequence[str]], row_numbers: Sequence[int]) -> int:
    """Count the rows above a worksheet's table. `row_numbers` contains the sheet's row numbers of the first `rows`."""
    width = max(map(len, rows), default=0)
    records, is_above = list[Record](), True
    for row in rows[: len(row_numbers)]:
        is_above = is_above and sum(map(_has_text, row)) < 2
        records.append([cell for cell in row if _has_text(cell)] if is_above else list(row))
    return _count_records_above(records, width, lambda number: row_numbers[number] - row_numbers[number - 1] > 1)


def _count_records_above(records: Sequence[Record], width: int, follows_blank_line: Callable[[int], bool]) -> int:
    """Return the number of records above the table."""
    if width < 2:
        return 0
    return _count_narrow_records_above(records, width, follows_blank_line) or _count_notes_above(
        records, follows_blank_line
    )


def _count_narrow_records_above(
    records: Sequence[Record], width: int, follows_blank_line: Callable[[int], bool]
) -> int:
    """Count the records above the table, if these are narrower than the table or nearly blank."""
    wide = (number for number, record in enumerate(records) if len(record) >= width)
    first = next((number for number in wide if not _is_sparse(records[number], width)), 0)
    if first and sum(_is_sparse(record, width) for record in records[first:]) > _MAX_SPARSE_SHARE * len(records):
        first = next((number for number, record in enumerate(records) if len(record) >= width), 0)
    table = records[first:]
    if not first or len(table) < 2 or Layout(table, width).fitting_share() < _MIN_FITTING_SHARE:
        return 0
    if has_header(table):
        return first
    # The last of these records may be a header that is narrower than its rows.
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
    if follows_blank_line(first) or (is_named and len(table) >= _MIN_CERTAIN):
        return first
    return first if first > 1 and not is_named else 0


def _count_notes_above(records: Sequence[Record], follows_blank_line: Callable[[int], bool]) -> int:
    """Count the notes above a blank line and a header. Notes may be as wide as the table.

    Notes are up to three records of text, or up to ten records with a name and a value, such as `Printed,2024-01-31,`.
    """
    is_text = is_labeled = True
    for number in range(1, min(_MAX_LABELS + 1, len(records) - 1)):
        cells = [cell for cell in records[number - 1] if _has_text(cell)]
        kinds = [classify(cell) for cell in cells]
        is_text = is_text and number <= _MAX_NOTES and set(kinds) <= {CellKind.TEXT}
        is_labeled = is_labeled and len(cells) < _MIN_CERTAIN and kinds[:1] in ([], [CellKind.TEXT])
        if not is_text and not is_labeled:
            return 0
        names = sum(map(_has_text, records[number]))
        if not names or (cells and not follows_blank_line(number)):
            continue
        above, table = records[:number], records[number:]
        # A row of blank cells may also follow a header.
        is_full = not cells and any(sum(map(_has_text, record)) >= names for record in above)
        if is_full or not has_header(table):
            return 0
        # Records of two cells above a wider table may also be a separate table with its own header.
        is_labeled = is_labeled and names >= _MIN_CERTAIN and (_has_label(above) or not has_header(above))
        return number if is_text or is_labeled else 0
    return 0


def _has_label(records: Sequence[Record]) -> bool:
    return any(record[0].strip(BLANKS).endswith(":") for record in records)


def _is_sparse(record: Record, width: int) -> bool:
    """Return whether a record is as wide as the table but nearly blank, such as a title that a spreadsheet exported."""
    if len(record) < width:
        return False
    values = sum(map(_has_text, record))
    return values == 0 or (width > 2 and values <= max(1, width // 4))


def count_lines_above(text: str, delimiters: Delimiters, count: int) -> int:
    """Count the lines, including blank lines, before the record with the index `count`."""
    return text.count(delimiters.record, 0, _record_start(text, delimiters, count)) if count else 0


def _record_start(text: str, delimiters: Delimiters, count: int) -> int:
    """Return the start of the record with the index `count`. Blank lines are not counted as records."""
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
    start, record = _record_start(text, delimiters, count), delimiters.record
    line = text.rfind(record, 0, max(start - len(record), 0))
    return line >= 0 and not text[line:start].strip(BLANKS + record)
