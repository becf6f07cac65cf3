"""Program of a process that serves one DuckDB file, or one user's in-memory databases."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.database import DuckdbDatabase, DuckdbWriter
from queryserver.engines.duckdb.temporary import ProcessDirectory
from queryserver.engines.process.calls import CalledFiles, CalledResults
from queryserver.engines.process.channel import Channel
from queryserver.engines.process.host import ServerCalls, confine_process, run_process
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.table_writer import TableWriter
from queryserver.engines.threaded import DriverConnection
from queryserver.platform.disk_floor import DiskFloor


class HostedDuckdb:
    """Implements `HostedDatabase`. `configuration` comes from `DuckdbEngine`."""

    def __init__(
        self, configuration: Mapping[str, Any], calls: ServerCalls, temporary: ProcessDirectory | None
    ) -> None:
        """`temporary` is the directory for in-memory databases' temporary files; None disables such files."""
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
        files, results = CalledFiles(self._calls, session), CalledResults(self._calls, session)
        return database.connect(options, is_private=self._shared is None, files=files, results=results)

    def writer(self, connection: DriverConnection) -> TableWriter:
        assert isinstance(connection, DuckdbConnection)  # noqa: S101 `connect` made it
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
            cell_max_bytes=settings["cell_max_bytes"],
            temporary_max_bytes=settings["temporary_max_bytes"],
            quota_bytes=settings["quota_bytes"],
            floor=DiskFloor(percent=settings["floor_percent"], min_bytes=settings["floor_bytes"]),
            schemes=frozenset(settings["schemes"]),
            temporary=temporary,
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
        # ServerCalls is created only now, because the thread that it starts inherits the confinement.
        return HostedDuckdb(configuration, ServerCalls(calls), temporary)

    run_process(open_database)
