"""Files on their way to tables: their kinds, how text is delimited, the types of cells and columns (Contract importer).

Cells are `str`, the text of the file. Two subclasses carry what the text alone does not tell:
`QuotedText` (a field that was quoted and is blank or says null) and `TypedText` (a cell of a workbook).
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
"""What detection looks at (Contract importer 9)."""

SAMPLE_RECORDS = 10_000
SAMPLE_TEXT_BYTES = 8 * 1024 * 1024
"""What types are told from: whichever ends first (Contract importer 7.4)."""

PREVIEW_ROWS = 50


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


class Origin(StrEnum):
    """`import_type`: where a file comes from."""

    LOCAL = "local"
    REMOTE = "remote"


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

    Text cells are `TEXT` even if they look like a number; empty cells, errors and formulas without a value are `""`
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


@dataclass(frozen=True, slots=True)
class Delimiters:
    """How text is cut into cells. `quote` None: nothing is quoted.

    `record` is `\\n` (a CR before it is dropped), `\\r`, or another text that is taken literally; `\\r\\n` is kept as
    `\\n`, for both mean the same (Contract importer 7.2).
    """

    field: str = ","
    quote: str | None = '"'
    record: str = "\n"


class BaseType(StrEnum):
    """Types of columns, whatever the dialect calls them (Contract importer 12.4)."""

    INT8 = "Int8"
    INT16 = "Int16"
    INT32 = "Int32"
    INT64 = "Int64"
    UINT8 = "UInt8"
    UINT16 = "UInt16"
    UINT32 = "UInt32"
    UINT64 = "UInt64"
    FLOAT32 = "Float32"
    FLOAT64 = "Float64"
    DECIMAL = "Decimal"
    BOOLEAN = "Boolean"
    DATE = "Date"
    DATETIME = "Datetime"
    TIME = "Time"
    DURATION = "Duration"
    STRING = "String"
    NULL = "Null"
    BINARY = "Binary"
    ARRAY = "Array"
    STRUCT = "Struct"
    OBJECT = "Object"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column. `precision` and `scale` are set exactly for `DECIMAL`.

    `length`: how many characters a `STRING` may have; None: any number.
    """

    base: BaseType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None


STRING = ColumnType(BaseType.STRING)
NULL = ColumnType(BaseType.NULL)
