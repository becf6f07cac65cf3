"""xls, xlsb and ods through python-calamine, which reads a sheet as a whole: hence the limits of its process."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from typing import BinaryIO

from python_calamine import (
    CalamineError,
    CalamineSheet,
    CalamineWorkbook,
    PasswordError,
    SheetTypeEnum,
    WorksheetNotFound,
)

from queryserver.domain.errors import FileCorrupt, file_encrypted, sheet_not_found
from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.cells import EMPTY, boolean_cell, number_cell, plain_text_cell, serial_cell
from queryserver.formats.workbooks.kinds import WorkbookKind
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.serials import duration_cell, iso_cell, time_cell, timestamp_cell
from queryserver.formats.workbooks.sheets import Row
from queryserver.formats.workbooks.used_range import Head, read_head
from queryserver.formats.workbooks.xls_serials import XlsSerials
from queryserver.formats.workbooks.xml_parts import check_parts

_Value = int | float | str | bool | time | date | datetime | timedelta


class OtherWorkbook:
    """One workbook of another format than xlsx, with the methods of `XlsxWorkbook`."""

    def __init__(self, file: BinaryIO, kind: WorkbookKind) -> None:
        """Raises FileCorrupt, file_encrypted, file_too_complex."""
        self._kind = kind
        if kind is not WorkbookKind.XLS:
            package = Package(file)
            package.check_limits()
            check_parts(package)
        self._serials = XlsSerials(file) if kind is WorkbookKind.XLS else None
        file.seek(0)
        with _calamine_errors():
            self._workbook = CalamineWorkbook.from_filelike(file)
        if not self._workbook.sheets_metadata:
            raise FileCorrupt("The workbook has no sheets.")

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
        with _calamine_errors():
            values = self._workbook.get_sheet_by_name(sheet)
        return self._rows(values, self._serial_cells(names.index(sheet)))

    def _serial_cells(self, index: int) -> dict[tuple[int, int], TypedText]:
        """Dates and times of a worksheet of xls, by row and column."""
        if self._serials is None:
            return {}
        found = self._serials.of_sheet(index).items()
        is_1904 = self._serials.is_1904
        return {place: serial_cell(serial, temporal, is_1904=is_1904) for place, (serial, temporal) in found}

    def _rows(self, sheet: CalamineSheet, known: Mapping[tuple[int, int], TypedText]) -> Iterator[Row]:
        """Rows come from the first of the sheet on, cells from the first column in use on."""
        first_column = sheet.start[1] if sheet.start else 0
        with _calamine_errors():
            for number, values in enumerate(sheet.iter_rows()):
                row = {
                    column: cell
                    for column, value in enumerate(values, first_column)
                    if (cell := known.get((number, column)) or self._cell(value))
                }
                if row:
                    yield row

    def _cell(self, value: _Value) -> TypedText:
        """Empty cells and errors are empty texts there."""
        match value:
            case "":
                return EMPTY
            case str() if self._kind is WorkbookKind.ODS and value.startswith("PT"):
                # Durations of a day and more come as they stand in the file.
                return iso_cell(value) or plain_text_cell(value)
            case str():
                return plain_text_cell(value)
            case bool():
                return boolean_cell(is_true=value)
            case int() | float():
                return number_cell(value)
            case _:
                return _temporal_cell(value)


def _temporal_cell(value: date | datetime | time | timedelta) -> TypedText:
    match value:
        case datetime():
            return timestamp_cell(value)
        case date():
            return iso_cell(value.isoformat()) or EMPTY
        case time():
            return time_cell(value)
        case timedelta():
            return duration_cell(value / timedelta(days=1))


@contextmanager
def _calamine_errors() -> Generator[None]:
    try:
        yield
    except PasswordError as error:
        raise file_encrypted("The workbook has a password.") from error
    except WorksheetNotFound as error:
        raise sheet_not_found("There is no such sheet.") from error
    except (CalamineError, OSError, ValueError, OverflowError) as error:
        raise FileCorrupt("The workbook cannot be read.") from error
    except BaseException as error:
        # A panic of the library: its class is made at run time, and no Exception.
        if type(error).__name__ == "PanicException":
            raise FileCorrupt("The workbook cannot be read.") from error
        raise
