"""Converts workbook cells to text with a cell kind, and serial numbers to dates and times (Contract importer 12.2).

Dates, times and durations are stored as serial numbers, in days since the epoch of one of two date systems (ECMA-376
part 1, 18.17.4). The cell's number format determines which of them the number means (18.8.30 and 18.8.31).
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import Enum, auto
from math import isfinite
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree as ET

from queryserver.errors.files import FileCorrupt, FileTooComplex, file_encrypted
from queryserver.formats.table_files import (
    MAX_COLUMNS,
    MAX_FIELD_CHARACTERS,
    MAX_RECORD_CHARACTERS,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    CellKind,
    TypedText,
)
from queryserver.workbooks.packages import CompoundFile, Package, Relationship, root_element

MAX_ROWS = 1_048_576
MAX_GRID_COLUMNS = 16_384
"""Maximum column position in a sheet. `MAX_COLUMNS` limits how many columns may be in use."""
HEAD_ROWS = SAMPLE_RECORDS + 1
HEAD_CELLS = 500_000
POSITIONED_ROWS = 200
"""A table is assumed to start within this many rows."""

Row = Mapping[int, TypedText]
"""The non-empty cells of a row by column number, starting at 0."""

EMPTY = TypedText("", CellKind.NULL)
_TRUE, _FALSE = TypedText("true", CellKind.BOOLEAN), TypedText("false", CellKind.BOOLEAN)
_MAX_EXACT_INTEGER = 2**53

_DAY_MS = 86_400_000
_EPOCH_1900 = datetime(1899, 12, 30)  # noqa: DTZ001 cells have no time zone
_EPOCH_1904 = datetime(1904, 1, 1)  # noqa: DTZ001 as above
_LEAP_DAY_1900 = 60
"""The serial of 29 February 1900, a date that does not exist but that early spreadsheets assumed. Earlier serials are
therefore one day off.
"""

_LAST_SERIAL_1900, _LAST_SERIAL_1904 = 2_958_466, 2_957_004
"""The serials of 10000-01-01, the first date that cannot be represented."""

_ISO_DURATION = re.compile(r"P(?:(\d{1,9})D)?T?(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?", re.ASCII)


class Temporal(Enum):
    DATE = auto()
    TIME = auto()
    TIMESTAMP = auto()
    DURATION = auto()
    MOMENT = auto()
    """A date, a time, or both: the format does not say which."""


_BUILT_IN = (
    dict.fromkeys((14, 15, 16, 17), Temporal.DATE)
    | dict.fromkeys((18, 19, 20, 21, 45, 47), Temporal.TIME)
    | {22: Temporal.TIMESTAMP, 46: Temporal.DURATION}
    # The meaning of these formats depends on the locale of the program: usually dates, sometimes times.
    | dict.fromkeys((*range(27, 37), *range(50, 59)), Temporal.MOMENT)
)

_LITERALS_AND_CONDITIONS = re.compile(
    r"""
      "[^"]*"?                  # text
    | [\\_*].                   # one character as text, as a blank of its width, or repeated
    | \[(?!(?:h+|m+|s+)\])[^\]]*\]?    # colors, conditions, languages; but not elapsed hours, minutes, seconds
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_ELAPSED = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_HALF_DAY = re.compile(r"am/pm|a/p", re.IGNORECASE)
_FRACTION = re.compile(r"(?<=s)[.,]0+", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"e[+-]", re.IGNORECASE)
_GENERAL = re.compile(r"general|standard", re.IGNORECASE)
_MINUTES = re.compile(r"h[^a-z]*m{1,2}(?!m)|(?<!m)m{1,2}[^a-z]*s", re.IGNORECASE)

_MAX_CODE_CHARACTERS = 1000

_BOF, _EOF, _BOUNDSHEET, _DATEMODE, _FORMAT, _XF = 0x0809, 0x000A, 0x0085, 0x0022, 0x041E, 0x00E0
_FILEPASS, _CODEPAGE = 0x002F, 0x0042
_UTF_16 = 1200
"""The code page of all strings in BIFF8, whatever the file declares (MS-XLS 2.4.52). calamine trusts the declaration
and would return strings with NULs between the letters.
"""
_CODE_PAGES = {0x8000: 10000, 0x8001: 1252}
"""Obsolete numbers of the Macintosh and Windows code pages, which calamine does not know."""
_NUMBER, _RK, _MULRK, _FORMULA = 0x0203, 0x027E, 0x00BD, 0x0006
_BIFF8 = 0x0600
_WORKSHEET = 0

_FORMULA_WITHOUT_VALUE = re.compile(
    rb'<c(?=[^<>]*\sr="([A-Z]{1,3})([0-9]{1,7})")(?![^<>]*\st="str")[^<>]*>'
    rb"(?:<f[^<>]*/>|<f[^<>]*>[^<>]*</f>)(?:<v\s*/>|<v></v>)?</c>"
)
"""A cell that has a formula but no stored value. An empty string counts as a value."""
_MAX_CELL_BYTES = 16 * 1024 * 1024
"""Maximum size of one cell's XML: 1,048,576 characters of up to six bytes each for the value, and the same for the
formula, with tags.
"""


def serial_cell(serial: float, temporal: Temporal, *, is_1904: bool) -> TypedText:
    """Return the cell for a serial number that is displayed as a date, time or duration. A number outside the calendar
    stays a number.
    """
    return temporal_cell(serial, temporal, is_1904=is_1904) or number_cell(serial)


def number_cell(number: float) -> TypedText:
    """Return the cell for a number: an integer for whole numbers of at most 2^53, otherwise a double in its shortest
    representation. NaN and infinities become empty cells.
    """
    if -_MAX_EXACT_INTEGER <= number <= _MAX_EXACT_INTEGER and number == int(number):
        return TypedText(str(int(number)), CellKind.INTEGER)
    return TypedText(repr(number), CellKind.DOUBLE) if isfinite(number) else EMPTY


def boolean_cell(*, is_true: bool) -> TypedText:
    return _TRUE if is_true else _FALSE


def text_cell(text: str) -> TypedText:
    """Return the cell for a string. Raises FileTooComplex if it exceeds the maximum cell size (Contract importer
    8.5).
    """
    if len(text) > MAX_FIELD_CHARACTERS:
        raise FileTooComplex("A cell of the workbook has more than 1,048,576 characters.")
    return TypedText(text, CellKind.TEXT) if text else EMPTY


def temporal_cell(serial: float, temporal: Temporal, *, is_1904: bool) -> TypedText | None:
    """Return the cell for a serial number, or None if the number is outside the calendar.

    Times are rounded to milliseconds, as in spreadsheet programs, because a double represents a timestamp such as
    10:30:01 only to about a microsecond.
    """
    if temporal is Temporal.DURATION:
        return duration_cell(serial) if abs(serial) < _LAST_SERIAL_1900 else None
    if not 0 <= serial < (_LAST_SERIAL_1904 if is_1904 else _LAST_SERIAL_1900):
        return None
    total_ms = round(serial * _DAY_MS)
    if serial < 1 and not (is_1904 and temporal in (Temporal.DATE, Temporal.TIMESTAMP)):
        return TypedText(_clock_text(min(total_ms, _DAY_MS - 1)), CellKind.TIME)
    if temporal is Temporal.TIMESTAMP or temporal is Temporal.TIME or total_ms % _DAY_MS:
        return timestamp_cell(_moment(total_ms, is_1904=is_1904))
    return TypedText(_moment(total_ms, is_1904=is_1904).date().isoformat(), CellKind.DATE)


def iso_cell(text: str) -> TypedText | None:
    """Return the cell for a date, time or duration stored in ISO 8601 format (`t="d"`), or None if the string is none
    of these.
    """
    try:
        if "T" in text and not text.startswith("P"):
            return timestamp_cell(datetime.fromisoformat(text).replace(tzinfo=None))
        if "-" in text:
            return TypedText(date.fromisoformat(text).isoformat(), CellKind.DATE)
        if ":" in text:
            return time_cell(time.fromisoformat(text))
    except ValueError:
        return None
    parts = _ISO_DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return duration_cell(days + hours / 24 + minutes / 1440 + seconds / 86400)


def timestamp_cell(moment: datetime) -> TypedText:
    """Return a timestamp such as `2024-01-15 10:30:00`, with six fractional digits if they are not zero."""
    return TypedText(moment.isoformat(sep=" "), CellKind.TIMESTAMP)


def time_cell(clock: time) -> TypedText:
    """Return a time such as `08:05:00`, with six fractional digits if they are not zero."""
    return TypedText(clock.replace(tzinfo=None).isoformat(), CellKind.TIME)


def duration_cell(days: float) -> TypedText:
    """Return a duration such as `30:00:00`. The hours may exceed 24; negative durations start with `-`."""
    total_ms = round(days * _DAY_MS)
    sign = "-" if total_ms < 0 else ""
    return TypedText(sign + _clock_text(abs(total_ms)), CellKind.DURATION)


def _moment(total_ms: int, *, is_1904: bool) -> datetime:
    if is_1904:
        return _EPOCH_1904 + timedelta(milliseconds=total_ms)
    early = timedelta(days=1) if total_ms < _LEAP_DAY_1900 * _DAY_MS else timedelta()
    return _EPOCH_1900 + early + timedelta(milliseconds=total_ms)


def _clock_text(total_ms: int) -> str:
    seconds, ms = divmod(total_ms, 1000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    fraction = f".{ms:03}000" if ms else ""
    return f"{hours:02}:{minute:02}:{second:02}{fraction}"


def temporal_of_format(number: int, code: str | None) -> Temporal | None:
    """Return the kind of value that a number format displays, or None for plain numbers and text.

    `code` is the format code, such as `[$-409]d. mmm yyyy;@`; only its first section is used. It is None for built-in
    formats, which are identified by their number alone.
    """
    if code is None:
        return _BUILT_IN.get(number)
    plain = _LITERALS_AND_CONDITIONS.sub("", code[:_MAX_CODE_CHARACTERS]).split(";")[0]
    if _ELAPSED.search(plain):
        return Temporal.DURATION
    plain, halves = _HALF_DAY.subn("h", plain)
    plain = _SCIENTIFIC.sub("0", _GENERAL.sub("", _FRACTION.sub("", plain))).lower()
    if any(placeholder in plain for placeholder in "0#?@"):
        return None
    without_minutes = _MINUTES.sub("h", plain)
    has_time = bool(halves) or any(letter in without_minutes for letter in "hs")
    # e, g and b stand for years and eras in the Japanese and Buddhist calendars.
    has_date = any(letter in without_minutes for letter in "ymdegb")
    if has_time and has_date:
        return Temporal.TIMESTAMP
    if has_date:
        return Temporal.DATE if any(letter in without_minutes for letter in "ymde") else None
    return Temporal.TIME if has_time else None


@dataclass(slots=True)
class RowNotes:
    """Row numbers that are collected while the rows are read."""

    positions: list[int] = field(default_factory=list[int])
    """The positions in the sheet of the first rows that were read, starting at 0."""
    rows_without_value: list[int] = field(default_factory=list[int])
    """The numbers (starting at 1) of rows with a formula that has no stored value."""

    def add(self, position: int, repeats: int = 1) -> None:
        if len(self.positions) < POSITIONED_ROWS:
            self.positions += range(position, position + min(repeats, POSITIONED_ROWS))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns [first, first + width) of a sheet."""

    first: int
    width: int

    def cut(self, row: Row) -> list[TypedText]:
        """Return the cells of a row in these columns. The result has more than `width` cells if the row also uses other
        columns. Raises FileTooComplex.
        """
        first, end = self.first, self.first + self.width
        if row and (min(row) < first or max(row) >= end):
            first, end = min(first, *row), max(end, max(row) + 1)
            _check_width(end - first)
        return [row.get(column, EMPTY) for column in range(first, end)]


@dataclass(frozen=True, slots=True)
class SheetHead:
    """The first rows, which determine the columns in use. `is_whole` is set if the sheet has no more rows."""

    rows: Sequence[Row]
    is_whole: bool


def read_head(rows: Iterator[Row]) -> SheetHead:
    """Read the head of the sheet from the stream. To determine `is_whole`, one more row is read and dropped."""
    head: list[Row] = []
    cells = characters = 0
    for row in rows:
        if len(head) == HEAD_ROWS or cells >= HEAD_CELLS or characters >= SAMPLE_TEXT_BYTES:
            return SheetHead(head, is_whole=False)
        head.append(row)
        cells += len(row)
        characters += sum(map(len, row.values()))
    return SheetHead(head, is_whole=True)


def columns_in_use(rows: Iterable[Row]) -> Columns:
    """Return the range from the first to the last column in use. Raises FileTooComplex if it is too wide."""
    used: set[int] = set()
    for row in rows:
        used.update(row)
    if not used:
        return Columns(0, 0)
    _check_width(max(used) - min(used) + 1)
    return Columns(min(used), max(used) - min(used) + 1)


def checked_rows(columns: Columns, rows: Iterable[Row]) -> Iterator[list[TypedText]]:
    """Yield the cells of each row. Raises FileTooComplex for too many rows, and for rows with too much text (Contract
    importer 8.5).
    """
    for number, row in enumerate(rows, 1):
        if number > MAX_ROWS:
            raise FileTooComplex(f"The sheet has more than {MAX_ROWS:,} rows.")
        if sum(map(len, row.values())) > MAX_RECORD_CHARACTERS:
            raise FileTooComplex("A row of the workbook has more than 16,777,216 characters.")
        yield columns.cut(row)


def _check_width(width: int) -> None:
    if width > MAX_COLUMNS:
        raise FileTooComplex(f"The sheet has more than {MAX_COLUMNS:,} columns.")


class PositionedCell(NamedTuple):
    """A cell with its position, starting at 0."""

    row: int
    column: int
    cell: TypedText


class CellsByRow:
    """Groups the cells of the stream `found` by row. Request rows in ascending order; cells of earlier rows are
    skipped.
    """

    def __init__(self, found: Iterator[PositionedCell]) -> None:
        self._found = found
        self._next = next(found, None)

    def of_row(self, row: int) -> Mapping[int, TypedText]:
        cells: dict[int, TypedText] = {}
        while self._next is not None and self._next.row <= row:
            if self._next.row == row:
                cells[self._next.column] = self._next.cell
            self._next = next(self._found, None)
        return cells


class XlsxSerials:
    """The numeric cells of an XLSX workbook that have date or time formats, in file order.

    The cells are found with regular expressions, so only cells in the usual form are recognized: without a namespace
    prefix and with a cell reference.
    """

    def __init__(self, package: Package, workbook_part: str, relationships: Sequence[Relationship]) -> None:
        self._package = package
        related = {one.id: (one.kind, one.part) for one in relationships}
        workbook = root_element(package, workbook_part)
        self._is_1904 = any(
            one.get("date1904", "").strip().lower() in ("1", "true", "on")
            for one in workbook.iterfind(".//{*}workbookPr")
        )
        try:
            sheets = [
                related[next((value for name, value in sheet.items() if name.endswith("}id")), "")]
                for sheet in workbook.iterfind(".//{*}sheet")
            ]
        except KeyError as error:
            raise FileCorrupt("The workbook refers to a sheet that does not exist.") from error
        self.sheets = [part for kind, part in sheets if kind == "worksheet"]
        """The part names of the worksheets."""
        styles = next((part for kind, part in related.values() if kind == "styles" and part in package), None)
        self._temporals = {} if styles is None else _temporal_styles(root_element(package, styles))

    def of_sheet(self, index: int) -> Iterator[PositionedCell]:
        """Yield the date and time cells of a worksheet. `index` counts worksheets only. Raises FileCorrupt,
        FileTooComplex.
        """
        if not self._temporals or index >= len(self.sheets):
            return
        # A numeric cell with one of the styles. Groups: style, column letters, row number, value.
        pattern = re.compile(
            rb'<c(?=[^<>]*\ss="(' + b"|".join(self._temporals) + rb')")(?=[^<>]*\sr="([A-Z]{1,3})([0-9]{1,7})")'
            rb'(?![^<>]*\st="(?!n"))[^<>]*>(?:<f[^<>]*/>|<f[^<>]*>[^<>]*</f>)?<v>([^<>]{1,40})</v>'
        )
        for segment in _split_at_cells(self._package.pieces(self.sheets[index])):
            for style, letters, row, text in pattern.findall(segment):
                try:
                    serial = float(text)
                except ValueError:
                    continue
                cell = serial_cell(serial, self._temporals[style], is_1904=self._is_1904)
                yield PositionedCell(int(row) - 1, _column(letters), cell)

    def formulas_without_value(self, index: int) -> Iterator[PositionedCell]:
        """Yield the formula cells of a worksheet that have no stored value. An empty string counts as a value."""
        if index < len(self.sheets):
            for segment in _split_at_cells(self._package.pieces(self.sheets[index])):
                for letters, row in _FORMULA_WITHOUT_VALUE.findall(segment):
                    yield PositionedCell(int(row) - 1, _column(letters), EMPTY)


def _column(letters: bytes) -> int:
    """Return the number, starting at 0, of a column such as `AB`."""
    column = 0
    for letter in letters:
        column = column * 26 + letter - 64
    return column - 1


def _split_at_cells(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the part's content, split before the start tags of cells. Content after the rows is skipped. Raises
    FileTooComplex.
    """
    waiting = b""
    for piece in pieces:
        waiting += piece
        if (end := waiting.find(b"</sheetData")) >= 0:
            waiting = waiting[:end]
            break
        cut = waiting.rfind(b"<c")
        if cut > 0:
            yield waiting[:cut]
            waiting = waiting[cut:]
        elif len(waiting) > _MAX_CELL_BYTES:
            raise FileTooComplex("A cell of the workbook is too long.")
    yield waiting


def _temporal_styles(styles: ET.Element) -> dict[bytes, Temporal]:
    """Return the kind of each date and time style, keyed by the style number that cells refer to."""
    codes = {_number(one.get("numFmtId")): one.get("formatCode", "") for one in styles.iterfind("{*}numFmts/{*}numFmt")}
    formats = [_number(one.get("numFmtId")) for one in styles.iterfind("{*}cellXfs/{*}xf")]
    # Parse each format only once: a workbook may have thousands of styles but only a few formats.
    temporals = {number: temporal_of_format(number, codes.get(number)) for number in set(formats)}
    return {b"%d" % index: kind for index, number in enumerate(formats) if (kind := temporals[number]) is not None}


def _number(text: str | None) -> int:
    return int(text) if text and len(text) < 10 and text.isdecimal() else 0


class XlsSerials:
    """The numeric cells of an XLS workbook that have date or time formats. Empty for formats before BIFF8."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the workbook's global records. Raises FileCorrupt, file_encrypted."""
        compound = CompoundFile(file)
        name = "WORKBOOK" if "WORKBOOK" in compound.root_names() else "BOOK"
        self._stream = compound.stream(name) or b""
        self.content = compound.content
        """The file's bytes, with the code page corrected so that calamine decodes its strings."""
        self._is_1904 = False
        self._sheets: list[int] = []
        self._codes: dict[int, str] = {}
        self._formats: list[int] = []
        is_known = self._stream[4:6] == struct.pack("<H", _BIFF8)
        for position, kind, body in self._records(0):
            if kind == _FILEPASS:
                raise file_encrypted("The workbook is password-protected.")
            if kind == _CODEPAGE and len(body) == 2:
                (page,) = struct.unpack("<H", body)
                wanted = _UTF_16 if is_known else _CODE_PAGES.get(page, page)
                if wanted != page:
                    first, second = (compound.file_position(name, position + 4 + offset) for offset in (0, 1))
                    changed = bytearray(self.content)
                    changed[first], changed[second] = struct.pack("<H", wanted)
                    self.content = bytes(changed)
            if is_known:
                self._read_global_record(kind, body)
        temporals = {number: temporal_of_format(number, self._codes.get(number)) for number in set(self._formats)}
        self._temporals = {index: kind for index, number in enumerate(self._formats) if (kind := temporals[number])}

    def of_sheet(self, index: int) -> Iterator[PositionedCell]:
        if self._temporals and index < len(self._sheets):
            for row, column, style, serial in self._numbers(self._sheets[index]):
                if (temporal := self._temporals.get(style)) is not None:
                    yield PositionedCell(row, column, serial_cell(serial, temporal, is_1904=self._is_1904))

    def _read_global_record(self, kind: int, body: bytes) -> None:
        if kind == _DATEMODE and len(body) >= 2:
            self._is_1904 = body[:2] == b"\x01\x00"
        elif kind == _BOUNDSHEET and len(body) >= 6 and body[5] == _WORKSHEET:
            self._sheets.append(struct.unpack_from("<L", body)[0])
        elif kind == _XF and len(body) >= 4:
            self._formats.append(struct.unpack_from("<H", body, 2)[0])
        elif kind == _FORMAT and len(body) >= 5:
            wide = body[4] & 1
            self._codes[struct.unpack_from("<H", body)[0]] = body[5:].decode(
                "utf-16-le" if wide else "latin-1", "replace"
            )

    def _numbers(self, position: int) -> Iterator[tuple[int, int, int, float]]:
        """Yield the row, column, style and value of each numeric cell in the substream at `position`."""
        for _, kind, body in self._records(position):
            if kind == _NUMBER and len(body) >= 14:
                yield struct.unpack_from("<3Hd", body)
            elif kind == _RK and len(body) >= 10:
                row, column, style, packed = struct.unpack_from("<3HL", body)
                yield row, column, style, _rk_number(packed)
            elif kind == _MULRK and len(body) >= 12:
                row, first = struct.unpack_from("<2H", body)
                cells = struct.iter_unpack("<HL", body[4 : 4 + (len(body) - 6) // 6 * 6])
                yield from (
                    (row, first + index, style, _rk_number(packed)) for index, (style, packed) in enumerate(cells)
                )
            elif kind == _FORMULA and len(body) >= 14 and body[12:14] != b"\xff\xff":
                yield struct.unpack_from("<3Hd", body)

    def _records(self, position: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the position, kind and content of each record of a substream. Nested substreams (charts) are
        skipped.
        """
        depth = 0
        while position + 4 <= len(self._stream):
            kind, size = struct.unpack_from("<2H", self._stream, position)
            position += 4
            if kind == _BOF:
                depth += 1
            elif kind == _EOF:
                depth -= 1
                if depth <= 0:
                    return
            elif depth == 1:
                yield position - 4, kind, self._stream[position : position + size]
            position += size


def _rk_number(packed: int) -> float:
    """Decode an RK number: the upper 30 bits of a double, or a 30-bit integer, either of which may be multiplied by 100
    (MS-XLS 2.5.217).
    """
    if packed & 2:
        number = float((packed >> 2) - (1 << 30 if packed & 0x80000000 else 0))
    else:
        number = struct.unpack("<d", struct.pack("<Q", (packed & 0xFFFFFFFC) << 32))[0]
    return number / 100 if packed & 1 else number
