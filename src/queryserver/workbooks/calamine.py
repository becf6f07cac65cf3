"""Workbooks of all kinds through python-calamine, which reads a sheet as a whole: hence the limits of its process."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from typing import Any, BinaryIO

from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from queryserver.errors.files import FileCorrupt, FileTooComplex, file_encrypted, sheet_not_found
from queryserver.imports.model import TypedText
from queryserver.workbooks.cells import (
    EMPTY,
    MAX_GRID_COLUMNS,
    MAX_ROWS,
    Head,
    Row,
    RowByRow,
    StoredSerials,
    XlsSerials,
    XlsxSerials,
    boolean_cell,
    duration_cell,
    iso_cell,
    number_cell,
    read_head,
    text_cell,
    time_cell,
    timestamp_cell,
)
from queryserver.workbooks.compound_files import WorkbookKind
from queryserver.workbooks.packages import Package, check_parts

_NO_CELLS: Mapping[int, TypedText] = {}


class OpenWorkbook:
    """One workbook. The file must stay open while it is read.

    Merged areas need no care: only their first cell has a value. Formulas give the value that was stored with them.
    """

    def __init__(self, file: BinaryIO, kind: WorkbookKind) -> None:
        """Raises FileCorrupt, file_encrypted, FileTooComplex."""
        self._makers = _MAKERS_OF_ODS if kind is WorkbookKind.ODS else _MAKERS
        if kind is not WorkbookKind.XLS:
            package = Package(file)
            package.check_limits()
            check_parts(package)
        self._serials = _serials(file, kind)
        file.seek(0)
        with _calamine_errors():
            self._workbook = CalamineWorkbook.from_filelike(file)
        if not self._workbook.sheets_metadata:
            raise FileCorrupt("The workbook has no sheets.")
        self._read: tuple[str, CalamineSheet] | None = None

    def sheet_names(self) -> list[str]:
        """Worksheets in their order, hidden ones included."""
        return [sheet.name for sheet in self._workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]

    def head(self, sheet: str) -> Head:
        """The first rows in use."""
        return read_head(self.rows(sheet))

    def rows(self, sheet: str) -> Iterator[Row]:
        """All rows in use. Raises sheet_not_found."""
        names = self.sheet_names()
        if sheet not in names:
            raise sheet_not_found(f"There is no sheet {sheet[:100]}.")
        if self._read is None or self._read[0] != sheet:
            with _calamine_errors():
                self._read = sheet, self._workbook.get_sheet_by_name(sheet)
        stored = None if self._serials is None else RowByRow(self._serials.of_sheet(names.index(sheet)))
        return self._rows(self._read[1], stored)

    def _rows(self, sheet: CalamineSheet, stored: RowByRow | None) -> Iterator[Row]:
        """Rows come from the first of the sheet on, cells from the first column in use on."""
        first_column = sheet.start[1] if sheet.start else 0
        if sheet.end is not None and sheet.end[1] >= MAX_GRID_COLUMNS:
            raise FileTooComplex(f"The sheet has more than {MAX_GRID_COLUMNS:,} columns.")
        with _calamine_errors():
            makers = self._makers
            for number, values in enumerate(sheet.iter_rows()):
                if number >= MAX_ROWS:
                    raise FileTooComplex(f"The sheet has more than {MAX_ROWS:,} rows.")
                known = stored.of_row(number) if stored else _NO_CELLS
                row = {
                    column: cell
                    for column, value in enumerate(values, first_column)
                    if value != "" and (cell := known[column] if column in known else makers[type(value)](value))
                }
                if row:
                    yield row


def _serials(file: BinaryIO, kind: WorkbookKind) -> StoredSerials | None:
    match kind:
        case WorkbookKind.XLS:
            return XlsSerials(file)
        case WorkbookKind.XLSX:
            return XlsxSerials(Package(file))
        case WorkbookKind.XLSB | WorkbookKind.ODS:
            return None


def _boolean_cell(value: bool) -> TypedText:
    return boolean_cell(is_true=value)


def _open_document_text(text: str) -> TypedText:
    """Durations of a day and more come as they stand in the file."""
    return (iso_cell(text) if text.startswith("PT") else None) or text_cell(text)


_MAKERS: Mapping[type, Callable[[Any], TypedText]] = {
    str: text_cell,
    bool: _boolean_cell,
    int: number_cell,
    float: number_cell,
    datetime: timestamp_cell,
    date: lambda value: iso_cell(value.isoformat()) or EMPTY,
    time: time_cell,
    timedelta: lambda value: duration_cell(value / timedelta(days=1)),
}
"""What makes a cell of a value of calamine, for which empty cells and errors are empty texts."""
_MAKERS_OF_ODS: Mapping[type, Callable[[Any], TypedText]] = {**_MAKERS, str: _open_document_text}


@contextmanager
def _calamine_errors() -> Generator[None]:
    try:
        yield
    except PasswordError as error:
        raise file_encrypted("The workbook has a password.") from error
    except (CalamineError, OSError, ValueError, OverflowError) as error:
        raise FileCorrupt("The workbook cannot be read.") from error
    except BaseException as error:
        # A panic of the library: its class is made at run time, and no Exception.
        if type(error).__name__ == "PanicException":
            raise FileCorrupt("The workbook cannot be read.") from error
        raise
