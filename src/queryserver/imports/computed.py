"""Detection, preview and header of a text, computed in a worker process: the beginning of a file in, JSON out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from queryserver.errors.files import file_empty, record_too_long
from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import (
    COMPARED_RECORDS,
    FIRST_RECORDS,
    Analysis,
    WidthUncertain,
    analyse_blocks,
    analyse_records,
    has_header,
    sample_width,
)
from queryserver.formats.cell_types.written_forms import NOT_GIVEN, GivenFormats
from queryserver.formats.delimited.encodings import Decoder, detect_encoding
from queryserver.formats.delimited.records import Block, BlockReader, RecordReader
from queryserver.formats.detection import FileKind, ReadingOptions, detect, recognise, recognise_given
from queryserver.imports.model import (
    SAMPLE_BYTES,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    CellKind,
    Cells,
    Delimiters,
    FileType,
)

WORKBOOK = "workbook"
"""The answer where the file may be a workbook."""
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


class PreviewSample:
    """Enough of a file for an Analysis: 10,000 records behind the header.

    `feed` returns whether no more pieces are needed; `finish`: the file has no more. Both raise record_too_long,
    too_many_columns.
    """

    def __init__(self, form: TextForm, *, has_header: bool, given: GivenFormats = NOT_GIVEN) -> None:
        self._form = form
        self._given = given
        self._has_header = has_header
        self._is_whole = False
        self._first = _FirstRecords(form)
        self._blocks: list[Block] = []
        self._reader: BlockReader | None = None
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> bool:
        self._pieces.append(piece)
        if self._reader is not None:
            self._blocks += self._reader.feed(piece)
        elif self._first.take(piece, lambda records: len(records) >= FIRST_RECORDS):
            if len(self._first.records) > SAMPLE_RECORDS + self._has_header:
                # Behind a quote that did not close for long, many records are found at once.
                return True
            del self._first.records[FIRST_RECORDS:]
            width = sample_width(self._first.records, has_header=self._has_header)
            self._reader = BlockReader(self._form.delimiters, self._form.encoding, width)
            for earlier in self._pieces:
                self._blocks += self._reader.feed(earlier)
        if self._has_header and self._reader is not None:
            # Only a width that was guessed can turn out wrong.
            self._pieces.clear()
        return self.is_full

    @property
    def is_full(self) -> bool:
        rows = 0
        if self._blocks:
            last = self._blocks[-1]
            rows = last.first_record + last.columns.num_rows - 1
        # One more than is analysed: it shows whether the file goes on.
        return max(rows, len(self._first.records)) > SAMPLE_RECORDS + self._has_header

    def finish(self) -> None:
        self._is_whole = True
        if self._reader is None:
            self._first.finish()
        else:
            self._blocks += self._reader.finish()

    def analysis(self) -> Analysis:
        """The columns and the rows to be shown. Raises file_empty, record_too_long, encoding_failed."""
        decoder = self._first.decoder if self._reader is None else self._reader.decoder
        if self._form.is_encoding_given:
            decoder.check()
        if self._reader is None:
            return self._of_records(self._first)
        try:
            return analyse_blocks(
                self._first.records,
                self._blocks,
                has_header=self._has_header,
                is_whole=self._is_whole,
                undecodable=decoder.undecodable,
                given=self._given,
            )
        except WidthUncertain:
            self._blocks.clear()
            found = _FirstRecords(self._form)
            is_full = any(found.take(piece, _are_too_many) for piece in self._pieces)
            if self._is_whole and not is_full:
                found.finish()
            return self._of_records(found)

    def _of_records(self, found: "_FirstRecords") -> Analysis:
        return analyse_records(
            found.records,
            has_header=self._has_header,
            is_whole=self._is_whole,
            unclosed=found.unclosed,
            undecodable=found.decoder.undecodable,
            given=self._given,
        )


class HeaderSample:
    """Enough of a file to decide whether its first record is a header: a hundred records with a value behind it."""

    def __init__(self, form: TextForm) -> None:
        self._form = form
        self._first = _FirstRecords(form)
        self._is_whole = False
        self._counted = 0
        self._with_value = 0

    def feed(self, piece: bytes) -> bool:
        return self._first.take(piece, self._is_enough)

    def finish(self) -> None:
        self._is_whole = True
        self._first.finish()

    def has_header(self) -> bool:
        """Whether there is a header. Raises file_empty, record_too_long, encoding_failed."""
        if self._form.is_encoding_given:
            self._first.decoder.check()
        if not self._first.records:
            raise file_empty("File is empty.") if self._is_whole else record_too_long("The first record is too long.")
        return has_header(self._first.records[: SAMPLE_RECORDS + 1])

    def _is_enough(self, records: Sequence[Cells]) -> bool:
        # Behind a quote that did not close for long, many records are found at once.
        self._with_value += sum(map(_has_value, records[self._counted : SAMPLE_RECORDS + 1]))
        self._counted = len(records)
        return self._with_value > COMPARED_RECORDS or self._counted > SAMPLE_RECORDS


class _FirstRecords:
    """Records from the first on, one by one; `unclosed` are the numbers of those with an open quote."""

    def __init__(self, form: TextForm) -> None:
        self.decoder = Decoder(form.encoding)
        self.records: list[Cells] = []
        self.unclosed: list[int] = []
        self._reader = RecordReader(form.delimiters)

    def take(self, piece: bytes, is_enough: Callable[[Sequence[Cells]], bool]) -> bool:
        """Read until there are enough; whether there are. Then the rest of the piece is not read."""
        for start in range(0, len(piece), _STEP_BYTES):
            if self._read(self.decoder.decode(piece[start : start + _STEP_BYTES]), is_enough, final=False):
                return True
        return False

    def finish(self) -> None:
        self._read(self.decoder.decode(b"", final=True), _are_too_many, final=True)

    def _read(self, text: str, is_enough: Callable[[Sequence[Cells]], bool], *, final: bool) -> bool:
        for records in self._reader.parts(text, final=final):
            self.records += records
            self.unclosed += self._reader.unclosed
            if is_enough(self.records):
                return True
        return False


def _are_too_many(records: Sequence[Cells]) -> bool:
    return len(records) > SAMPLE_RECORDS + 1


def _has_value(record: Cells) -> bool:
    return any(classify(cell) is not CellKind.NULL for cell in record)


def detect_file(options: Mapping[str, Any], head: bytes) -> object:
    """A Detected as a dict, WORKBOOK, or a type of records. Raises file_empty, UnsupportedFormat."""
    kind = recognise(head, is_whole=options["is_whole"])
    if kind is FileKind.WORKBOOK_CANDIDATE:
        return WORKBOOK
    if kind is not FileKind.TEXT:
        return FileType[kind.name].value
    return asdict(detect(head, is_whole=options["is_whole"]))


def preview(options: Mapping[str, Any], head: bytes) -> object:
    """The columns and first rows; MORE: `head` is not enough, and there is more. `reading`: ReadingOptions as a dict.

    `is_whole`: there is nothing behind `head`; `is_last`: no more of the file is read.
    """
    form = _form_of(head, options)
    if form is None:
        return WORKBOOK
    reading = _reading_of(options["reading"])
    sample = PreviewSample(form, has_header=options["has_header"], given=reading.formats)
    if not _is_fed(sample, options, head):
        return MORE
    analysis = sample.analysis()
    _read_cut_record(sample, head, is_whole=options["is_whole"])
    return {**asdict(analysis), "encoding": form.encoding}


def header(options: Mapping[str, Any], head: bytes) -> object:
    """Whether the first record names the columns; MORE and the options as those of `preview`."""
    form = _form_of(head, options)
    if form is None:
        return WORKBOOK
    sample = HeaderSample(form)
    return sample.has_header() if _is_fed(sample, options, head) else MORE


def _form_of(head: bytes, options: Mapping[str, Any]) -> TextForm | None:
    """None: the file begins as workbooks do."""
    reading = _reading_of(options["reading"])
    sample = head[:SAMPLE_BYTES]
    is_whole: bool = options["is_whole"] and len(head) <= SAMPLE_BYTES
    if recognise_given(sample, is_whole=is_whole, encoding=reading.encoding) is not FileKind.TEXT:
        return None
    encoding = reading.encoding or detect_encoding(sample, is_whole=is_whole)
    delimiters = reading.delimiters
    if delimiters is None:
        delimiters = reading.completed(detect(sample, is_whole=is_whole, encoding=encoding).delimiters)
    return TextForm(delimiters, encoding, is_encoding_given=reading.encoding is not None)


def _is_fed(sample: PreviewSample | HeaderSample, options: Mapping[str, Any], head: bytes) -> bool:
    end = min(len(head), SAMPLE_TEXT_BYTES)
    pieces: Sequence[bytes] = [head[start : min(start + _FEED_BYTES, end)] for start in range(0, end, _FEED_BYTES)]
    if any(sample.feed(piece) for piece in pieces):
        return True
    if options["is_whole"] and len(head) == end:
        sample.finish()
    return options["is_whole"] or options["is_last"]


def _read_cut_record(sample: PreviewSample, head: bytes, *, is_whole: bool) -> None:
    """Read as much behind the sample as the longest field takes: one that the sample cuts may be too long.

    An import would refuse such a record. Raises record_too_long, too_many_columns.
    """
    steps = range(SAMPLE_TEXT_BYTES, len(head), _FEED_BYTES)
    if sample.is_full or any(sample.feed(head[start : start + _FEED_BYTES]) for start in steps):
        return
    if is_whole and steps:
        sample.finish()


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
    )
