"""What a preview of a file shows: names and types of its columns, its first rows, what is odd about it.

Two ways in, with one answer (Contract importer 7.3, 7.4):
- `analyse_records`: all records of the sample as lists of cells. For workbooks, and for text that is small or
  irregular.
- `analyse_blocks`: the first records as cells, the whole sample as Blocks. For text.

Both stop after 10,000 data records; what is read until then is the caller's limit in bytes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Protocol

import pyarrow as pa

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.cell_types.classes import column_type
from queryserver.formats.cell_types.header import header_names, numbered_names
from queryserver.formats.cell_types.written_forms import NOT_GIVEN, GivenFormats, Measured, measured
from queryserver.formats.scalar_cells import kernels
from queryserver.imports.model import PREVIEW_ROWS, SAMPLE_RECORDS, Cells, ColumnType

REPLACEMENT = "\ufffd"
_LISTED_RECORDS = 10

FIRST_RECORDS = PREVIEW_ROWS + 1
"""How many first records `analyse_blocks` wants: a header and what is shown."""


class Oddity(StrEnum):
    """`code` of a warning of a preview."""

    LONG_ROWS = "long_rows"
    SHORT_ROWS = "short_rows"
    UNCLOSED_QUOTE = "unclosed_quote"
    UNDECODABLE = "undecodable"
    TRUNCATED_SAMPLE = "truncated_sample"


@dataclass(slots=True)
class SampleWarning:
    """How often something odd is in the sample, and the numbers of the first ten records of it (from 1).

    `undecodable` counts characters, the others count records; `truncated_sample` has count 1 and no records.
    """

    code: Oddity
    count: int = 0
    rows: list[int] = field(default_factory=list[int])

    def add(self, record: int) -> None:
        """Count a record."""
        self.count += 1
        if len(self.rows) < _LISTED_RECORDS:
            self.rows.append(record)


@dataclass(frozen=True, slots=True)
class PreviewColumn:
    """A column of a file, as it would be created."""

    name: str
    type: ColumnType
    format: str | None = None
    """How its cells write dates or numbers, where these are not in the plain forms (Contract importer 12.5)."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The answer. `rows`: at most 50, each of exactly one plain `str` per column, `""` where there is no cell.

    `is_whole`: types were told from the whole file. `warnings` has only what is there.
    """

    columns: Sequence[PreviewColumn]
    rows: Sequence[Sequence[str]]
    warnings: Sequence[SampleWarning]
    has_header: bool
    is_whole: bool
    fields: Sequence[str] = ()
    """What a file of records calls its columns; `columns` may have other names, which are all different."""


class ParsedBlock(Protocol):
    """What of `formats.delimited.records.Block` is looked at."""

    @property
    def first_record(self) -> int:
        """Number of its first record in the file, from 1; a header counts."""
        ...

    @property
    def columns(self) -> pa.RecordBatch:
        """One column of strings per cell position."""
        ...

    @property
    def long_rows(self) -> Sequence[int]:
        """Indexes within the block."""
        ...

    @property
    def short_rows(self) -> Sequence[int]:
        """Indexes within the block."""
        ...

    @property
    def unclosed(self) -> Sequence[int]:
        """Indexes within the block."""
        ...


class WidthUncertain(Exception):
    """Too many records are longer or shorter than the first ones: the most frequent width must be counted exactly."""


def sample_width(records: Iterable[Cells], *, has_header: bool) -> int:
    """The number of columns: of the header, or the most frequent among the records (the larger one of two).

    0 if there are no records. Of records that are only the first of a sample this is a guess unless there is a header;
    `analyse_blocks` raises WidthUncertain if it was wrong.
    """
    if has_header:
        return next((len(record) for record in records), 0)
    counts = Counter(len(record) for record in records)
    return max(counts, key=lambda width: (counts[width], width), default=0)


def analyse_records(
    records: Iterable[Cells],
    *,
    has_header: bool,
    is_whole: bool,
    unclosed: Sequence[int] = (),
    undecodable: int = 0,
    given: GivenFormats = NOT_GIVEN,
) -> Analysis:
    """The preview of a sample, from all its records (the header first, if there is one).

    `is_whole`: the sample is the whole file. `unclosed`: numbers of records with an unclosed quote.
    `undecodable`: how many characters could not be decoded. Raises file_empty.
    """
    source = iter(records)
    sample = list(islice(source, SAMPLE_RECORDS + has_header))
    is_whole = is_whole and next(source, None) is None
    _check_not_empty(sample, is_whole=is_whole)
    width = sample_width(sample, has_header=has_header)
    odd = _Oddities()
    for number, record in enumerate(sample, 1):
        odd.add_record(number, record, width, undecodable=bool(undecodable))
    for number in unclosed:
        if number <= len(sample):
            odd.unclosed.add(number)
    data = sample[has_header:]
    facts = [measured([cells[at] for cells in data if len(cells) > at], given) for at in range(width)]
    return _answer(sample, facts, odd.found(undecodable), has_header=has_header, is_whole=is_whole)


def analyse_blocks(
    first_records: Sequence[Cells],
    blocks: Iterable[ParsedBlock],
    *,
    has_header: bool,
    is_whole: bool,
    undecodable: int = 0,
    given: GivenFormats = NOT_GIVEN,
) -> Analysis:
    """The preview of a sample of text, from its first FIRST_RECORDS records and from the Blocks of all of it.

    The Blocks start with the first record (a header is in them, too) and were read with the width that `sample_width`
    gives for the first records. The other arguments are those of `analyse_records`. Raises file_empty; WidthUncertain:
    analyse all records instead.
    """
    _check_not_empty(first_records, is_whole=is_whole)
    odd = _Oddities()
    parts: list[pa.RecordBatch] = []
    left = SAMPLE_RECORDS + has_header
    source = iter(blocks)
    for block in source:
        rows = min(block.columns.num_rows, left)
        odd.add_block(block, rows, undecodable=bool(undecodable))
        parts.append(block.columns.slice(0, rows))
        left -= rows
        if not left:
            is_whole = is_whole and rows == block.columns.num_rows and next(source, None) is None
            break
    if not parts:
        return analyse_records(
            first_records, has_header=has_header, is_whole=is_whole, undecodable=undecodable, given=given
        )
    if not has_header and (odd.long.count + odd.short.count) * 2 >= SAMPLE_RECORDS - left:
        raise WidthUncertain
    width = sample_width(first_records, has_header=has_header)
    # Kernels have a price per call: one call over all blocks is worth a copy of the column.
    columns = (pa.concat_arrays([part.column(position) for part in parts]) for position in range(width))
    facts = [measured(cells[int(has_header) :], given) for cells in columns]
    return _answer(first_records, facts, odd.found(undecodable), has_header=has_header, is_whole=is_whole)


def _check_not_empty(records: Sequence[Cells], *, is_whole: bool) -> None:
    if not records:
        if is_whole:
            raise file_empty("File is empty.")
        raise record_too_long("The first record of the file is too long.")


def _answer(
    records: Sequence[Cells],
    facts: Sequence[Measured],
    warnings: list[SampleWarning],
    *,
    has_header: bool,
    is_whole: bool,
) -> Analysis:
    width = len(facts)
    names = header_names(records[0], width) if has_header else numbered_names(width)
    shown = [_row(record, width) for record in records[has_header : PREVIEW_ROWS + has_header]]
    if not is_whole and len(shown) < PREVIEW_ROWS:
        warnings.append(SampleWarning(Oddity.TRUNCATED_SAMPLE, 1))
    columns = [
        PreviewColumn(name, column_type(one.facts, is_whole=is_whole), one.format)
        for name, one in zip(names, facts, strict=True)
    ]
    return Analysis(columns, shown, warnings, has_header, is_whole)


def _row(record: Cells, width: int) -> list[str]:
    """Exactly `width` cells as plain text, without what subclasses of `str` know besides."""
    return [str(cell) for cell in record[:width]] + [""] * (width - len(record))


class _Oddities:
    """Counts what is odd about records. Those of the wrong width, of open quotes, and of undecodable characters."""

    def __init__(self) -> None:
        self.long = SampleWarning(Oddity.LONG_ROWS)
        self.short = SampleWarning(Oddity.SHORT_ROWS)
        self.unclosed = SampleWarning(Oddity.UNCLOSED_QUOTE)
        self.undecodable = SampleWarning(Oddity.UNDECODABLE)

    def add_record(self, number: int, record: Cells, width: int, *, undecodable: bool) -> None:
        if len(record) != width:
            (self.long if len(record) > width else self.short).add(number)
        if undecodable and any(REPLACEMENT in cell for cell in record):
            self.undecodable.add(number)

    def add_block(self, block: ParsedBlock, rows: int, *, undecodable: bool) -> None:
        """Count the first `rows` rows of a block."""
        for warning, indexes in (
            (self.long, block.long_rows),
            (self.short, block.short_rows),
            (self.unclosed, block.unclosed),
            (self.undecodable, _undecodable_rows(block.columns) if undecodable else ()),
        ):
            for index in indexes:
                if index < rows:
                    warning.add(block.first_record + index)

    def found(self, undecodable: int) -> list[SampleWarning]:
        """The warnings that have something to say."""
        self.undecodable.count = undecodable
        return [warning for warning in (self.long, self.short, self.unclosed, self.undecodable) if warning.count]


def _undecodable_rows(columns: pa.RecordBatch) -> Iterator[int]:
    found = pa.array([False] * columns.num_rows)
    for cells in columns.columns:
        found = kernels.or_(found, kernels.fill_null(kernels.match_substring(cells, REPLACEMENT), False))
    return (index for index, is_found in enumerate(found.to_pylist()) if is_found)
