"""Types of columns: names on the wire, the engine's own text, and what Arrow keeps them as (Contract editor 6.3)."""

from dataclasses import dataclass

import pyarrow as pa

from queryserver.domain.result import Column, ResultType
from queryserver.engines.hiveserver2.protocol.rows import TColumnDesc, TPrimitiveTypeEntry, TTypeDesc, TTypeId

_MAX_DIGITS = 38

_PRIMITIVES: dict[int, tuple[ResultType, str]] = {
    TTypeId.BOOLEAN: (ResultType.BOOLEAN, "boolean"),
    TTypeId.TINYINT: (ResultType.TINYINT, "tinyint"),
    TTypeId.SMALLINT: (ResultType.SMALLINT, "smallint"),
    TTypeId.INT: (ResultType.INT, "int"),
    TTypeId.BIGINT: (ResultType.BIGINT, "bigint"),
    TTypeId.FLOAT: (ResultType.FLOAT, "float"),
    TTypeId.DOUBLE: (ResultType.DOUBLE, "double"),
    TTypeId.STRING: (ResultType.STRING, "string"),
    TTypeId.TIMESTAMP: (ResultType.TIMESTAMP, "timestamp"),
    TTypeId.BINARY: (ResultType.BINARY, "binary"),
    TTypeId.ARRAY: (ResultType.ARRAY, "array"),
    TTypeId.MAP: (ResultType.MAP, "map"),
    TTypeId.STRUCT: (ResultType.STRUCT, "struct"),
    TTypeId.UNION: (ResultType.UNION, "uniontype"),
    TTypeId.DECIMAL: (ResultType.DECIMAL, "decimal"),
    TTypeId.NULL: (ResultType.NULL, "void"),
    TTypeId.DATE: (ResultType.DATE, "date"),
    TTypeId.VARCHAR: (ResultType.VARCHAR, "varchar"),
    TTypeId.CHAR: (ResultType.CHAR, "char"),
    TTypeId.INTERVAL_YEAR_MONTH: (ResultType.INTERVAL_YEAR_MONTH, "interval year to month"),
    TTypeId.INTERVAL_DAY_TIME: (ResultType.INTERVAL_DAY_TIME, "interval day to second"),
    TTypeId.TIMESTAMP_LOCAL_TZ: (ResultType.TIMESTAMP_TZ, "timestamp with local time zone"),
}
_UNKNOWN = (ResultType.USER_DEFINED, "user defined")


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column as it is declared, and the number of its type on the wire."""

    column: Column
    type_id: int
    arrow: pa.DataType
    """What its values should become; text where they come as text."""


def wire_column(described: TColumnDesc) -> WireColumn:
    """The column that a server describes."""
    type_id, kind, native = _type_of(described.type_desc)
    arrow = _ARROW.get(type_id, pa.string())
    if type_id == TTypeId.DECIMAL:
        arrow = _decimal(_primitive(described.type_desc))
    return WireColumn(Column(described.column_name, kind, native, described.comment or ""), type_id, arrow)


_ARROW: dict[int, pa.DataType] = {
    TTypeId.BOOLEAN: pa.bool_(),
    TTypeId.TINYINT: pa.int8(),
    TTypeId.SMALLINT: pa.int16(),
    TTypeId.INT: pa.int32(),
    TTypeId.BIGINT: pa.int64(),
    TTypeId.FLOAT: pa.float32(),
    TTypeId.DOUBLE: pa.float64(),
    TTypeId.TIMESTAMP: pa.timestamp("us"),
    TTypeId.BINARY: pa.binary(),
    TTypeId.DATE: pa.date32(),
}


def _type_of(described: TTypeDesc) -> tuple[int, ResultType, str]:
    primitive = _primitive(described)
    if primitive is not None:
        kind, name = _PRIMITIVES.get(primitive.type, _UNKNOWN)
        return primitive.type, kind, name + _qualifiers(primitive)
    entry = described.types[0] if described.types else None
    type_id = TTypeId.USER_DEFINED
    if entry is not None:
        nested = ((entry.array, TTypeId.ARRAY), (entry.map, TTypeId.MAP), (entry.struct, TTypeId.STRUCT))
        type_id = next((number for found, number in nested if found is not None), type_id)
        type_id = TTypeId.UNION if entry.union is not None else type_id
    kind, _ = _PRIMITIVES.get(type_id, _UNKNOWN)
    return type_id, kind, _native(described, 0)


def _native(described: TTypeDesc, position: int) -> str:
    """The text of a type that is described in full: `array<map<string,int>>`."""
    if not 0 <= position < len(described.types):
        return "?"
    entry = described.types[position]
    if entry.primitive is not None:
        return _PRIMITIVES.get(entry.primitive.type, _UNKNOWN)[1] + _qualifiers(entry.primitive)
    if entry.user_defined is not None:
        return entry.user_defined.type_class_name
    # Inner types stand behind their owner, so that no description goes round in circles.
    inner = [(name, number) for name, number in _inner(described, position) if number > position]
    texts = [f"{name}{_native(described, number)}" for name, number in inner]
    word = "array" if entry.array else "map" if entry.map else "struct" if entry.struct else "uniontype"
    return f"{word}<{','.join(texts)}>"


def _inner(described: TTypeDesc, position: int) -> list[tuple[str, int]]:
    entry = described.types[position]
    if entry.array is not None:
        return [("", entry.array.object_type)]
    if entry.map is not None:
        return [("", entry.map.key_type), ("", entry.map.value_type)]
    if entry.struct is not None:
        return [(f"{name}:", number) for name, number in entry.struct.name_to_type.items()]
    return [("", number) for number in entry.union.name_to_type.values()] if entry.union is not None else []


def _primitive(described: TTypeDesc) -> TPrimitiveTypeEntry | None:
    return described.types[0].primitive if described.types else None


def _qualifiers(entry: TPrimitiveTypeEntry) -> str:
    if entry.type == TTypeId.DECIMAL:
        precision, scale = _number(entry, "precision"), _number(entry, "scale")
        return "" if precision is None else f"({precision},{scale or 0})"
    length = _number(entry, "characterMaximumLength") if entry.type in {TTypeId.VARCHAR, TTypeId.CHAR} else None
    return "" if length is None else f"({length})"


def _number(entry: TPrimitiveTypeEntry, name: str) -> int | None:
    qualifiers = entry.type_qualifiers.qualifiers if entry.type_qualifiers is not None else {}
    value = qualifiers.get(name)
    return value.i32_value if value is not None else None


def _decimal(entry: TPrimitiveTypeEntry | None) -> pa.DataType:
    precision = _number(entry, "precision") if entry is not None else None
    scale = (_number(entry, "scale") if entry is not None else None) or 0
    if precision is None or not 0 < precision <= _MAX_DIGITS or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)
