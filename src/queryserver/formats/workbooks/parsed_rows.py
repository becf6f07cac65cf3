"""Rows of a worksheet as an XML parser sees them."""

from queryserver.domain.errors import file_too_complex
from queryserver.domain.importing import MAX_FIELD_CHARACTERS, TypedText
from queryserver.formats.workbooks.columns import ColumnNumbers
from queryserver.formats.workbooks.plain_rows import Make
from queryserver.formats.workbooks.xml_parts import xml_parser

NumberedRow = tuple[int | None, dict[int, TypedText]]
"""The number that a row says it has, and its cells by columns from 0 on, without empty ones."""

_MAX_NUMBER_DIGITS = 9
_DIGITS = "0123456789"


class ParsedRows:
    """Handlers that gather rows. The work of each cell is done here, a million times: hence no layers.

    Names have the prefix of the root element, usually none.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self.parser = xml_parser()
        self.parser.XmlDeclHandler = self._declaration
        self.parser.StartElementHandler = self._root
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.is_over = False
        """All rows were seen."""
        self._rows: list[NumberedRow] = []
        self._number: int | None = None
        self._cells: dict[int, TypedText] = {}
        self._column = -1
        self._columns = ColumnNumbers()
        self._kind: str | None = None
        self._style: str | None = None
        self._texts: list[str] = []
        self._text_characters = 0
        self._takes_text = self._in_data = self._in_row = self._in_phonetic = False
        self._is_utf8 = True
        self._prefix = ""

    @property
    def may_be_plain(self) -> bool:
        """The rows follow, and neither a prefix nor an encoding keeps them from being plain."""
        return self._in_data and self._is_utf8 and not self._prefix

    def taken(self) -> list[NumberedRow]:
        """The rows that were gathered since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def _declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self._is_utf8 = encoding is None or encoding.lower() == "utf-8"

    def _root(self, name: str, _attributes: dict[str, str]) -> None:
        self._prefix = prefix = name[: name.rfind(":") + 1]
        self._name_c, self._name_v, self._name_t, self._name_row, self._name_phonetic, self._name_data = (
            prefix + local for local in ("c", "v", "t", "row", "rPh", "sheetData")
        )
        self.parser.StartElementHandler = self._start

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == self._name_c:
            letters = attributes.get("r", "").rstrip(_DIGITS)
            self._column = self._columns[letters] if letters else self._column + 1
            self._kind = attributes.get("t")
            self._style = attributes.get("s")
            self._texts.clear()
            self._text_characters = 0
        elif name == self._name_v or name == self._name_t:
            self._takes_text = self._in_row and not self._in_phonetic
        elif name == self._name_row:
            self._begin_row(attributes.get("r", ""))
        elif name == self._name_phonetic:
            self._in_phonetic = True
        elif name == self._name_data:
            self._in_data = True

    def _text(self, text: str) -> None:
        if self._takes_text:
            self._texts.append(text)
            self._text_characters += len(text)
            if self._text_characters > MAX_FIELD_CHARACTERS:
                raise file_too_complex("A cell of the workbook has more than 1,048,576 characters.")

    def _end(self, name: str) -> None:
        if name == self._name_v or name == self._name_t:
            self._takes_text = False
        elif name == self._name_c:
            if self._texts and self._in_row and (cell := self._make(self._kind, self._style, "".join(self._texts))):
                self._cells[self._column] = cell
        elif name == self._name_row:
            if self._in_row:
                self._rows.append((self._number, self._cells))
            self._in_row = False
        elif name == self._name_phonetic:
            self._in_phonetic = False
        elif name == self._name_data:
            self.is_over = True
            self._in_data = False

    def _begin_row(self, number: str) -> None:
        if len(number) > _MAX_NUMBER_DIGITS:
            raise file_too_complex("The sheet has too many rows.")
        self._number = int(number) if number.isdecimal() else None
        self._cells = {}
        self._column = -1
        self._in_row = self._in_data
