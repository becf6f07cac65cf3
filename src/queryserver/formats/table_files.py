"""Files that hold tables: their types, how text is cut into cells, and how much of a file is read.

Two subclasses of `str` carry what the text of a cell does not show: `QuotedText` (a field that was quoted and is blank
or says null) and `TypedText` (a cell of a workbook).
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
"""What detection reads (Contract importer 9)."""

SAMPLE_RECORDS = 10_000
SAMPLE_TEXT_BYTES = 8 * 1024 * 1024
"""What types are detected from: whichever ends first (Contract importer 7.4)."""

MAX_SKIPPED_LINES = 10_000
"""How many lines above a table a call may give."""

PREVIEW_ROWS = 50
"""The rows that a preview shows (Contract importer 7)."""


class FileType(StrEnum):
    """What a file is, as clients name it (Contract importer 2.4)."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"


RECORD_TYPES = frozenset({FileType.PARQUET, FileType.NDJSON, FileType.AVRO, FileType.ARROW})
"""Files of records, which name their columns themselves (Contract importer 8a)."""


@dataclass(frozen=True, slots=True)
class Delimiters:
    """How text is cut into cells. `quote` None: nothing is quoted.

    `record` is `\\n` (a CR before it is dropped), `\\r`, or another text that is taken literally; `\\r\\n` is kept as
    `\\n`, for both mean the same (Contract importer 7.2).
    """

    field: str = ","
    quote: str | None = '"'
    record: str = "\n"
    escape: str | None = None
    """Takes away the meaning of a separator or quote behind it; None: nothing does (Contract importer 8.7)."""


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Lines of a text that are not read: the first ones, and those that begin with `comment` unless it is empty."""

    first: int = 0
    comment: str = ""


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
