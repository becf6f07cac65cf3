"""The facts about an engine that the loading suite needs."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

from queryserver.engines.protocol import TableName
from queryserver.formats.arrow import BaseType, ColumnType

INF, NAN = float("inf"), float("nan")

TEXTS = (
    "", "NULL", "null", "\\N", "\\.", "\\", "a\\b", "'", '"', "''", '""', "`", "it's", 'say "hi"', "tab\there",
    "line\nbreak", "carriage\r\nreturn", "\r", "\n", "\n\\.\n", " blanks ", ",", ";", "Zoë 🐘 日本",
    "%s %(x)s {y} :z ? $1", "'); DROP TABLE x; --", "/* x */ -- y", "\x01\x1f\x7f", "e\u0301", "\ufeff", "\u2028",
)  # fmt: skip
"""Strings that an engine's value encoding might alter."""

VALUES: Mapping[BaseType, Sequence[object]] = MappingProxyType(
    {
        BaseType.INT8: (-128, 0, 127),
        BaseType.INT16: (-32768, 0, 32767),
        BaseType.INT32: (-(2**31), 0, 2**31 - 1),
        BaseType.INT64: (-(2**63), 0, 2**63 - 1),
        BaseType.UINT8: (0, 255),
        BaseType.UINT16: (0, 65535),
        BaseType.UINT32: (0, 2**32 - 1),
        BaseType.UINT64: (0, 2**64 - 1),
        BaseType.FLOAT32: (0.0, -0.0, 1.5, -3.4028234663852886e38, 1.401298464324817e-45, INF, -INF, NAN),
        BaseType.FLOAT64: (0.0, -0.0, 0.1, 1.7976931348623157e308, -5e-324, 123456789012345.67, INF, -INF, NAN),
        BaseType.DECIMAL: (
            Decimal(0), Decimal("0.0000000001"), Decimal("-1.5"), Decimal("1234567890123456789012345678.0123456789"),
        ),
        BaseType.BOOLEAN: (True, False),
        BaseType.DATE: (dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)),
        BaseType.DATETIME: tuple(
            map(
                dt.datetime.fromisoformat,
                (
                    "0001-01-01 00:00:00.000001", "1969-12-31 23:59:59", "2024-02-29 10:20:30.000005",
                    "9999-12-31 23:59:59.999999",
                ),
            )
        ),
        BaseType.TIME: (dt.time(0), dt.time(10, 20, 30), dt.time(10, 20, 30, 40), dt.time(23, 59, 59, 999999)),
        BaseType.DURATION: (
            dt.timedelta(0), dt.timedelta(hours=30), dt.timedelta(microseconds=-1), dt.timedelta(days=400, seconds=1),
            -dt.timedelta(hours=30, minutes=5),
        ),
        BaseType.STRING: TEXTS,
        BaseType.BINARY: (b"", b"\x00\xff'\\\n\"", b"\xf0\x9f\x90\x98" * 100),
        BaseType.NULL: (),
    }
)  # fmt: skip
"""Values of every type that an imported column can have; the tests add a NULL to each."""

DECIMAL = ColumnType(BaseType.DECIMAL, 38, 10)

NAMES = (
    "select", "with blank", " leading", "a.b", 'quo"te', "it's", "back`tick", "a;b", "x); DROP TABLE y; --", "Zoë 日本",
    "UPPER", "Mixed Case", "percent%s", "{brace}", ":colon", "?", "$1", "back\\slash", "-- comment", "/*", "tab\there",
    "[bracket]", "#hash", "@at", "1digit", "comma,comma",
)  # fmt: skip
"""Table and column names that must be quoted as names and never run as SQL."""


@dataclass(frozen=True, slots=True)
class LoadingFacts:
    """The facts about an engine that the suite needs. In statements, `{t}` stands for the quoted table name."""

    dialect: str
    """The dialect name in `imports.model`."""
    quoted: Callable[[str], str]
    """Quotes a name for the engine's SQL."""
    select_sql: str = "SELECT * FROM {t}"
    count_sql: str = "SELECT count(*) FROM {t}"
    create_sql: str = "CREATE TABLE {t} (a INTEGER)"
    create_n_sql: str = "CREATE TABLE {t} (n BIGINT)"
    insert_sql: str = "INSERT INTO {t} VALUES (1)"
    drop_sql: str = "DROP TABLE {t}"
    view_sql: tuple[str, str] | None = ("CREATE VIEW {t} AS SELECT 1 AS a", "DROP VIEW {t}")
    """Statements that create and drop a view named `{t}`."""
    database: str | None = None
    """A database or schema other than the session's default."""
    database_sql: tuple[str, ...] = ()
    """Statements that create the database if it does not exist; `{d}` stands for its quoted name."""
    passing_database: str | None = None
    """A database whose tables the engine drops at the end of the session."""
    values: Mapping[BaseType, Sequence[object]] = field(default_factory=lambda: MappingProxyType({}))
    """Replaces entries of VALUES for types that have a smaller range in this engine."""
    refused: tuple[tuple[BaseType, object, str], ...] = ()
    """Values that the engine cannot store, with part of the error message."""
    names: Sequence[str] = NAMES
    table_names: Sequence[str] | None = None
    """Table names, if they differ from the column names or if the engine creates tables slowly."""
    refused_names: Sequence[str] = ()
    """Table and column names that the engine refuses."""
    refused_columns: Sequence[str] = ()
    refused_tables: Sequence[str] = ()
    longest_name: int | None = 128
    """The maximum name length in characters; longer names are refused. None if the engine accepts names of any length.
    """
    long_text: int = 1024 * 1024
    """The length in characters of a long string that is loaded and read back."""
    many_rows: int = 200_000
    """The number of rows that are loaded with bounded memory."""
    batch_rows: int = 5000
    """The number of rows per batch in tests that need a load to take some time."""
    replaces: bool = True
    """Whether an import can replace an existing table."""
    has_not_null: bool = True
    """Whether the engine refuses a NULL in a NOT NULL column."""
    uses_ledger: bool = True
    """False if the transaction's end removes the staging table, so that a crash leaves no table behind."""

    def sql_name(self, table: TableName) -> str:
        """Return the quoted table name, with its database if it has one."""
        parts = (table.database, table.name) if table.database else (table.name,)
        return ".".join(map(self.quoted, parts))

    def values_of(self, base: BaseType) -> Sequence[object]:
        """Return the test values of the type; loading must not alter them."""
        return self.values.get(base, VALUES[base])
