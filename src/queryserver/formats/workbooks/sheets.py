"""The rows of a worksheet as a stream (ECMA-376 part 1, 18.3.1). `<dimension>` is not believed, nor even read.

What stands before the rows is parsed as XML, the rows by `plain_rows` where they are plain, and else as XML too.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from queryserver.domain.errors import FileCorrupt, file_too_complex
from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.byte_source import ByteSource
from queryserver.formats.workbooks.cells import CellReader
from queryserver.formats.workbooks.columns import ColumnNumbers
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.parsed_rows import NumberedRow, ParsedRows
from queryserver.formats.workbooks.plain_rows import Make, read_plain_row
from queryserver.formats.workbooks.xml_parts import parse

MAX_ROWS = 1_048_576

Row = Mapping[int, TypedText]
"""The cells of a row that are not empty, by their columns from 0 on."""

_DATA, _DATA_END, _ROW_END = b"<sheetData>", b"</sheetData>", b"</row>"
_RESUMED, _RESUMED_END = b"<worksheet><sheetData>", b"</sheetData></worksheet>"


def sheet_rows(package: Package, part: str, reader: CellReader) -> Iterator[Row]:
    """Rows with at least one cell that is not empty, in the order of the part. Raises FileCorrupt, file_too_complex."""
    last_number = 0
    for number, row in _numbered_rows(ByteSource(package.pieces(part)), reader.cell):
        last_number = last_number + 1 if number is None else number
        if last_number > MAX_ROWS:
            raise file_too_complex(f"The sheet has more than {MAX_ROWS:,} rows.")
        if row:
            yield row


def _numbered_rows(source: ByteSource, make: Make) -> Iterator[NumberedRow]:
    sheet = ParsedRows(make)
    before = source.through_first(_DATA)
    parsing = parse(sheet.parser, chain([before], source.rest()))
    next(parsing)
    if sheet.may_be_plain and before.endswith(_DATA):
        return _mostly_plain(source, make)
    return _parsed(sheet, parsing)


def _mostly_plain(source: ByteSource, make: Make) -> Iterator[NumberedRow]:
    """Rows from the beginning of one on. The end tag of a row may stand in a comment: then all that follows is XML."""
    columns = ColumnNumbers()
    while segment := source.through_last(_ROW_END):
        try:
            *rows, _ = segment.decode().split("</row>")
        except UnicodeDecodeError:
            yield from _resumed(chain([segment], source.rest()), make)
            return
        for index, row in enumerate(rows):
            if row.startswith("</sheetData>"):
                return
            plain = read_plain_row(row, make, columns)
            found = _parsed_row(row, make) if plain is None else [plain]
            if found is None:
                left = "".join(f"{text}</row>" for text in rows[index:]).encode()
                yield from _resumed(chain([left], source.rest()), make)
                return
            yield from found
        if source.begins_with(_DATA_END):
            return
    yield from _resumed(source.rest(), make)


def _parsed_row(row: str, make: Make) -> list[NumberedRow] | None:
    """The row and what empty rows stand before it. None: that is no row, or not the whole of it."""
    sheet = ParsedRows(make)
    try:
        for _ in parse(sheet.parser, [_RESUMED, row.encode(), _ROW_END, _RESUMED_END]):
            pass
    except FileCorrupt:
        return None
    return sheet.taken()


def _resumed(pieces: Iterator[bytes], make: Make) -> Iterator[NumberedRow]:
    """Rows as XML from the beginning of one on, and the end of the part."""
    sheet = ParsedRows(make)
    return _parsed(sheet, parse(sheet.parser, chain([_RESUMED], pieces)))


def _parsed(sheet: ParsedRows, parsing: Iterator[None]) -> Iterator[NumberedRow]:
    yield from sheet.taken()
    for _ in parsing:
        yield from sheet.taken()
        if sheet.is_over:
            return
