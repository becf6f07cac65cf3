"""The beginning of a delimited file, read as far as something is told from it (Contract importer 7.4, 8).

Samples are fed by one thread at a time. What they hold is bounded by SAMPLE_TEXT_BYTES, which the caller minds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from queryserver.errors.files import file_empty, record_too_long, separator_required, sheet_required
from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.cell_types.preview import (
    FIRST_RECORDS,
    Analysis,
    WidthUncertain,
    analyse_blocks,
    analyse_records,
    sample_width,
)
from queryserver.formats.cell_types.written_forms import NOT_GIVEN, GivenFormats
from queryserver.formats.delimited.detection import USUAL_SEPARATORS, delimiters_of
from queryserver.formats.delimited.encodings import Decoder, encoding_of
from queryserver.formats.delimited.records import Block, BlockReader, RecordReader
from queryserver.imports.model import RECORD_TYPES, SAMPLE_RECORDS, CellKind, Cells, Delimiters, FileType

# Records are first looked at in steps of so many bytes: a few dozen of them are wanted.
_STEP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How a caller says that a file is to be read."""

    file_type: FileType
    sheet_name: str | None = None
    """Of a workbook, and only of one."""
    delimiters: Delimiters | None = None
    """None: a workbook, or a text whose separator is not told."""
    quote_char: str | None = None
    record_separator: str | None = None
    """As they came, where `delimiters` is None."""
    encoding: str | None = None
    """None: detected."""
    formats: GivenFormats = NOT_GIVEN
    """Of the dates and numbers of a text."""

    @classmethod
    def given(
        cls,
        file_type: FileType,
        *,
        sheet_name: str | None = None,
        field_separator: str | None = None,
        quote_char: str | None = None,
        record_separator: str | None = None,
        encoding: str | None = None,
        formats: GivenFormats = NOT_GIVEN,
    ) -> Self:
        """The parameters of a call, with None for absent ones. Raises sheet_required, InvalidParameter."""
        if file_type is FileType.EXCEL:
            if sheet_name is None:
                raise sheet_required("Sheet name is required for Excel files.")
            return cls(file_type, sheet_name)
        if file_type in RECORD_TYPES:
            return cls(file_type)
        encoding = None if encoding is None else encoding_of(encoding)
        field = field_separator or USUAL_SEPARATORS.get(file_type)
        if field is None:
            return cls(file_type, None, None, quote_char, record_separator, encoding, formats)
        delimiters = delimiters_of(field, quote=quote_char, record=record_separator)
        return cls(file_type, delimiters=delimiters, encoding=encoding, formats=formats)

    def require_separator(self) -> None:
        """Raises separator_required: a delimited file whose separator is not told."""
        if self.file_type is FileType.DELIMITED and self.delimiters is None:
            raise separator_required("Field separator is required for delimited files.")

    def completed(self, detected: Delimiters) -> Delimiters:
        """The delimiters, with those that were detected for what the caller does not say. Raises InvalidParameter."""
        if self.delimiters is not None:
            return self.delimiters
        quote = self.quote_char or detected.quote
        return delimiters_of(detected.field, quote=quote, record=self.record_separator or detected.record)


@dataclass(frozen=True, slots=True)
class TextForm:
    """What is known of a text once its beginning has been seen."""

    delimiters: Delimiters
    encoding: str
    is_encoding_given: bool
    """Then the text must be in it, but for a tenth."""


class Sample(Protocol):
    """What is told from the first records of a file."""

    def feed(self, piece: bytes) -> bool:
        """Take the next piece of the file; whether no more are needed. Raises record_too_long, too_many_columns."""
        ...

    def finish(self) -> None:
        """The file has no more pieces. Raises as `feed`."""
        ...


class PreviewSample:
    """Enough of a file for an Analysis: 10,000 records behind the header."""

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
        # One more than is looked at: it tells whether the file goes on.
        return self.is_full

    @property
    def is_full(self) -> bool:
        """Whether no more records are needed."""
        return self._read > SAMPLE_RECORDS + self._has_header

    @property
    def _read(self) -> int:
        return max(self._rows, len(self._first.records))

    def finish(self) -> None:
        self._is_whole = True
        if self._reader is None:
            self._first.finish()
        else:
            self._blocks += self._reader.finish()

    def analysis(self) -> Analysis:
        """The names and types of the columns, the rows to be shown.

        Raises file_empty, record_too_long, encoding_failed.
        """
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
            return self._of_records(self._all_records())

    @property
    def _rows(self) -> int:
        if not self._blocks:
            return 0
        last = self._blocks[-1]
        return last.first_record + last.columns.num_rows - 1

    def _all_records(self) -> "_FirstRecords":
        self._blocks.clear()
        found = _FirstRecords(self._form)
        is_full = any(found.take(piece, _are_too_many) for piece in self._pieces)
        if self._is_whole and not is_full:
            found.finish()
        return found

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
    """Enough of a file to tell whether its first record is a header: a hundred records with a value behind it."""

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
        """Read until there are enough; whether there are. Then what is left of the piece is not looked at."""
        for start in range(0, len(piece), _STEP_BYTES):
            if self._read(self.decoder.decode(piece[start : start + _STEP_BYTES]), is_enough, final=False):
                return True
        return False

    def finish(self) -> None:
        """The file ends behind the last piece."""
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
