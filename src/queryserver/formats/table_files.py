"""Table files: their types, the delimiters of text, the kinds of cells, and limits.

Two subclasses of `str` carry information that the text of a cell does not contain: `QuotedText` (a quoted field that is
blank or the word null) and `TypedText` (a cell of a workbook).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Self

MAX_COLUMNS = 2_000
MAX_FIELD_CHARACTERS = 1024 * 1024
MAX_RECORD_CHARACTERS = 16 * 1024 * 1024
"""Limits of delimited text (Contract importer 8.5)."""

SAMPLE_BYTES = 256 * 1024
"""Size of the sample for detection (Contract importer 9)."""

SAMPLE_RECORDS = 10_000
SAMPLE_TEXT_BYTES = 8 * 1024 * 1024
"""Limits of the sample for type detection: the one reached first applies (Contract importer 7.4)."""

MAX_SKIPPED_LINES = 10_000
"""Maximum value of `skip_rows` in a call."""

PREVIEW_ROWS = 50
"""Maximum number of rows in a preview (Contract importer 7)."""


class FileType(StrEnum):
    """The type of a file, as named in the API (Contract importer 2.4)."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"


RECORD_TYPES = frozenset({FileType.PARQUET, FileType.NDJSON, FileType.AVRO, FileType.ARROW})
"""Types of record files, which contain the names of their columns (Contract importer 8a)."""


@dataclass(frozen=True, slots=True)
class Delimiters:
    """The delimiters of a text. `quote` is None if no field is quoted.

    `record` is `\\n` (a CR before it is dropped), `\\r`, or another text that is taken literally. `\\r\\n` is stored as
    `\\n`, since both have the same meaning (Contract importer 7.2).
    """

    field: str = ","
    quote: str | None = '"'
    record: str = "\n"
    escape: str | None = None
    """Makes the following separator or quote literal; None without escapes (Contract importer 8.7)."""


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Lines of a text to skip: the `first` lines, and lines that begin with `comment` unless it is empty."""

    first: int = 0
    comment: str = ""


BLANKS = " \t\n\v\f\r"
"""ASCII white space, which is ignored around a cell. Around quotes, only U+0020 is ignored (Contract importer 8.2)."""


class CellKind(Enum):
    """The class of a cell (Contract importer 12.1, 12.2)."""

    NULL = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """A number with more than 15 significant digits, which a double cannot represent."""
    DOUBLE = auto()
    NON_FINITE = auto()
    BOOLEAN = auto()
    DATE = auto()
    TIMESTAMP = auto()
    TIME = auto()
    DURATION = auto()
    """Occurs only in workbooks."""
    TEXT = auto()


class QuotedText(str):
    """A quoted field that is empty, blank or the word null. Other fields do not need the distinction."""

    __slots__ = ()


class TypedText(str):
    """A cell of a workbook as text (Contract importer 12.2), with its kind according to the workbook.

    Text cells are `TEXT` even if they look like a number. Empty cells, errors and formulas without a value are `""`
    with kind `NULL`.
    """

    __slots__ = ("kind",)
    kind: CellKind

    def __new__(cls, text: str, kind: CellKind) -> Self:
        cell = super().__new__(cls, text)
        cell.kind = kind
        return cell


Cells = Sequence[str]
"""The cells of one record or row."""
