"""The Storage over a flat account: folders are marked blobs, nothing is renamed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

from queryserver.domain.errors import (
    DirectoryNotEmpty,
    NotAFile,
    PathExists,
    RootNotAllowed,
)
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.adls.account import AzureAccount
from queryserver.storages.adls.blob_calls import BlobCalls, is_folder
from queryserver.storages.adls.blob_tree import FlatTree
from queryserver.storages.adls.blob_uploads import FlatUploads
from queryserver.storages.adls.containers import make_container
from queryserver.storages.adls.errors import AzureFailure, azure_errors
from queryserver.storages.adls.http import AzureClient
from queryserver.storages.adls.looking import Looking
from queryserver.storages.adls.places import file_place, place_of, unfinished
from queryserver.storages.adls.transfers import Reader, same_size


class FlatStorage(Looking):
    """See the Protocol. The same for every user."""

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        self._account = account
        self._calls = BlobCalls(client)
        self._tree = FlatTree(self._calls)
        self._reader = Reader(client, self._tree.find, is_folder)
        super().__init__(self._tree, self._reader)
        self._uploads = FlatUploads(self._calls, self._tree, self._reader, account.block_bytes)

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """See the Protocol."""
        place = file_place(path)
        with azure_errors(path):
            return await self._uploads.write(place, body, overwrite=overwrite, size_bytes=size_bytes)

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

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. Streamed through this service."""
        from_place, to_place = file_place(source), file_place(target)
        with azure_errors(source):
            found = await self._tree.find(from_place)
        if not found.is_file:
            raise NotAFile(f"abfs://{source} is not a file.")
        async with aclosing(self.read(source, version=found)) as body:
            with azure_errors(target):
                copied = await self._uploads.write(to_place, body, overwrite=overwrite, size_bytes=found.size_bytes)
        return same_size(found, copied)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. The directory that held the last entry stays."""
        place = place_of(path)
        if place is None:
            raise RootNotAllowed("The root stays.")
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

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol."""
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.begin_parts(place)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """See the Protocol."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            return await self._uploads.write_part(plan, staged, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See the Protocol."""
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.join_parts(plan, place, staging, parts, overwrite=overwrite)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """See the Protocol."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            await self._uploads.discard(staged)

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        """See the Protocol."""
        place = place_of(path)
        if place is None:
            return 0
        with azure_errors(path):
            return await self._uploads.sweep(place, datetime.now(UTC) - timedelta(seconds=older_than_s))
