"""Types of columns in files and tables, whatever the dialect of SQL calls them (Contract importer 12.4)."""

from dataclasses import dataclass
from enum import StrEnum


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
