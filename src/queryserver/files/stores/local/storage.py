"""The Storage over one directory of this machine."""

import asyncio
import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Protocol, Self, TypeVar

from queryserver.errors.base import ConfigurationError, PermissionDenied, QueryServerError
from queryserver.errors.files import (
    InvalidPath,
    NotADirectory,
    PathNotFound,
    StoreQuotaExceeded,
    SymlinkNotFollowed,
    trash_not_supported,
)
from queryserver.files.model import ContentSummary, EntryKind, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart
from queryserver.files.stores.local import deleting as sweeping
from queryserver.files.stores.local import transfers as parts
from queryserver.files.stores.local.deleting import Deletion, Summation
from queryserver.files.stores.local.transfers import Account, Download, Flushing, StagedParts, Upload
from queryserver.files.stores.local.tree import (
    HOMES,
    SHARED,
    AccessMap,
    FileThreads,
    Listing,
    Tree,
    file_errors,
    is_private,
    must_be_file,
)
from queryserver.platform.limits import NO_FLOOR, DiskFloor, disk_floor
from queryserver.platform.settings.tree import Settings

Ended = TypeVar("Ended")
Ended_co = TypeVar("Ended_co", covariant=True)


class Incoming(Protocol[Ended_co]):
    """Bytes on their way in."""

    def open(self) -> None:
        """Refuse what cannot end well before the first byte is taken."""
        ...

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        ...

    def commit(self) -> Ended_co:
        """Keep them."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind. After `commit` nothing happens."""
        ...


class LocalStorage:
    """The files of `tree` that `access` lets one user see and change. Owns nothing."""

    def __init__(self, tree: Tree, threads: FileThreads, access: AccessMap) -> None:
        self._tree = tree
        self._threads = threads
        self._access = access
        self._account: Account | None = None

    async def stat(self, path: str) -> FileStatus:
        await self._enter(path)
        return await self._threads.run(self._tree.stat, path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. The order is the file system's own."""
        await self._enter(path)
        listing = Listing(self._tree, path, cursor, self._access.shows)
        try:
            while True:
                batch = await self._threads.run(listing.batch, batch_size)
                yield batch
                if batch.cursor is None:
                    return
        finally:
            # Not awaited: the generator may be closed while its loop ends. Closing the pool waits for it.
            self._threads.start(listing.close)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        await self._enter(path)
        download, sizes = Download(self._tree, path, version), self._threads.read_sizes
        end = sys.maxsize if length is None else offset + length
        try:
            with sizes.reader():
                # Asked for even if nothing is wanted: a missing file is told.
                while piece := await self._threads.run(download.read, offset, min(end - offset, sizes.piece_bytes)):
                    offset += len(piece)
                    yield piece
                    if offset == end:
                        return
        finally:
            self._threads.start(download.close)

    async def write(
        self,
        path: str,
        body: AsyncIterator[bytes],
        *,
        overwrite: bool,
        size_bytes: int | None = None,
    ) -> FileStatus:
        """See the Protocol. Raises InsufficientStorage when the disk is below its floor, or would be behind it."""
        await self._enter_to_change(path)
        upload = Upload(self._tree, path, overwrite=overwrite, announced_bytes=size_bytes or 0, account=self._account)
        async with aclosing(Flushing(self._threads, upload.flush).while_written(body)) as pieces:
            return await self._take(upload, pieces)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """See the Protocol. Of several that make one directory at a time, one succeeds."""
        await self._enter_to_change(path)
        if not self._access.is_in_trash(path):
            # Deleting goes on below the floor, and the trash has directories.
            await self._threads.run(self._tree.require_room)
        await self._threads.run(self._tree.make_directory, path, permissions)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        # Before the parents of the target are made: a copy of nothing leaves nothing.
        found = await self.stat(source)
        must_be_file(source, found.kind)
        async with aclosing(self.read(source)) as body:
            return await self.write(target, body, overwrite=overwrite, size_bytes=found.size_bytes)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. A deletion that breaks off leaves a part of the tree."""
        await self._enter_to_change(path)
        await self._threads.until_done(Deletion(self._tree, path, recursive=recursive).step)

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """See the Protocol. A link is renamed itself."""
        await self._enter_to_change(source)
        await self._enter_to_change(target)
        await self._threads.run(self._rename, source, target, overwrite)

    async def content_summary(self, path: str) -> ContentSummary:
        """See the Protocol. Counts what the caller may see."""
        await self._enter(path)
        summation = Summation(self._tree, path, self._access.shows)
        await self._threads.until_done(summation.step)
        return summation.summary

    async def set_permissions(self, path: str, permissions: int) -> None:
        """See the Protocol. Devices, pipes and sockets keep theirs: NotAFile."""
        await self._enter_to_change(path)
        await self._threads.run(self._tree.set_permissions, path, permissions)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol. The room for the whole file is taken at once. Raises InsufficientStorage."""
        await self._enter_to_change(plan.path)
        return await self._threads.run(parts.begin, self._tree, plan, self._account)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        await self._enter_to_change(plan.path)
        return await self._take(parts.PartUpload(self._tree, plan, staging, index), body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        await self._enter_to_change(plan.path)
        return await self._threads.run(self._join, plan, staging, parts, overwrite)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        del parts
        await self._enter_to_change(plan.path)
        download, offset = StagedParts(self._tree, plan, staging), 0
        try:
            while piece := await self._threads.run(download.read, offset, self._threads.read_sizes.piece_bytes):
                offset += len(piece)
                yield piece
        finally:
            self._threads.start(download.close)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        await self._enter_to_change(plan.path)
        await self._threads.run(parts.discard, self._tree, plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """See the Protocol. `older_than_s` must exceed the longest pause of a living write, of other processes too."""
        await self._enter(path)
        return await self._threads.run(sweeping.sweep, self._tree, path, older_than_s)

    async def _enter(self, path: str) -> None:
        """Before a path is looked at. Raises PermissionDenied."""
        self._access.check_read(path)
        await self._settle(path)

    async def _enter_to_change(self, path: str) -> None:
        """Before the entry of a path comes, goes or changes. Raises PermissionDenied."""
        self._access.check_change(path)
        await self._settle(path)

    async def _settle(self, path: str) -> None:
        """Make what is always there."""

    def _rename(self, source: str, target: str, overwrite: bool) -> None:
        self._tree.rename(source, target, overwrite=overwrite)

    def _join(self, plan: PartPlan, staging: str, stored: Sequence[StoredPart], overwrite: bool) -> FileStatus:
        return parts.join(self._tree, plan, staging, stored, overwrite=overwrite)

    async def _take(self, incoming: Incoming[Ended], body: AsyncIterator[bytes]) -> Ended:
        """Give bytes to what takes them. A failure or a cancel leaves nothing behind."""
        try:
            await self._threads.run(incoming.open)
            async for piece in body:
                await self._threads.run(incoming.write, piece)
            return await self._threads.run(incoming.commit)
        except BaseException:  # a cancel too: no part of a file may stay
            await self._shielded(incoming.abandon)
            raise

    async def _shielded(self, call: Callable[[], None]) -> None:
        with suppress(QueryServerError):
            await asyncio.shield(self._threads.run(call))


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


_TRAITS = StorageTraits(deletes_to_trash=True, changes_modes_of_trees=True, home_parent=HOMES)
_FILE_MODE, _DIRECTORY_MODE, _PRIVATE_MODE = 0o666, 0o777, 0o700


class LocalFileSystem:
    """Files below `root`, for users who share one account of the machine. To be closed by its owner.

    New files and directories have the modes that `umask` leaves, homes and trashes 0700. `max_bytes_per_user` 0: users
    store as much as there is room for. `root` need not be there:
    then every call is StorageUnavailable.
    """

    def __init__(
        self,
        root: Path,
        *,
        umask: int = 0o022,
        max_threads: int = 8,
        timeout_s: float = 60,
        floor: DiskFloor = NO_FLOOR,
        max_bytes_per_user: int = 0,
    ) -> None:
        self._root = root
        self._umask = umask
        self._tree = Tree(root, file_mode=_FILE_MODE & ~umask, directory_mode=self._directory_mode, floor=floor)
        self._quotas = UserQuotas(self._tree, max_bytes_per_user)
        self._threads = FileThreads(max_threads=max_threads, timeout_s=timeout_s)

    @property
    def scheme(self) -> Scheme:
        """`file`."""
        return Scheme.FILE

    @property
    def traits(self) -> StorageTraits:
        """Trash by default; modes of trees; homes in `/user`."""
        return _TRAITS

    def as_user(self, user: StorageUser) -> "UserStorage":
        """The store as the map lets `user` see it."""
        return UserStorage(self._tree, self._threads, AccessMap(user), self._quotas)

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent."""
        await self._threads.close()

    def _directory_mode(self, names: tuple[str, ...]) -> int:
        return _PRIVATE_MODE if is_private(names) else _DIRECTORY_MODE & ~self._umask


class UserStorage(LocalStorage):
    """The local root as one user sees it; with a trash."""

    def __init__(self, tree: Tree, threads: FileThreads, access: AccessMap, quotas: UserQuotas) -> None:
        super().__init__(tree, threads, access)
        self._quotas = quotas
        self._is_settled = False
        if not quotas.is_off:
            self._account = _UserAccount(quotas, access)

    async def room_bytes(self) -> int | None:
        return await self._threads.run(self._quotas.left, self._access)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """See the Protocol. With a share of each user, directories stay readable to the service."""
        if permissions is not None:
            permissions = self._quotas.readable(permissions, is_directory=True)
        await super().mkdir(path, permissions=permissions)

    async def set_permissions(self, path: str, permissions: int) -> None:
        """See the Protocol. With a share of each user, files and directories stay readable to the service."""
        if not self._quotas.is_off:
            is_directory = (await self.stat(path)).kind is EntryKind.DIRECTORY
            permissions = self._quotas.readable(permissions, is_directory=is_directory)
        await super().set_permissions(path, permissions)

    async def trash_root(self, path: str) -> str:  # noqa: ARG002 one trash for all paths
        """See the Protocol. Raises trash_not_supported for a user who cannot have a home here."""
        if not self._access.trash:
            raise trash_not_supported("Users of that name have no home in this store.")
        return self._access.trash

    async def _settle(self, path: str) -> None:
        """The home of the caller, and `/shared`, are there from the first look at where they are."""
        if not self._is_settled and path.partition("/")[0] in {"", HOMES, SHARED}:
            await self._threads.run(self._make_homes)
            self._is_settled = True

    def _make_homes(self) -> None:
        for directory in (SHARED, self._access.home or HOMES):
            # On a read-only store there is none, which is told by the call that needs it.
            with suppress(QueryServerError):
                self._tree.ensure_directory(directory)


@dataclass(frozen=True, slots=True)
class _UserAccount:
    """`Account` of one user."""

    quotas: UserQuotas
    access: AccessMap

    def take(self, size_bytes: int) -> None:
        self.quotas.take(self.access, size_bytes)

    def mark(self, file: int) -> None:
        self.quotas.mark(file, self.access)


_SERVICE = AccessMap(StorageUser("", is_admin=True))


class PrivateStorage(LocalStorage):
    """Files below `root`, which is made when missing. Files get mode 0600, directories 0700.

    All work on files is done by `max_threads` threads of its own; a call that the file system does not answer within
    `timeout_s` raises StorageUnavailable. To be closed by its owner.
    """

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(Tree(root, floor=floor), FileThreads(max_threads=max_threads, timeout_s=timeout_s), _SERVICE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent. Raises StorageUnavailable if one hangs."""
        await self._threads.close()

    async def sweep_everywhere(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """As `sweep_orphans`, in all directories; or count only."""
        waiting, removed = [""], 0
        while waiting:
            # One short call per directory: a store of 100,000 directories holds up no other caller.
            with suppress(PathNotFound):
                path = waiting.pop()
                waiting += await self._threads.run(sweeping.directories_in, self._tree, path)
                older_than_s = older_than.total_seconds()
                removed += await self._threads.run(sweeping.sweep, self._tree, path, older_than_s, dry_run)
        return removed


class LocalUploadArea(PrivateStorage):
    """The files of one directory, which is made when missing. To be closed by its owner."""

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        """Raises ConfigurationError: files cannot be kept there, or not in safety."""
        try:
            super().__init__(root, max_threads=max_threads, timeout_s=timeout_s, floor=floor)
            problem = _problem(root)
        except OSError as error:
            problem = error.strerror or "cannot be used"
        if problem:
            raise ConfigurationError([f"importer.upload_dir: {root}: {problem}."])
        self._root = root

    def place(self, name: str) -> Path:
        return self._root / name

    async def touch(self, name: str) -> bool:
        return await self._threads.run(self._touch, name)

    def _touch(self, name: str) -> bool:
        with file_errors(name), self._tree.parent(name) as (directory, last):
            try:
                os.utime(last, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True


def _problem(root: Path) -> str:
    """What is wrong with the directory. One that was there keeps its mode: it may be more than ours."""
    mode = root.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "everybody may rename and delete files there"
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return "this service may not write there"
    return ""


def build(settings: Settings) -> FileSystem | None:
    """None without `local_root`. Raises ConfigurationError."""
    filebrowser = settings.filebrowser
    if problems := list(problems_of(settings)):
        raise ConfigurationError(problems)
    if filebrowser.local_root is None:
        return None
    return LocalFileSystem(
        filebrowser.local_root,
        umask=int(filebrowser.umask, 8),
        floor=disk_floor(settings),
        max_bytes_per_user=filebrowser.max_bytes_per_user,
    )


def problems_of(settings: Settings) -> Iterator[str]:
    """What is wrong with the directory: it is the operator's, so that it is never made."""
    root = settings.filebrowser.local_root
    if root is not None and not root.is_dir():
        yield f"filebrowser.local_root: {root} is not a directory."
