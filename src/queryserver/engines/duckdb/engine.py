"""The engine `duckdb`: a file in the configured directory, or a private in-memory database per session."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from queryserver import errors
from queryserver.engines.blocking_drivers import STATEMENT_THREADS
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.connections import MEMORY, database_file
from queryserver.engines.duckdb.catalog import DuckdbCatalog
from queryserver.engines.duckdb.limits import DuckdbLimits, DuckdbResources
from queryserver.engines.external_data import STORE_SCHEMES
from queryserver.engines.process.connections import ProcessConnections
from queryserver.engines.process.pool import EngineProcesses
from queryserver.engines.protocol import Catalog, EngineCapabilities, EngineSession, SessionOptions, TableLoader
from queryserver.identity.model import User
from queryserver.sql.literals import DUCKDB

# The directory for extensions and secrets. It does not exist, so DuckDB finds no extensions or secrets.
_NOWHERE = "/nonexistent"

_LOCKED_DOWN = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,  # otherwise table names would resolve to Python variables
    "extension_directory": _NOWHERE,
    "secret_directory": _NOWHERE,
    "home_directory": _NOWHERE,
}

_PROGRAM = "from queryserver.engines.duckdb.database import main; main()"


def duckdb_processes() -> EngineProcesses:
    """Create the pool of processes that a server's DuckDB engines share."""
    return EngineProcesses(_PROGRAM)


class DuckdbEngine:
    """One database file, which a separate process opens on first use and keeps until `close` (Contract platform 5.11).

    `path` is relative to `root`. If it is `:memory:`, each session has its own database, in a process dedicated to its
    user, and the database is discarded when the session ends.

    Statements can access store files with their callers' rights (ADR 76), but no other files, no network and no
    extensions. They can change only the settings for schema, time zone and calendar.

    Only one of several engines with different settings can have the same file open. An idle engine closes the file when
    another engine needs it. If the engine is busy, the other engine waits. `processes` is the server's process pool,
    which its DuckDB engines share. Raises InvalidPath, ConfigurationError.
    """

    dialect = "duckdb"
    lists_functions = True

    def __init__(
        self,
        *,
        path: str = MEMORY,
        root: Path | None = None,
        read_only: bool = False,
        max_statements: int = STATEMENT_THREADS,
        processes: EngineProcesses | None = None,
        resources: DuckdbResources | None = None,
        limits: DuckdbLimits | None = None,
    ) -> None:
        if path == MEMORY and read_only:
            raise errors.ConfigurationError(["read_only: must be false for an in-memory database"])
        self._file = None if path == MEMORY else database_file(root, path)
        self._read_only = read_only
        resources, limits = resources or DuckdbResources(), limits or DuckdbLimits()
        config = {"memory_limit": resources.memory_limit, "threads": resources.threads, **_LOCKED_DOWN}
        storage = limits.storage
        configuration = {
            "file": None if self._file is None else str(self._file),
            "root": None if root is None else str(root.resolve()),
            "config": config,
            "read_only": read_only,
            "cell_max_bytes": limits.cell_max_bytes,
            "temporary_max_bytes": limits.temporary_max_bytes,
            "quota_bytes": storage.quota_bytes,
            "floor_percent": storage.floor.percent,
            "floor_bytes": storage.floor.min_bytes,
            "memory_bytes": resources.process_bytes,
            "schemes": sorted(STORE_SCHEMES),
        }
        # DuckDB locks its file against other processes, so all engines share one process per file.
        self._connections = ProcessConnections(
            processes or duckdb_processes(), self._file, configuration, max_statements=max_statements
        )
        self.capabilities = EngineCapabilities(
            one_process=self._file is not None,
            data_name=f"duckdb:{path}" if self._file is not None else "",
            reports_progress=True,
            enforces_read_only=True,
            estimates_bytes=True,
            reads_results=True,
            reads_files=True,
            writes_files=True,
            explain_column="explain_value",
            parameters=DUCKDB.support,
        )

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        return self._connections.session(user.id, options)

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            ((name,),) = await read_rows(session, "SELECT current_database()")
            yield DuckdbCatalog(session, name)

    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        return self._connections.loader(user.id, options, read_only=self._read_only)

    async def ping(self) -> None:
        await self._connections.ping()

    async def close(self) -> None:
        """Cancel running statements and close the connections."""
        await self._connections.close()

    @property
    def busy(self) -> int:
        """Number of statements that are running in the processes."""
        return self._connections.busy
