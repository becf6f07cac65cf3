"""Access rules and quotas for the users of the local root."""

import os
import stat
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import InvalidPath, NotADirectory, PathNotFound, StoreQuotaExceeded, SymlinkNotFollowed
from queryserver.files.model import StorageUser, is_name
from queryserver.files.stores.local.tree import LocalTree, file_error, file_names, path_name

HOMES = "user"
SHARED = "shared"
_TRASH = ".Trash"
OWNER = "user.queryserver.owner"
# The permission bits that queryserver needs to read a directory, or the owner attribute of a file.
_READABLE_FILE, _READABLE_DIRECTORY = 0o400, 0o500
# How long a measurement of disk usage is valid. Bytes that this process writes in the meantime are added to it.
_VALID_S = 30.0
# Concurrent changes cause these errors, as do entries that only the machine's administrator can have created.
_SKIPPED_ERRORS = (PathNotFound, NotADirectory, SymlinkNotFollowed, PermissionDenied, InvalidPath)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The paths that one user may see and change. Paths are compared name by name, and links are not followed.

    `/user/<name>/**` is accessible only to that user, and `/shared/**` to all users. All other paths are readable by
    all users. Administrators may read and change everything.
    """

    user: StorageUser

    @property
    def home(self) -> str:
        """The path of the user's home directory; empty if the user name is not a valid file name."""
        return _home_of(self.user.name)

    @property
    def trash(self) -> str:
        return f"{self.home}/{_TRASH}" if self.home else ""

    def is_in_trash(self, path: str) -> bool:
        return bool(self.trash) and (path == self.trash or path.startswith(f"{self.trash}/"))

    def shows(self, path: str) -> bool:
        """Return whether listings show an entry. Home directories of other users are hidden."""
        return self._may_enter(tuple(path.split("/", 2)))

    def check_read(self, path: str) -> tuple[str, ...]:
        """Check that the entry may be read, and return the names in its path. Raises PermissionDenied, InvalidPath."""
        names = file_names(path)
        if not self._may_enter(names):
            raise PermissionDenied(f"{path} belongs to another user.")
        return names

    def check_change(self, path: str) -> None:
        """Check that the entry may be created, deleted or changed. Raises PermissionDenied, InvalidPath."""
        names = self.check_read(path)
        if not self.user.is_admin and not (len(names) > 1 and names[0] in {HOMES, SHARED}):
            raise PermissionDenied(f"Only administrators may change {path or 'the root of the store'}.")

    def _may_enter(self, names: tuple[str, ...]) -> bool:
        if self.user.is_admin or len(names) < 2 or not _may_be_homes_directory(names[0]):
            return True
        return names[0] == HOMES and names[1] == self.user.name


@lru_cache(maxsize=1024)
def _home_of(name: str) -> str:
    return f"{HOMES}/{name}" if is_name(name) else ""


def is_private(names: tuple[str, ...]) -> bool:
    """Return whether the directory is a home directory, its trash, or a directory in that trash."""
    return names[0] == HOMES and (len(names) == 2 or (len(names) > 2 and names[2] == _TRASH))


@lru_cache(maxsize=1024)
def _may_be_homes_directory(name: str) -> bool:
    """Return whether the file system may treat a name as `user`. Some file systems ignore case and Unicode
    normalization.
    """
    return unicodedata.normalize("NFKC", name).casefold() == HOMES


@dataclass(slots=True)
class _Usage:
    """The disk usage of one user. A thread holds `measuring` while it measures; `lock` protects the values."""

    lock: Lock
    measuring: Lock
    measured_at: float | None = None
    used_bytes: int = 0
    counted_bytes: int = 0
    """Total of all bytes ever counted, from which the bytes written during a measurement are computed."""


class UserQuotas:
    """Enforces a quota of `max_bytes` per user; 0 disables it. Aborted uploads count until the next measurement."""

    def __init__(self, tree: LocalTree, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._max_bytes = max_bytes
        self.is_off = max_bytes <= 0
        self._clock = clock
        self._users: dict[str, _Usage] = defaultdict(lambda: _Usage(Lock(), Lock()))

    def take(self, access: AccessRules, size_bytes: int) -> None:
        """Count the bytes that the user is about to store. If they exceed the quota, raise StoreQuotaExceeded and do
        not count them.
        """
        if self.is_off:
            return
        usage = self._measured(access)
        with usage.lock:
            if usage.used_bytes + size_bytes > self._max_bytes:
                raise StoreQuotaExceeded(
                    f"Your files in this store would exceed the {self._max_bytes} bytes allowed by"
                    " `filebrowser.max_bytes_per_user`. Delete some files, and delete them from the trash as well."
                )
            usage.used_bytes += size_bytes
            usage.counted_bytes += size_bytes

    def remaining(self, access: AccessRules) -> int | None:
        """Return how many more bytes the user may store, or None if there is no quota."""
        if self.is_off:
            return None
        usage = self._measured(access)
        with usage.lock:
            return max(self._max_bytes - usage.used_bytes, 0)

    def mark(self, file: int, access: AccessRules) -> None:
        """Record the user as the owner of a new file in an extended attribute. On file systems without such attributes,
        only the files in home directories count toward the quota.
        """
        if not self.is_off and hasattr(os, "setxattr"):
            with suppress(OSError):
                os.setxattr(file, OWNER, access.user.name.encode())

    def readable(self, permissions: int, *, is_directory: bool) -> int:
        """Return the permissions, with the owner's read permissions added if quotas are enabled, because measuring
        needs them.
        """
        if self.is_off:
            return permissions
        return permissions | (_READABLE_DIRECTORY if is_directory else _READABLE_FILE)

    def _measured(self, access: AccessRules) -> _Usage:
        """Return the user's usage, measured again if it is older than 30 s.

        Only one thread per user measures. Other threads use the previous values, and wait only for the first
        measurement.
        """
        usage = self._users[access.user.name]
        if self._is_fresh(usage) or not usage.measuring.acquire(blocking=usage.measured_at is None):
            return usage
        try:
            if not self._is_fresh(usage):
                began_at, before = self._clock(), usage.counted_bytes
                used = self._used_bytes(access)
                with usage.lock:
                    usage.used_bytes = used + usage.counted_bytes - before
                    usage.measured_at = began_at
        finally:
            usage.measuring.release()
        return usage

    def _is_fresh(self, usage: _Usage) -> bool:
        return usage.measured_at is not None and self._clock() - usage.measured_at < _VALID_S

    def _used_bytes(self, access: AccessRules) -> int:
        name = access.user.name.encode()
        used = sum(size for _, size in self._files(access.home)) if access.home else 0
        return used + sum(size for owner, size in self._files(SHARED) if owner() == name)

    def _files(self, root: str) -> Generator[tuple[Callable[[], bytes], int]]:
        """Yield the owner and size of every file below a directory, including unfinished files. Links are not
        followed.

        Unreadable entries are skipped, so that one user's entries cannot break another user's measurement.
        """
        waiting = [root]
        while waiting:
            path = waiting.pop()
            try:
                with self._tree.directory(path) as directory:
                    with os.scandir(directory) as found:
                        names = [entry.name for entry in found]
                    for name in names:
                        with suppress(FileNotFoundError):
                            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                            if stat.S_ISDIR(status.st_mode):
                                waiting += [f"{path}/{path_part}"] if (path_part := path_name(name)) else []
                            elif stat.S_ISREG(status.st_mode):
                                yield _owner_in(directory, name), status.st_size
            except _SKIPPED_ERRORS:
                continue
            except OSError as error:
                if not isinstance(failure := file_error(path, error), _SKIPPED_ERRORS):
                    raise failure from error


def _owner_in(directory: int, name: str) -> Callable[[], bytes]:
    def owner() -> bytes:
        with suppress(OSError, AttributeError):
            return os.getxattr(f"/proc/self/fd/{directory}/{name}", OWNER, follow_symlinks=False)
        return b""

    return owner


@dataclass(frozen=True, slots=True)
class UserAccount:
    quotas: UserQuotas
    access: AccessRules

    def take(self, size_bytes: int) -> None:
        self.quotas.take(self.access, size_bytes)

    def mark(self, file: int) -> None:
        self.quotas.mark(file, self.access)
