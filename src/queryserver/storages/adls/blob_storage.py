"""The Storage over a flat account: folders are marked blobs, nothing is renamed."""

from queryserver.domain.errors.files import DirectoryNotEmpty, PathExists, root_not_allowed
from queryserver.storages.adls.account import AzureAccount
from queryserver.storages.adls.blob_calls import BlobCalls, is_folder
from queryserver.storages.adls.blob_tree import FlatTree
from queryserver.storages.adls.blob_uploads import FlatUploads
from queryserver.storages.adls.containers import make_container
from queryserver.storages.adls.errors import AzureFailure, azure_errors
from queryserver.storages.adls.http import AzureClient
from queryserver.storages.adls.places import file_place, place_of
from queryserver.storages.adls.transfers import Reader
from queryserver.storages.adls.writing import Writing


class FlatStorage(Writing):
    """See the Protocol. The same for every user."""

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        self._account = account
        self._calls = BlobCalls(client)
        self._tree = FlatTree(self._calls)
        reader = Reader(client, self._tree.find, is_folder)
        uploads = FlatUploads(self._calls, self._tree, reader, account.block_bytes)
        super().__init__(self._tree, reader, uploads)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:  # noqa: ARG002 a flat account has none
        """See the Protocol. Directly below the root it makes a container, where the settings allow it."""
        with azure_errors(path):
            if "/" not in path:
                allowed = self._account.allow_container_creation
                await make_container(path, self._tree.find, self._calls.create_container, is_allowed=allowed)
                return
            place = file_place(path)
            if await self._tree.blob_at(place) or await self._tree.has_entries(place):
                raise PathExists(f"abfs://{path} exists.")
            await self._tree.make_folders(place.parent)
            try:
                await self._calls.put_folder(place)
            except AzureFailure as failure:
                if failure.is_taken:
                    raise PathExists(f"abfs://{path} exists.") from None
                raise

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. The directory that held the last entry stays."""
        place = place_of(path)
        if place is None:
            raise root_not_allowed("The root stays.")
        with azure_errors(path):
            found = await self._tree.find(place)
            if place.is_container:
                if not await self._tree.is_empty(place.container):
                    raise DirectoryNotEmpty(f"abfs://{path} is not empty.")
                await self._calls.delete_container(place.container)
                return
            await self._tree.make_folders(place.parent)
            if found.is_directory:
                await self._tree.delete_folder(place, recursive=recursive)
            else:
                await self._tree.delete_blob(place)
