"""The facts about an engine's metadata that the catalog suite needs."""

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
"""Names that the suite looks up on every engine, and creates where the engine allows them."""


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column type as written in DDL, and as the engine's DESCRIBE reports it."""

    ddl: str
    shown: str


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table or view with all metadata that the engine reports.

    In statements, `{db}` and `{t}` stand for the quoted database and table names. In defaults and foreign keys,
    `{database}` stands for the unquoted database name.
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
    """A nested column, its values as SQL literals, and the sorted distinct values at a path inside the column."""

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
    """The facts about an engine that the suite needs. In templates, `{db}` and `{t}` (with its database) are quoted
    names.
    """

    folding: Folding
    default_database: str
    int_type: TypeText
    text_type: TypeText
    types: tuple[TypeText, ...]
    tables: tuple[DescribedTable, ...] = ()
    nested: tuple[NestedFact, ...] = ()

    create_database: tuple[str, ...] = ()
    """Statements that create a database. If empty, the engine cannot create one, and the suite uses the default
    database.
    """
    drop_database: tuple[str, ...] = ()
    comment_database: tuple[str, ...] = ()
    """Statements that set the database comment to `Shop data`."""
    database_name: Callable[[str], str] = str
    """Maps the plain name of a new database to its catalog name."""
    quote: Callable[[str], str] = identifier
    quote_database: Callable[[str], str] | None = None
    """Quotes the catalog name of a database. If None, `quote` is used."""
    create_table: Callable[[str, Sequence[tuple[str, str]]], Sequence[str]] = _create_table
    """Takes a quoted table name and (quoted column, type) pairs, and returns the statements that create the table. The
    first column is unique and contains no NULL.
    """
    insert: Callable[[str, Sequence[Sequence[str]]], Sequence[str]] = _insert
    """Takes a quoted table name and rows of literals, and returns the statements that insert the rows."""
    create_view: str | None = "CREATE VIEW {v} AS SELECT * FROM {t}"
    drop_table: str = "DROP TABLE {t}"
    drop_view: str = "DROP VIEW {v}"

    distinguishes_case: bool = False
    """Whether `items` and `Items` can be two different tables."""
    odd_databases: tuple[str, ...] = ODD_NAMES
    odd_tables: tuple[str, ...] = ODD_NAMES
    odd_columns: tuple[str, ...] = ODD_NAMES
    """The names from ODD_NAMES that the engine allows for columns."""

    analyzes_tables: bool = True
    analyzes_columns: bool = True
    statistics: Mapping[str, str] = field(default_factory=dict)
    """Table statistics that the engine reports after it has analyzed a table of four rows; the suite creates the table.
    """
    column_statistics: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """ColumnStatistics fields that the engine reports for `id` and `name` after analyze. If empty, the engine returns
    only a message.
    """

    builtin_function: str | None = None
    overloaded_function: str | None = None
    """An overloaded function; its signature has one line per overload."""
    create_function: tuple[str, ...] = ()
    """Statements that create the function `{db}.twice`."""
    drop_function: tuple[str, ...] = ()

    many_tables: int = 300
    create_many: Callable[[str, int], Sequence[str]] | None = None
    """Returns statements that create `count` tables `t0`, `t1`, … in a quoted database.

    Needed only if creating the tables one by one takes too long.
    """
    catalog_on: Callable[[EngineSession], Catalog] | None = None
    """Opens the catalog on a session of the suite that counts the catalog's statements."""

    def table(self, database: str, table: str) -> str:
        """Return the quoted name of a table, given its catalog names."""
        return f"{self.database(database)}.{self.quote(table)}"

    def database(self, database: str) -> str:
        """Return the quoted name of a database, given its catalog name."""
        return (self.quote_database or self.quote)(database)
