"""The rows of a worksheet as a stream (ECMA-376 part 1, 18.3.1). `<dimension>` is not believed, nor even read."""

from collections.abc import Callable, Iterator, Mapping

from queryserver.domain.errors import FileCorrupt, FileTooComplex
from queryserver.domain.importing import MAX_FIELD_CHARACTERS, TypedText
from queryserver.formats.workbooks.cells import CellReader
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.xml_parts import parse, xml_parser

MAX_ROWS = 1_048_576
_MAX_GRID_COLUMNS = 16_384
"""What a sheet can have. How many columns may be in use is the business of `used_range`."""

Row = Mapping[int, TypedText]
"""The cells of a row that are not empty, by their columns from 0 on."""

_DIGITS = "0123456789"


def sheet_rows(package: Package, part: str, reader: CellReader, shared: Callable[[int], TypedText]) -> Iterator[Row]:
    """Rows with at least one cell that is not empty, in the order of the part.

    `shared` gives the text of a number. Raises FileCorrupt, FileTooComplex.
    """
    sheet = _Sheet(reader, shared)
    for _ in parse(sheet.parser, package.pieces(part)):
        rows, sheet.rows = sheet.rows, []
        yield from rows
        if sheet.is_over:
            return


class _Sheet:
    """Handlers that gather rows. The work of each cell is done here, a million times: hence no layers.

    Names have the prefix of the root element, usually none.
    """

    def __init__(self, reader: CellReader, shared: Callable[[int], TypedText]) -> None:
        self._make = reader.cell
        self._shared = shared
        self.parser = xml_parser()
        self.parser.StartElementHandler = self._root
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.rows: list[Row] = []
        """Rows that are complete. Whoever reads them empties the list."""
        self.is_over = False
        """All rows were seen."""
        self._row_number = 0
        self._cells: dict[int, TypedText] = {}
        self._column = -1
        self._columns: dict[str, int] = {}
        self._kind: str | None = None
        self._style: str | None = None
        self._texts: list[str] = []
        self._text_characters = 0
        self._takes_text = self._in_row = self._in_phonetic = False

    def _root(self, name: str, _attributes: dict[str, str]) -> None:
        prefix = name[: name.rfind(":") + 1]
        self._name_c, self._name_v, self._name_t, self._name_row, self._name_phonetic, self._name_data = (
            prefix + local for local in ("c", "v", "t", "row", "rPh", "sheetData")
        )
        self.parser.StartElementHandler = self._start

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == self._name_c:
            reference = attributes.get("r")
            self._column = self._column + 1 if reference is None else self._column_of(reference)
            self._kind = attributes.get("t")
            self._style = attributes.get("s")
            self._texts.clear()
            self._text_characters = 0
        elif name == self._name_v or name == self._name_t:
            self._takes_text = self._in_row and not self._in_phonetic
        elif name == self._name_row:
            self._begin_row(attributes.get("r"))
        elif name == self._name_phonetic:
            self._in_phonetic = True

    def _text(self, text: str) -> None:
        if self._takes_text:
            self._texts.append(text)
            self._text_characters += len(text)
            if self._text_characters > MAX_FIELD_CHARACTERS:
                raise FileTooComplex("A cell of the workbook has more than 1,048,576 characters.")

    def _end(self, name: str) -> None:
        if name == self._name_v or name == self._name_t:
            self._takes_text = False
        elif name == self._name_c:
            if self._texts and self._in_row:
                text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
                cell = self._shared_text(text) if self._kind == "s" else self._make(self._kind, self._style, text)
                if cell:
                    self._cells[self._column] = cell
        elif name == self._name_row:
            self._in_row = False
            if self._cells:
                self.rows.append(self._cells)
                self._cells = {}
        elif name == self._name_phonetic:
            self._in_phonetic = False
        elif name == self._name_data:
            self.is_over = True

    def _begin_row(self, number: str | None) -> None:
        self._row_number = int(number) if number and len(number) < 10 and number.isdecimal() else self._row_number + 1
        if self._row_number > MAX_ROWS or (number is not None and len(number) >= 10):
            raise FileTooComplex(f"The sheet has more than {MAX_ROWS:,} rows.")
        self._cells = {}
        self._column = -1
        self._in_row = True

    def _shared_text(self, text: str) -> TypedText:
        number = text.strip()
        if not number.isdecimal() or len(number) > 9:
            raise FileCorrupt("A cell of the workbook names a text that is none.")
        return self._shared(int(number))

    def _column_of(self, reference: str) -> int:
        letters = reference.rstrip(_DIGITS)
        column = self._columns.get(letters)
        if column is None:
            column = _column_number(letters) if letters else self._column + 1
            if letters:
                self._columns[letters] = column
        return column


def _column_number(letters: str) -> int:
    """`A` is 0."""
    if not letters.isascii() or not letters.isalpha():
        raise FileCorrupt("A cell of the workbook has no place.")
    number = 0
    for letter in letters[:4].upper():
        number = number * 26 + ord(letter) - 64
    if number > _MAX_GRID_COLUMNS:
        raise FileTooComplex(f"The sheet has more than {_MAX_GRID_COLUMNS:,} columns.")
    return number - 1
