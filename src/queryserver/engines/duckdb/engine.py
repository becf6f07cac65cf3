"""The engine `duckdb`: a file below the configured directory, or a private database per session."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Hashable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.engines.catalog_queries import identifier, literal, qualified
from queryserver.engines.connections import MEMORY, FilePlace, SharedFiles, database_file, refuse_links
from queryserver.engines.duckdb.catalog import DuckdbCatalog, current_database
from queryserver.engines.duckdb.connection import (
    CELL_MAX_BYTES,
    TEMPORARY_MAX_BYTES,
    DuckdbConnection,
    TemporaryRoom,
    opening_errors,
    statement_errors,
)
from queryserver.engines.duckdb.guard import SESSION_SETTINGS
from queryserver.engines.loading import column_definitions, publishing_steps
from queryserver.engines.protocol import (
    Catalog,
    EngineCapabilities,
    EngineSession,
    SessionOptions,
    TableLoad,
    TableLoader,
    TableName,
)
from queryserver.engines.threaded import NO_USER, STATEMENT_THREADS, ThreadedSessions, with_lower_priority
from queryserver.engines.threaded_loading import ThreadedLoader
from queryserver.errors.base import ConfigurationError
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.model import User
from queryserver.imports.model import arrow_type
from queryserver.platform.limits import NO_FLOOR, DiskFloor

_EXISTS = """
    SELECT count(*) > 0 FROM (
        SELECT schema_name, table_name AS name FROM duckdb_tables() WHERE database_name = current_database()
        UNION ALL
        SELECT schema_name, view_name AS name FROM duckdb_views() WHERE database_name = current_database()
    ) WHERE lower(schema_name) = lower(?) AND lower(name) = lower(?)
"""


class DuckdbWriter:
    """A TableWriter: one transaction, in which the staging table becomes the target."""

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
        with statement_errors(self._root):
            place = self._place(load.target)
            staging, target = qualified(*place, load.staging.name), qualified(*place, load.target.name)
            try:
                self._native.execute("BEGIN")
                self._allow_interrupt(is_allowed=True)
                self._native.execute(f"CREATE TABLE {staging} ({column_definitions(load.columns, identifier)})")
                rows = self._insert(load, staging, batches)
                for step in publishing_steps(load, staging, target):
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


FILE_MEMORY_LIMIT, SESSION_MEMORY_LIMIT = "256MB", "64MB"
"""Of one database file, for all its sessions; of the database that a session has in memory."""

# The place of extensions and secrets: a folder that does not exist, so that none is found or shown.
_NOWHERE = "/nonexistent"

# What a session may set (guard.py), and what the engine itself has to set.
_UNLOCKED_SETTINGS = (
    *sorted(SESSION_SETTINGS), "enable_progress_bar", "enable_progress_bar_print", "progress_bar_time",
    "max_temp_directory_size",
)  # fmt: skip

# The order matters: nothing can be set after the last.
_LOCK_DOWN = (
    # Constants would be computed while planning: without the memory limit, and several times (ADR 43).
    "SET disabled_optimizers = 'expression_rewriter,statistics_propagation'",
    f"SET allowed_configs = {list(_UNLOCKED_SETTINGS)}",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

# Each session gets its own value of each setting that statements may set.
_PREPARE_SESSION = (
    "SET TimeZone = 'UTC'",
    "SET Calendar = 'gregorian'",
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
    "SET progress_bar_time = 0",
)


# How long an engine with other settings may go on with the same file until the wait for it is given up.
_TURN_S = 30.0
_CHECK_AGAIN_S = 0.05


class DuckdbEngine:
    """One database file, opened at first use and held by this process until `close` (Contract platform 5.11).

    `path` is relative to `root`, or `:memory:`: then each session has a database of its own, gone when it ends.
    Statements reach no other file, no network, no extension, and no setting but schema, time zone and calendar.
    Engines that name one file with other settings take turns: an idle one makes way, one at work is waited for.
    Raises InvalidPath, ConfigurationError.
    """

    dialect = "duckdb"
    lists_functions = True

    def __init__(
        self,
        *,
        path: str = MEMORY,
        root: Path | None = None,
        memory_limit: str | None = None,
        threads: int = 2,
        read_only: bool = False,
        max_statements: int = STATEMENT_THREADS,
        files: SharedFiles | None = None,
        cell_max_bytes: int = CELL_MAX_BYTES,
        temporary_max_bytes: int = TEMPORARY_MAX_BYTES,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        if path == MEMORY and read_only:
            raise ConfigurationError(["read_only: a database in memory would stay empty"])
        self._file = None if path == MEMORY else database_file(root, path)
        self._root = root.resolve() if root is not None else None
        self._read_only = read_only
        self._cell_max_bytes = cell_max_bytes
        self._room = None if self._file is None else TemporaryRoom(self._file.parent, temporary_max_bytes, floor)
        self._config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory_limit or (SESSION_MEMORY_LIMIT if self._file is None else FILE_MEMORY_LIMIT),
            "threads": threads,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,  # or names of tables would find Python's variables
            "extension_directory": _NOWHERE,
            "secret_directory": _NOWHERE,
            "home_directory": _NOWHERE,
        }
        if self._file is None:
            self._config["temp_directory"] = ""
        self._sessions = ThreadedSessions("duckdb", max_statements=max_statements)
        self._place = (files or SharedFiles()).place(self._file) if self._file is not None else None
        self._uses = 0
        self._inside = 0
        """Uses of the open file. One that an internal error has ended is opened anew once there are none."""
        self._has_ended = False
        self._database: duckdb.DuckDBPyConnection | None = None
        # DuckDB locks its file against other processes.
        self.capabilities = EngineCapabilities(
            one_process=self._file is not None,
            data_name=f"duckdb:{path}" if self._file is not None else "",
            reports_progress=True,
            explain_column="explain_value",
        )

    @property
    def configuration(self) -> Hashable:
        limit = None if self._room is None else self._room.most_bytes
        return self._read_only, self._config["memory_limit"], self._config["threads"], limit

    @property
    def is_idle(self) -> bool:
        return not self._uses

    @property
    def busy(self) -> int:
        """How many statements run now."""
        return self._sessions.threads.busy

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        async with (
            self._opened() as database,
            self._sessions.session(partial(self._connect, user.id, database, options), user_id=user.id) as session,
        ):
            yield session

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield DuckdbCatalog(session, await current_database(session))

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        def loader(connection: DuckdbConnection) -> ThreadedLoader:
            writer = DuckdbWriter(connection, self._root)
            return ThreadedLoader(writer, self._sessions.threads, read_only=self._read_only, user_id=user.id)

        async with (
            self._opened() as database,
            self._sessions.opened(partial(self._connect, user.id, database, options), loader) as opened,
        ):
            yield opened

    async def ping(self) -> None:
        async with self._opened() as database:
            await self._sessions.threads.control(partial(self._look, database))

    async def close(self) -> None:
        """Statements that still run are stopped."""
        await self._sessions.close()
        if self._place is not None:
            async with self._place.lock:
                await self.let_go()
                self._place.holders.discard(self)

    async def let_go(self) -> None:
        database, self._database = self._database, None
        self._has_ended = False
        if database is not None:
            await asyncio.to_thread(database.close)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[duckdb.DuckDBPyConnection | None]:
        """The open file, in use while inside; None for databases in memory."""
        self._uses += 1
        try:
            database = None if self._place is None else await self._shared(self._place)
            self._inside += 1
            try:
                yield database
            finally:
                self._inside -= 1
        finally:
            self._uses -= 1

    async def _shared(self, place: FilePlace) -> duckdb.DuckDBPyConnection:
        give_up = asyncio.get_running_loop().time() + _TURN_S
        while asyncio.get_running_loop().time() < give_up:
            async with place.lock:
                if self._has_ended and not self._inside:
                    await self.let_go()
                    place.holders.discard(self)
                if self._database is None and await place.make_way(self):
                    self._database = await self._sessions.threads.control(self._open, undo=lambda late: late.close())
                    place.holders.add(self)
                if self._database is not None and not self._has_ended:
                    return self._database
            await asyncio.sleep(_CHECK_AGAIN_S)
        raise EngineUnavailable(
            "The database file is in use with other settings; try again when those statements have ended."
        )

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._file is not None and self._root is not None:
            refuse_links(self._root, self._file)
        with opening_errors():
            database = with_lower_priority(
                lambda: duckdb.connect(self._file or MEMORY, read_only=self._read_only, config=self._config)
            )
            try:
                # Another engine with the same settings may have it open, and locked down, already.
                if database.execute("SELECT current_setting('lock_configuration')").fetchone() != (True,):
                    for setting in _LOCK_DOWN:
                        database.execute(setting)
                if self._room is not None:
                    self._room.forget()
                    self._room.apply(database)
            except BaseException:  # it must not stay open, whatever failed
                database.close()
                raise
            return database

    def _connect(
        self, user_id: int, shared: duckdb.DuckDBPyConnection | None, options: SessionOptions
    ) -> DuckdbConnection:
        owned = self._open() if shared is None else None
        database = owned or shared
        if database is None:
            raise EngineUnavailable("The database is closed.")
        with opening_errors():
            connection = DuckdbConnection(
                database.cursor(),
                self._root,
                owned,
                user_id=user_id,
                cell_max_bytes=self._cell_max_bytes,
                room=self._room,
                on_end=self._ended,
            )
        # DuckDB refuses settings that are locked or unknown.
        wished = [f"SET {identifier(name)} = {literal(value)}" for name, value in options.settings.items()]
        if options.database:
            wished.append(f"USE {identifier(options.database)}")
        try:
            for statement in (*_PREPARE_SESSION, *wished):
                connection.prepare(statement)
        except BaseException:  # it must not stay open, whatever failed
            connection.close()
            raise
        return connection

    def _ended(self) -> None:
        """Called in a thread of a statement."""
        self._has_ended = self._file is not None

    def _look(self, shared: duckdb.DuckDBPyConnection | None) -> None:
        with statement_errors(self._root):
            self._connect(NO_USER, shared, SessionOptions()).close()
