"""The program of a SQLite process, which opens connections to the database and imports tables. All calls block."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pyarrow.compute

from queryserver import errors
from queryserver.engines import loader, protocol
from queryserver.engines.blocking_drivers import DriverConnection, TableWriter
from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.connections import MEMORY, refuse_links
from queryserver.engines.process.channel import Channel
from queryserver.engines.process.host import confine_process, run_process
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.sqlite import HEAP_BYTES, TEMPORARY_DIRECTORY
from queryserver.engines.sqlite.connection import (
    SqliteConnection,
    SqliteWatch,
    keep_temporary_files_in,
    opening_errors,
    statement_errors,
)
from queryserver.engines.storage_watch import StorageLimits
from queryserver.formats.arrow import ROW_SIZE_FACTOR, BaseType
from queryserver.platform.machine_limits import DiskFloor

_kernels: Any = pyarrow.compute
_EXISTS = "SELECT count(*) FROM {}.sqlite_schema WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"

_IS_VIRTUAL = """
    SELECT count(*) FROM {}.sqlite_schema
    WHERE type = 'table' AND name = ? COLLATE NOCASE AND sql LIKE 'CREATE VIRTUAL %'
"""


class SqliteWriter(TableWriter):
    """Creates tables in a SQLite database. A failed load leaves its staging table behind."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self._connection = connection
        self._native = connection.native

    def exists(self, table: protocol.TableName) -> bool:
        with statement_errors():
            sql = _EXISTS.format(identifier(table.database or "main"))
            return bool(self._native.execute(sql, (table.name,)).get)

    def write(self, load: protocol.TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        with self._connection.watched(grows=True), statement_errors(), self._interruptible():
            schema = load.target.database or "main"
            if schema.casefold() == "temp":
                raise loader.session_database_error(schema)
            staging = qualified(schema, load.staging.name)
            self._native.execute(f"CREATE TABLE {staging} ({loader.column_definitions(load.columns, identifier)})")
            rows = 0
            for batch in batches:
                with self._transaction(is_last=False):
                    self._insert(load, staging, batch)
                rows += batch.num_rows
            with self._transaction(is_last=True):
                is_virtual = _IS_VIRTUAL.format(identifier(schema))
                # DROP TABLE would not refuse a virtual table.
                if load.replace and self._native.execute(is_virtual, (load.target.name,)).get:
                    raise loader.not_plain_table_error(load.target)
                for step in loader.publishing_steps(load, staging, qualified(schema, load.target.name)):
                    self._native.execute(step)
            return rows

    def drop(self, table: protocol.TableName) -> None:
        self._connection.forget_interrupt()
        with statement_errors():
            self._native.execute(f"DROP TABLE IF EXISTS {qualified(table.database or 'main', table.name)}")

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        self._connection.forget_interrupt()
        self.allow_interrupt(is_allowed=True)
        try:
            # Without this pragma, a broken view, or a view that references the new table, would prevent the rename.
            self._native.execute("PRAGMA legacy_alter_table = ON")
            yield
        finally:
            self.allow_interrupt(is_allowed=False)

    @contextmanager
    def _transaction(self, *, is_last: bool) -> Generator[None]:
        """Run the block in a transaction. If `is_last` is set, its commit cannot be interrupted."""
        self._native.execute("BEGIN IMMEDIATE")
        try:
            yield
            if is_last:
                self.allow_interrupt(is_allowed=False)
            self._native.execute("COMMIT")
        except BaseException:  # the transaction must not stay open after any failure
            if self._native.in_transaction:
                self._native.execute("ROLLBACK")
            raise

    def _insert(self, load: protocol.TableLoad, staging: str, batch: pa.RecordBatch) -> None:
        values = [_storage_values(column, array) for column, array in zip(load.columns, batch.columns, strict=True)]
        marks = ", ".join("?" * len(values))
        rows = zip(*(array.to_pylist() for array in values), strict=True)
        self._native.cursor().executemany(f"INSERT INTO {staging} VALUES ({marks})", rows)


def _storage_values(column: protocol.LoadColumn, array: pa.Array) -> pa.Array:
    """Convert values to one of SQLite's storage classes (Contract importer 12.4)."""
    if pa.types.is_floating(array.type) and _kernels.any(_kernels.is_nan(array)).as_py():
        raise errors.StatementRejected(f'Column "{column.name}": SQLite does not support NaN and would store NULL.')
    match column.type.base:
        case BaseType.BOOLEAN:
            return array.cast(pa.int8())
        case BaseType.UINT64 | BaseType.DATE:
            return array.cast(pa.string())
        case BaseType.DATETIME | BaseType.TIME:
            return loader.without_zero_fraction(array.cast(pa.string()))
        case BaseType.DECIMAL:
            return loader.plain_decimals(array)
        case BaseType.DURATION:
            return loader.duration_text(array)
        case _:
            return array


_MEMORY_DATABASE_BYTES = 32 * 1024 * 1024
"""Maximum size of an in-memory database."""
_LOADED_VALUE_BYTES = 64 * 1024 * 1024
"""Maximum size of a value in an import."""

_OPTIONS = (
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, 0),
)


class SqliteDatabase:
    """A database file below `root`. If `file` is None, each connection has its own in-memory database."""

    def __init__(
        self,
        root: Path | None,
        file: Path | None,
        *,
        read_only: bool,
        busy_timeout_s: float,
        cell_max_bytes: int,
        storage: StorageLimits,
    ) -> None:
        apsw.hard_heap_limit(HEAP_BYTES)
        self._root = root
        self._file = file
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._cell_max_bytes = cell_max_bytes
        self._quota_bytes = storage.quota_bytes
        self._temporary = self._watch = None
        if file is not None and root is not None:
            self._temporary = root / TEMPORARY_DIRECTORY
            self._watch = SqliteWatch(file, self._temporary, storage)

    def connect(self, *, is_loader: bool = False) -> SqliteConnection:
        """Open a connection. Raises EngineUnavailable."""
        if self._file is not None and self._root is not None:
            refuse_links(self._root, self._file)
        mode = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        flags = (apsw.SQLITE_OPEN_READONLY if self._read_only else mode) | apsw.SQLITE_OPEN_NOFOLLOW
        with opening_errors():
            connection = apsw.Connection(str(self._file or MEMORY), flags=flags)
            try:
                self._prepare(connection)
                value_bytes = _LOADED_VALUE_BYTES if is_loader else ROW_SIZE_FACTOR * self._cell_max_bytes
                connection.limit(apsw.SQLITE_LIMIT_LENGTH, value_bytes)
            except BaseException:  # the connection must not stay open after any failure
                connection.close()
                raise
        return SqliteConnection(
            connection, busy_timeout_s=self._busy_timeout_s, cell_max_bytes=self._cell_max_bytes, watch=self._watch
        )

    def _prepare(self, connection: apsw.Connection) -> None:
        for option, value in _OPTIONS:
            connection.config(option, value)
        connection.set_busy_timeout(int(self._busy_timeout_s * 1000))
        # With a write-ahead log, readers and the writer do not block each other.
        mode = "query_only = 1" if self._read_only else "journal_mode = WAL"
        connection.execute(f"PRAGMA {mode}")
        if self._temporary is None:
            connection.execute("PRAGMA temp_store = MEMORY")
        else:
            keep_temporary_files_in(self._temporary, connection)
        max_bytes = _MEMORY_DATABASE_BYTES if self._file is None else self._quota_bytes
        for schema in ("main", "temp"):
            ((page_bytes,),) = connection.execute(f"PRAGMA {schema}.page_size")
            connection.execute(f"PRAGMA {schema}.max_page_count = {max(max_bytes // page_bytes, 1):d}")


class HostedSqlite:
    """Implements `HostedDatabase`. `configuration` comes from `SqliteEngine`."""

    has_ended = False

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        file, root = configuration["file"], configuration["root"]
        self._database = SqliteDatabase(
            None if root is None else Path(root),
            None if file is None else Path(file),
            read_only=configuration["read_only"],
            busy_timeout_s=configuration["busy_timeout_s"],
            cell_max_bytes=configuration["cell_max_bytes"],
            storage=StorageLimits(
                quota_bytes=configuration["quota_bytes"],
                floor=DiskFloor(percent=configuration["floor_percent"], min_bytes=configuration["floor_bytes"]),
            ),
        )

    def connect(self, session: int, user_id: int, options: SessionOptions, *, is_loader: bool) -> SqliteConnection:  # noqa: ARG002
        return self._database.connect(is_loader=is_loader)

    def writer(self, connection: DriverConnection) -> TableWriter:
        assert isinstance(connection, SqliteConnection)  # noqa: S101 `connect` created it
        return SqliteWriter(connection)

    def close(self) -> None:
        """Do nothing, because each session closes its connection."""


def main() -> None:
    def open_database(configuration: Mapping[str, Any], calls: Channel) -> HostedSqlite:  # noqa: ARG001
        file, root = configuration["file"], configuration["root"]
        folders = list[Path]()
        if file is not None and root is not None:
            temporary = Path(root, TEMPORARY_DIRECTORY)
            temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite keeps a database file's log next to it.
            folders = [temporary, Path(file).parent]
        confine_process(configuration, folders)
        return HostedSqlite(configuration)

    run_process(open_database)
