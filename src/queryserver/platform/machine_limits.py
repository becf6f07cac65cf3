"""Limits of this machine: the minimum free space on each file system, and the number of open files."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from queryserver.errors.files import InsufficientStorage

if TYPE_CHECKING:  # engine processes load neither the settings nor pydantic
    from queryserver.platform.settings.tree import Settings
import resource

import structlog

# Within a second, free space changes too little to justify a system call for each chunk of a file.
_CACHED_S = 1.0

log = structlog.get_logger(__name__)

# Descriptors reserved for files, engines and the service database: a fifth of the limit, but at least this many.
_OTHER_DESCRIPTORS = 256


class DiskUsage(Protocol):
    """The total and free bytes of a file system, as returned by `shutil.disk_usage`."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


@dataclass(slots=True, eq=False, kw_only=True)
class DiskFloor:
    """The minimum free space: the larger of `percent` of the file system's size and `min_bytes`. Both 0: no minimum.

    Thread-safe. `usage` measures the file system that contains a directory; the result is cached for one second.
    """

    percent: float = 0
    min_bytes: int = 0
    usage: Callable[[Path], DiskUsage] = shutil.disk_usage
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _measured: dict[Path, tuple[float, int]] = field(default_factory=dict[Path, tuple[float, int]], init=False)

    @property
    def is_off(self) -> bool:
        return self.percent <= 0 and self.min_bytes <= 0

    def room(self, directory: Path, *, fresh: bool = False) -> int:
        """Return how many bytes may still be written below `directory`; zero or negative if none.

        `fresh` bypasses the cache.

        Blocks, so call it in a thread. Raises OSError, also if the directory does not exist.
        """
        now = self.clock()
        with self._lock:
            measured_at, room = self._measured.get(directory, (-_CACHED_S, 0))
            if 0 <= now - measured_at < _CACHED_S and not fresh:
                return room
        usage = self.usage(directory)
        room = usage.free - max(int(usage.total * self.percent / 100), self.min_bytes)
        with self._lock:
            self._measured[directory] = (now, room)
        return room

    def require(self, directory: Path, size_bytes: int = 0, *, fresh: bool = False) -> None:
        """Raise InsufficientStorage unless `size_bytes` more may be written below `directory`. Blocks, like `room`.

        If the file system cannot be measured, nothing is refused, because the write itself will report the problem.
        """
        if self.is_off:
            return
        try:
            room = self.room(directory, fresh=fresh)
        except OSError:
            return
        if room <= 0 or size_bytes > room:
            raise InsufficientStorage


NO_FLOOR = DiskFloor()


def disk_floor(settings: "Settings") -> DiskFloor:
    """Return the configured minimum free space, which applies to all writes on this machine."""
    desktop = settings.desktop
    return DiskFloor(percent=desktop.min_free_percent, min_bytes=desktop.min_free_bytes)


def permitted_connections(*, hard: bool = False) -> int:
    """Return how many connections the soft limit on open files permits, or the hard limit if `hard` is set."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[hard]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit on open files as far as `max_connections` requires.

    Logs a warning if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + max(_OTHER_DESCRIPTORS, max_connections // 4) + 1
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))
    if (affordable := permitted_connections()) < max_connections:
        log.warning(
            "desktop.max_connections exceeds the limit on open files",
            max_connections=max_connections,
            permitted=affordable,
            advice="increase the hard limit (ulimit -Hn, LimitNOFILE in systemd)",
        )
