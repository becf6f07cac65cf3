"""Reads the sheets of OpenDocument files as a stream (OASIS OpenDocument 1.2 part 1, 9.1 and 19.385).

Elements and attributes are identified by namespace, whatever their prefix. Whitespace between elements, cell comments,
tables within cells and tracked changes are ignored.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from xml.etree import ElementTree as ET

from queryserver.errors.files import FileCorrupt, FileTooComplex, sheet_not_found
from queryserver.formats.table_files import CellKind, TypedText
from queryserver.workbooks import cells
from queryserver.workbooks.packages import Package, checked_pieces

CONTENT = "content.xml"
_NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:"
_TABLE, _OFFICE, _TEXT = f"{_NAMESPACE}table:1.0}}", f"{_NAMESPACE}office:1.0}}", f"{_NAMESPACE}text:1.0}}"
_SHEET, _ROW, _LINK = f"{_TABLE}table", f"{_TABLE}table-row", f"{_TABLE}dde-link"
_REPEATED_ROWS, _REPEATED = f"{_TABLE}number-rows-repeated", f"{_TABLE}number-columns-repeated"
_NAME, _FORMULA = f"{_TABLE}name", f"{_TABLE}formula"
_TYPE, _NUMBER, _STRING = f"{_OFFICE}value-type", f"{_OFFICE}value", f"{_OFFICE}string-value"
_LIBRE_OFFICE_TYPE = "{urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0}value-type"
"""An attribute written by LibreOffice that distinguishes error values from strings."""
_CELLS = frozenset({f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"})
_PARAGRAPHS = frozenset({f"{_TEXT}p", f"{_TEXT}h"})
_NON_TEXT_ELEMENTS = frozenset(
    {
        f"{_OFFICE}annotation",
        f"{_TEXT}ruby-text",
        f"{_TEXT}note",
        *(f"{_NAMESPACE}drawing:1.0}}{shape}" for shape in ("frame", "custom-shape", "g")),
    }
)
"""Elements within a paragraph whose text does not belong to the cell's value."""
_WHITESPACE = {f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
_MAX_SPACES = 65_536
_ROWS_AT_ONCE = 500
"""After this many rows, their elements are removed from the tree to free memory."""


class OdsSheets:
    """The sheets of a file. The content is read again for each call of `rows`."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """Return the names of the sheets, in file order. Raises FileCorrupt, FileTooComplex."""
        if self._names is None:
            self._names = [name for name, row in self._elements() if row is None]
            if not self._names:
                raise FileCorrupt("The workbook has no sheets.")
        return self._names

    def rows(self, sheet: str, notes: cells.RowNotes | None = None, *, skip: int = 0) -> Iterator[cells.Row]:
        """Yield the non-empty rows of the first sheet with this name, without the first `skip` rows of the sheet.

        Raises sheet_not_found, FileCorrupt, FileTooComplex.
        """
        is_found, reader = False, _RowReader(notes or cells.RowNotes(), skip)
        for name, element in self._elements():
            if element is not None:
                if is_found:
                    yield from reader.rows(element)
            elif is_found:
                return
            else:
                is_found = name == sheet
        if not is_found:
            raise sheet_not_found(f"There is no sheet {sheet[:100]}.")

    def _elements(self) -> Iterator[tuple[str, ET.Element | None]]:
        """Yield `(name, None)` for each sheet, followed by `("", element)` for each of its rows.

        The element of a row is cleared when the next item is requested.
        """
        sheets: list[ET.Element] = []
        links = rows = 0
        for is_end, element in self._events():
            tag = element.tag
            if tag == _ROW:
                if is_end and len(sheets) == 1:
                    yield "", element
                    element.clear()
                    rows += 1
                    if not rows % _ROWS_AT_ONCE:
                        sheets[0].clear()
            elif tag == _LINK:
                links += -1 if is_end else 1
            elif tag == _SHEET and not links:
                if is_end:
                    sheets.pop().clear()
                    continue
                sheets.append(element)
                if len(sheets) == 1:
                    yield element.get(_NAME, ""), None

    def _events(self) -> Iterator[tuple[bool, ET.Element]]:
        """Yield the element of each start and end tag, preceded by whether it is an end tag. Raises FileCorrupt."""
        parser = ET.XMLPullParser(("start", "end"))
        with _parse_errors():
            for piece in checked_pieces(self._package, CONTENT):
                parser.feed(piece)
                for found in parser.read_events():
                    element = found[-1]
                    if isinstance(element, ET.Element):
                        yield found[0] == "end", element
            parser.close()


class _RowReader:
    """Reads the rows of one sheet except the first `skip` rows."""

    def __init__(self, notes: cells.RowNotes, skip: int) -> None:
        self._notes = notes
        self._skip = skip
        self._position = self._yielded = 0

    def rows(self, element: ET.Element) -> Iterator[cells.Row]:
        """Yield the row of an element as often as it is repeated, or nothing if the row is empty. Raises
        FileTooComplex, FileCorrupt.
        """
        with _parse_errors():
            row, lacks_value = _row(element)
            count = _count(element.attrib, _REPEATED_ROWS)
        begin, self._position = self._position, self._position + count
        repeats = min(count, self._position - self._skip)
        if repeats <= 0:
            return
        if lacks_value:
            self._notes.rows_without_value.append(self._yielded + 1)
        if not row:
            return
        self._yielded += repeats
        if self._yielded > cells.MAX_ROWS:
            raise FileTooComplex(f"The sheet has more than {cells.MAX_ROWS:,} rows.")
        self._notes.add(max(begin, self._skip), repeats)
        for _ in range(repeats):
            yield row


@contextmanager
def _parse_errors() -> Generator[None]:
    """Convert parser errors to FileCorrupt. A LookupError means an unknown encoding; a ValueError may also mean an
    invalid number.
    """
    try:
        yield
    except (ET.ParseError, LookupError, ValueError) as error:
        raise FileCorrupt("The content of the workbook is not well-formed.") from error


def _row(element: ET.Element) -> tuple[cells.Row, bool]:
    """Return the non-empty cells, and whether a formula has no stored value. Raises FileTooComplex, ValueError."""
    row: dict[int, TypedText] = {}
    column, lacks_value = 0, False
    for cell in element:
        if cell.tag not in _CELLS:
            continue
        attributes = cell.attrib
        count = _count(attributes, _REPEATED) if _REPEATED in attributes else 1
        value = _value(attributes, cell)
        if value:
            if column + count > cells.MAX_GRID_COLUMNS:
                raise FileTooComplex(f"The sheet has more than {cells.MAX_GRID_COLUMNS:,} columns.")
            for position in range(column, column + count):
                row[position] = value
        elif _FORMULA in attributes and _TYPE not in attributes:
            # An error or an empty string would have a value type.
            lacks_value = True
        column += count
    return row, lacks_value


def _text_of(cell: ET.Element) -> str:
    """Return the text of a cell, with one line per paragraph."""
    return "\n".join([_paragraph(child) for child in cell if child.tag in _PARAGRAPHS])


def _paragraph(element: ET.Element) -> str:
    if not len(element):
        return element.text or ""
    pieces = [element.text or ""]
    for child in element:
        if child.tag == f"{_TEXT}s":
            pieces.append(" " * min(_count(child.attrib, f"{_TEXT}c"), _MAX_SPACES))
        elif child.tag in _WHITESPACE:
            pieces.append(_WHITESPACE[child.tag])
        elif child.tag not in _NON_TEXT_ELEMENTS:
            pieces.append(_paragraph(child))
        pieces.append(child.tail or "")
    return "".join(pieces)


def _count(attributes: Mapping[str, str], name: str) -> int:
    """Return a repeat count, by default 1. Raises ValueError if it is not a number of at most 12 characters."""
    text = attributes.get(name, "1")
    if len(text) > 12:
        raise ValueError(text)
    return max(int(text), 1)


def _value(attributes: Mapping[str, str], cell: ET.Element) -> TypedText:
    """Return the cell's value. Raises ValueError for an invalid number."""
    kind = attributes.get(_TYPE, "")
    if kind in {"float", "percentage", "currency"}:
        number = attributes.get(_NUMBER)
        return cells.EMPTY if number is None else cells.number_cell(float(number))
    if kind == "boolean":
        return cells.boolean_cell(is_true=attributes.get(f"{_OFFICE}boolean-value", "").lower() == "true")
    if kind == "date":
        moment = attributes.get(f"{_OFFICE}date-value", "")
        return cells.iso_cell(moment) or cells.text_cell(moment)
    if kind == "time":
        return _time_of_day(attributes.get(f"{_OFFICE}time-value", ""))
    if kind == "string" and attributes.get(_LIBRE_OFFICE_TYPE) != "error":
        written = attributes.get(_STRING)
        return cells.text_cell(_text_of(cell) if written is None else written)
    return cells.EMPTY


def _time_of_day(text: str) -> TypedText:
    """Return the cell for a time of day or a duration. ODS stores both as durations; durations below 24 hours become
    times.
    """
    cell = cells.iso_cell(text) or cells.text_cell(text)
    hours = cell.partition(":")[0]
    is_time = cell.kind is CellKind.DURATION and hours.isdecimal() and int(hours) < 24
    return TypedText(cell, CellKind.TIME) if is_time else cell
