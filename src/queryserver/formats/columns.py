"""Columns: types of results and the form of their cells (Contract editor 6.3), types of files and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


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
    """The type of a column: digits of `DECIMAL` only; `length` of `STRING` in characters, None: any."""

    base: BaseType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None


STRING = ColumnType(BaseType.STRING)
NULL = ColumnType(BaseType.NULL)


_NAME_CHARACTERS = 1000
_TEXT_CHARACTERS = 10_000


class ResultType(StrEnum):
    """`meta.type`: one list of names for every dialect."""

    BOOLEAN = "BOOLEAN_TYPE"
    TINYINT = "TINYINT_TYPE"
    SMALLINT = "SMALLINT_TYPE"
    INT = "INT_TYPE"
    BIGINT = "BIGINT_TYPE"
    FLOAT = "FLOAT_TYPE"
    DOUBLE = "DOUBLE_TYPE"
    DECIMAL = "DECIMAL_TYPE"
    STRING = "STRING_TYPE"
    VARCHAR = "VARCHAR_TYPE"
    CHAR = "CHAR_TYPE"
    DATE = "DATE_TYPE"
    TIMESTAMP = "TIMESTAMP_TYPE"
    TIMESTAMP_TZ = "TIMESTAMPLOCALTZ_TYPE"
    INTERVAL_YEAR_MONTH = "INTERVAL_YEAR_MONTH_TYPE"
    INTERVAL_DAY_TIME = "INTERVAL_DAY_TIME_TYPE"
    BINARY = "BINARY_TYPE"
    ARRAY = "ARRAY_TYPE"
    MAP = "MAP_TYPE"
    STRUCT = "STRUCT_TYPE"
    UNION = "UNION_TYPE"
    NULL = "NULL_TYPE"
    USER_DEFINED = "USER_DEFINED_TYPE"


PLAIN_TYPES: Mapping[ResultType, pa.DataType] = {
    ResultType.BOOLEAN: pa.bool_(),
    ResultType.TINYINT: pa.int8(),
    ResultType.SMALLINT: pa.int16(),
    ResultType.INT: pa.int32(),
    ResultType.BIGINT: pa.int64(),
    ResultType.FLOAT: pa.float32(),
    ResultType.DOUBLE: pa.float64(),
    ResultType.DATE: pa.date32(),
    ResultType.TIMESTAMP: pa.timestamp("us"),
    ResultType.BINARY: pa.binary(),
}
"""Types whose values Arrow holds as the engines mean them; those of the others are text unless an engine knows more."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a result. `native_type` is the engine's own type text."""

    name: str
    type: ResultType
    native_type: str
    comment: str = ""


def bounded(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The same columns with texts of at most 1,000 (names) and 10,000 characters.

    Some engines name an expression by its own text: SQLite's name of `1 /* 9 MB */` has 9 MB, and is stored twice.
    """
    return tuple(
        Column(
            _cut(column.name, _NAME_CHARACTERS),
            column.type,
            _cut(column.native_type, _TEXT_CHARACTERS),
            _cut(column.comment, _TEXT_CHARACTERS),
        )
        for column in columns
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the cells of an answer are written (Contract editor 6.3)."""

    is_escaped: bool = False
    big_numbers_as_text: bool = False
    """Numbers that may have more digits than a double keeps are text."""


NUMBERS_AS_TEXT = frozenset(
    ResultType(f"{name}_TYPE") for name in ("BIGINT", "DECIMAL", "ARRAY", "MAP", "STRUCT", "UNION")
)
"""Types of columns whose integers of 64 bits, and decimals, are text with `big_numbers_as_text`: all of them."""
