"""The engine `sqlite`: a file in the configured directory, or a private in-memory database per session."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.blocking_drivers import NO_USER, STATEMENT_THREADS
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.connections import MEMORY, database_file
from queryserver.engines.process.connections import ProcessConnections
from queryserver.engines.process.pool import EngineProcesses
from queryserver.engines.sqlite import HEAP_BYTES, PARAMETERS
from queryserver.engines.sqlite.catalog import SqliteCatalog
from queryserver.engines.storage_watch import StorageLimits
from queryserver.identity.model import User

_PROGRAM = "from queryserver.engines.sqlite.database import main; main()"

_PROCESS_BYTES = 1024**3
"""Memory allowed for a process in addition to SQLite's heap, for Arrow data and thread stacks."""


def sqlite_processes() -> EngineProcesses:
    """Create the pool of processes that a server's SQLite engines share."""
    return EngineProcesses(_PROGRAM)


class SqliteEngine:
    """One database file, to which each session has its own connection (Contract platform 5.11).

    `path` is relative to `root`. If it is `:memory:`, each session has its own database, which is discarded when the
    session ends. Other processes may also use the file. Statements cannot access other files or extensions, or change
    settings outside their session. Raises InvalidPath, ConfigurationError.
    """

    dialect = "sqlite"
    lists_functions = True

    def __init__(
        self,
        *,
        path: str = MEMORY,
        root: Path | None = None,
        read_only: bool = False,
        busy_timeout_s: float = 5.0,
        processes: EngineProcesses | None = None,
        cell_max_bytes: int = 16 * 1024 * 1024,
        storage: StorageLimits | None = None,
    ) -> None:
        if path == MEMORY and read_only:
            raise errors.ConfigurationError(["read_only: must be false for an in-memory database"])
        file = None if path == MEMORY else database_file(root, path)
        self._read_only = read_only
        storage = storage or StorageLimits()
        configuration = {
            "file": None if file is None else str(file),
            "root": None if root is None else str(root.resolve()),
            "read_only": read_only,
            "busy_timeout_s": busy_timeout_s,
            "cell_max_bytes": cell_max_bytes,
            "quota_bytes": storage.quota_bytes,
            "floor_percent": storage.floor.percent,
            "floor_bytes": storage.floor.min_bytes,
            "memory_bytes": HEAP_BYTES + _PROCESS_BYTES,
        }
        # Several processes may open the same file, so engines with different settings use separate processes.
        file_key = None if file is None else (file, *configuration.values())
        self._connections = ProcessConnections(
            processes or sqlite_processes(), file_key, configuration, max_statements=STATEMENT_THREADS
        )
        self.capabilities = protocol.EngineCapabilities(
            explain_prefix="EXPLAIN QUERY PLAN ",
            explain_column="detail",
            parameters=PARAMETERS,
            enforces_read_only=True,
        )

    def session(
        self, user: User, options: protocol.SessionOptions
    ) -> AbstractAsyncContextManager[protocol.EngineSession]:
        """Open a session. The only database is `main`, and settings are not supported."""
        _check(options)
        return self._connections.session(user.id, options)

    @asynccontextmanager
    async def catalog(self, user: User, options: protocol.SessionOptions) -> AsyncGenerator[protocol.Catalog]:
        async with self.session(user, options) as session:
            yield SqliteCatalog(session)

    def loader(self, user: User, options: protocol.SessionOptions) -> AbstractAsyncContextManager[protocol.TableLoader]:
        _check(options)
        return self._connections.loader(user.id, options, read_only=self._read_only)

    async def ping(self) -> None:
        async with self._connections.session(NO_USER, protocol.SessionOptions()) as session:
            await read_rows(session, "SELECT 1 FROM sqlite_schema")

    async def close(self) -> None:
        """Cancel running statements and close the connections."""
        await self._connections.close()

    @property
    def busy(self) -> int:
        """Number of statements that are running in the processes."""
        return self._connections.busy


def _check(options: protocol.SessionOptions) -> None:
    """Reject settings and databases other than `main`, with messages worded like SQLite's."""
    if options.database and options.database.lower() != "main":
        raise errors.StatementRejected(f"unknown database {options.database}")
    for name in options.settings:
        raise errors.StatementRejected(f"unknown setting {name}")
