"""Program of a process that serves one SQLite file, or one user's in-memory databases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queryserver.engines.process.channel import Channel
from queryserver.engines.process.host import confine_process, run_process
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.sqlite.connection import SqliteConnection
from queryserver.engines.sqlite.database import SqliteDatabase, SqliteWriter
from queryserver.engines.sqlite.facts import TEMPORARY_DIRECTORY
from queryserver.engines.table_writer import TableWriter
from queryserver.engines.threaded import DriverConnection
from queryserver.platform.disk_floor import DiskFloor


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
            quota_bytes=configuration["quota_bytes"],
            floor=DiskFloor(percent=configuration["floor_percent"], min_bytes=configuration["floor_bytes"]),
        )

    def connect(self, session: int, user_id: int, options: SessionOptions, *, is_loader: bool) -> SqliteConnection:  # noqa: ARG002
        return self._database.connect(is_loader=is_loader)

    def writer(self, connection: DriverConnection) -> TableWriter:
        assert isinstance(connection, SqliteConnection)  # noqa: S101 `connect` made it
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
