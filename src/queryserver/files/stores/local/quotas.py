"""How many bytes each user stores in the local root. Everything here blocks: it is called in threads.

What counts is found on the disk, so that it is right with several servers and after deletions by others: all files in
the user's home, with the trash, and those files of `/shared` that bear the user's name as extended attribute.
"""

import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import InvalidPath, NotADirectory, PathNotFound, StoreQuotaExceeded, SymlinkNotFollowed
from queryserver.files.stores.local.system_calls import SHARED, AccessMap, file_errors
from queryserver.files.stores.local.tree import Tree

OWNER = "user.queryserver.owner"
# Without these the service could see neither what is in a directory nor whose a file is.
_READABLE_FILE, _READABLE_DIRECTORY = 0o400, 0o500
# Between two measurements what this process has written since is added.
_KEPT_S = 30.0
# What another server changes meanwhile, and what only the administrator of the machine could make.
_PASSED_OVER = (PathNotFound, NotADirectory, SymlinkNotFollowed, PermissionDenied, InvalidPath)


@dataclass(slots=True)
class _Measured:
    """What is known of one user. `walking` is held while the files are measured, `lock` only for a moment."""

    lock: Lock
    walking: Lock
    measured_at: float | None = None
    used_bytes: int = 0
    taken_bytes: int = 0
    """All that was ever counted, for what comes while the files are measured."""


class UserQuotas:
    """At most `max_bytes` of each user; 0: no limit. An upload that was abandoned counts until the next measurement."""

    def __init__(self, tree: Tree, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._max_bytes = max_bytes
        self._clock = clock
        self._users: dict[str, _Measured] = defaultdict(lambda: _Measured(Lock(), Lock()))

    @property
    def is_off(self) -> bool:
        """Whether there is no limit."""
        return self._max_bytes <= 0

    def take(self, access: AccessMap, size_bytes: int) -> None:
        """Count bytes that the user is about to store. Raises StoreQuotaExceeded; then they do not count."""
        if self.is_off:
            return
        measured = self._measured(access)
        with measured.lock:
            if measured.used_bytes + size_bytes > self._max_bytes:
                raise StoreQuotaExceeded(
                    f"Your files in this store would take more than the {self._max_bytes} bytes of"
                    " `filebrowser.max_bytes_per_user`. Delete some, also from the trash."
                )
            measured.used_bytes += size_bytes
            measured.taken_bytes += size_bytes

    def left(self, access: AccessMap) -> int | None:
        """How many bytes the user may still store; None: as many as there is room."""
        if self.is_off:
            return None
        measured = self._measured(access)
        with measured.lock:
            return max(self._max_bytes - measured.used_bytes, 0)

    def mark(self, file: int, access: AccessMap) -> None:
        """Write the user's name to a new file. Where the file system keeps no attributes, only homes are counted."""
        if not self.is_off and hasattr(os, "setxattr"):
            with suppress(OSError):
                os.setxattr(file, OWNER, access.user.name.encode())

    def readable(self, permissions: int, *, is_directory: bool) -> int:
        """The permissions, and with a limit those of the owner without which nothing could be measured."""
        if self.is_off:
            return permissions
        return permissions | (_READABLE_DIRECTORY if is_directory else _READABLE_FILE)

    def _measured(self, access: AccessMap) -> _Measured:
        """One thread measures; others go on with what is known, so that a user with many files holds no more threads.

        They wait only where nothing is known yet.
        """
        measured = self._users[access.user.name]
        if self._is_fresh(measured) or not measured.walking.acquire(blocking=measured.measured_at is None):
            return measured
        try:
            if not self._is_fresh(measured):
                began_at, before = self._clock(), measured.taken_bytes
                used = self._used_bytes(access)
                with measured.lock:
                    measured.used_bytes = used + measured.taken_bytes - before
                    measured.measured_at = began_at
        finally:
            measured.walking.release()
        return measured

    def _is_fresh(self, measured: _Measured) -> bool:
        return measured.measured_at is not None and self._clock() - measured.measured_at < _KEPT_S

    def _used_bytes(self, access: AccessMap) -> int:
        name = access.user.name.encode()
        used = sum(size for _, size in self._files(access.home)) if access.home else 0
        return used + sum(size for owner, size in self._files(SHARED) if owner() == name)

    def _files(self, root: str) -> Generator[tuple[Callable[[], bytes], int]]:
        """Owner and size of every file below a directory, those on their way in too; links are not followed.

        What cannot be read counts nothing: else one user could keep all others from storing anything.
        """
        waiting = [root]
        while waiting:
            path = waiting.pop()
            with suppress(*_PASSED_OVER), file_errors(path), self._tree.directory(path) as directory:
                with os.scandir(directory) as found:
                    names = [entry.name for entry in found]
                for name in names:
                    with suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode):
                            waiting.append(f"{path}/{name}")
                        elif stat.S_ISREG(status.st_mode):
                            yield _owner_in(directory, name), status.st_size


def _owner_in(directory: int, name: str) -> Callable[[], bytes]:
    def owner() -> bytes:
        with suppress(OSError, AttributeError):
            return os.getxattr(f"/proc/self/fd/{directory}/{name}", OWNER, follow_symlinks=False)
        return b""

    return owner
