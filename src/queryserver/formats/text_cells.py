"""Cells of files, as their text.

Two subclasses of `str` carry what the text alone does not show: `QuotedText` (a field that was quoted and is blank or
says null) and `TypedText` (a cell of a workbook).
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Self

BLANKS = " \t\n\v\f\r"
"""Ignored around a cell: the white space of ASCII. Around quotes only U+0020 is (Contract importer 8.2)."""


class CellKind(Enum):
    """The class of a cell (Contract importer 12.1, 12.2)."""

    NULL = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """A number that a double cannot hold: more than 15 significant digits."""
    DOUBLE = auto()
    NON_FINITE = auto()
    BOOLEAN = auto()
    DATE = auto()
    TIMESTAMP = auto()
    TIME = auto()
    DURATION = auto()
    """Only in workbooks."""
    TEXT = auto()


class QuotedText(str):
    """A field that was quoted, where it matters: empty, blank, or the word null."""

    __slots__ = ()


class TypedText(str):
    """A cell of a workbook as text (Contract importer 12.2), with the class that the workbook gives it.

    Text cells are `TEXT` even if they read as a number; empty cells, errors and formulas without a value are `""`
    of class `NULL`.
    """

    __slots__ = ("kind",)
    kind: CellKind

    def __new__(cls, text: str, kind: CellKind) -> Self:
        cell = super().__new__(cls, text)
        cell.kind = kind
        return cell


Cells = Sequence[str]
"""The cells of one record or row."""
