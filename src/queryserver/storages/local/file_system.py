"""The local root as a store of the users (Contract storage 10.5)."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from queryserver.domain.disk_floor import NO_FLOOR, DiskFloor
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import trash_not_supported
from queryserver.domain.files import EntryKind, Scheme, StorageUser
from queryserver.interfaces.storage import StorageTraits
from queryserver.storages.local.access import HOMES, SHARED, AccessMap, is_private
from queryserver.storages.local.quotas import UserQuotas
from queryserver.storages.local.storage import LocalStorage
from queryserver.storages.local.threads import FileThreads
from queryserver.storages.local.tree import Tree

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
        """See `QuotaStorage`."""
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
        """See the Protocol."""
        self.quotas.take(self.access, size_bytes)

    def mark(self, file: int) -> None:
        """See the Protocol."""
        self.quotas.mark(file, self.access)
