"""DuckDB's types: their names on the wire (Contract editor 6.3), and which of them Arrow cannot carry as they are."""

from collections.abc import Sequence

from duckdb.sqltypes import DuckDBPyType

from queryserver.engines.catalog_queries import identifier
from queryserver.errors.statements import StatementRejected
from queryserver.formats.columns import ResultType

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

MOST_LEVELS = 60
"""How deep the type of a column may be nested."""

_NESTED = frozenset({"list", "array", "map", "struct", "tuple", "union"})

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


def require_shallow(types: Sequence[DuckDBPyType]) -> None:
    """Raises StatementRejected for a type nested deeper than results can be: Arrow's own limit is 64 levels."""
    level = list(types)
    for _ in range(MOST_LEVELS):
        level = [child for native in level for _, child in children_of(native)]
        if not level:
            return
    raise StatementRejected(f"Not implemented Error: a column's type is nested deeper than {MOST_LEVELS} levels.")


def as_carried(native: DuckDBPyType) -> str:
    """The type to read a value as; the type itself when Arrow can carry it."""
    return _carried(native, _AS_TEXT)


def is_text_on_the_wire(native: DuckDBPyType) -> bool:
    """Whether a value of the type, not inside of another, is read as DuckDB's own text."""
    return native.id in _AS_TEXT


def children_of(native: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The types within a type, each with its name."""
    if native.id not in _NESTED:
        return []
    return [(name, child) for name, child in native.children if isinstance(child, DuckDBPyType)]


def _carried(native: DuckDBPyType, as_text: frozenset[str]) -> str:
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
            return _carried_members(native, "STRUCT", children_of(native))
        case "tuple":
            fields = (f"field{place} {_within(native, place)}" for place in range(len(native.children)))
            return f"STRUCT({', '.join(fields)})"
        case "union":
            return _carried_members(native, "UNION", children_of(native)[1:])  # the first child is the tag
        case _:
            return str(native)


def _size(native: DuckDBPyType) -> object:
    return dict(native.children)["size"]


def _within(native: DuckDBPyType, place: int) -> str:
    return _carried(children_of(native)[place][1], _AS_TEXT_WITHIN)


def _carried_members(native: DuckDBPyType, word: str, members: list[tuple[str, DuckDBPyType]]) -> str:
    # Each member once: a second time at each level would double the time with it.
    carried = [(name, _carried(child, _AS_TEXT_WITHIN), child) for name, child in members]
    if all(text == str(child) for _, text, child in carried):
        return str(native)
    return f"{word}({', '.join(f'{identifier(name)} {text}' for name, text, _ in carried)})"
