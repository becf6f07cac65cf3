"""Tables of SQLite from Arrow batches. Everything here blocks.

Each batch is a transaction of its own into the staging table: one transaction around all would lock the database
against every other writer for as long as the file takes to arrive.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute

from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.loading import (
    column_definitions,
    duration_text,
    no_table,
    passing,
    plain_decimals,
    without_zero_fraction,
)
from queryserver.engines.protocol import LoadColumn, TableLoad, TableName
from queryserver.engines.sqlite.connection import SqliteConnection, statement_errors
from queryserver.errors.statements import StatementRejected
from queryserver.imports.model import BaseType

_kernels: Any = pyarrow.compute
_EXISTS = "SELECT count(*) FROM {}.sqlite_schema WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"

_IS_VIRTUAL = """
    SELECT count(*) FROM {}.sqlite_schema
    WHERE type = 'table' AND name = ? COLLATE NOCASE AND sql LIKE 'CREATE VIRTUAL %'
"""


class SqliteWriter:
    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self._native = connection.native
        self._ending = threading.Lock()
        self._may_interrupt = False

    def exists(self, table: TableName) -> bool:
        with statement_errors():
            sql = _EXISTS.format(identifier(table.database or "main"))
            return bool(self._native.execute(sql, (table.name,)).get)

    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """See the Protocol. The staging table stays when it fails."""
        with statement_errors(), self._interruptible():
            schema = load.target.database or "main"
            if schema.casefold() == "temp":
                raise passing(schema)
            staging = qualified(schema, load.staging.name)
            self._native.execute(f"CREATE TABLE {staging} ({column_definitions(load.columns, identifier)})")
            rows = 0
            for batch in batches:
                with self._transaction(is_last=False):
                    self._insert(load, staging, batch)
                rows += batch.num_rows
            with self._transaction(is_last=True):
                self._refuse_replacing(load, schema)
                for step in _publishing(load, schema, staging):
                    self._native.execute(step)
            return rows

    def _refuse_replacing(self, load: TableLoad, schema: str) -> None:
        """Raises StatementRejected for a virtual table, which DROP TABLE does not refuse."""
        if load.replace and self._native.execute(_IS_VIRTUAL.format(identifier(schema)), (load.target.name,)).get:
            raise no_table(load.target)

    def drop(self, table: TableName) -> None:
        self._connection.forget_interrupt()
        with statement_errors():
            self._native.execute(f"DROP TABLE IF EXISTS {qualified(table.database or 'main', table.name)}")

    def interrupt(self) -> None:
        with self._ending:
            if self._may_interrupt:
                self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        self._connection.forget_interrupt()
        self._allow_interrupt(is_allowed=True)
        try:
            # Else a view of the database that is broken, or names the new table, would forbid the renaming.
            self._native.execute("PRAGMA legacy_alter_table = ON")
            yield
        finally:
            self._allow_interrupt(is_allowed=False)

    @contextmanager
    def _transaction(self, *, is_last: bool) -> Generator[None]:
        """All or nothing. The commit of the last one is not interrupted."""
        self._native.execute("BEGIN IMMEDIATE")
        try:
            yield
            if is_last:
                self._allow_interrupt(is_allowed=False)
            self._native.execute("COMMIT")
        except BaseException:  # the transaction must not stay open, whatever failed
            if self._native.in_transaction:
                self._native.execute("ROLLBACK")
            raise

    def _allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._ending:
            self._may_interrupt = is_allowed

    def _insert(self, load: TableLoad, staging: str, batch: pa.RecordBatch) -> None:
        values = [_stored(column, array) for column, array in zip(load.columns, batch.columns, strict=True)]
        marks = ", ".join("?" * len(values))
        rows = zip(*(array.to_pylist() for array in values), strict=True)
        self._native.cursor().executemany(f"INSERT INTO {staging} VALUES ({marks})", rows)


def _publishing(load: TableLoad, schema: str, staging: str) -> tuple[str, ...]:
    target = qualified(schema, load.target.name)
    if not load.append:
        # DROP TABLE refuses a view.
        old = (f"DROP TABLE IF EXISTS {target}",) if load.replace else ()
        return (*old, f"ALTER TABLE {staging} RENAME TO {identifier(load.target.name)}")
    names = ", ".join(identifier(column.name) for column in load.columns)
    return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging}", f"DROP TABLE {staging}"


def _stored(column: LoadColumn, array: pa.Array) -> pa.Array:
    """The values in one of SQLite's storage classes (Contract importer 12.4)."""
    if pa.types.is_floating(array.type) and _kernels.any(_kernels.is_nan(array)).as_py():
        raise StatementRejected(f'Column "{column.name}": SQLite has no NaN, it would become NULL.')
    convert = _STORED.get(column.type.base)
    return array if convert is None else convert(array)


def _number(array: pa.Array) -> pa.Array:
    return array.cast(pa.int8())


def _text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _time_text(array: pa.Array) -> pa.Array:
    return without_zero_fraction(array.cast(pa.string()))


_STORED: dict[BaseType, Callable[[pa.Array], pa.Array]] = {
    BaseType.BOOLEAN: _number,
    BaseType.UINT64: _text,
    BaseType.DECIMAL: plain_decimals,
    BaseType.DATE: _text,
    BaseType.DATETIME: _time_text,
    BaseType.TIME: _time_text,
    BaseType.DURATION: duration_text,
}
