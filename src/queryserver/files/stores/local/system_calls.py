"""Calls into the file system: bounded threads, errors as domain errors, status, access."""

import asyncio
import errno
import grp
import os
import pwd
import stat
import unicodedata
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar, TypeVarTuple

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    DirectoryNotEmpty,
    InvalidPath,
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    SymlinkNotFollowed,
)
from queryserver.files.model import EntryKind, FileStatus, StorageUser
from queryserver.files.paths import is_name, names_of
from queryserver.files.stores.reading import ReadSizes

_KINDS: dict[int, tuple[type[QueryServerError], str]] = {
    errno.ENOENT: (PathNotFound, "{path} does not exist."),
    errno.ENOTDIR: (NotADirectory, "{path} is not a directory, or leads through a file."),
    errno.EEXIST: (PathExists, "{path} exists."),
    errno.EISDIR: (PathExists, "{path} is a directory."),
    errno.ENOTEMPTY: (DirectoryNotEmpty, "{path} is not empty."),
    errno.ELOOP: (SymlinkNotFollowed, "{path} leads through a symbolic link, which is not followed."),
    errno.EINVAL: (InvalidPath, "{path} cannot be used for this."),
    errno.ENAMETOOLONG: (InvalidPath, "{path} is too long."),
    errno.EILSEQ: (InvalidPath, "The store cannot hold a name like {path}."),
    errno.ENOSPC: (StorageError, "The store has no room left."),
    errno.EDQUOT: (StoreQuotaExceeded, "The quota of the store is used up."),
    errno.EFBIG: (StorageError, "The file is larger than the store allows."),
    errno.EIO: (StorageUnavailable, "The device of the store fails."),
    errno.ENODEV: (StorageUnavailable, "The device of the store is gone."),
    errno.ENXIO: (StorageUnavailable, "The device of the store is gone."),
    errno.ESTALE: (StorageUnavailable, "The file server has lost the file."),
    errno.ETIMEDOUT: (StorageUnavailable, "The file server does not answer."),
    errno.EMFILE: (StorageUnavailable, "Too many files are open."),
    errno.ENFILE: (StorageUnavailable, "Too many files are open."),
    errno.EROFS: (StorageUnavailable, "The store is read-only."),
    errno.EACCES: (PermissionDenied, "The store refuses access to {path}."),
    errno.EPERM: (PermissionDenied, "The store refuses access to {path}."),
    errno.EXDEV: (StorageError, "{path} lies on another device, so that it cannot be renamed to there."),
}


@contextmanager
def file_errors(path: str) -> Generator[None]:
    """Every OSError inside becomes a domain error about `path`, which is relative to the root."""
    try:
        yield
    except OSError as error:
        kind, text = _KINDS.get(error.errno or 0, (StorageError, "The store failed with {path}."))
        raise kind(text.format(path=path or "The root of the store")) from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PERMISSIONS = 0o1777
_STATUS_KINDS = {stat.S_IFREG: EntryKind.FILE, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.LINK}


def status_of(path: str, found: os.stat_result) -> FileStatus:
    """The entry at `path`. Blocks: the names of owners may come from a directory service."""
    kind = kind_of(found)
    return FileStatus(
        path,
        kind,
        found.st_size if kind is EntryKind.FILE else 0,
        _moment(found.st_mtime_ns),
        permissions=found.st_mode & _PERMISSIONS,
        accessed_at=_moment(found.st_atime_ns),
        owner=_user_name(found.st_uid),
        group=_group_name(found.st_gid),
        file_id=f"{found.st_dev:x}-{found.st_ino:x}",
    )


def kind_of(found: os.stat_result) -> EntryKind:
    """Devices, pipes and sockets are unknown: they are never opened."""
    return _STATUS_KINDS.get(stat.S_IFMT(found.st_mode), EntryKind.UNKNOWN)


def _moment(since_epoch_ns: int) -> datetime | None:
    """None for a time that no calendar reaches: some file systems keep any number."""
    try:
        # A float of seconds would round differently than the microseconds that are kept.
        return _EPOCH + timedelta(microseconds=since_epoch_ns // 1000)
    except OverflowError:
        return None


@lru_cache(maxsize=4096)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(maxsize=4096)
def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


HOMES = "user"
SHARED = "shared"
_TRASH = ".Trash"


@dataclass(frozen=True, slots=True)
class AccessMap:
    """The map for one user. Paths are compared name by name; links lead nowhere, so that a path is where it says.

    `/user/<name>/**`: that user only. `/shared/**`: everyone. The rest: everyone reads, administrators write.
    """

    user: StorageUser

    @property
    def home(self) -> str:
        """The caller's own directory; empty for a user whose name is none of a file."""
        return f"{HOMES}/{self.user.name}" if is_name(self.user.name) else ""

    @property
    def trash(self) -> str:
        """The root of the caller's trash; empty without a home."""
        return f"{self.home}/{_TRASH}" if self.home else ""

    def is_in_trash(self, path: str) -> bool:
        """Whether a path is the caller's trash, or lies in it."""
        return bool(self.trash) and (path == self.trash or path.startswith(f"{self.trash}/"))

    def shows(self, path: str) -> bool:
        """Whether a listing tells the caller of an entry: not of the homes of others."""
        return self._may_enter(tuple(path.split("/", 2)))

    def check_read(self, path: str) -> None:
        """Raises PermissionDenied, InvalidPath."""
        if not self._may_enter(names_of(path)):
            raise PermissionDenied(f"{path} is another user's.")

    def check_change(self, path: str) -> None:
        """Whether the entry itself may come, go and change. Raises PermissionDenied, InvalidPath."""
        self.check_read(path)
        names = names_of(path)
        if not self.user.is_admin and not (len(names) > 1 and names[0] in {HOMES, SHARED}):
            raise PermissionDenied(f"Only administrators may change {path or 'the root of the store'}.")

    def _may_enter(self, names: tuple[str, ...]) -> bool:
        """Whether a path does not lie in the home of another."""
        if self.user.is_admin or len(names) < 2 or not _is_like_homes(names[0]):
            return True
        return names[0] == HOMES and names[1] == self.user.name


def is_private(names: tuple[str, ...]) -> bool:
    """Whether only their user has business in there: homes and trashes."""
    return names[0] == HOMES and (len(names) == 2 or (len(names) > 2 and names[2] == _TRASH))


@lru_cache(maxsize=1024)
def _is_like_homes(name: str) -> bool:
    """Whether a name is that of the homes, or might lead there: some file systems fold case and forms of characters."""
    return unicodedata.normalize("NFKC", name).casefold() == HOMES


T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class FileThreads:
    """At most `max_threads` calls at a time; who waits longer than `timeout_s` gets StorageUnavailable.

    To be closed by its owner.
    """

    def __init__(self, *, max_threads: int, timeout_s: float) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="local-storage")
        self._flushes = ThreadPoolExecutor(1, thread_name_prefix="local-storage-flush")
        self._ended_flushes = 0
        self.read_sizes = ReadSizes()
        self._timeout_s = timeout_s

    async def run(self, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What the call gives. A call that nobody waits for any more goes on."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, call, *arguments)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error

    async def until_done(self, step: Callable[[], bool]) -> None:
        """Repeat a call until it says that nothing is left; each of them has the whole time."""
        while not await self.run(step):
            pass

    def start_flush(self, flush: Callable[[], None]) -> Future[None]:
        """Run a call that waits for the disk. One at a time, beside all others, which it does not hold up."""
        return self._flushes.submit(self._run_flush, flush)

    async def ended(self, flush: Future[None]) -> None:
        """Wait for a started flush, which may stand behind those of others: each of them has the whole time.

        Raises what it raises.
        """
        waiting, before = asyncio.wrap_future(flush), self._ended_flushes
        try:
            while not (await asyncio.wait({waiting}, timeout=self._timeout_s))[0]:
                if self._ended_flushes == before:
                    raise StorageUnavailable("The file system does not answer.")
                before = self._ended_flushes
            waiting.result()
        finally:
            waiting.cancel()

    def _run_flush(self, flush: Callable[[], None]) -> None:
        try:
            flush()
        finally:
            self._ended_flushes += 1

    def start(self, call: Callable[[], None]) -> Future[None]:
        """Run a call that nobody waits for; closing the threads does."""
        return self._threads.submit(call)

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent. Raises StorageUnavailable if one hangs."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._threads.shutdown)
                await asyncio.to_thread(self._flushes.shutdown)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error
