"""The disk while statements write into a local database: its floor and the quota of the database end them (ADR 41).

The engines know neither: SQLite bounds the pages of a file but not its log, DuckDB its temporary files only.
"""

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from queryserver.errors.statements import EngineError, disk_below_floor
from queryserver.platform.disk_floor import NO_FLOOR, DiskFloor

QUOTA_BYTES = 10 * 1024**3
"""Of the files of one local database, unless settings say another."""

_CHECK_EVERY_S = 0.1
"""A disk that writes 1 GB/s is 100 MB below the floor then, which is 1 GiB at least by default."""


def below_floor() -> EngineError:
    return disk_below_floor("The disk of the server is almost full. Try again later, or drop what is not needed.")


def above_quota(quota_bytes: int) -> EngineError:
    return disk_below_floor(
        f"The database has reached its quota of {quota_bytes} bytes: drop or delete what is not needed."
    )


def sample_is_full() -> EngineError:
    """What the cancel of a statement means that no user has requested (`platform/embedded/sample_server.py`)."""
    error = disk_below_floor(
        "The server has stopped the statement: its disk is almost full, or the sample database has reached its quota."
        " Drop what is not needed."
    )
    return error.classed("53100")


def size_of(files: Iterable[Path]) -> int:
    """Of those that exist."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


class StorageWatch:
    """Of the files of one database. `measure` gives their bytes; it is called in several threads, and must not wait."""

    def __init__(
        self,
        directory: Path,
        measure: Callable[[], int],
        *,
        quota_bytes: int = QUOTA_BYTES,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        self.directory = directory
        self.measure = measure
        self.quota_bytes = quota_bytes
        self._floor = floor

    def require_room(self, occupied: Callable[[], int] | None = None) -> None:
        """Refuse a statement that would write. Raises EngineError `insufficient_storage`.

        `occupied`: the bytes in use within the files, called where the files alone are at the quota.
        """
        if self.is_below_floor():
            raise below_floor()
        if self.measure() >= self.quota_bytes and (occupied or self.measure)() >= self.quota_bytes:
            raise above_quota(self.quota_bytes)

    def is_below_floor(self) -> bool:
        if self._floor.is_off:
            return False
        try:
            return self._floor.room(self.directory, anew=True) <= 0
        except OSError:
            return False

    @contextmanager
    def over(
        self, interrupt: Callable[[], None], *, watches_floor: Callable[[], bool] = lambda: True
    ) -> Generator[None]:
        """Interrupt what runs inside when it would take more. Raises EngineError `insufficient_storage` for its error.

        Files that are above the quota already may not grow.
        """
        allowed = max(self.quota_bytes, self.measure())

        def excess() -> EngineError | None:
            if self.measure() > allowed:
                return above_quota(self.quota_bytes)
            return below_floor() if watches_floor() and self.is_below_floor() else None

        watched = _Watched(excess, interrupt)
        _WATCHER.add(watched)
        try:
            yield
        except Exception as error:
            if watched.excess is not None:
                raise watched.excess from error
            raise
        finally:
            _WATCHER.discard(watched)


class _Watched:
    def __init__(self, excess: Callable[[], EngineError | None], interrupt: Callable[[], None]) -> None:
        self._excess = excess
        self._interrupt = interrupt
        self.excess: EngineError | None = None

    def check(self) -> None:
        self.excess = self.excess or self._excess()
        if self.excess is not None:
            self._interrupt()  # again until it is over: an interrupt just before a call has no effect


class _Watcher:
    """One thread for all databases of the process, which waits while nothing writes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched = set[_Watched]()
        self._thread: threading.Thread | None = None

    def add(self, watched: _Watched) -> None:
        with self._changed:
            self._watched.add(watched)
            if self._thread is None or not self._thread.is_alive():  # in a process that was forked, it is not
                self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, watched: _Watched) -> None:
        """It is not interrupted any more when this returns."""
        with self._changed:
            self._watched.discard(watched)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
            pause.wait(_CHECK_EVERY_S)
            with self._changed:
                for watched in self._watched:
                    watched.check()


_WATCHER = _Watcher()
