"""Builds previews: the number, names and types of columns, the first rows, and warnings (Contract importer 7.3)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

import pyarrow as pa

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.arrow import ColumnType, kernels
from queryserver.formats.cell_types.classes import column_type
from queryserver.formats.cell_types.header import header_names, numbered_names
from queryserver.formats.cell_types.value_formats import NO_FORMATS, ColumnProfile, ValueFormats, profile_column
from queryserver.formats.delimited.records import NO_LINES, Block
from queryserver.formats.table_files import BLANKS, PREVIEW_ROWS, SAMPLE_RECORDS, Cells, Delimiters, SkippedLines

FIRST_RECORDS = PREVIEW_ROWS + 1
"""Number of records that `analyze_blocks` needs: the header and the rows of the preview."""

REPLACEMENT_CHARACTER = "\ufffd"

MAX_LISTED_RECORDS = 10


class WarningCode(StrEnum):
    """Values of `code` in the warnings of a preview."""

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
    """A warning about the sample. `rows` contains the numbers, starting at 1, of the first ten affected records.

    `count` is a number of records, except that `undecodable` counts characters, `skipped_lines` lines, and `null_words`
    cells; `truncated_sample` has count 1 and no records. `skipped_lines` lists the lines above the table.
    """

    code: WarningCode
    count: int = 0
    rows: list[int] = field(default_factory=list[int])

    def add(self, record: int) -> None:
        self.count += 1
        if len(self.rows) < MAX_LISTED_RECORDS:
            self.rows.append(record)


@dataclass(frozen=True, slots=True)
class PreviewColumn:
    name: str
    type: ColumnType
    format: str | None = None
    """The format of the dates or numbers in the cells; None if they have the standard form (Contract importer 12.5)."""
    null_words: Sequence[str] = ()
    """Cell values that mean NULL (Contract importer 12.6)."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A preview of a file, with at most 50 `rows`. Each row has one plain `str` per column; missing cells are empty
    strings.

    `is_whole` states that the types were detected from the whole file.
    """

    columns: Sequence[PreviewColumn]
    rows: Sequence[Sequence[str]]
    warnings: Sequence[SampleWarning]
    has_header: bool
    is_whole: bool
    fields: Sequence[str] = ()
    """The original column names of a record file. The names in `columns` may differ, because they are made unique."""
    encoding: str = "utf-8"
    """The declared or detected encoding of a text file."""
    delimiters: Delimiters = field(default_factory=Delimiters)
    """The delimiters of a text file, including the detected escape character."""
    skipped: SkippedLines = NO_LINES
    """The lines of a text file, or the first rows of a worksheet, that are not part of the table."""


def skipped_lines(skipped: SkippedLines, comments: int = 0) -> Iterator[SampleWarning]:
    """Yield a warning if lines of a text file or rows of a worksheet are skipped."""
    if count := skipped.first + comments:
        lines = range(1, min(skipped.first, MAX_LISTED_RECORDS) + 1)
        yield SampleWarning(WarningCode.SKIPPED_LINES, count, list(lines))


class WidthUncertain(Exception):
    """Too many records differ in width from the first records, so the width must be determined from all records."""


def sample_width(records: Iterable[Cells], *, has_header: bool, is_whole: bool = True) -> int:
    """Return the number of columns (Contract importer 7.3.4), or 0 if there are no records.

    The result for only the first records of a sample may be wrong. In that case, `analyze_blocks` raises
    WidthUncertain. `is_whole` states that there are no other records.
    """
    return _shape(records, has_header=has_header, is_whole=is_whole).width


@dataclass(frozen=True, slots=True)
class _Shape:
    width: int
    named: int = 0
    """Number of columns that have a name in the header."""
    has_blank_ends: bool = False
    """Whether most records have fields after the last column, all of which are blank."""

    def is_certain(self, counter: "_WarningCounter", rows: int, *, is_whole: bool) -> bool:
        """Return whether the shape holds for all `rows` records, given the counts of longer and shorter records."""
        if self.has_blank_ends and (counter.long.count or not (self.named or is_whole)):
            return False
        if self.width > self.named:
            wider = counter.long.count if self.has_blank_ends else counter.wider
            return (wider + counter.short.count) * 2 < rows
        return self.has_blank_ends or counter.wider * 2 <= rows


def _shape(records: Iterable[Cells], *, has_header: bool, is_whole: bool) -> _Shape:
    source = iter(records)
    header = next(source, ()) if has_header else ()
    named = _length_without_blank_end(header) or len(header)
    data = list(source)
    counts = Counter(map(len, data))
    usual = max(counts, key=lambda width: (counts[width], width), default=0)
    if usual <= named or (header and counts[usual] * 2 <= len(data)):
        return _Shape(named, named)
    if not header and not is_whole:
        # Later records may still contain a value in an unnamed column.
        return _Shape(usual)
    filled = max(_length_without_blank_end(record) for record in data if len(record) == usual)
    width = max(named, filled) or usual
    return _Shape(width, named, width < usual)


def _length_without_blank_end(record: Cells) -> int:
    """Return the length of a record, not counting blank cells at its end."""
    length = len(record)
    while length and not record[length - 1].strip(BLANKS):
        length -= 1
    return length


def analyze_records(
    records: Iterable[Cells],
    *,
    has_header: bool,
    is_whole: bool,
    unclosed: Sequence[int] = (),
    undecodable: int = 0,
    formats: ValueFormats = NO_FORMATS,
    null_words: Sequence[str] | None = None,
) -> Analysis:
    """Build the preview of a sample from all its records, including the header, if any.

    `is_whole` states that the sample is the whole file. `unclosed` contains the numbers of the records with an unclosed
    quote. `undecodable` is the number of characters that could not be decoded. Raises file_empty, record_too_long.
    """
    source = iter(records)
    sample = list(islice(source, SAMPLE_RECORDS + has_header))
    is_whole = is_whole and next(source, None) is None
    _check_not_empty(sample, is_whole=is_whole)
    width = sample_width(sample, has_header=has_header, is_whole=is_whole)
    counter = _WarningCounter()
    for number, record in enumerate(sample, 1):
        if len(record) < width:
            if not (has_header and number == 1):
                counter.short.add(number)
        elif len(record) > width and _length_without_blank_end(record) > width:
            counter.long.add(number)
        if undecodable and any(REPLACEMENT_CHARACTER in cell for cell in record):
            counter.undecodable.add(number)
    for number in unclosed:
        if number <= len(sample):
            counter.unclosed.add(number)
    data = sample[has_header:]
    columns = ([cells[at] if len(cells) > at else "" for cells in data] for at in range(width))
    facts = [counter.profile_column(cells, formats, null_words, 1 + has_header) for cells in columns]
    return _build_analysis(sample, facts, counter.found(undecodable), has_header=has_header, is_whole=is_whole)


def analyze_blocks(
    first_records: Sequence[Cells],
    blocks: Iterable[Block],
    *,
    has_header: bool,
    is_whole: bool,
    undecodable: int = 0,
    formats: ValueFormats = NO_FORMATS,
    null_words: Sequence[str] | None = None,
) -> Analysis:
    """Build the preview of a text sample from its first FIRST_RECORDS records and from Blocks of all its records.

    The Blocks begin with the first record, even if it is a header, and have the width that `sample_width` returns for
    the first records. For the other arguments see `analyze_records`. Raises file_empty, record_too_long, and
    WidthUncertain if the caller must use `analyze_records` instead.
    """
    _check_not_empty(first_records, is_whole=is_whole)
    shape = _shape(first_records, has_header=has_header, is_whole=is_whole)
    counter = _WarningCounter()
    parts: list[pa.RecordBatch] = []
    left = SAMPLE_RECORDS + has_header
    source = iter(blocks)
    for block in source:
        rows = min(block.columns.num_rows, left)
        counter.add_block(block, rows, has_header=has_header, undecodable=bool(undecodable))
        parts.append(block.columns.slice(0, rows))
        left -= rows
        if not left:
            is_whole = is_whole and rows == block.columns.num_rows and next(source, None) is None
            break
    if not parts:
        return analyze_records(
            first_records,
            has_header=has_header,
            is_whole=is_whole,
            undecodable=undecodable,
            formats=formats,
            null_words=null_words,
        )
    if not shape.is_certain(counter, SAMPLE_RECORDS - left, is_whole=is_whole):
        raise WidthUncertain
    width = shape.width
    # Each kernel call has a fixed cost, so copying the column and making a single call is cheaper.
    columns = (pa.concat_arrays([part.column(position) for part in parts]) for position in range(width))
    facts = [counter.profile_column(cells[int(has_header) :], formats, null_words, 1 + has_header) for cells in columns]
    return _build_analysis(first_records, facts, counter.found(undecodable), has_header=has_header, is_whole=is_whole)


def _check_not_empty(records: Sequence[Cells], *, is_whole: bool) -> None:
    if not records:
        if is_whole:
            raise file_empty("File is empty.")
        raise record_too_long("The first record of the file is too long.")


def _build_analysis(
    records: Sequence[Cells],
    facts: Sequence[ColumnProfile],
    warnings: list[SampleWarning],
    *,
    has_header: bool,
    is_whole: bool,
) -> Analysis:
    width = len(facts)
    names = header_names(records[0], width) if has_header else numbered_names(width)
    # `str()` converts instances of `str` subclasses to plain `str`.
    shown = [
        [str(cell) for cell in record[:width]] + [""] * (width - len(record))
        for record in records[has_header : PREVIEW_ROWS + has_header]
    ]
    if not is_whole and len(shown) < PREVIEW_ROWS:
        warnings.append(SampleWarning(WarningCode.TRUNCATED_SAMPLE, 1))
    columns = [
        PreviewColumn(name, column_type(one.facts, is_whole=is_whole), one.format, one.null_words)
        for name, one in zip(names, facts, strict=True)
    ]
    return Analysis(columns, shown, warnings, has_header, is_whole)


class _WarningCounter:
    """Counts records with a wrong width, an unclosed quote or undecodable characters, and cells with null words."""

    def __init__(self) -> None:
        self.wider = 0
        """Number of records with fields after the last column, even if these are blank."""
        self.long = SampleWarning(WarningCode.LONG_ROWS)
        self.short = SampleWarning(WarningCode.SHORT_ROWS)
        self.unclosed = SampleWarning(WarningCode.UNCLOSED_QUOTE)
        self.undecodable = SampleWarning(WarningCode.UNDECODABLE)
        self.null_words = SampleWarning(WarningCode.NULL_WORDS)

    def add_block(self, block: Block, rows: int, *, has_header: bool, undecodable: bool) -> None:
        """Count the first `rows` rows of a block. A header that is shorter than the rows is not counted."""
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

    def profile_column(
        self,
        cells: pa.StringArray | Sequence[str],
        formats: ValueFormats,
        null_words: Sequence[str] | None,
        first_record: int,
    ) -> ColumnProfile:
        """Profile a column, and count the cells that contain detected null words."""
        found = profile_column(cells, formats, null_words)
        if found.null_words and null_words is None:
            array = cells if isinstance(cells, pa.Array) else pa.array(map(str, cells), pa.string())
            trimmed = kernels.utf8_trim(array, characters=BLANKS)
            is_word = kernels.is_in(trimmed, value_set=pa.array(found.null_words, pa.string()))
            rows = kernels.indices_nonzero(is_word).to_pylist()
            self.null_words.count += len(rows)
            named = {*self.null_words.rows, *(first_record + row for row in rows[:MAX_LISTED_RECORDS])}
            self.null_words.rows = sorted(named)[:MAX_LISTED_RECORDS]
        return found

    def found(self, undecodable: int) -> list[SampleWarning]:
        self.undecodable.count = undecodable
        found = (self.long, self.short, self.unclosed, self.undecodable, self.null_words)
        return [warning for warning in found if warning.count]


def _undecodable_rows(columns: pa.RecordBatch) -> Iterator[int]:
    found = pa.array([False] * columns.num_rows)
    for cells in columns.columns:
        found = kernels.or_(found, kernels.fill_null(kernels.match_substring(cells, REPLACEMENT_CHARACTER), False))
    return (index for index, is_found in enumerate(found.to_pylist()) if is_found)
