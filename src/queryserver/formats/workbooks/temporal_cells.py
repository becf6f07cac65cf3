"""The dates and times of a workbook as the numbers that it stores, beside what python-calamine makes of them.

python-calamine makes dates of numbers by rules of its own: a date-time at midnight becomes a date, a negative number
the time 00:00. The format of a cell says what it is, and calamine does not give it. So numbers with formats of dates
and times are read a second time, from xls (MS-XLS 2.4, BIFF8) and xlsx (ECMA-376 part 1, 18.3.1.4), and both give the
same cells. What is not found here keeps what calamine says.
"""

import posixpath
import re
import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple, Protocol
from xml.etree import ElementTree as ET

from queryserver.domain.errors.files import FileCorrupt, FileTooComplex, file_encrypted
from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.cells import Temporal, serial_cell, temporal_of_format
from queryserver.formats.workbooks.compound_files import CompoundFile
from queryserver.formats.workbooks.packages import Package

_BOF, _EOF, _BOUNDSHEET, _DATEMODE, _FORMAT, _XF = 0x0809, 0x000A, 0x0085, 0x0022, 0x041E, 0x00E0
_FILEPASS = 0x002F
_NUMBER, _RK, _MULRK, _FORMULA = 0x0203, 0x027E, 0x00BD, 0x0006
_BIFF8 = 0x0600
_WORKSHEET = 0

_WORKBOOK, _RELATIONSHIPS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
_MAX_CELL_BYTES = 16 * 1024 * 1024
"""The text of one cell with its tags: 1,048,576 characters of up to six bytes, and as much again for its formula."""


class Stored(NamedTuple):
    """A cell with its place, from 0 on."""

    row: int
    column: int
    cell: TypedText


class StoredSerials(Protocol):
    """Numbers with formats of dates and times, row by row as far as the file keeps to that order."""

    def of_sheet(self, index: int) -> Iterator[Stored]:
        """Those of a worksheet; sheets of other kinds do not count."""
        ...


class RowByRow:
    """Hands out the cells of `found` row by row. Rows are asked for in ascending order; a late cell is left out."""

    def __init__(self, found: Iterator[Stored]) -> None:
        self._found = found
        self._next = next(found, None)

    def of_row(self, row: int) -> Mapping[int, TypedText]:
        """The cells of the row by their columns."""
        cells: dict[int, TypedText] = {}
        while self._next is not None and self._next.row <= row:
            if self._next.row == row:
                cells[self._next.column] = self._next.cell
            self._next = next(self._found, None)
        return cells


class XlsxSerials:
    """Those of an xlsx whose cells are written as programs write them: without a prefix, with their place."""

    def __init__(self, package: Package) -> None:
        """Raises FileCorrupt."""
        self._package = package
        related = _related(package)
        workbook = _root(package, _WORKBOOK)
        self._is_1904 = any(
            one.get("date1904", "").strip().lower() in ("1", "true", "on")
            for one in workbook.iterfind(".//{*}workbookPr")
        )
        try:
            sheets = [related[_relation(sheet)] for sheet in workbook.iterfind(".//{*}sheet")]
        except KeyError as error:
            raise FileCorrupt("The workbook names a sheet that it does not have.") from error
        self._sheets = [part for kind, part in sheets if kind == "worksheet"]
        styles = next((part for kind, part in related.values() if kind == "styles"), None)
        self._temporals = {} if styles is None else _temporal_styles(_root(package, styles))

    def of_sheet(self, index: int) -> Iterator[Stored]:
        """Those of a worksheet; sheets of other kinds do not count. Raises FileCorrupt, FileTooComplex."""
        if not self._temporals or index >= len(self._sheets):
            return
        pattern = _cell_pattern(self._temporals)
        for segment in _whole_cells(self._package.pieces(self._sheets[index])):
            for style, letters, row, text in pattern.findall(segment):
                try:
                    serial = float(text)
                except ValueError:
                    continue
                cell = serial_cell(serial, self._temporals[style], is_1904=self._is_1904)
                yield Stored(int(row) - 1, _column_number(letters), cell)


def _whole_cells(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The part, cut where cells begin. What stands behind all rows is left out."""
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


def _cell_pattern(styles: Mapping[bytes, Temporal]) -> re.Pattern[bytes]:
    """A cell of a number with one of the styles: style, letters of the column, number of the row, number."""
    chosen = b"|".join(styles)
    return re.compile(
        rb'<c(?=[^<>]*\ss="(' + chosen + rb')")(?=[^<>]*\sr="([A-Z]{1,3})([0-9]{1,7})")(?![^<>]*\st="(?!n"))[^<>]*>'
        rb"(?:<f[^<>]*/>|<f[^<>]*>[^<>]*</f>)?<v>([^<>]{1,40})</v>"
    )


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number - 1


def _root(package: Package, part: str) -> ET.Element:
    try:
        return ET.fromstring(b"".join(package.pieces(part)))  # noqa: S314 `check_parts` has refused document types
    except (ET.ParseError, LookupError, ValueError) as error:
        raise FileCorrupt("A part of the workbook is not well-formed.") from error


def _related(package: Package) -> dict[str, tuple[str, str]]:
    """Kind and part of each relationship by its id. The package has no part for what lies outside of it."""
    return {
        one.get("Id", ""): (
            one.get("Type", "").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/xl", one.get("Target", ""))).lstrip("/"),
        )
        for one in _root(package, _RELATIONSHIPS).iterfind(".//{*}Relationship")
    }


def _relation(sheet: ET.Element) -> str:
    return next((value for name, value in sheet.items() if name.endswith("}id")), "")


def _temporal_styles(styles: ET.Element) -> dict[bytes, Temporal]:
    """What the styles of dates and times show, by the number with which cells name them."""
    codes = {_number(one.get("numFmtId")): one.get("formatCode", "") for one in styles.iterfind("{*}numFmts/{*}numFmt")}
    formats = [_number(one.get("numFmtId")) for one in styles.iterfind("{*}cellXfs/{*}xf")]
    # A workbook may have thousands of styles of a few formats.
    temporals = {number: temporal_of_format(number, codes.get(number)) for number in set(formats)}
    return {b"%d" % index: shown for index, number in enumerate(formats) if (shown := temporals[number]) is not None}


def _number(text: str | None) -> int:
    return int(text) if text and len(text) < 10 and text.isdecimal() else 0


class XlsSerials:
    """Numbers with formats of dates and times. Of an older format than BIFF8, or of a damaged file, there are none."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises FileCorrupt, file_encrypted."""
        self._stream = CompoundFile(file).stream("WORKBOOK") or b""
        self._is_1904 = False
        self._sheets: list[int] = []
        self._codes: dict[int, str] = {}
        self._formats: list[int] = []
        is_known = self._stream[4:6] == struct.pack("<H", _BIFF8)
        for kind, body in self._records(0):
            if kind == _FILEPASS:
                raise file_encrypted("The workbook has a password.")
            if is_known:
                self._take_global(kind, body)
        temporals = {number: temporal_of_format(number, self._codes.get(number)) for number in set(self._formats)}
        self._temporals = {index: shown for index, number in enumerate(self._formats) if (shown := temporals[number])}

    def of_sheet(self, index: int) -> Iterator[Stored]:
        """Those of a worksheet; sheets of other kinds do not count."""
        if self._temporals and index < len(self._sheets):
            for row, column, style, serial in self._numbers(self._sheets[index]):
                if (temporal := self._temporals.get(style)) is not None:
                    yield Stored(row, column, serial_cell(serial, temporal, is_1904=self._is_1904))

    def _take_global(self, kind: int, body: bytes) -> None:
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

    def _numbers(self, place: int) -> Iterator[tuple[int, int, int, float]]:
        """Row, column, style and number of each cell that has one."""
        for kind, body in self._records(place):
            if kind == _NUMBER and len(body) >= 14:
                yield struct.unpack_from("<3Hd", body)
            elif kind == _RK and len(body) >= 10:
                row, column, style, packed = struct.unpack_from("<3HL", body)
                yield row, column, style, _unpacked(packed)
            elif kind == _MULRK and len(body) >= 12:
                row, first = struct.unpack_from("<2H", body)
                cells = struct.iter_unpack("<HL", body[4 : 4 + (len(body) - 6) // 6 * 6])
                yield from (
                    (row, first + index, style, _unpacked(packed)) for index, (style, packed) in enumerate(cells)
                )
            elif kind == _FORMULA and len(body) >= 14 and body[12:14] != b"\xff\xff":
                yield struct.unpack_from("<3Hd", body)

    def _records(self, place: int) -> Iterator[tuple[int, bytes]]:
        """Kind and content of the records from the beginning of a part to its end; charts inside it are passed over."""
        depth = 0
        while place + 4 <= len(self._stream):
            kind, size = struct.unpack_from("<2H", self._stream, place)
            place += 4
            if kind == _BOF:
                depth += 1
            elif kind == _EOF:
                depth -= 1
                if depth <= 0:
                    return
            elif depth == 1:
                yield kind, self._stream[place : place + size]
            place += size


def _unpacked(packed: int) -> float:
    """The number that 30 bits hold, as integer or as the upper half of a double, maybe times 100 (MS-XLS 2.5.217)."""
    if packed & 2:
        number = float((packed >> 2) - (1 << 30 if packed & 0x80000000 else 0))
    else:
        number = struct.unpack("<d", struct.pack("<Q", (packed & 0xFFFFFFFC) << 32))[0]
    return number / 100 if packed & 1 else number
