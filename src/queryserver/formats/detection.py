"""What a file is, by its first bytes, and how a text is delimited (Contract importer 9.1, 10). Names do not count."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import UnsupportedFormat, file_empty, format_mismatch, separator_required, sheet_required
from queryserver.formats.cell_types.classes import ColumnFacts, classify, column_type
from queryserver.formats.cell_types.written_forms import NOT_GIVEN, GivenFormats
from queryserver.formats.columns import BaseType
from queryserver.formats.delimited.encoding_detection import SURE, DetectedEncoding, detect_encoding
from queryserver.formats.delimited.encodings import decoded, encoding_of
from queryserver.formats.delimited.records import NO_LINES, Record, RecordReader
from queryserver.formats.layout import SEPARATOR_LINE, Layout, layout_of, lines_above
from queryserver.formats.table_files import BLANKS, RECORD_TYPES, CellKind, Delimiters, FileType, SkippedLines

_EMPTY = "File is empty, cannot detect file format."
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
_OTHERS = (
    b"\x1f\x8b",  # gzip
    b"\xfd7zXZ\x00",
    b"%PDF",
)
_RECORD_MARKS = {b"PAR1": FileType.PARQUET, b"Obj\x01": FileType.AVRO, b"ARROW1\0\0": FileType.ARROW}
# A stream of Arrow begins with this, and with the length of a message in four bytes.
_ARROW_STREAM, _LONGEST_SCHEMA = b"\xff\xff\xff\xff", 16 * 1024 * 1024
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MARKUP = ("<?xml", "<!doctype", "<html", "{\\rtf")
_JSON_BEGINNING = re.compile(rf'[{BLANKS}]*(?:\{{[{BLANKS}]*"|\[[{BLANKS}]*\{{)')

_USUAL_SEPARATORS = {FileType.CSV: ",", FileType.TSV: "\t"}
"""The field separators of the types that name one."""

NO_QUOTE = "\0"
"""What `quote_char` becomes by `\\0`: nothing is quoted."""

_MAX_CHARACTERS = 8
_ESCAPE = re.compile(r"\\(?:([tnr\\\"'abfv0])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))")
_ESCAPED = dict(zip("tnr\\\"'abfv0", "\t\n\r\\\"'\a\b\f\v\0", strict=True))

_RECORDS = 200
"""How many records a separator is judged by."""

_PIECE_CHARACTERS = 16 * 1024
_ALWAYS = ("|~|", "~|~")
_USUAL = ("\t", "|", ";", ",", "^", "~", "\x01", "\x1f")
_SELDOM = (":", " ")
_DOUBLED = frozenset("|;:^~")
_OF_ONE_COLUMN = (",", "\t", "|", ";", "\x01", "\x1f")
_MIN_SHARE_OF_WIDTH = 0.8
_GOOD_SHARE_OF_WIDTH = 0.95
_MIN_SHARE_OF_VALUES = 0.9
_CONFIDENCE_OF_ONE_COLUMN = 0.5
_MOST_QUOTED = 20
"""Of so many fields in apostrophes one may hold another apostrophe."""
_COMMA_NUMBER = re.compile(rf"[{BLANKS}]*-?[0-9]+,[0-9]+[{BLANKS}]*")
_UNTYPED = frozenset({CellKind.NULL, CellKind.TEXT})
_VALUES = frozenset(CellKind) - {CellKind.NULL, CellKind.TEXT, CellKind.NON_FINITE, CellKind.DURATION}


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    file_type: FileType
    sheet_name: str | None = None
    """Of a workbook, and only of one."""
    delimiters: Delimiters | None = None
    """None: a workbook, or a text whose separator is not given."""
    quote_char: str | None = None
    record_separator: str | None = None
    """As they came, where `delimiters` is None."""
    encoding: str | None = None
    """None: detected."""
    formats: GivenFormats = NOT_GIVEN
    """Of the dates and numbers of a text, or of cells of a workbook that are text."""
    skip_rows: int | None = None
    """Lines of a text, or rows of a worksheet, above the table. None: detected."""
    comment: str | None = None
    """What comment lines of a text begin with, `""`: there are none. None: detected."""
    escape: str | None = None
    """The escape character, `""`: there is none. None: detected."""
    null_words: tuple[str, ...] | None = None
    """Cells of a text that mean NULL. None: detected for each column."""

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
        skip_rows: int | None = None,
        comment: str | None = None,
        escape: str | None = None,
        null_words: Sequence[str] | None = None,
    ) -> Self:
        """The parameters of a call, with None for absent ones. Raises sheet_required, InvalidParameter."""
        if file_type is FileType.EXCEL:
            if sheet_name is None:
                raise sheet_required("Sheet name is required for Excel files.")
            return cls(file_type, sheet_name, formats=formats, skip_rows=skip_rows)
        if file_type in RECORD_TYPES:
            return cls(file_type)
        encoding = None if encoding is None else encoding_of(encoding)
        field = field_separator or _USUAL_SEPARATORS.get(file_type)
        common: dict[str, Any] = {
            "encoding": encoding,
            "formats": formats,
            "skip_rows": skip_rows,
            "comment": None if comment is None else comment_of(comment),
            "escape": None if escape is None else escape_of(escape),
            "null_words": None if null_words is None else tuple(null_words),
        }
        if field is None:
            return cls(file_type, None, None, quote_char, record_separator, **common)
        delimiters = delimiters_of(field, quote=quote_char, record=record_separator)
        return cls(file_type, delimiters=delimiters, **common)

    def require_separator(self) -> None:
        if self.file_type is FileType.DELIMITED and self.delimiters is None:
            raise separator_required("Field separator is required for delimited files.")

    def completed(self, detected: Delimiters) -> Delimiters:
        """The delimiters, with the detected ones for those that are not given. Raises InvalidParameter."""
        if self.delimiters is not None:
            return self.delimiters
        quote = self.quote_char or detected.quote
        return delimiters_of(detected.field, quote=quote, record=self.record_separator or detected.record)


def recognise(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> FileType:
    """The type of a file by its first SAMPLE_BYTES; `is_whole`: there are no more. `encoding` None: detected.

    DELIMITED is any text. EXCEL begins as workbooks do; `recognise_workbook` decides whether it is one. Raises
    file_empty, UnsupportedFormat.
    """
    records = _records(sample)
    if records is not None:
        return records
    text = _text_of(sample, is_whole, encoding)
    if text is None:
        return FileType.EXCEL
    # JSON is UTF-8: a NUL among the bytes is one of UTF-16.
    if b"\0" not in sample and _is_json_lines(text, is_whole, of="{"):
        return FileType.NDJSON
    if text[:16].lower().startswith(_MARKUP) or _JSON_BEGINNING.match(text) or _is_json_lines(text, is_whole, of="{["):
        raise UnsupportedFormat
    return FileType.DELIMITED


def marked(sample: bytes) -> FileType | None:
    """The type that the first bytes show: a file of records, or EXCEL; None: perhaps a text."""
    return FileType.EXCEL if sample.startswith(_WORKBOOKS) else _records(sample)


def _records(sample: bytes) -> FileType | None:
    known = next((kind for mark, kind in _RECORD_MARKS.items() if sample.startswith(mark)), None)
    if (
        known is None
        and sample.startswith(_ARROW_STREAM)
        and 0 < int.from_bytes(sample[4:8], "little") < _LONGEST_SCHEMA
    ):
        return FileType.ARROW
    return known


def recognise_given(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> FileType:
    """As `recognise`, for a file whose type the caller gives: text is text, even if it may be markup.

    `encoding`: the given one; None: it is detected. Raises format_mismatch for a file of records that is no text.
    """
    records = _records(sample)
    if records is not None:
        raise format_mismatch(f"The file is of the type {records}.")
    text = _text_of(sample, is_whole, encoding)
    return FileType.EXCEL if text is None else FileType.DELIMITED


def _text_of(sample: bytes, is_whole: bool, encoding: str | None) -> str | None:
    """The text, without blanks at both ends; None: a workbook, perhaps. Raises file_empty, UnsupportedFormat."""
    if not sample or sample in _MARKS or not sample.strip(BLANKS.encode()):
        raise file_empty(_EMPTY)
    if sample.startswith(_WORKBOOKS):
        return None
    if sample.startswith(_OTHERS) or _BZIP2.match(sample):
        raise UnsupportedFormat
    encoding = encoding or detect_encoding(sample, is_whole=is_whole).name
    text = decoded(sample, encoding, is_whole=is_whole).strip(BLANKS)
    if not text:
        raise file_empty(_EMPTY)
    return text


def _is_json_lines(text: str, is_whole: bool, *, of: str) -> bool:
    """Whether every line that is not blank is JSON that begins so; the last line of a partial sample is cut."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip(BLANKS)]
    if not is_whole and len(lines) > 1:
        lines.pop()
    return all(line.strip(BLANKS)[0] in of and _is_json(line.strip(BLANKS)) for line in lines)


def _is_json(line: str) -> bool:
    try:
        # Numbers stay text: Python refuses to read integers of very many digits.
        json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Detected:
    """How a file is delimited. `record_separator` is what clients see: `\\r\\n` where `delimiters` have `\\n`."""

    type: FileType
    delimiters: Delimiters
    record_separator: str
    encoding: str
    confidence: float
    """The lower one of those of the separator and of the encoding."""
    is_encoding_certain: bool = True
    skipped: SkippedLines = NO_LINES


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a text is read: its delimiters, the escape among them, and which lines are no part of the table."""

    delimiters: Delimiters
    skipped: SkippedLines = NO_LINES


def detect(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> Detected:
    """How the text is delimited that begins with these bytes; `is_whole`: there are no more.

    `encoding` None: detected. Raises UnsupportedFormat: it is no text.
    """
    found = detect_encoding(sample, is_whole=is_whole) if encoding is None else DetectedEncoding(encoding, 1.0)
    text = decoded(sample, found.name, is_whole=is_whole)
    shown = _record_separator(text)
    named = SEPARATOR_LINE.match(text)
    sample_text = _Sample(text[named.end() :] if named else text, is_whole, "\n" if shown == "\r\n" else shown)
    is_one_column = named is None and sample_text.is_one_column()
    scan = sample_text.scan(named[1]) if named else None if is_one_column else sample_text.best()
    if scan is None:
        # A text of one column has a separator that does not occur in it; where the usual ones do, one for private use.
        present, signs = set(text), (*_OF_ONE_COLUMN, *map(chr, range(0xE000, 0xF900)))
        field = named[1] if named else next((sign for sign in signs if sign not in present), "\x1f")
        delimiters, confidence = Delimiters(field, '"', sample_text.record), _CONFIDENCE_OF_ONE_COLUMN
        layout = sample_text.cut(delimiters).layout
    else:
        layout = scan.layout
        delimiters = replace(scan.delimiters, field=sample_text.doubled(scan.delimiters.field))
        confidence = scan.share_of_width
    kind = {",": FileType.CSV, "\t": FileType.TSV}.get(delimiters.field, FileType.DELIMITED)
    first = lines_above(sample_text.text, scan.delimiters if scan else delimiters, layout.first) + (named is not None)
    skipped = SkippedLines(first, layout.comment)
    return Detected(
        kind,
        delimiters,
        shown,
        found.name,
        round(min(confidence, found.confidence), 2),
        is_encoding_certain=found.confidence >= SURE,
        skipped=skipped,
    )


def table_form(
    text: str,
    delimiters: Delimiters,
    *,
    is_whole: bool,
    skip_rows: int | None = None,
    comment: str | None = None,
    escape: str | None = None,
) -> TableForm:
    """How a text with these delimiters is read, by its beginning. None: detected, `""`: there is none."""
    named = SEPARATOR_LINE.match(text) if skip_rows is None else None
    rest = text[named.end() :] if named else text
    for _ in range(skip_rows or 0):
        rest = rest.partition(delimiters.record)[2]
    sample = _Sample(rest, is_whole, delimiters.record, finds_lines_above=skip_rows is None, comment=comment)
    scan = sample.cut(delimiters if escape is None else replace(delimiters, escape=escape or None))
    if escape is None:
        scan = sample.with_escape(scan)
    first = skip_rows
    if first is None:
        first = lines_above(rest, scan.delimiters, scan.layout.first) + (named is not None)
    return TableForm(scan.delimiters, SkippedLines(first, scan.layout.comment))


def _outside_quotes(text: str) -> Sequence[str]:
    """The parts of a text that are not within `"`; all of it if they do not pair."""
    parts = text.split('"')
    return parts[::2] if len(parts) % 2 else (text,)


def _record_separator(text: str) -> str:
    parts = _outside_quotes(text)
    both = sum(part.count("\r\n") for part in parts)
    feeds = sum(part.count("\n") for part in parts) - both
    returns = sum(part.count("\r") for part in parts) - both
    counts = {"\r\n": both, "\n": feeds, "\r": returns}
    return max(counts, key=lambda end: counts[end]) if any(counts.values()) else "\n"


class _Scan:
    """A sample cut by one separator (Contract importer 10.2, 10.3)."""

    def __init__(self, delimiters: Delimiters, layout: Layout, quoted: int, broken: int) -> None:
        self.delimiters = delimiters
        self.layout = layout
        self.share_of_width = layout.share()
        self.quoted = quoted
        self.broken = broken
        """Fields with a quote that opens and does not close."""

    @property
    def is_exact(self) -> bool:
        """Whether all of several records have one width."""
        records = self.layout.records
        return len(records) > 1 and not self.layout.first and len({len(record) for record in records}) == 1

    def rank(self) -> tuple[bool, bool, int, float]:
        """What is best among separators that fit; the larger the better. Lines above a table are less likely."""
        above = self.layout.first
        return not above, self.share_of_width >= _GOOD_SHARE_OF_WIDTH, -above, self._share_of_typed()

    def has_typed_column(self) -> bool:
        """Whether a column below the first record is of another type than text."""
        for position in range(self.layout.width):
            facts = ColumnFacts()
            facts.add_all(record[position] for record in self.layout.records[1:])
            if column_type(facts, is_whole=True).base not in {BaseType.STRING, BaseType.NULL}:
                return True
        return False

    def _share_of_typed(self) -> float:
        typed = total = 0
        for record in self.layout.records[1:] or self.layout.records:
            for cell in record:
                kind = classify(cell)
                if kind is CellKind.NULL:
                    continue
                total += 1
                if kind not in _UNTYPED or (self.delimiters.field != "," and _COMMA_NUMBER.fullmatch(cell)):
                    typed += 1
        return typed / total if total else 0.0


@dataclass(frozen=True, slots=True)
class _Sample:
    text: str
    is_whole: bool
    record: str
    finds_lines_above: bool = True
    comment: str | None = None
    """None: detected."""

    def is_one_column(self) -> bool:
        """Whether the lines are values as they are (Contract importer 10.4)."""
        lines = self.text.split(self.record, _RECORDS)
        if len(lines) > _RECORDS or (not self.is_whole and len(lines) > 1):
            lines.pop()
        lines = [line for line in lines if line.strip(BLANKS)]
        values = lines[1:] or lines
        typed = sum(classify(line) in _VALUES for line in values)
        return bool(values) and typed >= _MIN_SHARE_OF_VALUES * len(values)

    def best(self) -> _Scan | None:
        """The separator that fits best (Contract importer 10.5); None if none fits."""
        for field in _ALWAYS:
            scan = self.scan(field)
            if scan is not None and scan.share_of_width == 1:
                return scan
        usual = list(self._scans(_USUAL))
        fitting = [scan for scan in usual if scan.share_of_width >= _MIN_SHARE_OF_WIDTH]
        if not fitting:
            fitting = [scan for scan in usual if scan.layout.is_ragged()]
        if not fitting:
            fitting = [scan for scan in self._scans(_SELDOM) if scan.is_exact and scan.has_typed_column()]
        # Of equals, max takes the first. Cells are classified only where there is a choice.
        return max(fitting, key=_Scan.rank) if len(fitting) > 1 else next(iter(fitting), None)

    def _scans(self, fields: Sequence[str]) -> Iterator[_Scan]:
        return (scan for field in fields if (scan := self.scan(field)) is not None)

    def scan(self, field: str) -> _Scan | None:
        """The text cut by a separator; None if it makes no columns."""
        if field not in self.text:
            return None
        scan = self.with_escape(self.cut(Delimiters(field, '"', self.record)))
        if not scan.quoted and "'" in self.text:
            by_apostrophe = self.cut(Delimiters(field, "'", self.record))
            if by_apostrophe.quoted >= max(2, _MOST_QUOTED * by_apostrophe.broken):
                scan = by_apostrophe
        return scan if scan.layout.width > 1 else None

    def with_escape(self, scan: _Scan) -> _Scan:
        """The same, or cut with backslashes as escapes, if fewer quotes or records are broken then."""
        delimiters = scan.delimiters
        # One character is found by memchr, 20 times as fast as two.
        if (
            "\\" not in self.text
            or delimiters.field == "\\"
            or not any(
                "\\" + sign in self.text
                for sign in (delimiters.field, delimiters.quote, delimiters.record, "\r\n")
                if sign
            )
        ):
            return scan
        escaped = self.cut(replace(delimiters, escape="\\"))
        gain = escaped.share_of_width - scan.share_of_width
        is_better = escaped.broken < scan.broken or escaped.layout.first < scan.layout.first
        return escaped if gain > 0 or (gain == 0 and is_better) else scan

    def cut(self, delimiters: Delimiters) -> _Scan:
        """The first records, and how many of their fields are quoted and broken."""
        # A file of more columns than a table may have is still delimited so; its reader raises too_many_columns.
        reader = RecordReader(delimiters, counts_quotes=True, max_columns=len(self.text) + 1)
        records: list[Record] = []
        for start in range(0, len(self.text), _PIECE_CHARACTERS):
            records += reader.feed(self.text[start : start + _PIECE_CHARACTERS])
            if len(records) >= _RECORDS:
                break
        else:
            records += reader.feed("", final=True)
            if not self.is_whole and len(records) > 1:
                records.pop()
        del records[_RECORDS:]
        quotes = [found for number, found in reader.quotes.items() if number <= len(records)]
        quoted, broken = sum(quoted for quoted, _ in quotes), sum(broken for _, broken in quotes)
        layout = layout_of(
            records, self.text, delimiters, finds_lines_above=self.finds_lines_above, comment=self.comment
        )
        return _Scan(delimiters, layout, quoted, broken)

    def doubled(self, field: str) -> str:
        """The separator, or its run if it stands only in runs of one length (Contract importer 10.6)."""
        if field not in _DOUBLED:
            return field
        text = self.text
        if not self.is_whole:
            text = text[: text.rfind(self.record) + 1] or text.rstrip(field)
        runs = {len(run) for part in _outside_quotes(text) for run in re.findall(f"{re.escape(field)}+", part)}
        return field * runs.pop() if runs in ({2}, {3}) else field


def unescaped(value: str) -> str:
    """The characters that a value stands for; unknown escapes stay as sent, pairs of `\\u` surrogates are joined."""
    text = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1] or "") or chr(int(found[2] or found[3], 16)), value)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def delimiters_of(field: str, *, quote: str | None = None, record: str | None = None) -> Delimiters:
    """How to cut a file, by the parameters of a call: `field` is never empty, the others count as absent if empty.

    Raises InvalidParameter: too long, equal, one within the other, or no characters at all.
    """
    field_text = _checked("field_separator", field)
    quote_text = _checked("quote_char", quote or '"')
    record_text = _checked("record_separator", record or "\n")
    if record_text == "\r\n":
        record_text = "\n"
    if len(quote_text) != 1:
        raise InvalidParameter("quote_char must be one character.")
    if quote_text == NO_QUOTE:
        quote_text = ""
    if record_text in field_text or (quote_text and quote_text in field_text + record_text):
        raise InvalidParameter("field_separator, quote_char and record_separator must differ and not hold each other.")
    return Delimiters(field=field_text, quote=quote_text or None, record=record_text)


def comment_of(value: str) -> str:
    """What comment lines begin with; `""` for none, which a caller writes as `\\0`. Raises InvalidParameter."""
    text = _checked("comment", value)
    if text == NO_QUOTE:
        return ""
    if "\0" in text or "\n" in text or "\r" in text:
        raise InvalidParameter("comment must not hold U+0000 or line ends.")
    return text


def escape_of(value: str) -> str:
    """The escape character; `""` for none, which a caller writes as `\\0`. Raises InvalidParameter."""
    text = _checked("escape", value)
    if len(text) != 1:
        raise InvalidParameter("escape must be one character.")
    return "" if text == NO_QUOTE else text


def _checked(name: str, value: str) -> str:
    if "\0" in value:
        raise InvalidParameter(f"{name} must not hold U+0000.")
    text = unescaped(value)
    if not 1 <= len(text) <= _MAX_CHARACTERS:
        raise InvalidParameter(f"{name} must have 1 to {_MAX_CHARACTERS} characters.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidParameter(f"{name} must hold whole characters.")
    return text
