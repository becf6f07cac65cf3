"""How much a database may write into temporary files: its own limit, and the free space of the disk above the floor."""

import threading
from contextlib import suppress
from pathlib import Path

import duckdb

from queryserver.domain.disk_floor import DiskFloor
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import InsufficientStorage
from queryserver.domain.errors.statements import StatementRejected

TEMPORARY_MAX_BYTES = 10 * 1024**3

_STEP_BYTES = 64 * 1024 * 1024
"""The limit moves by steps, so that it is seldom set."""


class TemporaryRoom:
    """The limit of one database. Its temporary files lie beside the database file, in `directory`."""

    def __init__(self, directory: Path, most_bytes: int, floor: DiskFloor) -> None:
        self.most_bytes = most_bytes
        self._directory = directory
        self._floor = floor
        self._lock = threading.Lock()
        self._limit: int | None = None

    def apply(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Set the limit as it is now, for the whole database. Blocks.

        DuckDB refuses a limit below what is in use; then the former one holds on until less is.
        """
        limit = self._allowed()
        with self._lock, suppress(duckdb.Error):
            if limit != self._limit:
                connection.execute(f"SET GLOBAL max_temp_directory_size = '{limit}B'")
                self._limit = limit

    def error_of(self, text: str) -> QueryServerError | None:
        """What a driver's message means when it is about this limit."""
        if "max_temp_directory_size" not in text:
            return None
        if self._limit is not None and self._limit < self.most_bytes:
            return InsufficientStorage()
        return StatementRejected("Out of Memory Error: the temporary files of this database have reached their limit.")

    def forget(self) -> None:
        """The database is opened anew, without a limit."""
        with self._lock:
            self._limit = None

    def _allowed(self) -> int:
        if self._floor.is_off:
            return self.most_bytes
        try:
            room = self._floor.room(self._directory)
        except OSError:
            return self.most_bytes
        return min(self.most_bytes, max(room, 0) // _STEP_BYTES * _STEP_BYTES)
