"""Tables of DuckDB from Arrow batches, which it reads in place, in one transaction. Everything here blocks."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.duckdb.connection import DuckdbConnection, statement_errors
from queryserver.engines.loading import column_definitions
from queryserver.engines.protocol import TableLoad, TableName
from queryserver.imports.model import arrow_type

_EXISTS = """
    SELECT count(*) > 0 FROM (
        SELECT schema_name, table_name AS name FROM duckdb_tables() WHERE database_name = current_database()
        UNION ALL
        SELECT schema_name, view_name AS name FROM duckdb_views() WHERE database_name = current_database()
    ) WHERE lower(schema_name) = lower(?) AND lower(name) = lower(?)
"""


class DuckdbWriter:
    def __init__(self, connection: DuckdbConnection, root: Path | None) -> None:
        self._connection = connection
        self._native = connection.native
        self._root = root
        self._ending = threading.Lock()
        self._may_interrupt = False

    def exists(self, table: TableName) -> bool:
        with statement_errors(self._root):
            _, schema = self._place(table)
            return self._native.execute(_EXISTS, [schema, table.name]).fetchall() == [(True,)]

    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """See the Protocol. Nobody sees the staging table before it is the target."""
        with statement_errors(self._root):
            place = self._place(load.target)
            staging, target = qualified(*place, load.staging.name), qualified(*place, load.target.name)
            try:
                self._native.execute("BEGIN")
                self._allow_interrupt(is_allowed=True)
                self._native.execute(f"CREATE TABLE {staging} ({column_definitions(load.columns, identifier)})")
                rows = self._insert(load, staging, batches)
                for step in _publishing(load, staging, target):
                    self._native.execute(step)
                self._allow_interrupt(is_allowed=False)
                self._native.execute("COMMIT")
            except BaseException:  # the transaction must not stay open, whatever failed
                self._allow_interrupt(is_allowed=False)
                with suppress(duckdb.Error):
                    self._native.execute("ROLLBACK")
                raise
            return rows

    def drop(self, table: TableName) -> None:
        with statement_errors(self._root):
            self._native.execute(f"DROP TABLE IF EXISTS {qualified(*self._place(table), table.name)}")

    def interrupt(self) -> None:
        with self._ending:
            if self._may_interrupt:
                self._native.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._ending:
            self._may_interrupt = is_allowed

    def _place(self, table: TableName) -> tuple[str, str]:
        """Database and schema of a table. Full names begin with the database's: a schema may have the same name."""
        ((database, schema),) = self._native.execute("SELECT current_database(), current_schema()").fetchall()
        return database, table.database or schema

    def _insert(self, load: TableLoad, staging: str, batches: Iterator[pa.RecordBatch]) -> int:
        schema = pa.schema([(column.name, arrow_type(column.type)) for column in load.columns])
        source = f"{load.staging.name}_rows"
        # A name of this connection only; DuckDB's own threads pull the batches while they write.
        self._native.register(source, pa.RecordBatchReader.from_batches(schema, batches))
        try:
            ((rows,),) = self._native.execute(f"INSERT INTO {staging} SELECT * FROM {identifier(source)}").fetchall()
        finally:
            self._native.unregister(source)
        return rows


def _publishing(load: TableLoad, staging: str, target: str) -> tuple[str, ...]:
    if not load.append:
        # DROP TABLE refuses a view.
        old = (f"DROP TABLE IF EXISTS {target}",) if load.replace else ()
        return (*old, f"ALTER TABLE {staging} RENAME TO {identifier(load.target.name)}")
    names = ", ".join(identifier(column.name) for column in load.columns)
    return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging}", f"DROP TABLE {staging}"
