"""The Storage over a hierarchical account: directories, permissions and owners of its own, renames in one step."""

from queryserver.domain.errors.files import (
    DirectoryNotEmpty,
    NotADirectory,
    PathExists,
    TargetInsideSource,
    root_not_allowed,
)
from queryserver.domain.files import FileStatus
from queryserver.storages.adls.account import AzureAccount
from queryserver.storages.adls.containers import make_container
from queryserver.storages.adls.dfs_calls import DfsCalls, is_directory
from queryserver.storages.adls.dfs_tree import HierarchicalTree
from queryserver.storages.adls.dfs_uploads import HierarchicalUploads
from queryserver.storages.adls.errors import AzureFailure, azure_errors
from queryserver.storages.adls.http import AzureClient
from queryserver.storages.adls.places import AzurePlace, file_place, place_of
from queryserver.storages.adls.transfers import Reader
from queryserver.storages.adls.writing import Writing

_DIRECTORY = 0o777


class HierarchicalStorage(Writing):
    """See the Protocol; also RenamingStorage, ModeStorage, OwnedStorage. The same for every user."""

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        self._account = account
        self._calls = DfsCalls(client)
        self._tree = HierarchicalTree(self._calls)
        reader = Reader(client, self._tree.find, is_directory)
        super().__init__(self._tree, reader, HierarchicalUploads(self._calls, self._tree, account))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """See the Protocol. Directly below the root it makes a container, where the settings allow it."""
        with azure_errors(path):
            if "/" not in path:
                allowed = self._account.allow_container_creation
                await make_container(path, self._tree.find, self._calls.create_container, is_allowed=allowed)
                return
            place = file_place(path)
            umask = self._account.umask if permissions is None else 0
            try:
                await self._calls.create(place, "directory", _DIRECTORY if permissions is None else permissions, umask)
            except AzureFailure as failure:
                if failure.is_taken:
                    raise PathExists(f"abfs://{path} exists.") from None
                if failure.status in {400, 404, 409}:
                    await self._tree.refuse_file_above(place)
                raise

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol."""
        place = place_of(path)
        if place is None:
            raise root_not_allowed("The root stays.")
        with azure_errors(path):
            if not place.is_container:
                await self._tree.find(place)
                await self._calls.delete(place, recursive=recursive)
                return
            if (await self._calls.paths(place, "", 1)).items:
                raise DirectoryNotEmpty(f"abfs://{path} is not empty.")
            await self._calls.delete_container(place.container)

    def can_rename(self, source: str, target: str) -> bool:
        """Within a container."""
        return source.partition("/")[0] == target.partition("/")[0]

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """See the Protocol."""
        from_place, to_place = place_of(source), place_of(target)
        if from_place is None or from_place.is_container:
            raise root_not_allowed("Containers stay where they are.")
        if to_place is None or to_place.is_container:
            raise PathExists(f"abfs://{target} is a container.")
        if source == target:
            raise PathExists("Source and target are one.")
        if target.startswith(f"{source}/"):
            raise TargetInsideSource("The target lies inside the source.")
        with azure_errors(source):
            found = await self._tree.find(from_place)
        with azure_errors(target):
            condition = await self._rename_condition(found, to_place, overwrite=overwrite)
            try:
                await self._calls.rename(from_place, to_place, condition)
            except AzureFailure as failure:
                if failure.is_taken and "if-none-match" in condition:
                    raise PathExists(f"abfs://{target} exists.") from None
                raise

    async def _rename_condition(self, source: FileStatus, target: AzurePlace, *, overwrite: bool) -> dict[str, str]:
        with azure_errors(target.parent.path):
            if not (await self._tree.find(target.parent)).is_directory:
                raise NotADirectory(f"abfs://{target.parent.path} is not a directory.")
        there = await self._tree.find_or_none(target)
        if there is None:
            return {"if-none-match": "*"}
        if not overwrite or not there.is_file or not source.is_file:
            raise PathExists(f"abfs://{target.path} exists.")
        return {"if-match": f'"{there.tag}"'}

    async def set_permissions(self, path: str, permissions: int) -> None:
        """See `ModeStorage`."""
        await self._set_access(path, {"x-ms-permissions": f"{permissions:04o}"})

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """See `OwnedStorage`. Owners are object ids of the directory service, or `$superuser`."""
        headers = {"x-ms-owner": owner, "x-ms-group": group}
        await self._set_access(path, {name: value for name, value in headers.items() if value is not None})

    async def _set_access(self, path: str, headers: dict[str, str]) -> None:
        place = place_of(path)
        if place is None or place.is_container:
            raise root_not_allowed("Containers have no permissions.")
        with azure_errors(path):
            await self._calls.set_access(place, headers)
