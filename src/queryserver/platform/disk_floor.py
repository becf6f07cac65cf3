"""The part of each file system that must stay free."""

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

# Below a second, disks do not change enough to pay for a call of the system with each piece of a file.
_KEPT_S = 1.0


class DiskUsage(Protocol):
    """Sizes of a file system in bytes, as `shutil.disk_usage` gives them."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


@dataclass(slots=True, eq=False, kw_only=True)
class DiskFloor:
    """The floor of every file system: `percent` of its size, and `min_bytes` at least. Both 0: no floor.

    May be used by several threads. `usage` measures the file system of a directory; its answer is kept for a second.
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

    def room(self, directory: Path, *, anew: bool = False) -> int:
        """Bytes that may still be written below `directory`; zero or negative: none. `anew`: measured now.

        Calls the operating system, so it blocks: call it in a thread. Raises OSError, also for a missing directory.
        """
        now = self.clock()
        with self._lock:
            measured_at, room = self._measured.get(directory, (-_KEPT_S, 0))
            if 0 <= now - measured_at < _KEPT_S and not anew:
                return room
        usage = self.usage(directory)
        room = usage.free - max(int(usage.total * self.percent / 100), self.min_bytes)
        with self._lock:
            self._measured[directory] = (now, room)
        return room

    def require(self, directory: Path, size_bytes: int = 0, *, anew: bool = False) -> None:
        """Refuse to write `size_bytes` more below `directory`. Blocks, as `room`. Raises InsufficientStorage.

        A file system that cannot be measured refuses nothing: the write itself reports the problem.
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


def disk_floor(settings: "Settings") -> DiskFloor:
    """The floor of the settings, for all writers of this machine."""
    desktop = settings.desktop
    return DiskFloor(percent=desktop.min_free_percent, min_bytes=desktop.min_free_bytes)
