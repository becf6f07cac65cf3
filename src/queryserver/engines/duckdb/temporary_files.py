"""Manages the directory and size limit for temporary files of DuckDB databases. All calls block."""

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
from queryserver.platform.machine_limits import DiskFloor

_STEP_BYTES = 64 * 1024 * 1024
"""The limit is a multiple of this size, so that it rarely needs to be set again."""

_DIRECTORY = ".duckdb-temporary"
"""A subdirectory of the database directory. It contains one locked directory per process with in-memory databases."""


class ProcessDirectory:
    """A directory for the temporary files of this process's in-memory databases.

    The constructor first removes directories that killed processes have left. Raises OSError.
    """

    def __init__(self, root: Path) -> None:
        common = root / _DIRECTORY
        common.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(common):  # so that no other process removes the new directory as an orphan
            for left in common.iterdir():
                with suppress(OSError), _locked(left, waits=False):
                    shutil.rmtree(left, ignore_errors=True)
            self.path = Path(mkdtemp(dir=common))
            self._lock_descriptor = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Delete the files. A confined process may not remove the directory itself, so the next process removes it."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def _locked(directory: Path, *, waits: bool = True) -> Generator[None]:
    """Hold a directory's lock. Raises BlockingIOError if another process holds it and `waits` is False."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class TemporaryFilesLimit:
    """Limits the size of one database's temporary files in `directory`."""

    def __init__(self, directory: Path, max_bytes: int, floor: DiskFloor) -> None:
        self._max_bytes = max_bytes
        self._directory = directory
        self._floor = floor
        self._lock = threading.Lock()
        self._limit: int | None = None

    def apply(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Set the limit for the whole database, according to the free disk space.

        DuckDB refuses a limit below the current usage. The previous limit then remains until the usage has dropped.
        """
        limit = self._max_bytes
        if not self._floor.is_off:
            with suppress(OSError):
                room = max(self._floor.room(self._directory, fresh=True), 0)  # negative if the disk is full
                limit = min(limit, room // _STEP_BYTES * _STEP_BYTES)
        with self._lock, suppress(duckdb.Error):
            if limit != self._limit:
                connection.execute(f"SET GLOBAL max_temp_directory_size = '{limit}B'")
                self._limit = limit

    def error_of(self, text: str) -> errors.QueryServerError | None:
        """Return the domain error for a driver message that this limit has caused; otherwise None."""
        if "max_temp_directory_size" not in text:
            return None
        if self._limit is not None and self._limit < self._max_bytes:
            return errors.InsufficientStorage()
        return errors.StatementRejected(
            "Out of Memory Error: the temporary files of this database have reached their limit."
        )
