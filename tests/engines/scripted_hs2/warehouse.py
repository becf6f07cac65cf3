"""The databases, tables and metadata of the scripted Impala. DuckDB stores and queries the rows."""

from dataclasses import dataclass, field

import duckdb


class StatementRefusal(Exception):
    """Impala rejects the statement. The message is the one that Impala returns."""


@dataclass(slots=True)
class Table:
    """A table or view. Each column has a name, a type in lower case, and a comment."""

    columns: list[tuple[str, str, str]]
    comment: str = ""
    file_format: str = "TEXT"
    is_view: bool = False
    is_external: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    column_statistics: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of distinct values and NULLs per column, once they have been computed."""


@dataclass(slots=True)
class Database:
    """A database with its tables by name."""

    comment: str = ""
    tables: dict[str, Table] = field(default_factory=dict)


class Warehouse:
    """All databases; each has its own schema in DuckDB."""

    def __init__(self) -> None:
        self.rows = duckdb.connect(":memory:", config={"threads": 1, "preserve_insertion_order": True})
        self.databases: dict[str, Database] = {}
        self.create_database("default", "Default Hive database")
        self.create_database("_impala_builtins", "System database for Impala builtin functions")

    def create_database(self, name: str, comment: str = "") -> None:
        if name in self.databases:
            raise StatementRefusal(f"AnalysisException: Database already exists: {name}")
        if not name.replace("_", "").isalnum() or not name.isascii():
            raise StatementRefusal(f"AnalysisException: Invalid database name: {name}")
        self.rows.execute(f'CREATE SCHEMA "{name}"')
        self.databases[name] = Database(comment)

    def drop_database(self, name: str) -> None:
        self.database(name)
        self.rows.execute(f'DROP SCHEMA "{name}" CASCADE')
        del self.databases[name]

    def database(self, name: str) -> Database:
        if name not in self.databases:
            raise StatementRefusal(f"AnalysisException: Database does not exist: {name}")
        return self.databases[name]

    def table(self, database: str, name: str) -> Table:
        """Return a table. Like Impala's DESCRIBE, report a missing database as a path that cannot be resolved. Raises
        StatementRefusal.
        """
        tables = self.databases[database].tables if database in self.databases else {}
        if name not in tables:
            raise StatementRefusal(f"AnalysisException: Could not resolve path: '{database}.{name}'")
        return tables[name]
