"""Column types of results, files and tables, and the form of cells in responses (Contract editor 6.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class BaseType(StrEnum):
    """Column types, independent of SQL dialects (Contract importer 12.4)."""

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
    """The type of a column.

    Only `DECIMAL` has `precision` and `scale`. `length` limits a `STRING`, in characters; None means no limit.
    """

    base: BaseType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None


STRING = ColumnType(BaseType.STRING)
NULL = ColumnType(BaseType.NULL)


_MAX_NAME_CHARACTERS = 1000
_MAX_TEXT_CHARACTERS = 10_000


class ResultType(StrEnum):
    """Values of `meta.type`, which are the same for all dialects."""

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
"""Arrow types that represent the values exactly. Other types are strings, unless an engine has a better Arrow type."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result. `native_type` is the type name as reported by the engine."""

    name: str
    type: ResultType
    native_type: str
    comment: str = ""


def limit_texts(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Truncate names to 1,000 characters, and type names and comments to 10,000.

    Some engines use the text of an expression as its column name: in SQLite, the name of `1 /* 9 MB */` has 9 MB and
    would be stored twice.
    """
    return tuple(
        Column(
            _shorten(column.name, _MAX_NAME_CHARACTERS),
            column.type,
            _shorten(column.native_type, _MAX_TEXT_CHARACTERS),
            _shorten(column.comment, _MAX_TEXT_CHARACTERS),
        )
        for column in columns
    )


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class CellForm:
    """How cells are written in a response (Contract editor 6.3)."""

    is_escaped: bool = False
    big_numbers_as_text: bool = False
    """Whether numbers that may exceed the precision of a double are written as strings."""


NUMBERS_AS_TEXT = frozenset(
    ResultType(f"{name}_TYPE") for name in ("BIGINT", "DECIMAL", "ARRAY", "MAP", "STRUCT", "UNION")
)
"""Types of columns in which `big_numbers_as_text` turns every 64-bit integer and decimal into a string."""
