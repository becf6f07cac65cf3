"""Disk use of a SQLite database besides its file: the write-ahead log and temporary files (ADR 41).

SQLite itself limits the pages of the file and of temporary tables with `max_page_count`.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from queryserver.engines.storage_watch import StorageWatch, above_quota, below_floor, size_of
from queryserver.errors.statements import EngineError
from queryserver.platform.disk_floor import DiskFloor

LOG_BYTES = 16 * 1024 * 1024
"""A write-ahead log above this size is truncated after the statement."""

_OPEN_FILES = Path("/proc/self/fd")


class SqliteWatch:
    """Watches the disk use of one database file. `full` is the error for a statement that SQLite refused as full."""

    def __init__(self, file: Path, temporary: Path, *, quota_bytes: int, floor: DiskFloor) -> None:
        self._log = (file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-journal"))
        self._temporary = temporary
        self._file = StorageWatch(file.parent, lambda: size_of((file,)), quota_bytes=quota_bytes, floor=floor)
        self._beside = StorageWatch(file.parent, self._beside_bytes, quota_bytes=quota_bytes, floor=floor)

    def require_room(self, occupied: Callable[[], int] | None = None) -> None:
        self._file.require_room(occupied)

    @contextmanager
    def over(self, interrupt: Callable[[], None], *, watches_floor: Callable[[], bool]) -> Generator[None]:
        """Watch work; below the floor, a query is only stopped if it may be writing, that is, if there are temporary
        files.
        """

        def may_write() -> bool:
            return watches_floor() or temporary_bytes(self._temporary) > 0

        with self._beside.over(interrupt, watches_floor=may_write):
            yield

    def full(self) -> EngineError:
        return below_floor() if self._file.is_below_floor() else above_quota(self._file.quota_bytes)

    def has_long_log(self) -> bool:
        return size_of(self._log) > LOG_BYTES

    def _beside_bytes(self) -> int:
        """The log and the temporary files each have the full quota."""
        return max(size_of(self._log), temporary_bytes(self._temporary))


def temporary_bytes(directory: Path) -> int:
    """Disk use of this process's open temporary files; 0 if the system does not list them (macOS)."""
    total, within = 0, f"{directory}/"
    with suppress(OSError):
        for descriptor in _OPEN_FILES.iterdir():
            with suppress(OSError):  # closed in the meantime
                if str(descriptor.readlink()).startswith(within):
                    total += descriptor.stat().st_blocks * 512
    return total


def keep_temporary_files_in(directory: Path, connection: apsw.Connection) -> None:
    """Set the directory of temporary files, which is global to the process and by default the system's."""
    if connection.execute("PRAGMA temp_store_directory").get != str(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection.execute(f"PRAGMA temp_store_directory = {apsw.format_sql_value(str(directory))}")
