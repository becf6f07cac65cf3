"""Limits of this machine: free space of its disks, file descriptors for connections."""

import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from queryserver.errors.files import InsufficientStorage
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

# Below a second, disks do not change enough to pay for a call of the system with each piece of a file.
_KEPT_S = 1.0


class DiskUsage(Protocol):
    """Sizes of a file system in bytes, as `shutil.disk_usage` gives them."""

    @property
    def total(self) -> int:
        """All of it."""
        ...

    @property
    def free(self) -> int:
        """What this process may still use."""
        ...


class DiskFloor:
    """The floor of every file system: `percent` of its size, and `min_bytes` at least. Both 0: no floor.

    May be used by several threads. `usage` measures the file system of a directory; its answer is kept for a second.
    """

    def __init__(
        self,
        *,
        percent: float = 0,
        min_bytes: int = 0,
        usage: Callable[[Path], DiskUsage] = shutil.disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._percent = percent
        self._min_bytes = min_bytes
        self._usage = usage
        self._clock = clock
        self._lock = threading.Lock()
        self._measured: dict[Path, tuple[float, int]] = {}

    @property
    def is_off(self) -> bool:
        """Whether there is no floor."""
        return self._percent <= 0 and self._min_bytes <= 0

    def room(self, directory: Path, *, anew: bool = False) -> int:
        """Bytes that may still be written below `directory`; zero or negative: none. `anew`: measured now.

        Calls the operating system, so it blocks: call it in a thread. Raises OSError, also for a missing directory.
        """
        now = self._clock()
        with self._lock:
            measured_at, room = self._measured.get(directory, (-_KEPT_S, 0))
            if 0 <= now - measured_at < _KEPT_S and not anew:
                return room
        usage = self._usage(directory)
        room = usage.free - max(int(usage.total * self._percent / 100), self._min_bytes)
        with self._lock:
            self._measured[directory] = (now, room)
        return room

    def require(self, directory: Path, size_bytes: int = 0, *, anew: bool = False) -> None:
        """Refuse to write `size_bytes` more below `directory`. Blocks, as `room`. Raises InsufficientStorage.

        A file system that cannot be measured refuses nothing: the write itself reports what is wrong.
        """
        if self.is_off:
            return
        try:
            room = self.room(directory, anew=anew)
        except OSError:
            return
        if room <= 0 or size_bytes > room:
            raise InsufficientStorage


NO_FLOOR = DiskFloor()
"""Refuses nothing."""


def disk_floor(settings: Settings) -> DiskFloor:
    """What every writer of this machine keeps to."""
    desktop = settings.desktop
    return DiskFloor(percent=desktop.min_free_percent, min_bytes=desktop.min_free_bytes)


# Files, engines and the service database also need descriptors: a fifth of the limit, at least these.
_OTHER_DESCRIPTORS = 256


def affordable_connections(*, at_most: bool = False) -> int:
    """How many connections the limit of open files permits; `at_most`: once it is raised as far as possible."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[at_most]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit of open files to what `max_connections` need; log when the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + max(_OTHER_DESCRIPTORS, max_connections // 4) + 1
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))
    if (affordable := affordable_connections()) < max_connections:
        log.warning(
            "desktop.max_connections is above what the limit of open files permits",
            max_connections=max_connections,
            permitted=affordable,
            advice="raise the hard limit (ulimit -Hn, LimitNOFILE of systemd)",
        )
