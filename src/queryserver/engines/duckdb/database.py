"""The program of a DuckDB process. It opens and locks down the database, connects its sessions, and imports tables.

All calls block. The server never imports this module, because the driver takes 12 MiB of memory that many servers never
need.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from queryserver.engines.blocking_drivers import DriverConnection, TableWriter
from queryserver.engines.catalog_queries import identifier, literal, qualified
from queryserver.engines.connections import MEMORY, refuse_links
from queryserver.engines.duckdb.connection import DuckdbConnection, StatementLimits
from queryserver.engines.duckdb.failures import opening_errors
from queryserver.engines.duckdb.file_system import FileSystems
from queryserver.engines.duckdb.guard import SESSION_SETTINGS
from queryserver.engines.duckdb.limits import DuckdbLimits
from queryserver.engines.duckdb.session_files import SessionFileAccess
from queryserver.engines.duckdb.temporary_files import ProcessDirectory, TemporaryFilesLimit
from queryserver.engines.loader import column_definitions, publishing_steps
from queryserver.engines.process.calls import RemoteFiles, RemoteResults
from queryserver.engines.process.channel import Channel
from queryserver.engines.process.host import ServerCalls, confine_process, run_process
from queryserver.engines.protocol import SessionOptions, TableLoad, TableName
from queryserver.engines.storage_watch import StorageLimits, StorageWatch, size_of
from queryserver.formats.conversion import arrow_type
from queryserver.platform.machine_limits import DiskFloor

Config = dict[str, str | bool | int | float | list[str]]

# Settings that a session may change (guard.py), and settings that the engine itself must change.
_UNLOCKED_SETTINGS = (
    *sorted(SESSION_SETTINGS), "enable_progress_bar", "enable_progress_bar_print", "progress_bar_time",
    "max_temp_directory_size",
)  # fmt: skip

# The order matters: after the last statement, no other setting can be changed.
_LOCK_DOWN = (
    # All sessions would share the cached blocks, whose version is only the file's modification time in seconds.
    "SET enable_external_file_cache = false",
    "SET partitioned_write_max_open_files = 16",
    f"SET allowed_configs = {list(_UNLOCKED_SETTINGS)}",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

# Gives each session its own value for every setting that statements may change.
_PREPARE_SESSION = (
    "SET TimeZone = 'UTC'",
    "SET Calendar = 'gregorian'",
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
    "SET progress_bar_time = 0",
)


class DuckdbDatabase:
    """An open database: a file below `root`, or an in-memory database if `file` is None. Raises EngineUnavailable."""

    def __init__(
        self,
        root: Path | None,
        file: Path | None,
        config: Config,
        *,
        read_only: bool,
        limits: DuckdbLimits,
        schemes: frozenset[str] = frozenset(),
        temporary: Path | None = None,
    ) -> None:
        """`temporary` is the parent directory for an in-memory database's temporary files.

        `schemes` are the `StatementFiles` schemes that sessions with file access may read and write.
        """
        self._root = root
        self.has_ended = False
        """Whether an internal error has invalidated the database. All its connections then refuse statements."""
        self.files = FileSystems(schemes) if schemes else None
        """Store access for the database's statements; None if `schemes` is empty."""
        self._limits = _statement_limits(limits, file, temporary if file is None else file.parent)
        if file is not None and root is not None:
            refuse_links(root, file)
        with opening_errors():
            self.native = duckdb.connect(file or MEMORY, read_only=read_only, config=config)
            try:
                # Another engine with the same settings may already have opened and locked down the database.
                if self.native.execute("SELECT current_setting('lock_configuration')").fetchone() != (True,):
                    if self.files is not None:
                        self.files.register(self.native, is_new=file is None)
                        self.native.execute(f"SET allowed_directories = {list(self.files.directories)}")
                    for setting in _LOCK_DOWN:
                        self.native.execute(setting)
                if self._limits.temporary_files is not None:
                    self._limits.temporary_files.apply(self.native)
            except BaseException:  # the connection must not stay open after any failure
                self.native.close()
                raise

    def connect(
        self,
        options: SessionOptions,
        *,
        is_private: bool,
        files: RemoteFiles | None = None,
        results: RemoteResults | None = None,
    ) -> DuckdbConnection:
        """Open a connection for one session, which can access `files` and `results`.

        Closing the connection also closes the database if `is_private` is set.
        """
        statements = None
        if files is not None and self.files is not None:
            statements = partial(SessionFileAccess, self.files, files)
        with opening_errors():
            connection = DuckdbConnection(
                self.native.cursor(),
                self._root,
                self.native if is_private else None,
                limits=self._limits,
                has_ended=self._probe,
                files=statements,
                results=results,
            )
        # DuckDB refuses locked or unknown settings.
        setup = [f"SET {identifier(name)} = {literal(value)}" for name, value in options.settings.items()]
        if options.database:
            setup.append(f"USE {identifier(options.database)}")
        try:
            for statement in (*_PREPARE_SESSION, *setup):
                connection.prepare(statement)
        except BaseException:  # the connection must not stay open after any failure
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self.native.close()

    def _probe(self) -> bool:
        try:
            with self.native.cursor() as probe:
                probe.execute("SELECT 1")
        except duckdb.ConnectionException:
            pass  # This connection was closed, but the database is still valid.
        except duckdb.Error:
            self.has_ended = True
        return self.has_ended


def _statement_limits(limits: DuckdbLimits, file: Path | None, temporary: Path | None) -> StatementLimits:
    temporary_files = watch = None
    if temporary is not None:
        temporary_files = TemporaryFilesLimit(temporary, limits.temporary_max_bytes, limits.storage.floor)
    if file is not None:
        files = (file, file.with_name(f"{file.name}.wal"))
        watch = StorageWatch(file.parent, partial(size_of, files), limits.storage)
    return StatementLimits(limits.cell_max_bytes, temporary_files, watch)


_EXISTS = """
    SELECT count(*) > 0 FROM (
        SELECT schema_name, table_name AS name FROM duckdb_tables() WHERE database_name = current_database()
        UNION ALL
        SELECT schema_name, view_name AS name FROM duckdb_views() WHERE database_name = current_database()
    ) WHERE lower(schema_name) = lower(?) AND lower(name) = lower(?)
"""


class DuckdbWriter(TableWriter):
    """Loads a table in one transaction, which also publishes the rows of the staging table."""

    def __init__(self, connection: DuckdbConnection) -> None:
        super().__init__(connection)
        self._connection = connection
        self._native = connection.native

    def exists(self, table: TableName) -> bool:
        with self._connection.engine_errors():
            _, schema = self._schema_of(table)
            return self._native.execute(_EXISTS, [schema, table.name]).fetchall() == [(True,)]

    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        with self._connection.writing(), self._connection.engine_errors():
            schema = self._schema_of(load.target)
            staging, target = qualified(*schema, load.staging.name), qualified(*schema, load.target.name)
            try:
                self._native.execute("BEGIN")
                self.allow_interrupt(is_allowed=True)
                self._native.execute(f"CREATE TABLE {staging} ({column_definitions(load.columns, identifier)})")
                rows = self._insert(load, staging, batches)
                for step in publishing_steps(load, staging, target):
                    self._native.execute(step)
                self.allow_interrupt(is_allowed=False)
                self._native.execute("COMMIT")
            except BaseException:  # the transaction must not stay open after any failure
                self.allow_interrupt(is_allowed=False)
                with suppress(duckdb.Error):
                    self._native.execute("ROLLBACK")
                raise
            return rows

    def drop(self, table: TableName) -> None:
        with self._connection.engine_errors():
            self._native.execute(f"DROP TABLE IF EXISTS {qualified(*self._schema_of(table), table.name)}")

    def _schema_of(self, table: TableName) -> tuple[str, str]:
        """Return the table's database and schema.

        Qualified names need both, because a schema may have the same name as the database.
        """
        ((database, schema),) = self._native.execute("SELECT current_database(), current_schema()").fetchall()
        return database, table.database or schema

    def _insert(self, load: TableLoad, staging: str, batches: Iterator[pa.RecordBatch]) -> int:
        schema = pa.schema([(column.name, arrow_type(column.type)) for column in load.columns])
        source = f"{load.staging.name}_rows"
        # The name is visible only to this connection. DuckDB's own threads pull the batches while they write.
        self._native.register(source, pa.RecordBatchReader.from_batches(schema, batches))
        try:
            ((rows,),) = self._native.execute(f"INSERT INTO {staging} SELECT * FROM {identifier(source)}").fetchall()
        finally:
            self._native.unregister(source)
        return rows


class HostedDuckdb:
    """Implements `HostedDatabase`. `configuration` comes from `DuckdbEngine`."""

    def __init__(
        self, configuration: Mapping[str, Any], calls: ServerCalls, temporary: ProcessDirectory | None
    ) -> None:
        """`temporary` is the directory for temporary files of in-memory databases; None disables such files."""
        self._configuration = configuration
        self._temporary = temporary
        self._opened = itertools.count()
        self._calls = calls
        self._root = Path(root) if (root := configuration["root"]) is not None else None
        self._shared = None if configuration["file"] is None else self._open(Path(configuration["file"]))

    @property
    def has_ended(self) -> bool:
        return self._shared is not None and self._shared.has_ended

    def connect(self, session: int, user_id: int, options: SessionOptions, *, is_loader: bool) -> DuckdbConnection:  # noqa: ARG002
        database = self._shared or self._open(None)
        files, results = RemoteFiles(self._calls, session), RemoteResults(self._calls, session)
        return database.connect(options, is_private=self._shared is None, files=files, results=results)

    def writer(self, connection: DriverConnection) -> TableWriter:
        assert isinstance(connection, DuckdbConnection)  # noqa: S101 `connect` created it
        return DuckdbWriter(connection)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
        if self._temporary is not None:
            self._temporary.clear()

    def _open(self, file: Path | None) -> DuckdbDatabase:
        settings, temporary = self._configuration, None
        config = settings["config"]
        if file is None:
            # DuckDB creates the directory when needed, and removes it with the database.
            own = "" if self._temporary is None else str(self._temporary.path / str(next(self._opened)))
            config = {**config, "temp_directory": own}
            temporary = self._temporary.path if self._temporary is not None else None
        return DuckdbDatabase(
            self._root,
            file,
            config,
            read_only=settings["read_only"],
            limits=_limits(settings),
            schemes=frozenset(settings["schemes"]),
            temporary=temporary,
        )


def _limits(configuration: Mapping[str, Any]) -> DuckdbLimits:
    floor = DiskFloor(percent=configuration["floor_percent"], min_bytes=configuration["floor_bytes"])
    return DuckdbLimits(
        cell_max_bytes=configuration["cell_max_bytes"],
        temporary_max_bytes=configuration["temporary_max_bytes"],
        storage=StorageLimits(quota_bytes=configuration["quota_bytes"], floor=floor),
    )


def main() -> None:
    def open_database(configuration: Mapping[str, Any], calls: Channel) -> HostedDuckdb:
        file, root = configuration["file"], configuration["root"]
        # DuckDB keeps a database file's log and temporary files next to it.
        folders = [] if file is None else [Path(file).parent]
        temporary = ProcessDirectory(Path(root)) if file is None and root is not None else None
        if temporary is not None:
            folders.append(temporary.path)
        confine_process(configuration, folders)
        # ServerCalls is created only now, because the thread that it starts must inherit the confinement.
        return HostedDuckdb(configuration, ServerCalls(calls), temporary)

    run_process(open_database)
