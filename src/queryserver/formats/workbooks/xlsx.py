"""Workbooks in XML, read as streams: the first rows cost no more in a large workbook than in a small one."""

from collections.abc import Callable, Iterator
from typing import BinaryIO, Self

from queryserver.domain.importing import CellKind, TypedText
from queryserver.formats.workbooks.cells import CellReader
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.shared_strings import AllStrings, read_some_strings
from queryserver.formats.workbooks.sheets import Row, sheet_rows
from queryserver.formats.workbooks.used_range import Head, read_head
from queryserver.formats.workbooks.workbook_parts import read_temporal_styles, read_workbook


class XlsxWorkbook:
    """One workbook. The file must stay open while it is read.

    Merged areas need no care: only their first cell has a value. Formulas give the value that was stored with them.
    Every method may raise FileCorrupt, file_encrypted, file_too_complex; those that take a sheet also sheet_not_found.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._package = Package(file)
        self._package.check_limits()
        self._workbook = read_workbook(self._package)

    def sheet_names(self) -> list[str]:
        """Worksheets in their order, hidden ones included."""
        return [worksheet.name for worksheet in self._workbook.worksheets]

    def head(self, sheet: str) -> Head:
        """The first rows in use, with only those shared strings read that they name."""
        worksheet = self._workbook.worksheet(sheet)
        head = read_head(sheet_rows(self._package, worksheet.part, self._cell_reader(_Named)))
        wanted = {int(cell) for row in head.rows for cell in row.values() if isinstance(cell, _Named)}
        texts = read_some_strings(self._package, self._workbook.shared_strings, wanted)
        return Head([row for unnamed in head.rows if (row := _with_texts(unnamed, texts))], head.is_whole)

    def rows(self, sheet: str) -> Iterator[Row]:
        """All rows in use. All shared strings are held, as bytes."""
        worksheet = self._workbook.worksheet(sheet)
        strings = AllStrings(self._package, self._workbook.shared_strings)
        return sheet_rows(self._package, worksheet.part, self._cell_reader(strings.__getitem__))

    def _cell_reader(self, shared: Callable[[int], TypedText]) -> CellReader:
        styles = read_temporal_styles(self._package, self._workbook)
        return CellReader(styles, shared, is_1904=self._workbook.is_1904)


class _Named(TypedText):
    """Stands for a shared string that is not read yet; its text is the number."""

    __slots__ = ()

    def __new__(cls, number: int) -> Self:
        return super().__new__(cls, str(number), CellKind.TEXT)


def _with_texts(row: Row, texts: dict[int, TypedText]) -> Row:
    """The row with its strings in place, without those that are empty."""
    filled = ((column, texts[int(cell)] if isinstance(cell, _Named) else cell) for column, cell in row.items())
    return {column: cell for column, cell in filled if cell}
