"""The program of a worker: it reads one question from its standard input, answers in frames and ends.

`OpenWorkbook` reads workbooks with calamine. Arrow is imported for files of records only, for the memory is limited.
"""

import json
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from importlib.abc import MetaPathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict

from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, PasswordError, SheetTypeEnum

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import (
    DetectionFailed,
    FileCorrupt,
    FileTooComplex,
    UnsupportedFormat,
    file_encrypted,
    import_file_not_found,
    sheet_not_found,
)
from queryserver.formats.unpacking import OUTPUT_BYTES
from queryserver.imports.model import SAMPLE_TEXT_BYTES, FileType, TypedText
from queryserver.workbooks.cells import (
    EMPTY,
    MAX_GRID_COLUMNS,
    MAX_ROWS,
    Row,
    RowByRow,
    StoredSerials,
    XlsSerials,
    XlsxSerials,
    boolean_cell,
    checked_rows,
    columns_in_use,
    duration_cell,
    iso_cell,
    number_cell,
    read_head,
    text_cell,
    time_cell,
    timestamp_cell,
)
from queryserver.workbooks.frames import (
    END,
    FAILED,
    LINES,
    MEMORY_BYTES,
    NAMES,
    RECORDS_TIME_S,
    SHOWN_MEMORY_BYTES,
    TIME_S,
    frame,
    limit_this_process,
    portions,
    raw_frame,
    rows_frame,
)
from queryserver.workbooks.packages import Package, WorkbookKind, check_parts, recognise_workbook


class WorkbookQuestion(TypedDict):
    """The first line of the input. `sheet` None: the names of the sheets. `limit` None: all rows.

    `records`: the file is no workbook, but one of records of this type. `fields` None: its preview. `path` None: an
    avro file that follows on the input, of which all records are wanted as JSON Lines.
    """

    path: str | None
    sheet: str | None
    limit: int | None
    records: NotRequired[str | None]
    fields: NotRequired[Sequence[str] | None]


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, which takes half a second; nothing here uses it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """None for all other modules: the next finder decides."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def main() -> None:
    """Never raises: what goes wrong is the last frame."""
    question: WorkbookQuestion = json.loads(sys.stdin.buffer.readline())
    limit_this_process(
        TIME_S if question.get("fields") is None else RECORDS_TIME_S,
        SHOWN_MEMORY_BYTES if question["path"] is None else MEMORY_BYTES,
    )
    output = sys.stdout.buffer
    # The server may have closed the pipe.
    with suppress(BrokenPipeError):
        for piece in _answer(question):
            output.write(piece)
            output.flush()


def _answer(question: WorkbookQuestion) -> Iterator[bytes]:
    try:
        if question["path"] is None:
            yield from _avro_frames(sys.stdin.buffer)
            return
        with Path(question["path"]).open("rb") as file:
            records = question.get("records")
            if records is None:
                yield from _workbook_frames(file, question["sheet"], question["limit"])
            else:
                sys.meta_path.insert(0, _WithoutPandas())
                from queryserver.workbooks.record_files import record_frames  # noqa: PLC0415 workbooks do without

                yield from record_frames(file, FileType(records), question.get("fields"))
    except QueryServerError as error:
        yield frame(FAILED, [error.code, error.message])
    except FileNotFoundError:
        yield frame(FAILED, [import_file_not_found().code, ""])
    except (MemoryError, RecursionError):
        yield frame(FAILED, [FileTooComplex.code, "The file is too large to be read."])
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 the outer wall of this process: the server logs the traceback
        yield frame(FAILED, [DetectionFailed.code, traceback.format_exc(limit=-20)])


def _avro_frames(file: BinaryIO) -> Iterator[bytes]:
    from queryserver.formats.avro import AvroFile  # noqa: PLC0415 workbooks do without

    made = bytearray()
    for line in AvroFile(file).lines():
        made += line
        while len(made) >= OUTPUT_BYTES:
            yield raw_frame(LINES, made[:OUTPUT_BYTES])
            del made[:OUTPUT_BYTES]
    yield raw_frame(LINES, made)
    yield frame(END, True)


def _workbook_frames(file: BinaryIO, sheet: str | None, limit: int | None) -> Iterator[bytes]:
    kind = recognise_workbook(file)
    if kind is None:
        raise UnsupportedFormat
    workbook = OpenWorkbook(file, kind)
    if sheet is None:
        yield frame(NAMES, workbook.sheet_names())
        return
    head = read_head(workbook.rows(sheet))
    columns = columns_in_use(head.rows)
    if limit is None:
        rows = checked_rows(columns, workbook.rows(sheet))
        is_whole = True
    else:
        first = list(checked_rows(columns, head.rows[:limit]))
        # As many rows as the sample of 7.4 has text for, and one at least.
        before = accumulate((sum(map(len, row)) for row in first), initial=0)
        first = [row for row, characters in zip(first, before, strict=False) if characters < SAMPLE_TEXT_BYTES]
        rows, is_whole = iter(first), head.is_whole and len(first) == len(head.rows)
    for portion in portions(rows):
        yield rows_frame(portion)
    yield frame(END, is_whole)


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
        self._serials: StoredSerials | None = None
        if kind is WorkbookKind.XLS:
            self._serials = XlsSerials(file)
        elif kind is WorkbookKind.XLSX:
            self._serials = XlsxSerials(Package(file))
        file.seek(0)
        with _calamine_errors():
            self._workbook = CalamineWorkbook.from_filelike(file)
        if not self._workbook.sheets_metadata:
            raise FileCorrupt("The workbook has no sheets.")
        self._read: tuple[str, CalamineSheet] | None = None

    def sheet_names(self) -> list[str]:
        """Worksheets in their order, hidden ones included."""
        return [sheet.name for sheet in self._workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]

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
                known = stored.of_row(number) if stored else {}
                row = {
                    column: cell
                    for column, value in enumerate(values, first_column)
                    if value != "" and (cell := known[column] if column in known else makers[type(value)](value))
                }
                if row:
                    yield row


_MAKERS: Mapping[type, Callable[[Any], TypedText]] = {
    str: text_cell,
    bool: lambda value: boolean_cell(is_true=value),
    int: number_cell,
    float: number_cell,
    datetime: timestamp_cell,
    date: lambda value: iso_cell(value.isoformat()) or EMPTY,
    time: time_cell,
    timedelta: lambda value: duration_cell(value / timedelta(days=1)),
}
"""What makes a cell of a value of calamine, for which empty cells and errors are empty texts."""
_MAKERS_OF_ODS: Mapping[type, Callable[[Any], TypedText]] = {
    **_MAKERS,
    # Durations of a day and more come as they stand in the file.
    str: lambda text: (iso_cell(text) if text.startswith("PT") else None) or text_cell(text),
}


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


if __name__ == "__main__":
    main()
