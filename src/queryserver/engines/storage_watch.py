"""Cancels statements whose writes exceed a local database's quota or the free-space floor of its disk (ADR 41).

The engines themselves cannot enforce these limits. SQLite can limit the pages of a database file, but not the size of
its log. DuckDB can limit only the size of its temporary files.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from queryserver.errors.statements import EngineError, disk_below_floor
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor

QUOTA_BYTES = 10 * 1024**3
"""Default quota for the files of one local database."""

_CHECK_EVERY_S = 0.1
"""Check interval. At 1 GB/s, free space falls at most 100 MB below the floor, which is at least 1 GiB by default."""


def below_floor() -> EngineError:
    return disk_below_floor("The server's disk is almost full. Drop unneeded objects, or retry later.")


def above_quota(quota_bytes: int) -> EngineError:
    return disk_below_floor(
        f"The database has reached its quota of {quota_bytes} bytes"
        " (`desktop.connector_policy.local_database_max_bytes`, or `max_database_size` of the connector). Drop or"
        " delete data that is not needed."
    )


def sample_is_full() -> EngineError:
    """Return the error for a sample database statement that the server canceled to enforce a limit.

    See `platform/embedded/sample_server.py`.
    """
    error = disk_below_floor(
        "The server canceled the statement because its disk is almost full or the sample database reached its quota"
        " (`desktop.connector_policy.local_database_max_bytes`). Drop unneeded objects."
    )
    return error.with_sqlstate("53100")


def size_of(files: Iterable[Path]) -> int:
    """Return the total size in bytes of the files that exist."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimits:
    """The quota for the files of one local database, and the minimum free space on their disk."""

    quota_bytes: int = QUOTA_BYTES
    floor: DiskFloor = NO_FLOOR


class StorageWatch:
    """Checks the files of one database against the limits.

    `measure` returns the files' total size. It must be thread-safe and must not block.
    """

    def __init__(self, directory: Path, measure: Callable[[], int], limits: StorageLimits) -> None:
        self.directory = directory
        self.measure = measure
        self.quota_bytes = limits.quota_bytes
        self._floor = limits.floor
        self._measured_bytes = 0
        self._measured_at = -_CHECK_EVERY_S

    def require_room(self, used_bytes: Callable[[], int] | None = None) -> None:
        """Check the limits before a statement that writes. Raises EngineError `insufficient_storage`.

        `used_bytes` returns the number of bytes in use inside the files. It is called only if the file sizes reach the
        quota.
        """
        if self.is_below_floor():
            raise below_floor()
        if self.measure() >= self.quota_bytes and (used_bytes or self.measure)() >= self.quota_bytes:
            raise above_quota(self.quota_bytes)

    def is_below_floor(self) -> bool:
        if self._floor.is_off:
            return False
        try:
            return self._floor.room(self.directory, fresh=True) <= 0
        except OSError:
            return False

    @contextmanager
    def over(
        self, interrupt: Callable[[], None], *, watches_floor: Callable[[], bool] = lambda: True
    ) -> Generator[None]:
        """Interrupt the block's work once it exceeds a limit.

        The error of an interrupted block is replaced with EngineError `insufficient_storage`.
        If the files already exceed the quota, the limit is their current size.
        """
        allowed = self._allowed_bytes()

        def exceeded_limit() -> EngineError | None:
            if self.measure() > allowed:
                return above_quota(self.quota_bytes)
            return below_floor() if watches_floor() and self.is_below_floor() else None

        watched = _WatchedCall(exceeded_limit, interrupt)
        _WATCHER.add(watched)
        try:
            yield
        except Exception as error:
            if watched.exceeded_limit is not None:
                raise watched.exceeded_limit from error
            raise
        finally:
            _WATCHER.discard(watched)

    def _allowed_bytes(self) -> int:
        """Return the limit for work that starts now: the quota, or the size of the files if it exceeds the quota.

        Files that were smaller than half of the quota at the latest check are not measured again before the next check,
        because that takes as long as a small statement (docs/benchmarks.md).
        """
        now = time.monotonic()
        if now - self._measured_at >= _CHECK_EVERY_S or 2 * self._measured_bytes >= self.quota_bytes:
            self._measured_bytes, self._measured_at = self.measure(), now
        return max(self.quota_bytes, self._measured_bytes)


class _WatchedCall:
    """A call in progress, which `check` interrupts once it exceeds a limit."""

    def __init__(self, exceeded_limit: Callable[[], EngineError | None], interrupt: Callable[[], None]) -> None:
        self._excess = exceeded_limit
        self._interrupt = interrupt
        self.exceeded_limit: EngineError | None = None

    def check(self) -> None:
        self.exceeded_limit = self.exceeded_limit or self._excess()
        if self.exceeded_limit is not None:
            self._interrupt()  # repeated, because an interrupt has no effect if it arrives just before a call


class _Watcher:
    """Checks all databases of the process in one thread, which sleeps while no statement is writing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched = set[_WatchedCall]()
        self._thread: threading.Thread | None = None

    def add(self, watched: _WatchedCall) -> None:
        with self._changed:
            self._watched.add(watched)
            if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
                self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, watched: _WatchedCall) -> None:
        """Stop checking this call. Once this method returns, the call is not interrupted anymore."""
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
