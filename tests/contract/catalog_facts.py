"""What an engine declares about its metadata before the catalogue suite runs over it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from queryserver.engines.catalog_queries import Folding, identifier
from queryserver.engines.protocol import Catalog, EngineSession, ForeignKey, TableColumn, TableKind

ODD_NAMES = (
    "o'brien",
    'x"y',
    "a`b",
    "t;drop",
    "a/b",
    "a.b",
    "Zoë 日本",
    "with blank",
    "back\\slash",
    "100%s {0} :x $1 ?",
    "--",
    "'; DROP TABLE canary; --",
    '"; DROP TABLE canary; --',
    "`; DROP TABLE canary; --",
    "\\'; DROP TABLE canary; --",
)
"""Each is asked for on every engine; where the engine can hold it, it is also made."""


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column type as it is declared, and as the engine's DESCRIBE shows it."""

    ddl: str
    shown: str


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table or view that shows what the engine can tell. In statements `{db}` and `{t}` stand for its quoted names.

    In defaults and foreign keys `{database}` stands for the name of the database.
    """

    name: str
    statements: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    kind: TableKind = TableKind.MANAGED
    comment: str = ""
    support_updates: bool | None = None
    format: str = ""
    foreign_keys: tuple[ForeignKey, ...] = ()


@dataclass(frozen=True, slots=True)
class NestedFact:
    """A nested column, its values as SQL, and the distinct values found at a path below it, in order."""

    ddl: str
    values: tuple[str, ...]
    path: tuple[str, ...]
    expected: tuple[object, ...]


def _create_table(table: str, columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return (f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)})",)


def _insert(table: str, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    values = ", ".join("(" + ", ".join(row) + ")" for row in rows)
    return (f"INSERT INTO {table} VALUES {values}",) if rows else ()


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What the suite must know of an engine. Names in templates are quoted already: `{db}`, `{t}` (with database)."""

    folding: Folding
    default_database: str
    int_type: TypeText
    text_type: TypeText
    types: tuple[TypeText, ...]
    tables: tuple[DescribedTable, ...] = ()
    nested: tuple[NestedFact, ...] = ()

    create_database: tuple[str, ...] = ()
    """Empty: no database can be made, and the suite works in the default one, which is empty."""
    drop_database: tuple[str, ...] = ()
    comment_database: tuple[str, ...] = ()
    """Give it the comment `Shop data`."""
    database_name: Callable[[str], str] = str
    """The name that the catalogue gives to a database made under that plain name."""
    quote: Callable[[str], str] = identifier
    quote_database: Callable[[str], str] | None = None
    """From the catalogue's name; as `quote` unless given."""
    create_table: Callable[[str, Sequence[tuple[str, str]]], Sequence[str]] = _create_table
    """Of a quoted table and pairs of quoted column and type; the first column holds no NULL, and no value twice."""
    insert: Callable[[str, Sequence[Sequence[str]]], Sequence[str]] = _insert
    """Of a quoted table and rows of literals."""
    create_view: str | None = "CREATE VIEW {v} AS SELECT * FROM {t}"
    drop_table: str = "DROP TABLE {t}"
    drop_view: str = "DROP VIEW {v}"

    distinguishes_case: bool = False
    """`items` and `Items` can be two tables."""
    odd_databases: tuple[str, ...] = ODD_NAMES
    odd_tables: tuple[str, ...] = ODD_NAMES
    odd_columns: tuple[str, ...] = ODD_NAMES
    """Those that the engine can hold."""

    analyzes_tables: bool = True
    analyzes_columns: bool = True
    statistics: Mapping[str, str] = field(default_factory=dict)
    """Known after analyze of a table of four rows; see the suite."""
    column_statistics: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Fields of ColumnStatistics known after analyze, by column `id` and `name`; empty: none, and a message."""

    builtin_function: str | None = None
    overloaded_function: str | None = None
    """One whose signature has several lines."""
    create_function: tuple[str, ...] = ()
    """Make function `{db}.twice`."""
    drop_function: tuple[str, ...] = ()

    many_tables: int = 300
    create_many: Callable[[str, int], Sequence[str]] | None = None
    """Statements that make so many tables `t0`, `t1`, … in a quoted database, where one by one takes too long."""
    catalog_on: Callable[[EngineSession], Catalog] | None = None
    """The catalogue on a session of the suite's own, to count its statements."""

    def table(self, database: str, table: str) -> str:
        """The quoted name of a table, from the catalogue's names."""
        return f"{self.database(database)}.{self.quote(table)}"

    def database(self, database: str) -> str:
        """The quoted name of a database, from the catalogue's name."""
        return (self.quote_database or self.quote)(database)
