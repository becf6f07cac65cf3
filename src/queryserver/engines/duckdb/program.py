"""The program of a process that has one DuckDB file open, or the databases in memory of one user."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.database import DuckdbDatabase, DuckdbWriter
from queryserver.engines.process.channel import Channel
from queryserver.engines.process.file_calls import CalledFiles
from queryserver.engines.process.host import ServerCalls, run_process
from queryserver.engines.process.result_calls import CalledResults
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.threaded import DriverConnection
from queryserver.engines.threaded_loading import TableWriter
from queryserver.platform.confinement import Confinement, address_space_bytes, confine
from queryserver.platform.limits import DiskFloor

_OPEN_FILES = 1024
_NICENESS = 10
"""The event loop of the server runs first."""


class HostedDuckdb:
    """A HostedDatabase. `configuration` is that of `DuckdbEngine`."""

    def __init__(self, configuration: Mapping[str, Any], calls: ServerCalls) -> None:
        self._configuration = configuration
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

    def _open(self, file: Path | None) -> DuckdbDatabase:
        given = self._configuration
        return DuckdbDatabase(
            self._root,
            file,
            given["config"],
            read_only=given["read_only"],
            cell_max_bytes=given["cell_max_bytes"],
            temporary_max_bytes=given["temporary_max_bytes"],
            quota_bytes=given["quota_bytes"],
            floor=DiskFloor(percent=given["floor_percent"], min_bytes=given["floor_bytes"]),
            schemes=frozenset(given["schemes"]),
        )


def main() -> None:
    def open_database(configuration: Mapping[str, Any], calls: Channel) -> HostedDuckdb:
        file = configuration["file"]
        # Its log and its temporary files are beside the file.
        folders = [] if file is None else [Path(file).parent]
        confine(
            Confinement(
                writable=tuple(folder for folder in folders if folder.is_dir()),
                memory_bytes=address_space_bytes() + configuration["memory_bytes"],
                open_files=_OPEN_FILES,
                niceness=_NICENESS,
                parent=configuration["parent"],
            )
        )
        return HostedDuckdb(configuration, ServerCalls(calls))  # with its thread, which is confined, too

    run_process(open_database)
