"""Detects the type of a file and the delimiters of a text file (Contract importer 9.1, 10). File names are ignored."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import UnsupportedFormat, file_empty, format_mismatch, separator_required, sheet_required
from queryserver.formats.arrow import BaseType
from queryserver.formats.cell_types.classes import ColumnFacts, classify, column_type
from queryserver.formats.cell_types.value_formats import NO_FORMATS, ValueFormats
from queryserver.formats.delimited.encodings import (
    CERTAIN_CONFIDENCE,
    DetectedEncoding,
    decoded,
    detect_encoding,
    parse_encoding,
)
from queryserver.formats.delimited.records import NO_LINES, Record, RecordReader
from queryserver.formats.layout import SEPARATOR_LINE, Layout, count_lines_above, detect_layout
from queryserver.formats.table_files import BLANKS, RECORD_TYPES, CellKind, Delimiters, FileType, SkippedLines

_EMPTY_MESSAGE = "File is empty, cannot detect file format."
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_WORKBOOK_SIGNATURES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
_UNSUPPORTED_SIGNATURES = (
    b"\x1f\x8b",  # gzip
    b"\xfd7zXZ\x00",
    b"%PDF",
)
_RECORD_FILE_SIGNATURES = {b"PAR1": FileType.PARQUET, b"Obj\x01": FileType.AVRO, b"ARROW1\0\0": FileType.ARROW}
# An Arrow stream begins with this marker, followed by the length of the schema message in four bytes.
_ARROW_STREAM, _MAX_SCHEMA_BYTES = b"\xff\xff\xff\xff", 16 * 1024 * 1024
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MARKUP = ("<?xml", "<!doctype", "<html", "{\\rtf")
_JSON_BEGINNING = re.compile(rf'[{BLANKS}]*(?:\{{[{BLANKS}]*"|\[[{BLANKS}]*\{{)')

_TYPE_SEPARATORS = {FileType.CSV: ",", FileType.TSV: "\t"}
"""Field separators that the file type implies."""

NO_QUOTE = "\0"
"""Value of the parameter `quote_char` (`\\0` unescaped) for files without quoting."""

_MAX_CHARACTERS = 8
_ESCAPE = re.compile(r"\\(?:([tnr\\\"'abfv0])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))")
_ESCAPED = dict(zip("tnr\\\"'abfv0", "\t\n\r\\\"'\a\b\f\v\0", strict=True))

_SAMPLE_RECORDS = 200
"""Number of records on which a separator is evaluated."""

_CHUNK_CHARACTERS = 16 * 1024
_MULTI_CHARACTER_SEPARATORS = ("|~|", "~|~")
_COMMON_SEPARATORS = ("\t", "|", ";", ",", "^", "~", "\x01", "\x1f")
_RARE_SEPARATORS = (":", " ")
_REPEATABLE_SEPARATORS = frozenset("|;:^~")
_ONE_COLUMN_SEPARATORS = (",", "\t", "|", ";", "\x01", "\x1f")
_MIN_FITTING_SHARE = 0.8
_GOOD_FITTING_SHARE = 0.95
_MIN_VALUE_SHARE = 0.9
_ONE_COLUMN_CONFIDENCE = 0.5
_MIN_QUOTED_PER_UNCLOSED = 20
"""`'` is accepted as the quote character only if at least this many fields are quoted for each unclosed field."""
_COMMA_NUMBER = re.compile(rf"[{BLANKS}]*-?[0-9]+,[0-9]+[{BLANKS}]*")
_TEXT_KINDS = frozenset({CellKind.NULL, CellKind.TEXT})
_VALUE_KINDS = frozenset(CellKind) - {CellKind.NULL, CellKind.TEXT, CellKind.NON_FINITE, CellKind.DURATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParameters:
    """The unparsed parameters of a call that apply only to text files; None means absent."""

    field_separator: str | None = None
    quote_char: str | None = None
    record_separator: str | None = None
    encoding: str | None = None
    comment: str | None = None
    escape: str | None = None
    null_words: Sequence[str] | None = None


_NO_TEXT_PARAMETERS = TextParameters()


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How to read a file. Options that are None are detected from the content, except `sheet_name` and `delimiters`."""

    file_type: FileType
    sheet_name: str | None = None
    """Set only for workbooks."""
    delimiters: Delimiters | None = None
    """None for a workbook, and for text without a declared field separator."""
    quote_char: str | None = None
    record_separator: str | None = None
    """The values of `quote_char` and `record_separator` in the call, if `delimiters` is None."""
    encoding: str | None = None
    formats: ValueFormats = NO_FORMATS
    """Formats of the dates and numbers in a text file, or in the text cells of a workbook."""
    skip_rows: int | None = None
    """Number of lines of a text file, or rows of a worksheet, above the table."""
    comment: str | None = None
    """Prefix of comment lines in a text file; an empty string if there are none."""
    escape: str | None = None
    """The escape character; an empty string if there is none."""
    null_words: tuple[str, ...] | None = None
    """Cell values of a text file that mean NULL; if None, they are detected for each column."""

    @classmethod
    def from_parameters(
        cls,
        file_type: FileType,
        *,
        sheet_name: str | None = None,
        formats: ValueFormats = NO_FORMATS,
        skip_rows: int | None = None,
        text: TextParameters = _NO_TEXT_PARAMETERS,
    ) -> Self:
        """Parse the parameters of a call; None means absent. Raises sheet_required, InvalidParameter."""
        if file_type is FileType.EXCEL:
            if sheet_name is None:
                raise sheet_required("Sheet name is required for Excel files.")
            return cls(file_type, sheet_name, formats=formats, skip_rows=skip_rows)
        if file_type in RECORD_TYPES:
            return cls(file_type)
        field = text.field_separator or _TYPE_SEPARATORS.get(file_type)
        common: dict[str, Any] = {
            "encoding": None if text.encoding is None else parse_encoding(text.encoding),
            "formats": formats,
            "skip_rows": skip_rows,
            "comment": None if text.comment is None else parse_comment_prefix(text.comment),
            "escape": None if text.escape is None else parse_escape_character(text.escape),
            "null_words": None if text.null_words is None else tuple(text.null_words),
        }
        if field is None:
            return cls(file_type, None, None, text.quote_char, text.record_separator, **common)
        delimiters = parse_delimiters(field, quote=text.quote_char, record=text.record_separator)
        return cls(file_type, delimiters=delimiters, **common)

    def require_separator(self) -> None:
        if self.file_type is FileType.DELIMITED and self.delimiters is None:
            raise separator_required("Field separator is required for delimited files.")

    def complete_delimiters(self, detected: Delimiters) -> Delimiters:
        """Return the declared delimiters. Undeclared delimiters are taken from `detected`. Raises InvalidParameter."""
        if self.delimiters is not None:
            return self.delimiters
        quote = self.quote_char or detected.quote
        return parse_delimiters(detected.field, quote=quote, record=self.record_separator or detected.record)


def detect_file_type(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> FileType:
    """Detect the type of a file from its first SAMPLE_BYTES. `is_whole` states that the sample is the whole file.

    DELIMITED stands for any text. EXCEL means that the file has the signature of a workbook; `recognize_workbook`
    checks the content. Raises file_empty, UnsupportedFormat.
    """
    records = _record_file_type(sample)
    if records is not None:
        return records
    found = _decode_sample(sample, is_whole, encoding)
    if found is None:
        return FileType.EXCEL
    text, _ = found
    # JSON is UTF-8; a NUL byte indicates UTF-16.
    if b"\0" not in sample and _is_json_lines(text, is_whole, of="{"):
        return FileType.NDJSON
    if text[:16].lower().startswith(_MARKUP) or _JSON_BEGINNING.match(text) or _is_json_lines(text, is_whole, of="{["):
        raise UnsupportedFormat
    return FileType.DELIMITED


def type_by_signature(sample: bytes) -> FileType | None:
    """Return EXCEL or the type of a record file if the file has its signature, or None if it may be text."""
    return FileType.EXCEL if sample.startswith(_WORKBOOK_SIGNATURES) else _record_file_type(sample)


def _record_file_type(sample: bytes) -> FileType | None:
    known = next((kind for mark, kind in _RECORD_FILE_SIGNATURES.items() if sample.startswith(mark)), None)
    if (
        known is None
        and sample.startswith(_ARROW_STREAM)
        and 0 < int.from_bytes(sample[4:8], "little") < _MAX_SCHEMA_BYTES
    ):
        return FileType.ARROW
    return known


def detect_declared_type(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> FileType:
    """Return EXCEL or DELIMITED for a file that a client declares to be a workbook or text.

    Unlike `detect_file_type`, accepts any text, even markup. Raises format_mismatch for a binary record file, and the
    errors of `detect_file_type`.
    """
    is_workbook = declared_text_encoding(sample, is_whole=is_whole, encoding=encoding) is None
    return FileType.EXCEL if is_workbook else FileType.DELIMITED


def declared_text_encoding(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> DetectedEncoding | None:
    """Return `encoding`, or else the detected encoding, of a file that a client declares to be text.

    Return None if the file has the signature of a workbook. Raises the errors of `detect_declared_type`.
    """
    records = _record_file_type(sample)
    if records is not None:
        raise format_mismatch(f"The file type is {records}.")
    found = _decode_sample(sample, is_whole, encoding)
    return None if found is None else found[1]


def _decode_sample(sample: bytes, is_whole: bool, encoding: str | None) -> tuple[str, DetectedEncoding] | None:
    """Return the trimmed text of the sample, and its encoding, which is detected if None is given.

    Return None if it may be a workbook. Raises file_empty, UnsupportedFormat.
    """
    if not sample or sample in _BYTE_ORDER_MARKS or not sample.strip(BLANKS.encode()):
        raise file_empty(_EMPTY_MESSAGE)
    if sample.startswith(_WORKBOOK_SIGNATURES):
        return None
    if sample.startswith(_UNSUPPORTED_SIGNATURES) or _BZIP2.match(sample):
        raise UnsupportedFormat
    found = DetectedEncoding(encoding, 1.0) if encoding else detect_encoding(sample, is_whole=is_whole)
    text = decoded(sample, found.name, is_whole=is_whole).strip(BLANKS)
    if not text:
        raise file_empty(_EMPTY_MESSAGE)
    return text, found


def _is_json_lines(text: str, is_whole: bool, *, of: str) -> bool:
    """Return whether every non-blank line is JSON and begins with a character of `of`.

    `text` begins with a character that is not blank. A last line that may be truncated is ignored.
    """
    if text[0] not in of:
        return False
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip(BLANKS)]
    if not is_whole and len(lines) > 1:
        lines.pop()
    return all(line.strip(BLANKS)[0] in of and _is_json(line.strip(BLANKS)) for line in lines)


def _is_json(line: str) -> bool:
    try:
        # Numbers are not converted, because Python rejects integers with very many digits.
        json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class DetectedFormat:
    """The detected format of a text file. `record_separator` can be `\\r\\n`, for which `delimiters` have `\\n`."""

    type: FileType
    delimiters: Delimiters
    record_separator: str
    encoding: str
    confidence: float
    """The confidence in the separator or in the encoding, whichever is lower."""
    is_encoding_certain: bool = True
    skipped: SkippedLines = NO_LINES


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The delimiters of a text file, including the escape character, and the lines that are not part of the table."""

    delimiters: Delimiters
    skipped: SkippedLines = NO_LINES


def detect_delimiters(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> DetectedFormat:
    """Detect the delimiters of text from its first bytes. `is_whole` states that the sample is the whole file.

    If `encoding` is None, also detects the encoding. Raises UnsupportedFormat if the sample is not text.
    """
    found = detect_encoding(sample, is_whole=is_whole) if encoding is None else DetectedEncoding(encoding, 1.0)
    text = decoded(sample, found.name, is_whole=is_whole)
    shown = _record_separator(text)
    named = SEPARATOR_LINE.match(text)
    sample_text = _Sample(text[named.end() :] if named else text, is_whole, "\n" if shown == "\r\n" else shown)
    is_one_column = named is None and sample_text.is_one_column()
    scan = sample_text.scan(named[1]) if named else None if is_one_column else sample_text.best_scan()
    if scan is None:
        # For a single column, choose a separator that does not occur: a common one, or else a private-use character.
        present, signs = set(text), (*_ONE_COLUMN_SEPARATORS, *map(chr, range(0xE000, 0xF900)))
        field = named[1] if named else next((sign for sign in signs if sign not in present), "\x1f")
        delimiters, confidence = Delimiters(field, '"', sample_text.record), _ONE_COLUMN_CONFIDENCE
        layout = sample_text.cut(delimiters).layout
    else:
        layout = scan.layout
        delimiters = replace(scan.delimiters, field=sample_text.repeated_separator(scan.delimiters.field))
        confidence = scan.fitting_share
    kind = {",": FileType.CSV, "\t": FileType.TSV}.get(delimiters.field, FileType.DELIMITED)
    first = count_lines_above(sample_text.text, scan.delimiters if scan else delimiters, layout.first) + (
        named is not None
    )
    skipped = SkippedLines(first, layout.comment)
    return DetectedFormat(
        kind,
        delimiters,
        shown,
        found.name,
        round(min(confidence, found.confidence), 2),
        is_encoding_certain=found.confidence >= CERTAIN_CONFIDENCE,
        skipped=skipped,
    )


def resolve_text_format(
    text: str,
    delimiters: Delimiters,
    *,
    is_whole: bool,
    skip_rows: int | None = None,
    comment: str | None = None,
    escape: str | None = None,
) -> TextFormat:
    """Complete the format of a text file from its beginning, `text`.

    Parameters that are None are detected. An empty `comment` or `escape` means that there is none.
    """
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
        first = count_lines_above(rest, scan.delimiters, scan.layout.first) + (named is not None)
    return TextFormat(scan.delimiters, SkippedLines(first, scan.layout.comment))


def _outside_quotes(text: str) -> Sequence[str]:
    """Return the parts of a text outside double quotes, or the whole text if the quotes are not balanced."""
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
    """The records that result from cutting a sample with one separator (Contract importer 10.2, 10.3)."""

    def __init__(self, delimiters: Delimiters, layout: Layout, quoted: int, unclosed: int) -> None:
        self.delimiters = delimiters
        self.layout = layout
        self.fitting_share = layout.fitting_share()
        self.quoted = quoted
        self.unclosed = unclosed
        """Number of fields whose opening quote is never closed."""

    @property
    def is_exact(self) -> bool:
        """Whether there are several records, all with the same width, and no lines above the table."""
        records = self.layout.records
        return len(records) > 1 and not self.layout.first and len({len(record) for record in records}) == 1

    def rank(self) -> tuple[bool, bool, int, float]:
        """Return a sort key for separators that fit; the largest is best. Separators that leave fewer lines above the
        table are preferred.
        """
        above = self.layout.first
        return not above, self.fitting_share >= _GOOD_FITTING_SHARE, -above, self._typed_share()

    def has_typed_column(self) -> bool:
        """Return whether any column, not counting the first record, has a type other than text."""
        for position in range(self.layout.width):
            facts = ColumnFacts()
            facts.add_all(record[position] for record in self.layout.records[1:])
            if column_type(facts, is_whole=True).base not in {BaseType.STRING, BaseType.NULL}:
                return True
        return False

    def _typed_share(self) -> float:
        typed = total = 0
        for record in self.layout.records[1:] or self.layout.records:
            for cell in record:
                kind = classify(cell)
                if kind is CellKind.NULL:
                    continue
                total += 1
                if kind not in _TEXT_KINDS or (self.delimiters.field != "," and _COMMA_NUMBER.fullmatch(cell)):
                    typed += 1
        return typed / total if total else 0.0


@dataclass(frozen=True, slots=True)
class _Sample:
    text: str
    is_whole: bool
    record: str
    finds_lines_above: bool = True
    comment: str | None = None
    """If None, the prefix is detected."""

    def is_one_column(self) -> bool:
        """Return whether most lines are single values such as numbers or dates (Contract importer 10.4)."""
        lines = self.text.split(self.record, _SAMPLE_RECORDS)
        if len(lines) > _SAMPLE_RECORDS or (not self.is_whole and len(lines) > 1):
            lines.pop()
        lines = [line for line in lines if line.strip(BLANKS)]
        values = lines[1:] or lines
        typed = sum(classify(line) in _VALUE_KINDS for line in values)
        return bool(values) and typed >= _MIN_VALUE_SHARE * len(values)

    def best_scan(self) -> _Scan | None:
        """Return the scan with the separator that fits best (Contract importer 10.5), or None if none fits."""
        for field in _MULTI_CHARACTER_SEPARATORS:
            scan = self.scan(field)
            if scan is not None and scan.fitting_share == 1:
                return scan
        usual = list(self._scans(_COMMON_SEPARATORS))
        fitting = [scan for scan in usual if scan.fitting_share >= _MIN_FITTING_SHARE]
        if not fitting:
            fitting = [scan for scan in usual if scan.layout.is_ragged()]
        if not fitting:
            fitting = [scan for scan in self._scans(_RARE_SEPARATORS) if scan.is_exact and scan.has_typed_column()]
        # max returns the first of equal candidates. Ranking classifies cells, so it is skipped for one candidate.
        return max(fitting, key=_Scan.rank) if len(fitting) > 1 else next(iter(fitting), None)

    def _scans(self, fields: Sequence[str]) -> Iterator[_Scan]:
        return (scan for field in fields if (scan := self.scan(field)) is not None)

    def scan(self, field: str) -> _Scan | None:
        """Cut the text with this separator. Return None if the result has a single column."""
        if field not in self.text:
            return None
        scan = self.with_escape(self.cut(Delimiters(field, '"', self.record)))
        if not scan.quoted and "'" in self.text:
            with_apostrophes = self.cut(Delimiters(field, "'", self.record))
            if with_apostrophes.quoted >= max(2, _MIN_QUOTED_PER_UNCLOSED * with_apostrophes.unclosed):
                scan = with_apostrophes
        return scan if scan.layout.width > 1 else None

    def with_escape(self, scan: _Scan) -> _Scan:
        """Return a scan with backslash as escape character if that gives a better table, otherwise `scan`."""
        delimiters = scan.delimiters
        # Python finds a single character with memchr, 20 times faster than a two-character string.
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
        gain = escaped.fitting_share - scan.fitting_share
        is_better = escaped.unclosed < scan.unclosed or escaped.layout.first < scan.layout.first
        return escaped if gain > 0 or (gain == 0 and is_better) else scan

    def cut(self, delimiters: Delimiters) -> _Scan:
        """Cut the text into its first records, and find the table among them."""
        # Detection permits more columns than a table may have; reading the file then raises too_many_columns.
        reader = RecordReader(delimiters, counts_quotes=True, max_columns=len(self.text) + 1)
        records: list[Record] = []
        for start in range(0, len(self.text), _CHUNK_CHARACTERS):
            records += reader.feed(self.text[start : start + _CHUNK_CHARACTERS])
            if len(records) >= _SAMPLE_RECORDS:
                break
        else:
            records += reader.feed("", final=True)
            if not self.is_whole and len(records) > 1:
                records.pop()
        del records[_SAMPLE_RECORDS:]
        quotes = [found for number, found in reader.quotes.items() if number <= len(records)]
        quoted, unclosed = sum(quoted for quoted, _ in quotes), sum(unclosed for _, unclosed in quotes)
        layout = detect_layout(
            records, self.text, delimiters, finds_lines_above=self.finds_lines_above, comment=self.comment
        )
        return _Scan(delimiters, layout, quoted, unclosed)

    def repeated_separator(self, field: str) -> str:
        """Return the separator doubled or tripled if it occurs only in runs of that length (Contract importer 10.6)."""
        if field not in _REPEATABLE_SEPARATORS:
            return field
        text = self.text
        if not self.is_whole:
            text = text[: text.rfind(self.record) + 1] or text.rstrip(field)
        runs = {len(run) for part in _outside_quotes(text) for run in re.findall(f"{re.escape(field)}+", part)}
        return field * runs.pop() if runs in ({2}, {3}) else field


def unescape(value: str) -> str:
    """Replace escape sequences with their characters. Unknown escape sequences are kept; `\\u` surrogate pairs are
    combined.
    """
    text = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1] or "") or chr(int(found[2] or found[3], 16)), value)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def parse_delimiters(field: str, *, quote: str | None = None, record: str | None = None) -> Delimiters:
    """Parse the delimiters of a call. `field` must not be empty; an empty `quote` or `record` counts as absent.

    Raises InvalidParameter if a delimiter is too long or invalid, or if one contains another.
    """
    field_text = _checked_text("field_separator", field)
    quote_text = _checked_text("quote_char", quote or '"')
    record_text = _checked_text("record_separator", record or "\n")
    if record_text == "\r\n":
        record_text = "\n"
    if len(quote_text) != 1:
        raise InvalidParameter("quote_char must be one character.")
    if quote_text == NO_QUOTE:
        quote_text = ""
    if record_text in field_text or (quote_text and quote_text in field_text + record_text):
        raise InvalidParameter(
            "field_separator, quote_char and record_separator must differ and must not contain each other."
        )
    return Delimiters(field=field_text, quote=quote_text or None, record=record_text)


def parse_comment_prefix(value: str) -> str:
    """Parse the prefix of comment lines. Return `""` for `\\0`, which means that there are none. Raises
    InvalidParameter.
    """
    text = _checked_text("comment", value)
    if text == NO_QUOTE:
        return ""
    if "\0" in text or "\n" in text or "\r" in text:
        raise InvalidParameter("comment must not contain U+0000 or line breaks.")
    return text


def parse_escape_character(value: str) -> str:
    """Parse the escape character. Return `""` for `\\0`, which means that there is none. Raises InvalidParameter."""
    text = _checked_text("escape", value)
    if len(text) != 1:
        raise InvalidParameter("escape must be one character.")
    return "" if text == NO_QUOTE else text


def _checked_text(name: str, value: str) -> str:
    if "\0" in value:
        raise InvalidParameter(f"{name} must not contain U+0000.")
    text = unescape(value)
    if not 1 <= len(text) <= _MAX_CHARACTERS:
        raise InvalidParameter(f"{name} must have 1 to {_MAX_CHARACTERS} characters.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidParameter(f"{name} must not contain lone surrogates.")
    return text
