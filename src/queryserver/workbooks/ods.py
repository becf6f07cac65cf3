"""Sheets of OpenDocument files, read as a stream (OASIS OpenDocument 1.2 part 1, 9.1 and 19.385).

Elements and attributes are known by their namespace. Blanks between elements, comments in cells, tables within cells
and recorded changes do not count.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Never
from xml.parsers import expat

from queryserver.errors.files import FileCorrupt, FileTooComplex
from queryserver.imports.model import CellKind, TypedText
from queryserver.workbooks import cells
from queryserver.workbooks.packages import Package

CONTENT = "content.xml"
_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:"
_TABLE, _OFFICE, _TEXT = f"{_NAMESPACE}table:1.0 ", f"{_NAMESPACE}office:1.0 ", f"{_NAMESPACE}text:1.0 "
_LIBRE_OFFICE_TYPE = "urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0 value-type"
"""Tells errors from texts, where the file has it."""
_CELLS = frozenset({f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"})
_PARAGRAPHS = frozenset({f"{_TEXT}p", f"{_TEXT}h"})
_LEFT_OUT = frozenset(
    {
        f"{_OFFICE}annotation",
        f"{_TABLE}tracked-changes",
        f"{_TABLE}dde-link",
        f"{_TEXT}ruby-text",
        f"{_TEXT}note",
        *(f"urn:oasis:names:tc:opendocument:xmlns:drawing:1.0 {shape}" for shape in ("frame", "custom-shape", "g")),
    }
)
"""What holds text or tables that are no value of a cell."""
_CHARACTERS = {f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
_MAX_SPACES = 65_536


@dataclass(slots=True)
class _Cell:
    attributes: Mapping[str, str]
    paragraphs: list[list[str]] = field(default_factory=list[list[str]])

    def value(self) -> TypedText:
        return _value(self.attributes, self._text)

    def _text(self) -> str:
        return "\n".join("".join(pieces) for pieces in self.paragraphs)


class OdsSheets:
    """The sheets of a file. Its parts are read anew for each call."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """In the order of the file. Raises FileCorrupt, FileTooComplex."""
        if self._names is None:
            parser = _Parser(self._package, None)
            for _ in parser.rows():
                """Only names are wanted."""
            if not parser.names:
                raise FileCorrupt("The workbook has no sheets.")
            self._names = parser.names
        return self._names

    def rows(self, sheet: str, seen: cells.SeenRows | None = None, *, skip: int = 0) -> Iterator[cells.Row]:
        """The rows in use of the first sheet of this name, behind the first `skip` ones of the sheet."""
        return _Parser(self._package, sheet, seen, skip=skip).rows()


class _Parser:
    def __init__(
        self, package: Package, sheet: str | None, seen: cells.SeenRows | None = None, *, skip: int = 0
    ) -> None:
        self.names: list[str] = []
        self._package = package
        self._sheet = sheet
        self._seen = seen or cells.SeenRows()
        self._skip = skip
        self._place = 0
        """Of the row that is read, from 0 on."""
        self._is_read = False
        self._depth = 0
        self._skipped_below: int | None = None
        self._tables = 0
        self._made: list[tuple[cells.Row, int]] = []
        self._row: dict[int, TypedText] | None = None
        self._has_unset = False
        self._row_repeats = 1
        self._column = 0
        self._cell: _Cell | None = None
        self._paragraph_depth: int | None = None
        self._given = 0
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
        parser.buffer_text = True
        self._parser = parser

    def rows(self) -> Iterator[cells.Row]:
        try:
            for piece in self._package.pieces(CONTENT):
                self._parser.Parse(piece)
                yield from self._finished()
                if self._is_read:
                    return
            self._parser.Parse(b"", True)
            yield from self._finished()
        except (expat.ExpatError, LookupError, ValueError) as error:
            # LookupError and ValueError: an encoding that is unknown, or a count that is no number.
            raise FileCorrupt("The content of the workbook is not well-formed.") from error

    def _finished(self) -> Iterator[cells.Row]:
        made, self._made = self._made, []
        for row, repeats in made:
            for _ in range(repeats):
                yield row

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._skipped_below is not None:
            return
        if name in _LEFT_OUT:
            self._skipped_below = self._depth
        elif self._paragraph_depth is not None:
            self._within_paragraph(name, attributes)
        elif name == f"{_TABLE}table":
            self._start_table(attributes)
        elif self._row is None:
            if name == f"{_TABLE}table-row" and self._is_wanted:
                self._start_row(attributes)
        elif self._cell is None:
            if name in _CELLS:
                self._cell = _Cell(attributes)
        elif name in _PARAGRAPHS:
            self._cell.paragraphs.append([])
            self._paragraph_depth = self._depth

    def _start_table(self, attributes: Mapping[str, str]) -> None:
        if self._tables:
            # A table within a table: its cells are no cells of the sheet.
            self._skipped_below = self._depth
            return
        self._tables = self._depth
        self.names.append(attributes.get(f"{_TABLE}name", ""))

    @property
    def _is_wanted(self) -> bool:
        return bool(self._tables) and self._sheet is not None and self.names[-1] == self._sheet

    def _start_row(self, attributes: Mapping[str, str]) -> None:
        self._row, self._column, self._has_unset = {}, 0, False
        self._row_repeats = _count(attributes, f"{_TABLE}number-rows-repeated")

    def _within_paragraph(self, name: str, attributes: Mapping[str, str]) -> None:
        assert self._cell is not None  # noqa: S101 paragraphs are in cells
        if name == f"{_TEXT}s":
            count = min(_count(attributes, f"{_TEXT}c"), _MAX_SPACES)
            self._cell.paragraphs[-1].append(" " * count)
        elif name in _CHARACTERS:
            self._cell.paragraphs[-1].append(_CHARACTERS[name])

    def _text(self, text: str) -> None:
        if self._paragraph_depth is not None and self._skipped_below is None and self._cell is not None:
            self._cell.paragraphs[-1].append(text)

    def _end(self, name: str) -> None:
        depth, self._depth = self._depth, self._depth - 1
        if self._skipped_below is not None:
            if depth == self._skipped_below:
                self._skipped_below = None
        elif depth == self._paragraph_depth:
            self._paragraph_depth = None
        elif self._paragraph_depth is None and self._cell is not None and name in _CELLS:
            self._end_cell(self._cell)
            self._cell = None
        elif self._row is not None and self._cell is None and name == f"{_TABLE}table-row":
            self._end_row(self._row)
            self._row = None
        elif depth == self._tables:
            self._is_read = self._is_read or self._is_wanted
            self._tables = 0

    def _end_cell(self, cell: _Cell) -> None:
        assert self._row is not None  # noqa: S101 cells are in rows
        count = _count(cell.attributes, f"{_TABLE}number-columns-repeated")
        value = cell.value()
        if value:
            if self._column + count > cells.MAX_GRID_COLUMNS:
                raise FileTooComplex(f"The sheet has more than {cells.MAX_GRID_COLUMNS:,} columns.")
            self._row.update(dict.fromkeys(range(self._column, self._column + count), value))
        elif f"{_TABLE}formula" in cell.attributes and _is_unset(cell.attributes):
            self._has_unset = True
        self._column = min(self._column + count, cells.MAX_GRID_COLUMNS + 1)

    def _end_row(self, row: cells.Row) -> None:
        place, self._place = self._place, self._place + self._row_repeats
        repeats = min(self._row_repeats, self._place - self._skip)
        if repeats <= 0:
            return
        if self._has_unset:
            self._seen.unset.append(self._given + 1)
        if row:
            self._given += repeats
            if self._given > cells.MAX_ROWS:
                raise FileTooComplex(f"The sheet has more than {cells.MAX_ROWS:,} rows.")
            self._seen.given(max(place, self._skip), repeats)
            self._made.append((row, repeats))


def _refuse(*_declaration: object) -> Never:
    raise FileTooComplex("The workbook declares a document type or entities.")


def _count(attributes: Mapping[str, str], name: str) -> int:
    """How often something is repeated. Raises ValueError."""
    text = attributes.get(name, "1")
    if len(text) > 12:
        raise ValueError(text)
    return max(int(text), 1)


def _is_unset(attributes: Mapping[str, str]) -> bool:
    """Whether a formula has no value that was stored with it; that of an error or an empty text is one."""
    return f"{_OFFICE}value-type" not in attributes


def _value(attributes: Mapping[str, str], text: Callable[[], str]) -> TypedText:
    """Raises ValueError for a number that is none."""
    kind = attributes.get(f"{_OFFICE}value-type", "")
    if kind in {"float", "percentage", "currency"}:
        number = attributes.get(f"{_OFFICE}value")
        return cells.EMPTY if number is None else cells.number_cell(float(number))
    if kind == "boolean":
        return cells.boolean_cell(is_true=attributes.get(f"{_OFFICE}boolean-value", "").lower() == "true")
    if kind == "date":
        moment = attributes.get(f"{_OFFICE}date-value", "")
        return cells.iso_cell(moment) or cells.text_cell(moment)
    if kind == "time":
        return _clock(attributes.get(f"{_OFFICE}time-value", ""))
    if kind == "string" and attributes.get(_LIBRE_OFFICE_TYPE) != "error":
        written = attributes.get(f"{_OFFICE}string-value")
        return cells.text_cell(text() if written is None else written)
    return cells.EMPTY


def _clock(text: str) -> TypedText:
    """Times of a day are written as durations, too."""
    cell = cells.iso_cell(text) or cells.text_cell(text)
    hours = cell.partition(":")[0]
    is_time = cell.kind is CellKind.DURATION and hours.isdecimal() and int(hours) < 24
    return TypedText(cell, CellKind.TIME) if is_time else cell
