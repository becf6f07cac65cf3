"""File origins, and each dialect's column types, column names and name limits (Contract importer)."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from queryserver.formats.arrow import BaseType, ColumnType
from queryserver.formats.cell_types.header import MAX_NAME_CHARACTERS


class Origin(StrEnum):
    """The values of the request parameter `import_type`."""

    LOCAL = "local"
    REMOTE = "remote"


_DIALECTS = ("hive", "impala", "trino", "phoenix", "postgresql", "mysql", "sqlite", "duckdb")

# One row per base type, with type names in the order of _DIALECTS. sparksql uses the names of hive.
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


def _type_names(dialect: str, *more: str) -> Sequence[str]:
    """Return the type names of a dialect in the table above together with `more`, sorted."""
    return tuple(sorted({*more, *(names[_DIALECTS.index(dialect)] for names in _NAMES.values())}))


SQL_TYPES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **{dialect: _type_names(dialect, "VARCHAR") for dialect in ("postgresql", "mysql", "sqlite", "duckdb")},
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
"""The responses of sql_type_mapping. For dialects that the specification lists, the type names are taken from the
specification.
"""

PREVIEW_DIALECTS = ("duckdb", "hive", "impala", "mysql", "phoenix", "postgresql", "sparksql", "sqlite", "trino")
"""Dialects for which previews show SQL types."""

TABLE_DIALECTS = ("postgresql", "mysql", "sqlite", "duckdb", "hive", "sparksql", "trino", "phoenix")
"""Dialects in which imports can create tables."""

REPLACING_DIALECTS = frozenset(TABLE_DIALECTS) - {"phoenix"}
"""Dialects in which imports can replace tables. This requires renaming, which Phoenix does not support."""

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
"""Dialects in which a type may be declared with a precision of 6. Values are always stored with this precision."""
# No column of a new table may have these types: files cannot fill the first four, and a column of NULLs is useless.
_NEVER_ALLOWED = frozenset({BaseType.BINARY, BaseType.ARRAY, BaseType.STRUCT, BaseType.OBJECT, BaseType.NULL})
# The base type to use for a type name that stands for several base types.
_PREFERRED: Mapping[tuple[str, str], BaseType] = {
    ("sqlite", "INTEGER"): BaseType.INT64,
    ("sqlite", "REAL"): BaseType.FLOAT64,
    ("sqlite", "TEXT"): BaseType.STRING,
    ("mysql", "TEXT"): BaseType.STRING,
    ("postgresql", "SMALLINT"): BaseType.INT16,
}
# Several dialects store these types as a wider signed type. The name of that type then means the signed type.
_UNSIGNED = frozenset({BaseType.UINT8, BaseType.UINT16, BaseType.UINT32, BaseType.UINT64})


def type_name(column: ColumnType, dialect: str) -> str:
    """Return the type name that previews show for a dialect, without length, precision or scale."""
    return _NAMES[column.base][_DIALECTS.index("hive" if dialect == "sparksql" else dialect)]


def base_type_of(name: str, dialect: str) -> BaseType | None:
    """Return the base type that a type name denotes, ignoring case. Return None if new columns cannot have the type."""
    upper_name = name.upper()
    if (dialect, upper_name) in _PREFERRED:
        return _PREFERRED[dialect, upper_name]
    text_type = type_name(ColumnType(BaseType.STRING), dialect)
    # STRING is accepted in every dialect that lists it, even if its text type has another name, such as VARCHAR.
    if upper_name in {text_type, "STRING"} and upper_name in {text_type, *SQL_TYPES.get(dialect, ())}:
        return BaseType.STRING
    allowed = (base for base in _NAMES if base not in _NEVER_ALLOWED)
    candidates = [base for base in allowed if type_name(ColumnType(base), dialect) == upper_name]
    return min(candidates, key=lambda base: base in _UNSIGNED, default=None)


def column_type_of(text: str, dialect: str) -> ColumnType | None:
    """Parse an SQL type: a name as in `base_type_of`, or one with parameters such as `numeric(12,2)` or
    `varchar(20)`.

    Return None if new columns cannot have the type. A decimal type without parameters has neither precision nor scale.
    """
    normalized = " ".join(text.upper().split())
    if (base := base_type_of(normalized, dialect)) is not None:
        return ColumnType(base)
    match = _WITH_PARAMETERS.fullmatch(normalized)
    if match is None:
        return None
    name = match["name"]
    first, second = (None if digits is None else int(digits) for digits in match.group("first", "second"))
    if name in _DECIMALS:
        return ColumnType(BaseType.DECIMAL, first, None if first is None else second or 0)
    if second is not None:
        return None
    if name in _TEXTS:
        return ColumnType(BaseType.STRING, length=first)
    is_exact = name in _MICROSECONDS and first == _MICROSECOND_DIGITS and dialect in _MICROSECONDS[name]
    return ColumnType(BaseType.TIME if name == "TIME" else BaseType.DATETIME) if is_exact else None


def allowed_types(dialect: str) -> Sequence[str]:
    """Return the column types that a new table may have, as shown in error messages."""
    names = {type_name(ColumnType(base), dialect) for base in _NAMES if base not in _NEVER_ALLOWED}
    decimals = {"DECIMAL", "NUMERIC"}
    return sorted({*(names - decimals), "NUMERIC(p,s)", "VARCHAR(n)"})


def declared_type(column: ColumnType, dialect: str) -> str:
    """Return the SQL type of a column for CREATE TABLE (Contract importer 12.4, 13)."""
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


@dataclass(frozen=True, slots=True)
class NameLimit:
    """The maximum length of a column or table name."""

    max_length: int
    in_bytes: bool = False
    """Whether the length is counted in UTF-8 bytes instead of characters."""

    def __str__(self) -> str:
        return f"{self.max_length} {'bytes in UTF-8' if self.in_bytes else 'characters'}"

    def allows(self, name: str) -> bool:
        return (len(name.encode("utf-8", "replace")) if self.in_bytes else len(name)) <= self.max_length

    def cut(self, name: str, suffix: str = "") -> str:
        """Append the suffix, truncating the name to fit. A character is never separated from its combining marks."""
        if self.allows(name + suffix):
            return name + suffix
        room = self.max_length - len(suffix)  # suffixes are ASCII
        end = len(name.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")) if self.in_bytes else room
        while end > 1 and unicodedata.combining(name[end]):
            end -= 1
        return name[:end].rstrip() + suffix


_LIMITS: Mapping[str, NameLimit] = {
    "postgresql": NameLimit(63, in_bytes=True),
    "mysql": NameLimit(64),
    "impala": NameLimit(128),
}
_DEFAULT_LIMIT = NameLimit(MAX_NAME_CHARACTERS)
"""The limit for dialects that have a higher limit or none: duckdb and sqlite have no limit, the metastore of hive and
sparksql allows 767 characters, phoenix allows more, and in trino the limit depends on the catalog.
"""


def name_limit(dialect: str) -> NameLimit:
    return _LIMITS.get(dialect, _DEFAULT_LIMIT)


def engine_names(names: Sequence[str], dialect: str) -> Sequence[str]:
    """Truncate the names that are too long for the dialect. The results are distinct, ignoring case.

    If several truncated names are equal, the first column keeps the name, and later columns get the suffixes `_2`, `_3`
    and so on. `names` must be distinct.
    """
    limit = name_limit(dialect)
    taken = {name.lower() for name in names if limit.allows(name)}
    tried: dict[str, int] = {}
    shortened: list[str] = []
    for name in names:
        if limit.allows(name):
            shortened.append(name)
            continue
        short = limit.cut(name)
        number = tried.get(short.lower(), 1)
        candidate = short
        while candidate.lower() in taken:
            number += 1
            candidate = limit.cut(name, f"_{number}")
        tried[short.lower()] = number
        taken.add(candidate.lower())
        shortened.append(candidate)
    return shortened
