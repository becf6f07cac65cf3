"""The temporary files of a DuckDB database: how much they may take. All of it blocks."""

import fcntl
import os
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import duckdb

from queryserver import errors
from queryserver.platform.disk_floor import DiskFloor

_STEP_BYTES = 64 * 1024 * 1024
"""The limit moves by steps, so that it is seldom set."""

_DIRECTORY = ".duckdb-temporary"
"""In the directory of the databases: a directory for each process with databases in memory, locked by it."""


class ProcessDirectory:
    """A directory for the temporary files of the databases in memory of this process. Blocks.

    What processes that were killed have left beside it is removed first. Raises OSError.
    """

    def __init__(self, root: Path) -> None:
        common = root / _DIRECTORY
        common.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(common):  # no other process takes the new directory for one that was left
            for left in common.iterdir():
                with suppress(OSError), _locked(left, waits=False):
                    shutil.rmtree(left, ignore_errors=True)
            self.path = Path(mkdtemp(dir=common))
            self._held = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._held, fcntl.LOCK_EX)

    def clear(self) -> None:
        """A confined process may not remove the directory itself; the next one does."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def _locked(directory: Path, *, waits: bool = True) -> Generator[None]:
    """Raises BlockingIOError when another process has the lock and `waits` is False."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class TemporaryRoom:
    """The limit of one database, whose temporary files lie in `directory`."""

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
