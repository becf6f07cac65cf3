"""What an engine declares about its metadata for the catalogue suite."""

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
"""Names looked up on every engine, and created where the engine allows them."""


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column type as declared, and as the engine's DESCRIBE shows it."""

    ddl: str
    shown: str


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table or view with all metadata that the engine reports. In statements, `{db}` and `{t}` stand for its quoted
    names.

    In defaults and foreign keys, `{database}` stands for the database name.
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
    """A nested column, its values as SQL, and the sorted distinct values at a path below it."""

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
    """What the suite must know about an engine. Template names are already quoted: `{db}`, `{t}` (with database)."""

    folding: Folding
    default_database: str
    int_type: TypeText
    text_type: TypeText
    types: tuple[TypeText, ...]
    tables: tuple[DescribedTable, ...] = ()
    nested: tuple[NestedFact, ...] = ()

    create_database: tuple[str, ...] = ()
    """If empty, no database can be created, and the suite uses the default one, which is empty."""
    drop_database: tuple[str, ...] = ()
    comment_database: tuple[str, ...] = ()
    """Statements that give the database the comment `Shop data`."""
    database_name: Callable[[str], str] = str
    """Maps the plain name of a new database to its name in the catalogue."""
    quote: Callable[[str], str] = identifier
    quote_database: Callable[[str], str] | None = None
    """Quotes a database's catalogue name; `quote` by default."""
    create_table: Callable[[str, Sequence[tuple[str, str]]], Sequence[str]] = _create_table
    """Takes a quoted table name and pairs of quoted column and type; the first column is unique and holds no NULL."""
    insert: Callable[[str, Sequence[Sequence[str]]], Sequence[str]] = _insert
    """Takes a quoted table name and rows of literals."""
    create_view: str | None = "CREATE VIEW {v} AS SELECT * FROM {t}"
    drop_table: str = "DROP TABLE {t}"
    drop_view: str = "DROP VIEW {v}"

    distinguishes_case: bool = False
    """Whether `items` and `Items` can be two tables."""
    odd_databases: tuple[str, ...] = ODD_NAMES
    odd_tables: tuple[str, ...] = ODD_NAMES
    odd_columns: tuple[str, ...] = ODD_NAMES
    """The odd column names that the engine allows."""

    analyzes_tables: bool = True
    analyzes_columns: bool = True
    statistics: Mapping[str, str] = field(default_factory=dict)
    """Table statistics known after analyzing a table of four rows; see the suite."""
    column_statistics: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Fields of ColumnStatistics known after analyze, for the columns `id` and `name`; empty if there are none, only a
    message."""

    builtin_function: str | None = None
    overloaded_function: str | None = None
    """A function whose signature has several lines."""
    create_function: tuple[str, ...] = ()
    """Statements that create the function `{db}.twice`."""
    drop_function: tuple[str, ...] = ()

    many_tables: int = 300
    create_many: Callable[[str, int], Sequence[str]] | None = None
    """Returns statements that create `count` tables `t0`, `t1`, … in a quoted database, if creating them singly takes
    too long."""
    catalog_on: Callable[[EngineSession], Catalog] | None = None
    """Opens the catalogue on the suite's own session, so that its statements can be counted."""

    def table(self, database: str, table: str) -> str:
        """Return a table's quoted name for its catalogue names."""
        return f"{self.database(database)}.{self.quote(table)}"

    def database(self, database: str) -> str:
        """Return a database's quoted name for its catalogue name."""
        return (self.quote_database or self.quote)(database)
