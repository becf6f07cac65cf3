"""What Phoenix declares about the columns of a result: names and types of Contract editor 6.3."""

from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from queryserver.domain.result import Column, ResultType
from queryserver.engines.phoenix.messages import ColumnMetadata

_ARRAY = " ARRAY"
_DECIMAL_DIGITS = 38

# Dates come as days and times as milliseconds; what Phoenix keeps below that is not sent.
_PLAIN = MappingProxyType(
    {
        "BOOLEAN": (ResultType.BOOLEAN, pa.bool_()),
        "TINYINT": (ResultType.TINYINT, pa.int8()),
        "SMALLINT": (ResultType.SMALLINT, pa.int16()),
        "INTEGER": (ResultType.INT, pa.int32()),
        "BIGINT": (ResultType.BIGINT, pa.int64()),
        "FLOAT": (ResultType.FLOAT, pa.float32()),
        "DOUBLE": (ResultType.DOUBLE, pa.float64()),
        "UNSIGNED_TINYINT": (ResultType.TINYINT, pa.int8()),
        "UNSIGNED_SMALLINT": (ResultType.SMALLINT, pa.int16()),
        "UNSIGNED_INT": (ResultType.INT, pa.int32()),
        "UNSIGNED_LONG": (ResultType.BIGINT, pa.int64()),
        "UNSIGNED_FLOAT": (ResultType.FLOAT, pa.float32()),
        "UNSIGNED_DOUBLE": (ResultType.DOUBLE, pa.float64()),
        "DATE": (ResultType.DATE, pa.date32()),
        "UNSIGNED_DATE": (ResultType.DATE, pa.date32()),
        "TIME": (ResultType.STRING, pa.time32("ms")),
        "UNSIGNED_TIME": (ResultType.STRING, pa.time32("ms")),
        "TIMESTAMP": (ResultType.TIMESTAMP, pa.timestamp("ms")),
        "UNSIGNED_TIMESTAMP": (ResultType.TIMESTAMP, pa.timestamp("ms")),
        "VARBINARY": (ResultType.BINARY, pa.binary()),
        "BINARY": (ResultType.BINARY, pa.binary()),
    }
)
_SIZED = frozenset({"BINARY", "CHAR", "VARCHAR"})


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column, and the Arrow type that its values take unless one of them has no place in it."""

    name: str
    native_type: str
    result: ResultType
    arrow: pa.DataType

    @property
    def column(self) -> Column:
        """The column as the wire contract shows it."""
        return Column(self.name, self.result, self.native_type)


def declare(metadata: ColumnMetadata) -> DeclaredColumn:
    """The declared type of a column."""
    base, array, rest = metadata.type_name.partition(_ARRAY)
    native, result, arrow = _scalar(base, metadata)
    if not array:
        return DeclaredColumn(metadata.label, native, result, arrow)
    return DeclaredColumn(metadata.label, f"{native}{_ARRAY}{rest}", ResultType.ARRAY, pa.list_(arrow))


def native_type(name: str, size: int | None, scale: int | None) -> str:
    """The type's text as it stands in a CREATE TABLE."""
    base, array, rest = name.partition(_ARRAY)
    if base == "DECIMAL" and size:
        base = f"DECIMAL({size},{scale or 0})"
    elif base in _SIZED and size:
        base = f"{base}({size})"
    return base + array + rest


def _scalar(base: str, metadata: ColumnMetadata) -> tuple[str, ResultType, pa.DataType]:
    native = native_type(base, metadata.precision, metadata.scale)
    if base == "DECIMAL":
        return native, ResultType.DECIMAL, _decimal(metadata)
    if base == "VARCHAR":
        return native, ResultType.VARCHAR if metadata.precision else ResultType.STRING, pa.string()
    if base == "CHAR":
        return native, ResultType.CHAR, pa.string()
    result, arrow = _PLAIN.get(base, (ResultType.USER_DEFINED, pa.string()))
    return native, result, arrow


def _decimal(metadata: ColumnMetadata) -> pa.DataType:
    """Without a declared size each value has a scale of its own. Sums may hold more digits than they declare."""
    if not metadata.precision or metadata.scale > _DECIMAL_DIGITS:
        return pa.string()
    return pa.decimal128(_DECIMAL_DIGITS, metadata.scale)
