"""Detection, preview and header of a text, computed in a worker process: the beginning of a file in, JSON out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.cell_types.analysis import (
    FIRST_RECORDS,
    Analysis,
    Oddity,
    SampleWarning,
    WidthUncertain,
    analyse_blocks,
    analyse_records,
    sample_width,
    skipped_lines,
)
from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.cell_types.written_forms import GivenFormats
from queryserver.formats.delimited.encoding_detection import SURE, DetectedEncoding, detect_encoding
from queryserver.formats.delimited.encodings import Decoder, decoded
from queryserver.formats.delimited.records import NO_LINES, Block, BlockReader, RecordReader
from queryserver.formats.detection import ReadingOptions, detect, recognise, recognise_given, table_form
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

MORE = "more"
"""The answer where more of the file is needed."""

CUT_FIELD_BYTES = 4 * 1024 * 1024 + 64 * 1024
"""What of a file is read behind its sample: the longest field has 1 MiB characters of up to four bytes."""

_FEED_BYTES = 1024 * 1024
_STEP_BYTES = 64 * 1024
"""The first records are read in steps of so many bytes: a few dozen of them are wanted."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """What is known of a text once its beginning has been seen."""

    delimiters: Delimiters
    encoding: str
    is_encoding_given: bool
    """Then the text must be in it, but for a tenth."""
    is_encoding_certain: bool
    skipped: SkippedLines


@dataclass(frozen=True, slots=True)
class HeaderFound:
    """Whether the first record that is read names the columns; lines above it are `skipped`."""

    has_header: bool
    skipped: SkippedLines = NO_LINES


class _Text:
    """The beginning of a file. `is_whole`: its sample is all of the file; `is_last`: no more of the file is read."""

    def __init__(self, head: bytes, options: Mapping[str, Any]) -> None:
        self._head = head
        self._has_end: bool = options["is_whole"]
        self.is_whole = self._has_end and len(head) <= SAMPLE_TEXT_BYTES
        self.is_last: bool = self._has_end or options["is_last"]

    def sample(self, step_bytes: int) -> Iterator[tuple[bytes, bool]]:
        """Pieces, each with whether the file ends with it."""
        return self._pieces(0, min(len(self._head), SAMPLE_TEXT_BYTES), step_bytes)

    def rest(self) -> Iterator[tuple[bytes, bool]]:
        """As much behind the sample as the longest field takes."""
        return self._pieces(SAMPLE_TEXT_BYTES, len(self._head), _FEED_BYTES)

    def _pieces(self, start: int, end: int, step_bytes: int) -> Iterator[tuple[bytes, bool]]:
        for place in range(start, end, step_bytes):
            piece_end = min(place + step_bytes, end)
            yield self._head[place:piece_end], self._has_end and piece_end == len(self._head)


class _Records:
    """Records from the first on, one by one; `unclosed` are the numbers of those with an open quote."""

    def __init__(self, form: TextForm) -> None:
        self.decoder = Decoder(form.encoding)
        self.records: list[Cells] = []
        self.unclosed: list[int] = []
        self._reader = RecordReader(form.delimiters, skipped=form.skipped)

    @property
    def comments(self) -> int:
        return self._reader.comments

    def read(self, pieces: Iterable[tuple[bytes, bool]], is_enough: Callable[[Sequence[Cells]], bool]) -> bool:
        """Read until there are enough; whether there are. Then the rest is not read.

        Behind a quote that did not close for long, many records are found at once.
        """
        for piece, is_end in pieces:
            for records in self._reader.parts(self.decoder.decode(piece, final=is_end), final=is_end):
                self.records += records
                self.unclosed += self._reader.unclosed
                if is_enough(self.records):
                    return True
        return False

    def end(self) -> None:
        """Take what was read for all. Raises record_too_long: a field that is not complete is too long already."""
        list(self._reader.parts("", final=True))


class _Blocks:
    """The same as Blocks of `width` columns."""

    def __init__(self, form: TextForm, width: int) -> None:
        self.blocks: list[Block] = []
        self._reader = BlockReader(form.delimiters, form.encoding, width, skipped=form.skipped)
        self.decoder = self._reader.decoder

    @property
    def comments(self) -> int:
        return self._reader.comments

    def read(self, pieces: Iterable[tuple[bytes, bool]], most_rows: int) -> bool:
        """Read until there are more rows than that; whether there are."""
        for piece, is_end in pieces:
            self.blocks += self._reader.feed(piece)
            if is_end:
                self.blocks += self._reader.finish()
            if self.blocks and self.blocks[-1].first_record + self.blocks[-1].columns.num_rows - 1 > most_rows:
                return True
        return False

    def end(self) -> None:
        """As of _Records."""
        list(self._reader.finish())


def _are_too_many(records: Sequence[Cells]) -> bool:
    return len(records) > SAMPLE_RECORDS + 1


def _has_value(record: Cells) -> bool:
    return any(classify(cell) is not CellKind.NULL for cell in record)


def detect_file(options: Mapping[str, Any], head: bytes) -> object:
    """A Detected as a dict, or the type of what is no text; `encoding` None: detected.

    `is_given`: the type alone, by the rules for a file whose type the caller gives.

    Raises file_empty, UnsupportedFormat, encoding_failed.
    """
    is_whole, encoding = options["is_whole"], options.get("encoding")
    if options.get("is_given"):
        return recognise_given(head, is_whole=is_whole, encoding=encoding)
    kind = recognise(head, is_whole=is_whole, encoding=encoding)
    if kind is not FileType.DELIMITED:
        return kind
    if encoding is not None:
        decoder = Decoder(encoding)
        decoder.decode(head, final=is_whole)
        decoder.check()
    return asdict(detect(head, is_whole=is_whole, encoding=encoding))


def preview(options: Mapping[str, Any], head: bytes) -> object:
    """The columns and first rows; EXCEL: it begins as workbooks do; MORE: `head` is not enough.

    `reading`: ReadingOptions as a dict. `is_whole`: there is nothing behind `head`; `is_last`: no more of the file is
    read.
    """
    form = _form_of(head, options)
    if form is None:
        return FileType.EXCEL
    text, has_header, first = _Text(head, options), options["has_header"], _Records(form)
    # One more than is analysed: it shows whether the file goes on.
    most = SAMPLE_RECORDS + has_header
    is_enough = first.read(text.sample(_STEP_BYTES), lambda records: len(records) >= FIRST_RECORDS)
    blocks = None
    if is_enough and len(first.records) <= most:
        del first.records[FIRST_RECORDS:]
        width = sample_width(first.records, has_header=has_header, is_whole=text.is_whole)
        blocks = _Blocks(form, width)
        is_enough = blocks.read(text.sample(_FEED_BYTES), most)
    if not is_enough and not text.is_last:
        return MORE
    analysis = _analysis(form, text, first, blocks, options)
    if not is_enough:
        # A field that the sample cuts may be too long: an import would refuse such a record.
        if blocks is None:
            if not first.read(text.rest(), _are_too_many):
                first.end()
        elif not blocks.read(text.rest(), most):
            blocks.end()
    if not form.is_encoding_certain:
        analysis = replace(analysis, warnings=[*analysis.warnings, SampleWarning(Oddity.ENCODING_UNCERTAIN, 1)])
    comments = (first if blocks is None else blocks).comments
    read = {"encoding": form.encoding, "delimiters": asdict(form.delimiters), "skipped": asdict(form.skipped)}
    warnings = [asdict(one) for one in (*analysis.warnings, *skipped_lines(form.skipped, comments))]
    return {**asdict(analysis), **read, "warnings": warnings}


def _analysis(
    form: TextForm, text: _Text, first: _Records, blocks: _Blocks | None, options: Mapping[str, Any]
) -> Analysis:
    """`blocks` None: all records of the sample are in `first`. Raises file_empty, record_too_long, encoding_failed."""
    decoder = first.decoder if blocks is None else blocks.decoder
    if form.is_encoding_given:
        decoder.check()
    reading = _reading_of(options["reading"])
    common: dict[str, Any] = {
        "has_header": options["has_header"],
        "is_whole": text.is_whole,
        "given": reading.formats,
        "null_words": reading.null_words,
    }
    if blocks is not None:
        try:
            return analyse_blocks(first.records, blocks.blocks, undecodable=decoder.undecodable, **common)
        except WidthUncertain:
            first = _Records(form)
            first.read(text.sample(_STEP_BYTES), _are_too_many)
    return analyse_records(first.records, unclosed=first.unclosed, undecodable=first.decoder.undecodable, **common)


def header(options: Mapping[str, Any], head: bytes) -> object:
    """A HeaderFound as a dict; MORE and the options as those of `preview`.

    A hundred records with a value behind it are enough. Raises file_empty, record_too_long, encoding_failed.
    """
    form = _form_of(head, options)
    if form is None:
        return FileType.EXCEL
    text, first = _Text(head, options), _Records(form)
    counted = with_value = 0

    def is_enough(records: Sequence[Cells]) -> bool:
        nonlocal counted, with_value
        with_value += sum(map(_has_value, records[counted : SAMPLE_RECORDS + 1]))
        counted = len(records)
        return with_value > COMPARED_RECORDS or counted > SAMPLE_RECORDS

    if not first.read(text.sample(_STEP_BYTES), is_enough) and not text.is_last:
        return MORE
    if form.is_encoding_given:
        first.decoder.check()
    if not first.records:
        raise file_empty("File is empty.") if text.is_whole else record_too_long("The first record is too long.")
    return asdict(HeaderFound(has_header(first.records[: SAMPLE_RECORDS + 1]), form.skipped))


def _form_of(head: bytes, options: Mapping[str, Any]) -> TextForm | None:
    """None: the file begins as workbooks do."""
    reading = _reading_of(options["reading"])
    sample = head[:SAMPLE_BYTES]
    is_whole: bool = options["is_whole"] and len(head) <= SAMPLE_BYTES
    if recognise_given(sample, is_whole=is_whole, encoding=reading.encoding) is not FileType.DELIMITED:
        return None
    found = DetectedEncoding(reading.encoding, 1.0) if reading.encoding else detect_encoding(sample, is_whole=is_whole)
    encoding = found.name
    delimiters = reading.delimiters
    if delimiters is None:
        delimiters = reading.completed(detect(sample, is_whole=is_whole, encoding=encoding).delimiters)
    form = table_form(
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
        is_encoding_certain=found.confidence >= SURE,
        skipped=form.skipped,
    )


def _reading_of(reading: Mapping[str, Any]) -> ReadingOptions:
    delimiters = reading["delimiters"]
    return ReadingOptions(
        FileType(reading["file_type"]),
        reading["sheet_name"],
        delimiters and Delimiters(**delimiters),
        reading["quote_char"],
        reading["record_separator"],
        reading["encoding"],
        GivenFormats(**reading["formats"]),
        reading["skip_rows"],
        reading["comment"],
        reading["escape"],
        None if reading["null_words"] is None else tuple(reading["null_words"]),
    )
