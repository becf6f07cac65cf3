"""The worker program. It reads one request from standard input, writes the response as frames, and exits.

Excel workbooks are read with calamine. To save memory, Arrow is imported only for record files.
"""

import io
import json
import re
import resource
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from queryserver import errors
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import FileCorrupt, UnsupportedFormat, file_encrypted
from queryserver.formats.table_files import SAMPLE_TEXT_BYTES, FileType, TypedText
from queryserver.formats.unpacking import OUTPUT_BYTES
from queryserver.platform.confinement import Confinement, confine, lower_limit
from queryserver.platform.memory import hide_pandas
from queryserver.workbooks import cells, frames
from queryserver.workbooks.ods import CONTENT, OdsSheets
from queryserver.workbooks.packages import (
    MAGIC,
    READ_KINDS,
    SINGLE_KINDS,
    CompoundFile,
    Package,
    check_part,
    copy_with_usual_names,
    has_usual_names,
    is_binary,
    relationships,
    workbook_part,
)

_SPREADSHEET = b"application/vnd.oasis.opendocument.spreadsheet"
_MANIFEST = "META-INF/manifest.xml"
_MANIFEST_BYTES = 4 * 1024 * 1024
_MARKER_PARTS = ("xl/workbook.xml", "xl/workbook.bin", "_rels/.rels", "mimetype", CONTENT)
"""A package with one of these parts may be a workbook, so its limits are checked before anything is decompressed."""
_ENCRYPTION = re.compile(rb"<(?:[\w.-]+:)?encryption-data[\s/>]")
_ENCRYPTED_PACKAGE = "encrypted-package"
"""The part that a package contains if it is encrypted as a whole (OpenDocument 1.4 part 2, 3.4.1)."""


class WorkbookKind(Enum):
    """The four formats of workbooks. For clients, all of them are the file type `excel`."""

    XLSX = "xlsx"
    XLSB = "xlsb"
    ODS = "ods"
    XLS = "xls"


def recognize_workbook(file: BinaryIO) -> WorkbookKind | None:
    """Return the format of a workbook, or None if the file begins neither like a zip file nor like a compound file.

    Raises FileCorrupt, file_encrypted, FileTooComplex, and UnsupportedFormat for zip files and compound files that are
    not workbooks.
    """
    file.seek(0)
    head = file.read(len(MAGIC))
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_package(Package(file))
    if head != MAGIC:
        return None
    names = CompoundFile(file).root_names()
    if "ENCRYPTEDPACKAGE" in names:
        raise file_encrypted("The workbook is password-protected.")
    if names.isdisjoint({"WORKBOOK", "BOOK"}):
        raise UnsupportedFormat
    return WorkbookKind.XLS


def _kind_of_package(package: Package) -> WorkbookKind:
    if any(name in package for name in _MARKER_PARTS):
        package.check_limits()
    if workbook := workbook_part(package):
        kind = WorkbookKind.XLSB if is_binary(package, workbook) else WorkbookKind.XLSX
    elif _is_spreadsheet(package):
        _refuse_encrypted(package)
        if CONTENT not in package:
            raise UnsupportedFormat
        kind = WorkbookKind.ODS
    else:
        raise UnsupportedFormat
    return kind


def _is_spreadsheet(package: Package) -> bool:
    """Return whether the package declares the media type of an ODS spreadsheet, directly or in its manifest."""
    return _head(package, "mimetype").startswith(_SPREADSHEET) or (
        "mimetype" not in package and _SPREADSHEET in _head(package, _MANIFEST)
    )


def _refuse_encrypted(package: Package) -> None:
    if _ENCRYPTED_PACKAGE in package or _ENCRYPTION.search(_head(package, _MANIFEST)):
        raise file_encrypted("The workbook is password-protected.")


def _head(package: Package, part: str) -> bytes:
    """Return the first bytes of a part: fewer if it is damaged, none if it is missing."""
    content = b""
    try:
        for piece in package.pieces(part) if part in package else ():
            content += piece
            if len(content) >= _MANIFEST_BYTES:
                break
    except FileCorrupt:
        """Damage is ignored, because the bytes read so far are sufficient."""
    return content


_MAX_LISTED_ROWS = 10
_OPEN_FILES = 32


def main() -> None:
    """Process the request. Errors are reported in the last frame."""
    request: frames.WorkerRequest = json.loads(sys.stdin.buffer.readline())
    is_avro_display = request["path"] is None and request.get("records") == FileType.AVRO
    confine(
        Confinement(
            readable=() if request["path"] is None else (Path(request["path"]),),
            memory_bytes=frames.AVRO_MEMORY_BYTES if is_avro_display else frames.MEMORY_BYTES,
            file_bytes=0,
            open_files=_OPEN_FILES,
        )
    )
    lower_limit(resource.RLIMIT_CPU, frames.TIME_S if request.get("fields") is None else frames.RECORDS_TIME_S)
    output = sys.stdout.buffer
    # The server process may have closed the pipe.
    with suppress(BrokenPipeError):
        for piece in _answer_frames(request):
            output.write(piece)
            output.flush()


def _answer_frames(request: frames.WorkerRequest) -> Iterator[bytes]:
    try:
        if request["path"] is None:
            yield from _json_lines_frames(request)
            return
        with Path(request["path"]).open("rb") as file:
            records = request.get("records")
            if records is None:
                yield from _workbook_frames(file, request.get("sheet"), request.get("limit"), request.get("skip", 0))
            else:
                hide_pandas()
                from queryserver.workbooks.record_files import record_frames  # noqa: PLC0415 not needed for workbooks

                yield from record_frames(file, FileType(records), request.get("fields"))
    except QueryServerError as error:
        yield frames.json_frame(frames.FAILED, [error.code, error.message])
    except FileNotFoundError:
        yield frames.json_frame(frames.FAILED, [errors.import_file_not_found().code, ""])
    except (MemoryError, RecursionError):
        yield frames.json_frame(frames.FAILED, [errors.FileTooComplex.code, "The file is too large to be read."])
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 last resort of this process: the server logs the traceback
        yield frames.json_frame(frames.FAILED, [errors.DetectionFailed.code, traceback.format_exc(limit=-20)])


def _json_lines_frames(request: frames.WorkerRequest) -> Iterator[bytes]:
    if request.get("records") == FileType.AVRO:
        from queryserver.formats.avro import AvroFile  # noqa: PLC0415 not needed for workbooks

        lines = AvroFile(sys.stdin.buffer).lines()
    else:
        hide_pandas()
        from queryserver.workbooks.record_files import parquet_json_lines  # noqa: PLC0415 as above

        lines = parquet_json_lines(sys.stdin.buffer, sys.stdout.buffer, request.get("size_bytes", 0))
    made = bytearray()
    for line in lines:
        made += line
        while len(made) >= OUTPUT_BYTES:
            yield frames.raw_frame(frames.LINES, made[:OUTPUT_BYTES])
            del made[:OUTPUT_BYTES]
    yield frames.raw_frame(frames.LINES, made)
    yield frames.json_frame(frames.END, True)


def _workbook_frames(file: BinaryIO, sheet: str | None, limit: int | None, skip: int) -> Iterator[bytes]:
    kind = recognize_workbook(file)
    if kind is None:
        raise errors.UnsupportedFormat
    workbook = OpenWorkbook(file, kind)
    if sheet is None:
        yield frames.json_frame(frames.NAMES, workbook.sheet_names())
        return
    notes = None if limit is None else cells.RowNotes()
    head = cells.read_head(workbook.rows(sheet, notes, skip=skip))
    columns = cells.columns_in_use(head.rows)
    end: object = True
    if notes is None or limit is None:
        rows = cells.checked_rows(columns, workbook.rows(sheet, skip=skip))
    else:
        first = list(cells.checked_rows(columns, head.rows[:limit]))
        # Return only rows that start within the sample size of Contract importer 7.4, but at least one row.
        before = accumulate((sum(map(len, row)) for row in first), initial=0)
        first = [row for row, characters in zip(first, before, strict=False) if characters < SAMPLE_TEXT_BYTES]
        rows, is_whole = iter(first), head.is_whole and len(first) == len(head.rows)
        without_value = [number for number in notes.rows_without_value if number <= max(len(first), 1)]
        end = [is_whole, len(without_value), without_value[:_MAX_LISTED_ROWS], notes.positions]
    for portion in frames.portions(rows):
        yield frames.encode_rows(portion)
    yield frames.json_frame(frames.END, end)


class OpenWorkbook:
    """An open workbook. The file must stay open while the workbook is in use. Damage causes an error only if the
    damaged content is read.

    Merged cells need no special handling, because only the first cell has a value. The value of a formula is the one
    stored in the file.
    """

    def __init__(self, file: BinaryIO, kind: WorkbookKind) -> None:
        """Open the workbook. Raises FileCorrupt, file_encrypted, FileTooComplex."""
        self._sheets = OdsSheets(Package(file)) if kind is WorkbookKind.ODS else _LibrarySheets(file, kind)

    def sheet_names(self) -> list[str]:
        """Return the names of the worksheets in order, including hidden worksheets. Raises FileCorrupt,
        FileTooComplex.
        """
        return self._sheets.names()

    def rows(self, sheet: str, notes: cells.RowNotes | None = None, *, skip: int = 0) -> Iterator[cells.Row]:
        """Yield all non-empty rows after the sheet's first `skip` rows. Raises sheet_not_found."""
        return self._sheets.rows(sheet, notes, skip=skip)


class _LibrarySheets:
    """The sheets of an Excel workbook, read with calamine."""

    def __init__(self, file: BinaryIO, kind: WorkbookKind) -> None:
        self._serials: cells.XlsxSerials | cells.XlsSerials | None = None
        self._package: Package | None = None
        self._unchecked: list[str] = []
        if kind is WorkbookKind.XLS:
            self._serials = cells.XlsSerials(file)
            file = io.BytesIO(self._serials.content)
        else:
            file = self._open_package(file, kind)
        file.seek(0)
        with _calamine_errors():
            self._workbook = CalamineWorkbook.from_filelike(file)
        if not self._workbook.sheets_metadata:
            raise errors.FileCorrupt("The workbook has no sheets.")
        self._read: tuple[str, CalamineSheet] | None = None

    def _open_package(self, file: BinaryIO, kind: WorkbookKind) -> BinaryIO:
        """Return the file, or a copy in which calamine finds all parts. Also check the parts that all sheets need."""
        package = Package(file)
        workbook = workbook_part(package)
        if workbook is None:
            raise errors.FileCorrupt("The workbook is missing.")
        related = [one for one in relationships(package, workbook) if one.kind in READ_KINDS]
        sheets = [one.part for one in related if one.kind == "worksheet"]
        for part in {workbook, *(one.part for one in related if one.kind in SINGLE_KINDS)}:
            if part in package:
                check_part(package, part)
        if kind is WorkbookKind.XLSX:
            self._serials = cells.XlsxSerials(package, workbook, related)
            sheets = self._serials.sheets
        self._package, self._unchecked = package, sheets
        if has_usual_names(package, workbook, related):
            return file
        return copy_with_usual_names(package, workbook, related)

    def names(self) -> list[str]:
        return [sheet.name for sheet in self._workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]

    def rows(self, sheet: str, notes: cells.RowNotes | None, *, skip: int) -> Iterator[cells.Row]:
        names = self.names()
        if sheet not in names:
            raise errors.sheet_not_found(f"There is no sheet {sheet[:100]}.")
        index = names.index(sheet)
        if self._read is None or self._read[0] != sheet:
            self._check(index)
            with _calamine_errors():
                self._read = sheet, self._workbook.get_sheet_by_name(sheet)
        serials = None if self._serials is None else cells.CellsByRow(self._serials.of_sheet(index))
        without_value = None
        if notes and isinstance(self._serials, cells.XlsxSerials):
            without_value = cells.CellsByRow(self._serials.formulas_without_value(index))
        return self._rows(self._read[1], serials, without_value, notes or cells.RowNotes(), skip)

    def _check(self, index: int) -> None:
        """Check the part of a sheet. In XLSB, it is not known which part belongs to which sheet, so check all of
        them.
        """
        if self._package is not None:
            is_known = isinstance(self._serials, cells.XlsxSerials) and index < len(self._unchecked)
            for part in [self._unchecked[index]] if is_known else self._unchecked:
                check_part(self._package, part)

    def _rows(
        self,
        sheet: CalamineSheet,
        serials: cells.CellsByRow | None,
        without_value: cells.CellsByRow | None,
        notes: cells.RowNotes,
        skip: int,
    ) -> Iterator[cells.Row]:
        """Yield the non-empty rows of the sheet, with date and time cells from `serials`, and record `notes` about
        them.
        """
        first_column = sheet.start[1] if sheet.start else 0
        if sheet.end is not None and sheet.end[1] >= cells.MAX_GRID_COLUMNS:
            raise errors.FileTooComplex(f"The sheet has more than {cells.MAX_GRID_COLUMNS:,} columns.")
        row_count = 0
        with _calamine_errors():
            for number, values in enumerate(sheet.iter_rows()):
                if number >= cells.MAX_ROWS:
                    raise errors.FileTooComplex(f"The sheet has more than {cells.MAX_ROWS:,} rows.")
                if number < skip:
                    continue
                serial_cells = serials.of_row(number) if serials else {}
                row: dict[int, TypedText] = {}
                for column, value in enumerate(values, first_column):
                    if value != "":
                        cell = serial_cells[column] if column in serial_cells else _CELL_CONVERTERS[type(value)](value)
                        if cell:
                            row[column] = cell
                if without_value and without_value.of_row(number):
                    notes.rows_without_value.append(row_count + 1)
                if row:
                    row_count += 1
                    notes.add(number)
                    yield row


_CELL_CONVERTERS: Mapping[type, Callable[[Any], TypedText]] = {
    str: cells.text_cell,
    bool: lambda value: cells.boolean_cell(is_true=value),
    int: cells.number_cell,
    float: cells.number_cell,
    datetime: cells.timestamp_cell,
    date: lambda value: cells.iso_cell(value.isoformat()) or cells.EMPTY,
    time: cells.time_cell,
    timedelta: lambda value: cells.duration_cell(value / timedelta(days=1)),
}
"""Converts calamine's values to cells, by type. calamine returns empty strings for empty cells and errors."""


@contextmanager
def _calamine_errors() -> Generator[None]:
    try:
        yield
    except PasswordError as error:
        raise errors.file_encrypted("The workbook is password-protected.") from error
    except (CalamineError, OSError, ValueError, OverflowError) as error:
        raise errors.FileCorrupt("The workbook cannot be read.") from error
    except BaseException as error:
        # A panic in calamine, which is written in Rust. Its class cannot be imported and does not extend Exception.
        if type(error).__name__ == "PanicException":
            raise errors.FileCorrupt("The workbook cannot be read.") from error
        raise


if __name__ == "__main__":
    main()
