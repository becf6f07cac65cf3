"""Rows of a worksheet that are written as nearly all programs write them, read by patterns: five times as fast as XML.

Whatever does not fit a pattern from its first to its last character is left to the parser.
"""

import re
from collections.abc import Callable

from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.columns import ColumnNumbers
from queryserver.formats.workbooks.plain_text import PLAIN_TEXT, plain_text

_ATTRIBUTES = r'(?: (?!r=)[A-Za-z_][\w:.]*+="[^"<&\x00-\x1f]*+")*+'
_FORMULA = f"<f{_ATTRIBUTES}(?:/>|>{PLAIN_TEXT}</f>)"


def _cell(group: str) -> str:
    """The pattern of a cell: column, style, kind, value or text. `group` opens what is to be remembered."""
    return (
        rf'<c(?: r="{group}[A-Z]{{1,3}})[0-9]{{1,7}}")?+(?: s="{group}[0-9]{{1,6}})")?+(?: t="{group}[a-zA-Z]++)")?+'
        rf"(?:/>|>(?:{_FORMULA})?+"
        rf"(?:<v>{group}{PLAIN_TEXT})</v>|<v/>|"
        rf'<is><t(?: xml:space="preserve")?+>{group}{PLAIN_TEXT})</t></is>)?+</c>)'
    )


_ROW = re.compile(rf'(?:<row(?: r="[0-9]{{1,7}}")?+{_ATTRIBUTES}/>)*+<row(?: r="([0-9]{{1,7}})")?+{_ATTRIBUTES}>')
_CELLS = re.compile(f"(?:{_cell('(?:')})*+")
_CELL = re.compile(_cell("("))

Make = Callable[[str | None, str | None, str], TypedText]
"""Makes a cell of its kind, style and text, all as they stand in the file."""


def read_plain_row(row: str, make: Make, columns: ColumnNumbers) -> tuple[int | None, dict[int, TypedText]] | None:
    """Number and cells of a row, which comes without its end tag. None: it has to be parsed."""
    begin = _ROW.match(row)
    if begin is None or _CELLS.fullmatch(row, begin.end()) is None:
        return None
    cells: dict[int, TypedText] = {}
    column = -1
    for letters, style, kind, value, inline in _CELL.findall(row, begin.end()):
        column = columns[letters] if letters else column + 1
        text = value or inline
        if text and (cell := make(kind, style, plain_text(text) if "&" in text else text)):
            cells[column] = cell
    return int(begin[1]) if begin[1] else None, cells
