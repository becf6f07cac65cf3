"""Which rows and columns of a sheet are in use (Contract importer 12.2).

Leading empty rows and empty columns at both sides are dropped, and so is every later row that is wholly empty. Which
columns are empty can be known for sure only at the end of a sheet. What is shown first and what is loaded later must
have the same columns, and a sheet may have a million rows; so the columns are those in use in the *head* of the sheet,
its first 10,001 rows in use (the sample of 7.4 and a header), or less where rows are large. A later row that uses
another column too is given with all its cells: it is longer than the rest, and hence a bad row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from queryserver.domain.errors.files import FileTooComplex
from queryserver.domain.importing import (
    MAX_COLUMNS,
    MAX_RECORD_CHARACTERS,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    TypedText,
)
from queryserver.formats.workbooks.cells import EMPTY

MAX_ROWS = 1_048_576
MAX_GRID_COLUMNS = 16_384
"""What a sheet can have. How many may be in use is `MAX_COLUMNS`."""
HEAD_ROWS = SAMPLE_RECORDS + 1
HEAD_CELLS = 500_000

Row = Mapping[int, TypedText]
"""The cells of a row that are not empty, by their columns from 0 on."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [first, first + width) of the sheet."""

    first: int
    width: int

    def cut(self, row: Row) -> list[TypedText]:
        """The cells of a row; more than `width` if others are in use."""
        first, end = self.first, self.first + self.width
        if row and (min(row) < first or max(row) >= end):
            first, end = min(first, *row), max(end, max(row) + 1)
            _check_width(end - first)
        return [row.get(column, EMPTY) for column in range(first, end)]


@dataclass(frozen=True, slots=True)
class Head:
    """The rows from which the columns are told. `is_whole`: the sheet has no more."""

    rows: Sequence[Row]
    is_whole: bool


def read_head(rows: Iterator[Row]) -> Head:
    """Takes the head from the stream, and looks for one row more."""
    head: list[Row] = []
    cells = characters = 0
    for row in rows:
        if len(head) == HEAD_ROWS or cells >= HEAD_CELLS or characters >= SAMPLE_TEXT_BYTES:
            return Head(head, is_whole=False)
        head.append(row)
        cells += len(row)
        characters += sum(map(len, row.values()))
    return Head(head, is_whole=True)


def columns_in_use(rows: Iterable[Row]) -> Columns:
    """From the first column in use to the last. Raises FileTooComplex when they are too many."""
    used: set[int] = set()
    for row in rows:
        used.update(row)
    if not used:
        return Columns(0, 0)
    _check_width(max(used) - min(used) + 1)
    return Columns(min(used), max(used) - min(used) + 1)


def checked_rows(columns: Columns, rows: Iterable[Row]) -> Iterator[list[TypedText]]:
    """The cells of the rows. Raises FileTooComplex for too many rows, and for rows of too much text (8.5)."""
    for number, row in enumerate(rows, 1):
        if number > MAX_ROWS:
            raise FileTooComplex(f"The sheet has more than {MAX_ROWS:,} rows.")
        if sum(map(len, row.values())) > MAX_RECORD_CHARACTERS:
            raise FileTooComplex("A row of the workbook has more than 16,777,216 characters.")
        yield columns.cut(row)


def _check_width(width: int) -> None:
    if width > MAX_COLUMNS:
        raise FileTooComplex(f"The sheet has more than {MAX_COLUMNS:,} columns.")
