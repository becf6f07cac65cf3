"""The engine `duckdb`: a file below the configured directory, or a private database per session."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from queryserver import errors
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.connections import MEMORY, database_file
from queryserver.engines.duckdb.catalog import DuckdbCatalog
from queryserver.engines.duckdb.processes import Configuration, DuckdbProcesses
from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.process.loading import ProcessLoader
from queryserver.engines.process.sessions import Connection, ProcessSession, connected
from queryserver.engines.protocol import Catalog, EngineCapabilities, EngineSession, SessionOptions, TableLoader
from queryserver.engines.storage_watch import QUOTA_BYTES
from queryserver.engines.threaded import NO_USER, STATEMENT_THREADS
from queryserver.identity.model import User
from queryserver.platform.limits import NO_FLOOR, DiskFloor, FairPlaces
from queryserver.sql.literals import DUCKDB

CELL_MAX_BYTES = 16 * 1024 * 1024
TEMPORARY_MAX_BYTES = 10 * 1024**3
MEMORY_LIMIT = "256MB"
"""Of one database, for all its sessions."""

# The place of extensions and secrets: a folder that does not exist, so that none is found or shown.
_NOWHERE = "/nonexistent"

_PROCESS_BYTES = 1024**3
"""What a process has beside twice the limit of its database, which counts a part of what a statement takes."""
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
          "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)
_LEAST_SHARE = 2

OpenedT = TypeVar("OpenedT", ProcessSession, ProcessLoader)


class DuckdbEngine:
    """One database file, opened at first use by a process of its own, until `close` (Contract platform 5.11).

    `path` is relative to `root`, or `:memory:`: then each session has a database of its own, gone when it ends, in a
    process of its user. Statements reach no other file, no network, no extension, and no setting but schema, time zone
    and calendar. Engines that name one file with other settings take turns: an idle one makes way, one at work is
    waited for. `processes`: those of the server, shared by its engines. Raises InvalidPath, ConfigurationError.
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
        processes: DuckdbProcesses | None = None,
        cell_max_bytes: int = CELL_MAX_BYTES,
        temporary_max_bytes: int = TEMPORARY_MAX_BYTES,
        quota_bytes: int = QUOTA_BYTES,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        if path == MEMORY and read_only:
            raise errors.ConfigurationError(["read_only: a database in memory would stay empty"])
        self._file = None if path == MEMORY else database_file(root, path)
        self._read_only = read_only
        self._processes = processes or DuckdbProcesses()
        # One user has half of the places at most.
        share = max(max_statements // 2, min(max_statements, _LEAST_SHARE))
        self._places = FairPlaces(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._open = set[ProcessSession | ProcessLoader]()
        self._is_closed = False
        limit = memory_limit or MEMORY_LIMIT
        config = {
            "memory_limit": limit,
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
            config["temp_directory"] = ""
        self._configuration: Configuration = {
            "file": None if self._file is None else str(self._file),
            "root": None if root is None else str(root.resolve()),
            "config": config,
            "read_only": read_only,
            "cell_max_bytes": cell_max_bytes,
            "temporary_max_bytes": temporary_max_bytes,
            "quota_bytes": quota_bytes,
            "floor_percent": floor.percent,
            "floor_bytes": floor.min_bytes,
            "memory_bytes": 2 * _bytes_of(limit) + _PROCESS_BYTES,
        }
        # DuckDB locks its file against other processes.
        self.capabilities = EngineCapabilities(
            one_process=self._file is not None,
            data_name=f"duckdb:{path}" if self._file is not None else "",
            reports_progress=True,
            explain_column="explain_value",
            parameters=DUCKDB.support,
        )

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        async with self._session(user.id, options) as session:
            yield session

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            ((name,),) = await read_rows(session, "SELECT current_database()")
            yield DuckdbCatalog(session, name)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        async with (
            self._connected(user.id, options, is_loader=True) as (connection, _),
            self._ended(ProcessLoader(connection, read_only=self._read_only)) as loader,
        ):
            yield loader

    async def ping(self) -> None:
        async with self._session(NO_USER, SessionOptions()):
            pass

    async def close(self) -> None:
        """Statements that still run are stopped."""
        self._is_closed = True
        for opened in list(self._open):
            await opened.end()
        await self._processes.leave(self)

    @property
    def busy(self) -> int:
        """Statements for which a process is at work."""
        return self._places.held

    @asynccontextmanager
    async def _session(self, user_id: int, options: SessionOptions) -> AsyncGenerator[ProcessSession]:
        async with (
            self._connected(user_id, options) as (connection, takes_rows),
            self._ended(ProcessSession(connection, takes_rows=takes_rows)) as session,
        ):
            yield session

    @asynccontextmanager
    async def _connected(
        self, user_id: int, options: SessionOptions, *, is_loader: bool = False
    ) -> AsyncGenerator[tuple[Connection, bool]]:
        """A connection, and whether it takes statements with many rows of values."""
        if self._is_closed:
            raise errors.EngineUnavailable("The engine is closed.")
        losses = self._processes.losses_of(self, self._file)
        async with (
            self._process(user_id) as process,
            connected(
                process, user_id, options, places=self._places, losses=losses, is_loader=is_loader
            ) as (connection, first),
        ):  # fmt: skip
            yield connection, first.message.get("takes_rows") is True

    def _process(self, user_id: int) -> AbstractAsyncContextManager[EngineProcess]:
        if self._file is None:
            return self._processes.of_user(self, user_id, self._configuration)
        return self._processes.of_file(self, self._file, self._configuration)

    @asynccontextmanager
    async def _ended(self, opened: OpenedT) -> AsyncGenerator[OpenedT]:
        self._open.add(opened)
        try:
            yield opened
        finally:
            await asyncio.shield(opened.end())
            self._open.discard(opened)


def _bytes_of(amount: str) -> int:
    """Of DuckDB's text for an amount of memory."""
    found = _AMOUNT.fullmatch(amount.strip())
    if found is None:
        raise errors.ConfigurationError([f"memory_limit: {amount!r} must be a number and its unit, such as 512MB"])
    return int(float(found[1]) * _UNITS[found[2].lower()])
