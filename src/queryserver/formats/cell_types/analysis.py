"""Previews: the number of columns, their names and types, first rows, and warnings (Contract importer 7.3)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

import pyarrow as pa

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.arrow import kernels
from queryserver.formats.cell_types.classes import column_type
from queryserver.formats.cell_types.header import header_names, numbered_names
from queryserver.formats.cell_types.written_forms import NO_FORMATS, Measured, ValueFormats, measured
from queryserver.formats.columns import ColumnType
from queryserver.formats.delimited.records import NO_LINES, Block
from queryserver.formats.table_files import BLANKS, PREVIEW_ROWS, SAMPLE_RECORDS, Cells, Delimiters, SkippedLines

FIRST_RECORDS = PREVIEW_ROWS + 1
"""How many first records `analyse_blocks` takes: a header and what is shown."""

REPLACEMENT = "\ufffd"

LISTED_RECORDS = 10


class Oddity(StrEnum):
    """`code` of a warning of a preview."""

    LONG_ROWS = "long_rows"
    SHORT_ROWS = "short_rows"
    UNCLOSED_QUOTE = "unclosed_quote"
    UNDECODABLE = "undecodable"
    TRUNCATED_SAMPLE = "truncated_sample"
    FORMULAS_WITHOUT_VALUES = "formulas_without_values"
    ENCODING_UNCERTAIN = "encoding_uncertain"
    SKIPPED_LINES = "skipped_lines"
    NULL_WORDS = "null_words"


@dataclass(slots=True)
class SampleWarning:
    """How often something odd is in the sample, and the numbers of the first ten records of it (from 1).

    `undecodable` counts characters, `skipped_lines` lines (and lists those above the table), `null_words` cells, the
    others records; `truncated_sample` has count 1 and no records.
    """

    code: Oddity
    count: int = 0
    rows: list[int] = field(default_factory=list[int])

    def add(self, record: int) -> None:
        self.count += 1
        if len(self.rows) < LISTED_RECORDS:
            self.rows.append(record)


@dataclass(frozen=True, slots=True)
class PreviewColumn:
    name: str
    type: ColumnType
    format: str | None = None
    """How its cells write dates or numbers, where these are not in the plain forms (Contract importer 12.5)."""
    null_words: Sequence[str] = ()
    """Cells that mean NULL (Contract importer 12.6)."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A preview. `rows`: at most 50, each of exactly one plain `str` per column, `""` where there is no cell.

    `is_whole`: the types are those of the whole file.
    """

    columns: Sequence[PreviewColumn]
    rows: Sequence[Sequence[str]]
    warnings: Sequence[SampleWarning]
    has_header: bool
    is_whole: bool
    fields: Sequence[str] = ()
    """The names of columns in a file of records; `columns` may have other names, which are all different."""
    encoding: str = "utf-8"
    """Of a text: the given one, else the detected one."""
    delimiters: Delimiters = field(default_factory=Delimiters)
    """Of a text, with the escape that was found."""
    skipped: SkippedLines = NO_LINES
    """Lines of a text, or first rows of a worksheet, that are no part of the table."""


def skipped_lines(skipped: SkippedLines, comments: int = 0) -> Iterator[SampleWarning]:
    """The warning of lines of a text or rows of a worksheet that are skipped, if any are."""
    if count := skipped.first + comments:
        lines = range(1, min(skipped.first, LISTED_RECORDS) + 1)
        yield SampleWarning(Oddity.SKIPPED_LINES, count, list(lines))


class WidthUncertain(Exception):
    """Too many records are longer or shorter than the first ones: the most frequent width must be counted exactly."""


def sample_width(records: Iterable[Cells], *, has_header: bool, is_whole: bool = True) -> int:
    """The number of columns (Contract importer 7.3.4); 0 if there are no records.

    Of records that are only the first of a sample this is a guess; `analyse_blocks` raises WidthUncertain if it may be
    wrong. `is_whole`: there are no others.
    """
    return _shape(records, has_header=has_header, is_whole=is_whole).width


@dataclass(frozen=True, slots=True)
class _Shape:
    width: int
    named: int = 0
    """The columns that the header names."""
    has_blank_ends: bool = False
    """Whether the fields of most records that are behind the last column are blank in all of them."""

    def is_certain(self, odd: "_Oddities", rows: int, *, is_whole: bool) -> bool:
        """Whether all of `rows` records have this shape, of which some are longer or shorter."""
        if self.has_blank_ends and (odd.long.count or not (self.named or is_whole)):
            return False
        if self.width > self.named:
            wider = odd.long.count if self.has_blank_ends else odd.wider
            return (wider + odd.short.count) * 2 < rows
        return self.has_blank_ends or odd.wider * 2 <= rows


def _shape(records: Iterable[Cells], *, has_header: bool, is_whole: bool) -> _Shape:
    source = iter(records)
    header = next(source, ()) if has_header else ()
    named = _filled(header) or len(header)
    data = list(source)
    counts = Counter(map(len, data))
    usual = max(counts, key=lambda width: (counts[width], width), default=0)
    if usual <= named or (header and counts[usual] * 2 <= len(data)):
        return _Shape(named, named)
    if not header and not is_whole:
        # A column without a name may have its first value behind the sample.
        return _Shape(usual)
    filled = max(_filled(record) for record in data if len(record) == usual)
    width = max(named, filled) or usual
    return _Shape(width, named, width < usual)


def _filled(record: Cells) -> int:
    """The length of a record without the blank cells at its end."""
    length = len(record)
    while length and not record[length - 1].strip(BLANKS):
        length -= 1
    return length


def analyse_records(
    records: Iterable[Cells],
    *,
    has_header: bool,
    is_whole: bool,
    unclosed: Sequence[int] = (),
    undecodable: int = 0,
    given: ValueFormats = NO_FORMATS,
    null_words: Sequence[str] | None = None,
) -> Analysis:
    """The preview of a sample, from all its records (the header first, if there is one).

    `is_whole`: the sample is the whole file. `unclosed`: numbers of records with an unclosed quote.
    `undecodable`: how many characters could not be decoded. Raises file_empty.
    """
    source = iter(records)
    sample = list(islice(source, SAMPLE_RECORDS + has_header))
    is_whole = is_whole and next(source, None) is None
    _check_not_empty(sample, is_whole=is_whole)
    width = sample_width(sample, has_header=has_header, is_whole=is_whole)
    odd = _Oddities()
    for number, record in enumerate(sample, 1):
        if len(record) < width:
            if not (has_header and number == 1):
                odd.short.add(number)
        elif len(record) > width and _filled(record) > width:
            odd.long.add(number)
        if undecodable and any(REPLACEMENT in cell for cell in record):
            odd.undecodable.add(number)
    for number in unclosed:
        if number <= len(sample):
            odd.unclosed.add(number)
    data = sample[has_header:]
    columns = ([cells[at] if len(cells) > at else "" for cells in data] for at in range(width))
    facts = [odd.measured(cells, given, null_words, 1 + has_header) for cells in columns]
    return _answer(sample, facts, odd.found(undecodable), has_header=has_header, is_whole=is_whole)


def analyse_blocks(
    first_records: Sequence[Cells],
    blocks: Iterable[Block],
    *,
    has_header: bool,
    is_whole: bool,
    undecodable: int = 0,
    given: ValueFormats = NO_FORMATS,
    null_words: Sequence[str] | None = None,
) -> Analysis:
    """The preview of a sample of text, from its first FIRST_RECORDS records and from the Blocks of all of it.

    The Blocks start with the first record (a header is in them, too) and were read with the width that `sample_width`
    gives for the first records. The other arguments are those of `analyse_records`. Raises file_empty; WidthUncertain:
    analyse all records instead.
    """
    _check_not_empty(first_records, is_whole=is_whole)
    shape = _shape(first_records, has_header=has_header, is_whole=is_whole)
    odd = _Oddities()
    parts: list[pa.RecordBatch] = []
    left = SAMPLE_RECORDS + has_header
    source = iter(blocks)
    for block in source:
        rows = min(block.columns.num_rows, left)
        odd.add_block(block, rows, has_header=has_header, undecodable=bool(undecodable))
        parts.append(block.columns.slice(0, rows))
        left -= rows
        if not left:
            is_whole = is_whole and rows == block.columns.num_rows and next(source, None) is None
            break
    if not parts:
        return analyse_records(
            first_records,
            has_header=has_header,
            is_whole=is_whole,
            undecodable=undecodable,
            given=given,
            null_words=null_words,
        )
    if not shape.is_certain(odd, SAMPLE_RECORDS - left, is_whole=is_whole):
        raise WidthUncertain
    width = shape.width
    # Kernels have a price per call: one call over all blocks is worth a copy of the column.
    columns = (pa.concat_arrays([part.column(position) for part in parts]) for position in range(width))
    facts = [odd.measured(cells[int(has_header) :], given, null_words, 1 + has_header) for cells in columns]
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
    # Plain text, without the attributes of the subclasses of `str`.
    shown = [
        [str(cell) for cell in record[:width]] + [""] * (width - len(record))
        for record in records[has_header : PREVIEW_ROWS + has_header]
    ]
    if not is_whole and len(shown) < PREVIEW_ROWS:
        warnings.append(SampleWarning(Oddity.TRUNCATED_SAMPLE, 1))
    columns = [
        PreviewColumn(name, column_type(one.facts, is_whole=is_whole), one.format, one.null_words)
        for name, one in zip(names, facts, strict=True)
    ]
    return Analysis(columns, shown, warnings, has_header, is_whole)


class _Oddities:
    """Counts records of the wrong width, with open quotes, and with undecodable characters."""

    def __init__(self) -> None:
        self.wider = 0
        """Records with fields behind the last column, be they blank."""
        self.long = SampleWarning(Oddity.LONG_ROWS)
        self.short = SampleWarning(Oddity.SHORT_ROWS)
        self.unclosed = SampleWarning(Oddity.UNCLOSED_QUOTE)
        self.undecodable = SampleWarning(Oddity.UNDECODABLE)
        self.null_words = SampleWarning(Oddity.NULL_WORDS)

    def add_block(self, block: Block, rows: int, *, has_header: bool, undecodable: bool) -> None:
        """Count the first `rows` rows of a block. A header may be shorter than its rows."""
        first = block.first_record
        self.wider += sum(row < rows and not (has_header and first + row == 1) for row in block.wider_rows)
        for warning, indexes in (
            (self.long, block.long_rows),
            (self.short, [row for row in block.short_rows if not has_header or first + row > 1]),
            (self.unclosed, block.unclosed),
            (self.undecodable, _undecodable_rows(block.columns) if undecodable else ()),
        ):
            for index in indexes:
                if index < rows:
                    warning.add(first + index)

    def measured(
        self,
        cells: pa.StringArray | Sequence[str],
        given: ValueFormats,
        null_words: Sequence[str] | None,
        first_record: int,
    ) -> Measured:
        """The facts of a column. Words that were detected to mean NULL are counted by their cells."""
        found = measured(cells, given, null_words)
        if found.null_words and null_words is None:
            array = cells if isinstance(cells, pa.Array) else pa.array(map(str, cells), pa.string())
            trimmed = kernels.utf8_trim(array, characters=BLANKS)
            is_word = kernels.is_in(trimmed, value_set=pa.array(found.null_words, pa.string()))
            rows = kernels.indices_nonzero(is_word).to_pylist()
            self.null_words.count += len(rows)
            named = {*self.null_words.rows, *(first_record + row for row in rows[:LISTED_RECORDS])}
            self.null_words.rows = sorted(named)[:LISTED_RECORDS]
        return found

    def found(self, undecodable: int) -> list[SampleWarning]:
        self.undecodable.count = undecodable
        found = (self.long, self.short, self.unclosed, self.undecodable, self.null_words)
        return [warning for warning in found if warning.count]


def _undecodable_rows(columns: pa.RecordBatch) -> Iterator[int]:
    found = pa.array([False] * columns.num_rows)
    for cells in columns.columns:
        found = kernels.or_(found, kernels.fill_null(kernels.match_substring(cells, REPLACEMENT), False))
    return (index for index, is_found in enumerate(found.to_pylist()) if is_found)
