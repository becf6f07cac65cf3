"""Values of imports: where a file comes from, and what the dialects call the types of columns (Contract importer)."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from queryserver.formats.columns import BaseType, ColumnType


class Origin(StrEnum):
    """`import_type`: where a file comes from."""

    LOCAL = "local"
    REMOTE = "remote"


_DIALECTS = ("hive", "impala", "trino", "phoenix", "postgresql", "mysql", "sqlite", "duckdb")

# One row for each base type, in the order of _DIALECTS; sparksql is as hive.
_NAMES: Mapping[BaseType, Sequence[str]] = {
    BaseType.INT8: ("TINYINT", "TINYINT", "TINYINT", "TINYINT", "SMALLINT", "TINYINT", "INTEGER", "TINYINT"),
    BaseType.INT16: ("SMALLINT", "SMALLINT", "SMALLINT", "SMALLINT", "SMALLINT", "SMALLINT", "INTEGER", "SMALLINT"),
    BaseType.INT32: ("INT", "INT", "INTEGER", "INT", "INTEGER", "INT", "INTEGER", "INTEGER"),
    BaseType.INT64: ("BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "INTEGER", "BIGINT"),
    BaseType.UINT8: (
        "SMALLINT", "SMALLINT", "SMALLINT", "UNSIGNED_TINYINT", "SMALLINT", "TINYINT UNSIGNED", "INTEGER", "UTINYINT",
    ),
    BaseType.UINT16: (
        "INT", "INT", "INTEGER", "UNSIGNED_SMALLINT", "INTEGER", "SMALLINT UNSIGNED", "INTEGER", "USMALLINT",
    ),
    BaseType.UINT32: ("BIGINT", "BIGINT", "BIGINT", "UNSIGNED_INT", "BIGINT", "INT UNSIGNED", "INTEGER", "UINTEGER"),
    BaseType.UINT64: (
        "DECIMAL", "DECIMAL", "DECIMAL", "UNSIGNED_LONG", "NUMERIC", "BIGINT UNSIGNED", "TEXT", "UBIGINT",
    ),
    BaseType.FLOAT32: ("FLOAT", "FLOAT", "REAL", "FLOAT", "REAL", "FLOAT", "REAL", "FLOAT"),
    BaseType.FLOAT64: ("DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE PRECISION", "DOUBLE", "REAL", "DOUBLE"),
    BaseType.DECIMAL: ("DECIMAL", "DECIMAL", "DECIMAL", "DECIMAL", "NUMERIC", "DECIMAL", "TEXT", "DECIMAL"),
    BaseType.BOOLEAN: ("BOOLEAN", "BOOLEAN", "BOOLEAN", "BOOLEAN", "BOOLEAN", "BOOLEAN", "INTEGER", "BOOLEAN"),
    BaseType.DATE: ("DATE", "DATE", "DATE", "DATE", "DATE", "DATE", "TEXT", "DATE"),
    BaseType.DATETIME: (
        "TIMESTAMP", "TIMESTAMP", "TIMESTAMP", "TIMESTAMP", "TIMESTAMP", "DATETIME(6)", "TEXT", "TIMESTAMP",
    ),
    BaseType.TIME: ("STRING", "STRING", "VARCHAR", "TIME", "TIME", "TIME(6)", "TEXT", "TIME"),
    BaseType.DURATION: (
        "INTERVAL DAY TO SECOND", "STRING", "INTERVAL DAY TO SECOND", "VARCHAR", "INTERVAL", "VARCHAR(64)", "TEXT",
        "INTERVAL",
    ),
    BaseType.STRING: ("STRING", "STRING", "VARCHAR", "VARCHAR", "TEXT", "TEXT", "TEXT", "VARCHAR"),
    BaseType.NULL: ("STRING", "STRING", "VARCHAR", "VARCHAR", "TEXT", "TEXT", "TEXT", "VARCHAR"),
    BaseType.BINARY: ("BINARY", "BINARY", "VARBINARY", "VARBINARY", "BYTEA", "LONGBLOB", "BLOB", "BLOB"),
    BaseType.ARRAY: ("ARRAY", "ARRAY", "ARRAY", "ARRAY", "JSONB", "JSON", "TEXT", "JSON"),
    BaseType.STRUCT: ("STRUCT", "STRUCT", "ROW", "VARCHAR", "JSONB", "JSON", "TEXT", "JSON"),
    BaseType.OBJECT: ("STRING", "STRING", "JSON", "VARCHAR", "JSONB", "JSON", "TEXT", "JSON"),
}  # fmt: skip

_HIVE = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTERVAL DAY TO SECOND",
    "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TINYINT",
)  # fmt: skip


def _named(dialect: str, *more: str) -> Sequence[str]:
    """All names of a dialect that the table above has, sorted."""
    return tuple(sorted({*more, *(names[_DIALECTS.index(dialect)] for names in _NAMES.values())}))


SQL_TYPES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **{dialect: _named(dialect, "VARCHAR") for dialect in ("postgresql", "mysql", "sqlite", "duckdb")},
        "hive": _HIVE,
        "sparksql": _HIVE,
        "impala": tuple(name for name in _HIVE if name != "INTERVAL DAY TO SECOND"),
        "trino": (
            "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "INTEGER", "INTERVAL DAY TO SECOND", "JSON",
            "REAL", "ROW", "SMALLINT", "STRING", "TIMESTAMP", "TINYINT", "VARBINARY", "VARCHAR",
        ),
        "phoenix": (
            "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIME",
            "TIMESTAMP", "TINYINT", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_SMALLINT", "UNSIGNED_TINYINT",
            "VARBINARY", "VARCHAR",
        ),
    }
)  # fmt: skip
"""The answers of sql_type_mapping. Of the dialects that the specification lists they are its own lists."""

PREVIEW_DIALECTS = ("duckdb", "hive", "impala", "mysql", "phoenix", "postgresql", "sparksql", "sqlite", "trino")
"""Dialects that previews are typed for."""

TABLE_DIALECTS = ("postgresql", "mysql", "sqlite", "duckdb", "hive", "sparksql", "trino", "phoenix")
"""Dialects that tables can be created in."""

REPLACING_DIALECTS = frozenset(TABLE_DIALECTS) - {"phoenix"}
"""Dialects that tables can be replaced in. Phoenix renames no tables."""

_WITH_PARAMETERS = re.compile(
    r"(?P<name>[A-Z]+(?: [A-Z]+)*) ?(?:\( ?(?P<first>[0-9]{1,8}) ?(?:, ?(?P<second>[0-9]{1,8}) ?)?\))?", re.ASCII
)
_DECIMALS = frozenset({"DECIMAL", "NUMERIC", "DEC"})
_TEXTS = frozenset({"VARCHAR", "CHARACTER VARYING"})
_MICROSECOND_DIGITS = 6
_WITH_TIMESTAMPS = ("postgresql", "trino", "duckdb", "mysql")
_MICROSECONDS: Mapping[str, Sequence[str]] = {
    "TIMESTAMP": _WITH_TIMESTAMPS, "DATETIME": ("mysql",), "TIME": ("postgresql", "mysql"),
}  # fmt: skip
"""Types that may be written with the six digits of a second that every value keeps."""
# No file can fill such a column; and no column is meant to hold nothing.
_NEVER_CHOSEN = frozenset({BaseType.BINARY, BaseType.ARRAY, BaseType.STRUCT, BaseType.OBJECT, BaseType.NULL})
# Where one name stands for several base types, a column that is given the name becomes this.
_MEANT: Mapping[tuple[str, str], BaseType] = {
    ("sqlite", "INTEGER"): BaseType.INT64,
    ("sqlite", "REAL"): BaseType.FLOAT64,
    ("sqlite", "TEXT"): BaseType.STRING,
    ("mysql", "TEXT"): BaseType.STRING,
    ("postgresql", "SMALLINT"): BaseType.INT16,
}
# Several dialects store these as a wider type, whose name means that type.
_UNSIGNED = frozenset({BaseType.UINT8, BaseType.UINT16, BaseType.UINT32, BaseType.UINT64})


def type_name(column: ColumnType, dialect: str) -> str:
    """The bare name of a type in a dialect, as previews show it."""
    return _NAMES[column.base][_DIALECTS.index("hive" if dialect == "sparksql" else dialect)]


def chosen_base(name: str, dialect: str) -> BaseType | None:
    """The base type that a caller means by a name (any case); None: such columns cannot be created."""
    wanted = name.upper()
    if (dialect, wanted) in _MEANT:
        return _MEANT[dialect, wanted]
    text_type = type_name(ColumnType(BaseType.STRING), dialect)
    # Where a dialect has no such type, a column of text stands for it; and the lists have STRING beside VARCHAR.
    if wanted in {text_type, "STRING"} and wanted in {text_type, *SQL_TYPES.get(dialect, ())}:
        return BaseType.STRING
    named = [base for base in _NAMES if base not in _NEVER_CHOSEN and type_name(ColumnType(base), dialect) == wanted]
    return min(named, key=lambda base: base in _UNSIGNED, default=None)


def chosen_type(text: str, dialect: str) -> ColumnType | None:
    """The type that a caller means: a name as in `chosen_base`, `numeric(12,2)`, `varchar(20)` or `timestamp(6)`.

    None: such columns cannot be created. A decimal without its digits has neither precision nor scale.
    """
    wanted = " ".join(text.upper().split())
    if (base := chosen_base(wanted, dialect)) is not None:
        return ColumnType(base)
    found = _WITH_PARAMETERS.fullmatch(wanted)
    if found is None:
        return None
    name = found["name"]
    first, second = (None if digits is None else int(digits) for digits in found.group("first", "second"))
    if name in _DECIMALS:
        return ColumnType(BaseType.DECIMAL, first, None if first is None else second or 0)
    if second is not None:
        return None
    if name in _TEXTS:
        return ColumnType(BaseType.STRING, length=first)
    is_exact = name in _MICROSECONDS and first == _MICROSECOND_DIGITS and dialect in _MICROSECONDS[name]
    return ColumnType(BaseType.TIME if name == "TIME" else BaseType.DATETIME) if is_exact else None


def choosable_types(dialect: str) -> Sequence[str]:
    """What a column of a new table may be, as messages show it."""
    names = {type_name(ColumnType(base), dialect) for base in _NAMES if base not in _NEVER_CHOSEN}
    decimals = {"DECIMAL", "NUMERIC"}
    return sorted({*(names - decimals), "NUMERIC(p,s)", "VARCHAR(n)"})


def declared_type(column: ColumnType, dialect: str) -> str:
    """The type of a column as CREATE TABLE writes it (Contract importer 12.4, 13)."""
    if column.base is BaseType.DURATION and dialect in {"hive", "sparksql"}:
        return "STRING"
    if column.length is not None:
        return f"VARCHAR({column.length})"
    name = type_name(column, dialect)
    if column.base is BaseType.DECIMAL and dialect != "sqlite":
        return f"{name}({column.precision},{column.scale})"
    if column.base is BaseType.UINT64 and name in {"DECIMAL", "NUMERIC"}:
        return f"{name}(20,0)"
    return name
