"""The engine `duckdb`: a file below the configured directory, or a private database per session."""

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from queryserver import errors
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.connections import MEMORY, database_file
from queryserver.engines.duckdb.catalog import DuckdbCatalog
from queryserver.engines.protocol import Catalog, EngineCapabilities, EngineSession, SessionOptions, TableLoader
from queryserver.engines.storage_watch import QUOTA_BYTES
from queryserver.engines.threaded import NO_USER, STATEMENT_THREADS, ThreadedSessions
from queryserver.engines.threaded_loading import ThreadedLoader
from queryserver.identity.model import User
from queryserver.platform.limits import NO_FLOOR, DiskFloor
from queryserver.sql.literals import DUCKDB

if TYPE_CHECKING:  # the driver is imported when a database is first opened
    from queryserver.engines.duckdb.connection import DuckdbConnection
    from queryserver.engines.duckdb.database import Config, DuckdbDatabase

CELL_MAX_BYTES = 16 * 1024 * 1024
TEMPORARY_MAX_BYTES = 10 * 1024**3
FILE_MEMORY_LIMIT, SESSION_MEMORY_LIMIT = "256MB", "64MB"
"""Of one database file, for all its sessions; of the database that a session has in memory."""

# The place of extensions and secrets: a folder that does not exist, so that none is found or shown.
_NOWHERE = "/nonexistent"


# How long an engine with other settings may go on with the same file until the wait for it is given up.
_TURN_S = 30.0
_CHECK_AGAIN_S = 0.05


class FilePlace:
    """The engines that have one file open. `lock` is held while it is opened or closed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.holders: set[DuckdbEngine] = set()

    async def make_way(self, newcomer: "DuckdbEngine") -> bool:
        """Idle holders with another configuration let go; False when one is at work. The caller has `lock`."""
        for holder in list(self.holders):
            if holder is not newcomer and holder.configuration != newcomer.configuration:
                if not holder.is_idle:
                    return False
                await holder.let_go()
                self.holders.discard(holder)
        return True

    async def end_all(self) -> None:
        """All holders let go, with the sessions that they still have: an internal error has ended the database of all,
        which DuckDB opens again only after its last connection is closed. The caller has `lock`.
        """
        for holder in list(self.holders):
            await holder.let_go()
            self.holders.discard(holder)


class DuckdbEngine:
    """One database file, opened at first use and held by this process until `close` (Contract platform 5.11).

    `path` is relative to `root`, or `:memory:`: then each session has a database of its own, gone when it ends.
    Statements reach no other file, no network, no extension, and no setting but schema, time zone and calendar.
    Engines that name one file with other settings take turns: an idle one makes way, one at work is waited for.
    `files`: the open files of the process, shared by its engines. Raises InvalidPath, ConfigurationError.
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
        files: dict[Path, FilePlace] | None = None,
        cell_max_bytes: int = CELL_MAX_BYTES,
        temporary_max_bytes: int = TEMPORARY_MAX_BYTES,
        quota_bytes: int = QUOTA_BYTES,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        if path == MEMORY and read_only:
            raise errors.ConfigurationError(["read_only: a database in memory would stay empty"])
        self._file = None if path == MEMORY else database_file(root, path)
        self._root = root.resolve() if root is not None else None
        self._read_only = read_only
        self._cell_max_bytes = cell_max_bytes
        self._temporary_max_bytes = temporary_max_bytes
        self._quota_bytes = quota_bytes
        self._floor = floor
        self._config: Config = {
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
        self._place = None
        if self._file is not None:
            self._place = ({} if files is None else files).setdefault(self._file, FilePlace())
        self._uses = 0
        self._database: DuckdbDatabase | None = None
        # DuckDB locks its file against other processes.
        self.capabilities = EngineCapabilities(
            one_process=self._file is not None,
            data_name=f"duckdb:{path}" if self._file is not None else "",
            reports_progress=True,
            explain_column="explain_value",
            parameters=DUCKDB.support,
        )

    @property
    def configuration(self) -> Hashable:
        """Engines with equal ones share the file."""
        return self._read_only, self._config["memory_limit"], self._config["threads"], self._temporary_max_bytes

    @property
    def is_idle(self) -> bool:
        """No statement of this engine is at work in the file."""
        return not self._uses

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
            ((name,),) = await read_rows(session, "SELECT current_database()")
            yield DuckdbCatalog(session, name)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        def loader(connection: "DuckdbConnection") -> ThreadedLoader:
            from queryserver.engines.duckdb.database import DuckdbWriter  # noqa: PLC0415 as in `_open`

            writer = DuckdbWriter(connection, self._root)
            return ThreadedLoader(writer, self._sessions.threads, read_only=self._read_only, user_id=user.id)

        async with (
            self._opened() as database,
            self._sessions.opened(partial(self._connect, user.id, database, options), loader) as opened,
        ):
            yield opened

    async def ping(self) -> None:
        async with self._opened() as database:
            await self._sessions.threads.control(lambda: self._connect(NO_USER, database, SessionOptions()).close())

    async def close(self) -> None:
        """Statements that still run are stopped."""
        await self._sessions.close()
        if self._place is not None:
            async with self._place.lock:
                await self.let_go()
                self._place.holders.discard(self)

    async def let_go(self) -> None:
        """Close the file; the next use opens it again. Sessions that are still open are lost."""
        database, self._database = self._database, None
        if database is not None:
            await asyncio.to_thread(database.close)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator["DuckdbDatabase | None"]:
        """The open file, in use while inside; None for databases in memory."""
        self._uses += 1
        try:
            yield None if self._place is None else await self._shared(self._place)
        finally:
            self._uses -= 1

    async def _shared(self, place: FilePlace) -> "DuckdbDatabase":
        give_up = asyncio.get_running_loop().time() + _TURN_S
        while asyncio.get_running_loop().time() < give_up:
            async with place.lock:
                if self._database is not None and self._database.has_ended:
                    await place.end_all()
                if self._database is None and await place.make_way(self):
                    self._database = await self._sessions.threads.control(self._open, undo=lambda late: late.close())
                    place.holders.add(self)
                if self._database is not None and not self._database.has_ended:
                    return self._database
            await asyncio.sleep(_CHECK_AGAIN_S)
        raise errors.EngineUnavailable(
            "The database file is in use with other settings; try again when those statements have ended."
        )

    def _open(self) -> "DuckdbDatabase":
        from queryserver.engines.duckdb.database import DuckdbDatabase  # noqa: PLC0415 with it the driver

        return DuckdbDatabase(
            self._root,
            self._file,
            self._config,
            read_only=self._read_only,
            cell_max_bytes=self._cell_max_bytes,
            temporary_max_bytes=self._temporary_max_bytes,
            quota_bytes=self._quota_bytes,
            floor=self._floor,
        )

    def _connect(self, user_id: int, shared: "DuckdbDatabase | None", options: SessionOptions) -> "DuckdbConnection":
        return (shared or self._open()).connect(user_id, options, is_private=shared is None)
