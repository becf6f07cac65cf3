"""DuckDB's types: their names on the wire (Contract editor 6.3), and which of them Arrow cannot carry as they are."""

from duckdb.sqltypes import DuckDBPyType

from queryserver.domain.result import ResultType
from queryserver.engines.quoting import identifier

_NAMES = {
    "boolean": ResultType.BOOLEAN,
    "tinyint": ResultType.TINYINT,
    "smallint": ResultType.SMALLINT,
    "utinyint": ResultType.SMALLINT,
    "integer": ResultType.INT,
    "usmallint": ResultType.INT,
    "bigint": ResultType.BIGINT,
    "uinteger": ResultType.BIGINT,
    "ubigint": ResultType.BIGINT,
    "float": ResultType.FLOAT,
    "double": ResultType.DOUBLE,
    "decimal": ResultType.DECIMAL,
    "hugeint": ResultType.DECIMAL,
    "uhugeint": ResultType.DECIMAL,
    "varchar": ResultType.STRING,
    "uuid": ResultType.STRING,
    "enum": ResultType.STRING,
    "time": ResultType.STRING,
    "bit": ResultType.STRING,
    "date": ResultType.DATE,
    "timestamp": ResultType.TIMESTAMP,
    "timestamp_s": ResultType.TIMESTAMP,
    "timestamp_ms": ResultType.TIMESTAMP,
    "timestamp_ns": ResultType.TIMESTAMP,
    "timestamp with time zone": ResultType.TIMESTAMP_TZ,
    "interval": ResultType.INTERVAL_DAY_TIME,
    "blob": ResultType.BINARY,
    "list": ResultType.ARRAY,
    "array": ResultType.ARRAY,
    "map": ResultType.MAP,
    "struct": ResultType.STRUCT,
    "tuple": ResultType.STRUCT,
    "union": ResultType.UNION,
    "null": ResultType.NULL,
}

# What Arrow would garble (UHUGEINT wraps round, TIMETZ loses its zone) or has no text form for.
_AS_TEXT = frozenset({"uhugeint", "enum", "time with time zone", "bit", "bignum", "interval", "variant", "geometry"})
# Inside other values a date may be `infinity` too, which Arrow's date cannot say; DuckDB's text can.
_AS_TEXT_WITHIN = _AS_TEXT | {
    "hugeint",
    "date",
    "timestamp",
    "timestamp_s",
    "timestamp_ms",
    "timestamp_ns",
    "timestamp with time zone",
}


def result_type(native: DuckDBPyType) -> ResultType:
    """The name on the wire."""
    return _NAMES.get(native.id, ResultType.USER_DEFINED)


def exact_projection(types: list[DuckDBPyType]) -> str | None:
    """A select list that casts what Arrow cannot carry to DuckDB's own text; None when all can be carried."""
    casts = [_carried(native, _AS_TEXT) for native in types]
    if all(cast == str(native) for cast, native in zip(casts, types, strict=True)):
        return None
    return ", ".join(
        f"#{number}" if cast == str(native) else f"CAST(#{number} AS {cast}) AS c{number}"
        for number, (cast, native) in enumerate(zip(casts, types, strict=True), start=1)
    )


def _carried(native: DuckDBPyType, as_text: frozenset[str]) -> str:
    """The type to read a value as; the same text when nothing in it needs a cast."""
    match native.id:
        case kind if kind in as_text:
            return "VARCHAR"
        case "list":
            return f"{_within(native, 0)}[]"
        case "array":
            return f"{_within(native, 0)}[{_size(native)}]"
        case "map":
            return f"MAP({_within(native, 0)}, {_within(native, 1)})"
        case "struct":
            return _carried_members(native, "STRUCT", _children(native))
        case "tuple":
            fields = (f"field{place} {_within(native, place)}" for place in range(len(native.children)))
            return f"STRUCT({', '.join(fields)})"
        case "union":
            return _carried_members(native, "UNION", _children(native)[1:])  # the first child is the tag
        case _:
            return str(native)


def _children(native: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return [(name, child) for name, child in native.children if isinstance(child, DuckDBPyType)]


def _size(native: DuckDBPyType) -> object:
    return dict(native.children)["size"]


def _within(native: DuckDBPyType, place: int) -> str:
    return _carried(_children(native)[place][1], _AS_TEXT_WITHIN)


def _carried_members(native: DuckDBPyType, word: str, members: list[tuple[str, DuckDBPyType]]) -> str:
    if all(_carried(child, _AS_TEXT_WITHIN) == str(child) for _, child in members):
        return str(native)
    return f"{word}({', '.join(f'{identifier(name)} {_carried(child, _AS_TEXT_WITHIN)}' for name, child in members)})"
