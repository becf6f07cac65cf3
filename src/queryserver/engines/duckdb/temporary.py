"""The temporary files of a DuckDB database: how much they may take. All of it blocks."""

import threading
from contextlib import suppress
from pathlib import Path

import duckdb

from queryserver import errors
from queryserver.platform.limits import DiskFloor

_STEP_BYTES = 64 * 1024 * 1024
"""The limit moves by steps, so that it is seldom set."""


class TemporaryRoom:
    """The limit of one database. Its temporary files lie beside the database file, in `directory`."""

    def __init__(self, directory: Path, most_bytes: int, floor: DiskFloor) -> None:
        self._most_bytes = most_bytes
        self._directory = directory
        self._floor = floor
        self._lock = threading.Lock()
        self._limit: int | None = None

    def apply(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Set the limit as it is now, for the whole database. Blocks.

        DuckDB refuses a limit below what is in use; then the former one holds on until less is.
        """
        limit = self._most_bytes
        if not self._floor.is_off:
            with suppress(OSError):
                room = max(self._floor.room(self._directory, anew=True), 0)  # a full disk may have room at once
                limit = min(limit, room // _STEP_BYTES * _STEP_BYTES)
        with self._lock, suppress(duckdb.Error):
            if limit != self._limit:
                connection.execute(f"SET GLOBAL max_temp_directory_size = '{limit}B'")
                self._limit = limit

    def error_of(self, text: str) -> errors.QueryServerError | None:
        """What a driver's message means when it is about this limit."""
        if "max_temp_directory_size" not in text:
            return None
        if self._limit is not None and self._limit < self._most_bytes:
            return errors.InsufficientStorage()
        return errors.StatementRejected(
            "Out of Memory Error: the temporary files of this database have reached their limit."
        )
