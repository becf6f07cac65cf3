"""The scripted Impala's databases, tables and metadata; DuckDB stores and queries the rows."""

from dataclasses import dataclass, field

import duckdb


class StatementRefusal(Exception):
    """Impala refuses the statement; the message is Impala's."""


@dataclass(slots=True)
class Table:
    """Columns are name, type in lower case, comment."""

    columns: list[tuple[str, str, str]]
    comment: str = ""
    file_format: str = "TEXT"
    is_view: bool = False
    is_external: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    column_statistics: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Distinct values and NULLs, once computed."""


@dataclass(slots=True)
class Database:
    """Tables by name."""

    comment: str = ""
    tables: dict[str, Table] = field(default_factory=dict)


class Warehouse:
    """All databases. DuckDB has a schema for each."""

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
        """Find a table; like Impala's DESCRIBE, resolve a path without reporting a missing database."""
        tables = self.databases[database].tables if database in self.databases else {}
        if name not in tables:
            raise StatementRefusal(f"AnalysisException: Could not resolve path: '{database}.{name}'")
        return tables[name]
