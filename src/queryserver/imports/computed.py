"""The tasks that detect and preview text files in worker processes. Each takes the beginning of a file and returns a
value that orjson can serialize.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.cell_types.analysis import (
    FIRST_RECORDS,
    Analysis,
    SampleWarning,
    WarningCode,
    WidthUncertain,
    analyze_blocks,
    analyze_records,
    sample_width,
    skipped_lines,
)
from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.cell_types.value_formats import ValueFormats
from queryserver.formats.delimited.encodings import CERTAIN_CONFIDENCE, Decoder, decoded
from queryserver.formats.delimited.records import NO_LINES, Block, BlockReader, RecordReader
from queryserver.formats.detection import (
    ReadingOptions,
    declared_text_encoding,
    detect_declared_type,
    detect_delimiters,
    detect_file_type,
    resolve_text_format,
)
from queryserver.formats.table_files import (
    SAMPLE_BYTES,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    CellKind,
    Cells,
    Delimiters,
    FileType,
    SkippedLines,
)

MORE_NEEDED = "more"
"""Returned by a task that needs more of the file."""

CUT_FIELD_BYTES = 4 * 1024 * 1024 + 64 * 1024
"""Bytes to read after the sample to complete a truncated field: at most 1 Mi characters of up to four bytes each."""

_FEED_BYTES = 1024 * 1024
_SMALL_FEED_BYTES = 120 * 1024
_MAX_SMALL_FEED_COLUMNS = 16
"""Up to this width, ASCII text without comment lines is read in smaller chunks. The copies of a chunk are then below
the size above which the worker maps each block of memory separately (128 KiB), and less text is read after the sample.
With more columns, the smaller blocks would leave gaps that count as used memory: 0.9 GiB for 8 MiB of 200 columns.
Other text may contain undecodable characters or comment lines after the sample, which are counted.
"""
_STEP_BYTES = 64 * 1024
"""Chunk size for reading the first records. It is small because only a few dozen records are needed."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """Delimiters, encoding and skipped lines of a text file, each either given or detected from the file's
    beginning.
    """

    delimiters: Delimiters
    encoding: str
    is_encoding_given: bool
    """Whether the caller has given the encoding. At least nine tenths of the text must then be valid in it."""
    is_encoding_certain: bool
    skipped: SkippedLines


@dataclass(frozen=True, slots=True)
class DetectedHeader:
    """Whether the first record after the `skipped` lines contains the column names."""

    has_header: bool
    skipped: SkippedLines = NO_LINES


class _TextSample:
    """The beginning of a file, divided into the sample and the text after it.

    `is_whole` is set if the sample is the whole file, `is_last` if no more of the file will be read.
    """

    def __init__(self, head: bytes, options: Mapping[str, Any]) -> None:
        self._head = head
        self._has_end: bool = options["is_whole"]
        self.is_whole = self._has_end and len(head) <= SAMPLE_TEXT_BYTES
        self.is_last: bool = self._has_end or options["is_last"]

    def sample(self, step_bytes: int) -> Iterator[tuple[bytes, bool]]:
        """Yield the sample in chunks, each with a flag that is set if the file ends after it."""
        return self._pieces(0, min(len(self._head), SAMPLE_TEXT_BYTES), step_bytes)

    def rest(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the text after the sample, up to the maximum length of a field."""
        return self._pieces(SAMPLE_TEXT_BYTES, len(self._head), _FEED_BYTES)

    def _pieces(self, start: int, end: int, step_bytes: int) -> Iterator[tuple[bytes, bool]]:
        for offset in range(start, end, step_bytes):
            piece_end = min(offset + step_bytes, end)
            yield self._head[offset:piece_end], self._has_end and piece_end == len(self._head)


class _RecordSample:
    """The first records of a text file; `unclosed` holds the numbers of the records with an unclosed quote."""

    def __init__(self, form: TextForm) -> None:
        self.decoder = Decoder(form.encoding)
        self.records: list[Cells] = []
        self.unclosed: list[int] = []
        self._reader = RecordReader(form.delimiters, skipped=form.skipped)

    @property
    def comments(self) -> int:
        return self._reader.comments

    def read(self, pieces: Iterable[tuple[bytes, bool]], is_enough: Callable[[Sequence[Cells]], bool]) -> bool:
        """Read until `is_enough` accepts the records. Return False if the input ends before that.

        After a long unclosed quote, a single chunk may add many records.
        """
        for piece, is_end in pieces:
            for records in self._reader.parts(self.decoder.decode(piece, final=is_end), final=is_end):
                self.records += records
                self.unclosed += self._reader.unclosed
                if is_enough(self.records):
                    return True
        return False

    def end(self) -> None:
        """Treat the text read so far as complete.

        Raises record_too_long if the last field is still incomplete, which means that it is too long.
        """
        list(self._reader.parts("", final=True))


class _BlockSample:
    """The records of a text file as columnar blocks of `width` columns."""

    def __init__(self, form: TextForm, width: int) -> None:
        self.blocks: list[Block] = []
        self._reader = BlockReader(form.delimiters, form.encoding, width, skipped=form.skipped)
        self.decoder = self._reader.decoder

    @property
    def comments(self) -> int:
        return self._reader.comments

    def read(self, pieces: Iterable[tuple[bytes, bool]], max_rows: int) -> bool:
        """Read until there are more than `max_rows` rows. Return False if the input ends before that."""
        for piece, is_end in pieces:
            self.blocks += self._reader.feed(piece)
            if is_end:
                self.blocks += self._reader.finish()
            if self.blocks and self.blocks[-1].first_record + self.blocks[-1].columns.num_rows - 1 > max_rows:
                return True
        return False

    def end(self) -> None:
        """Treat the text read so far as complete. Raises record_too_long, as `_RecordSample.end` does."""
        list(self._reader.finish())


def _too_many_records(records: Sequence[Cells]) -> bool:
    return len(records) > SAMPLE_RECORDS + 1


def _has_value(record: Cells) -> bool:
    return any(classify(cell) is not CellKind.NULL for cell in record)


def detect_file(options: Mapping[str, Any], head: bytes) -> object:
    """Detect the format of a text file (a DetectedFormat as a dict), or the type of any other file.

    If the option `encoding` is None, the encoding is detected. If `is_given` is set, only the type is returned,
    according to the rules for a type that the caller has given.

    Raises file_empty, UnsupportedFormat, encoding_failed.
    """
    is_whole, encoding = options["is_whole"], options.get("encoding")
    if options.get("is_given"):
        return detect_declared_type(head, is_whole=is_whole, encoding=encoding)
    kind = detect_file_type(head, is_whole=is_whole, encoding=encoding)
    if kind is not FileType.DELIMITED:
        return kind
    if encoding is not None:
        decoder = Decoder(encoding)
        decoder.decode(head, final=is_whole)
        decoder.check()
    return asdict(detect_delimiters(head, is_whole=is_whole, encoding=encoding))


def preview(options: Mapping[str, Any], head: bytes) -> object:
    """Return an Analysis, EXCEL if the file begins like a workbook, or MORE_NEEDED if `head` is too short.

    The option `reading` is a ReadingOptions as a dict. `is_whole` is set if `head` is the whole file, `is_last` if no
    more of the file will be read.
    """
    form = _text_form(head, options)
    if form is None:
        return FileType.EXCEL
    text, has_header, first = _TextSample(head, options), options["has_header"], _RecordSample(form)
    # Read one row more than is analyzed, to know whether the file continues.
    max_rows = SAMPLE_RECORDS + has_header
    is_enough = first.read(text.sample(_STEP_BYTES), lambda records: len(records) >= FIRST_RECORDS)
    blocks = None
    if is_enough and len(first.records) <= max_rows:
        del first.records[FIRST_RECORDS:]
        width = sample_width(first.records, has_header=has_header, is_whole=text.is_whole)
        blocks = _BlockSample(form, width)
        is_narrow = width <= _MAX_SMALL_FEED_COLUMNS and head.isascii() and not form.skipped.comment
        feed_bytes = _SMALL_FEED_BYTES if is_narrow else _FEED_BYTES
        is_enough = blocks.read(text.sample(feed_bytes), max_rows)
    if not is_enough and not text.is_last:
        return MORE_NEEDED
    analysis = _analysis(form, text, first, blocks, options)
    if not is_enough:
        # The field at the end of the sample may be too long, in which case an import would reject its record. Read on
        # to check.
        if blocks is None:
            if not first.read(text.rest(), _too_many_records):
                first.end()
        elif not blocks.read(text.rest(), max_rows):
            blocks.end()
    if not form.is_encoding_certain:
        analysis = replace(analysis, warnings=[*analysis.warnings, SampleWarning(WarningCode.ENCODING_UNCERTAIN, 1)])
    comments = (first if blocks is None else blocks).comments
    warnings = [*analysis.warnings, *skipped_lines(form.skipped, comments)]
    return replace(
        analysis, encoding=form.encoding, delimiters=form.delimiters, skipped=form.skipped, warnings=warnings
    )


def _analysis(
    form: TextForm, text: _TextSample, first: _RecordSample, blocks: _BlockSample | None, options: Mapping[str, Any]
) -> Analysis:
    """Analyze the sample.

    If `blocks` is None, `first` holds all records of the sample. Raises file_empty, record_too_long, encoding_failed.
    """
    decoder = first.decoder if blocks is None else blocks.decoder
    if form.is_encoding_given:
        decoder.check()
    reading = _reading_options(options["reading"])
    common: dict[str, Any] = {
        "has_header": options["has_header"],
        "is_whole": text.is_whole,
        "formats": reading.formats,
        "null_words": reading.null_words,
    }
    if blocks is not None:
        try:
            return analyze_blocks(first.records, blocks.blocks, undecodable=decoder.undecodable, **common)
        except WidthUncertain:
            first = _RecordSample(form)
            first.read(text.sample(_STEP_BYTES), _too_many_records)
    return analyze_records(first.records, unclosed=first.unclosed, undecodable=first.decoder.undecodable, **common)


def header(options: Mapping[str, Any], head: bytes) -> object:
    """Detect whether the file has a header. Return a DetectedHeader as a dict, or EXCEL or MORE_NEEDED as `preview`
    does.

    Takes the options of `preview` except `has_header`. Needs at most 100 records with a value after the header. Raises
    file_empty, record_too_long, encoding_failed.
    """
    form = _text_form(head, options)
    if form is None:
        return FileType.EXCEL
    text, first = _TextSample(head, options), _RecordSample(form)
    counted = with_value = 0

    def is_enough(records: Sequence[Cells]) -> bool:
        nonlocal counted, with_value
        with_value += sum(map(_has_value, records[counted : SAMPLE_RECORDS + 1]))
        counted = len(records)
        return with_value > COMPARED_RECORDS or counted > SAMPLE_RECORDS

    if not first.read(text.sample(_STEP_BYTES), is_enough) and not text.is_last:
        return MORE_NEEDED
    if form.is_encoding_given:
        first.decoder.check()
    if not first.records:
        raise file_empty("File is empty.") if text.is_whole else record_too_long("The first record is too long.")
    return asdict(DetectedHeader(has_header(first.records[: SAMPLE_RECORDS + 1]), form.skipped))


def _text_form(head: bytes, options: Mapping[str, Any]) -> TextForm | None:
    """Return the form of the text, or None if the file begins like a workbook."""
    reading = _reading_options(options["reading"])
    sample = head[:SAMPLE_BYTES]
    is_whole: bool = options["is_whole"] and len(head) <= SAMPLE_BYTES
    detected = declared_text_encoding(sample, is_whole=is_whole, encoding=reading.encoding)
    if detected is None:
        return None
    encoding = detected.name
    delimiters = reading.delimiters
    if delimiters is None:
        delimiters = reading.complete_delimiters(
            detect_delimiters(sample, is_whole=is_whole, encoding=encoding).delimiters
        )
    form = resolve_text_format(
        decoded(sample, encoding, is_whole=is_whole),
        delimiters,
        is_whole=is_whole,
        skip_rows=reading.skip_rows,
        comment=reading.comment,
        escape=reading.escape,
    )
    return TextForm(
        form.delimiters,
        encoding,
        is_encoding_given=reading.encoding is not None,
        is_encoding_certain=detected.confidence >= CERTAIN_CONFIDENCE,
        skipped=form.skipped,
    )


def _reading_options(reading: Mapping[str, Any]) -> ReadingOptions:
    delimiters = reading["delimiters"]
    return ReadingOptions(
        FileType(reading["file_type"]),
        reading["sheet_name"],
        delimiters and Delimiters(**delimiters),
        reading["quote_char"],
        reading["record_separator"],
        reading["encoding"],
        ValueFormats(**reading["formats"]),
        reading["skip_rows"],
        reading["comment"],
        reading["escape"],
        None if reading["null_words"] is None else tuple(reading["null_words"]),
    )
