"""The local root as a store of the users (Contract storage 10.5)."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from queryserver.errors.base import ConfigurationError, QueryServerError
from queryserver.errors.files import PathNotFound, trash_not_supported
from queryserver.files.model import EntryKind, Scheme, StorageUser
from queryserver.files.protocol import FileSystem, StorageTraits
from queryserver.files.stores.local import deleting as sweeping
from queryserver.files.stores.local.quotas import UserQuotas
from queryserver.files.stores.local.storage import LocalStorage
from queryserver.files.stores.local.system_calls import HOMES, SHARED, AccessMap, FileThreads, file_errors, is_private
from queryserver.files.stores.local.tree import Tree
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor, disk_floor
from queryserver.platform.settings.tree import Settings

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
        """As `sweep_leftovers`, in all directories; or count only."""
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
