"""Table files: their types, the delimiters of text files, the classes of cells, and limits.

Two subclasses of `str` carry information that is not in the text of a cell: `QuotedText` (a quoted field that is blank
or the word null) and `TypedText` (a workbook cell).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Self

MAX_COLUMNS = 2_000
MAX_FIELD_CHARACTERS = 1024 * 1024
MAX_RECORD_CHARACTERS = 16 * 1024 * 1024
"""Limits on delimited text (Contract importer 8.5)."""

SAMPLE_BYTES = 256 * 1024
"""Size of the sample that format detection reads (Contract importer 9)."""

SAMPLE_RECORDS = 10_000
SAMPLE_TEXT_BYTES = 8 * 1024 * 1024
"""Limits on the sample for type detection; the first one that is reached applies (Contract importer 7.4)."""

MAX_SKIPPED_LINES = 10_000
"""Maximum value of `skip_rows` in a call."""

PREVIEW_ROWS = 50
"""Maximum number of rows in a preview (Contract importer 7)."""


class FileType(StrEnum):
    """File types, as named in the API (Contract importer 2.4)."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"


RECORD_TYPES = frozenset({FileType.PARQUET, FileType.NDJSON, FileType.AVRO, FileType.ARROW})
"""Types of record files, which contain their column names (Contract importer 8a)."""


@dataclass(frozen=True, slots=True)
class Delimiters:
    """The delimiters of a text file. `quote` is None if fields are never quoted.

    `record` is `\\n` (a CR before it is dropped), `\\r`, or another string, taken literally. `\\r\\n` is stored as
    `\\n`, because both mean the same (Contract importer 7.2).
    """

    field: str = ","
    quote: str | None = '"'
    record: str = "\n"
    escape: str | None = None
    """Makes the separator or quote after it literal; None if there is no escape character (Contract importer 8.7)."""


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Lines of a text file to skip: the `first` lines, and lines that begin with `comment`, unless that is empty."""

    first: int = 0
    comment: str = ""


BLANKS = " \t\n\v\f\r"
"""ASCII whitespace, which is ignored around a cell. Around quotes, only U+0020 is ignored (Contract importer 8.2)."""


class CellKind(Enum):
    """The class of a cell (Contract importer 12.1, 12.2)."""

    NULL = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """A number with more than 15 significant digits, which a double cannot represent exactly."""
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
    """A quoted field that is empty, blank or the word null. Other quoted fields are plain `str`."""

    __slots__ = ()


class TypedText(str):
    """The text of a workbook cell (Contract importer 12.2), with the class that the workbook gives the cell.

    Text cells are `TEXT` even if they look like numbers. Empty cells, errors and formulas without a value have the text
    `""` and the class `NULL`.
    """

    __slots__ = ("kind",)
    kind: CellKind

    def __new__(cls, text: str, kind: CellKind) -> Self:
        cell = super().__new__(cls, text)
        cell.kind = kind
        return cell


Cells = Sequence[str]
"""The cells of a record or row."""
