"""Flat accounts: uploads by one put, or by blocks that appear with their commit, and the Storage over them.

A commit drops all blocks of that name that it does not list. So the parts of a file have a name of their own.
"""

import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime

import httpx

from queryserver.errors.files import (
    ChangedMeanwhile,
    DirectoryNotEmpty,
    NotADirectory,
    PathExists,
    VerificationFailed,
    root_not_allowed,
)
from queryserver.files.model import RESERVED_PREFIX, FileStatus
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.adls import shared as entries
from queryserver.files.stores.adls.blob import BlobCalls, FlatTree, block_name, is_folder
from queryserver.files.stores.adls.credentials import AzureAccount
from queryserver.files.stores.adls.errors import AzureFailure, azure_errors
from queryserver.files.stores.adls.http import AzureClient
from queryserver.files.stores.adls.shared import (
    AzurePlace,
    AzureStorage,
    Reader,
    blocks_of,
    drain,
    exactly,
    file_place,
    joined_size,
    make_container,
    part_length,
    place_of,
    unfinished,
)

_MOST_BLOCKS = 50_000
# Announced sizes above 4.7 TiB do not count: this process holds a block in memory.
_LARGEST_BLOCK = 100 * 1024 * 1024
_COMMIT_TRIES = 5

Store = Callable[[dict[str, str]], Awaitable[httpx.Headers]]
"""Gives a file its name under the condition of these headers."""


class FlatUploads:
    """Uploads to an account. Raises AzureFailure besides domain errors."""

    def __init__(self, calls: BlobCalls, tree: FlatTree, reader: Reader, block_bytes: int) -> None:
        self._calls = calls
        self._tree = tree
        self._reader = reader
        self._block_bytes = block_bytes

    async def write(
        self, place: AzurePlace, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        """See `Storage.write`. Blocks that are never committed end after a week."""
        await self._condition(place, overwrite=overwrite)
        await self._tree.make_folders(place.parent)
        upload, names, total, last = secrets.token_hex(16), list[str](), 0, b""
        block_bytes = block_size(self._block_bytes, size_bytes)
        async with aclosing(blocks_of(body, block_bytes)) as blocks:
            async for block in blocks:
                if total:
                    names.append(block_name(f"{upload}{len(names):06d}"))
                    await self._calls.put_block(place, names[-1], last)
                last = block
                total += len(block)
        if not names:
            return await self._put(place, last, overwrite=overwrite)
        names.append(block_name(f"{upload}{len(names):06d}"))
        await self._calls.put_block(place, names[-1], last)
        del last
        sizes = await self._sizes(place)
        if not sizes.keys() >= set(names):
            await self._condition(place, overwrite=overwrite)
            raise ChangedMeanwhile(f"abfs://{place.path} was changed meanwhile.")
        _verify(sizes, names, total)

        async def commit(condition: dict[str, str]) -> httpx.Headers:
            return await self._calls.commit(place, names, condition)

        return await self._store(place, total, commit, overwrite=overwrite)

    async def _put(self, place: AzurePlace, content: bytes, *, overwrite: bool) -> FileStatus:
        """The service compares the digest before it gives the name."""
        digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()

        async def put(condition: dict[str, str]) -> httpx.Headers:
            try:
                return await self._calls.put(place, content, {"content-md5": digest, **condition})
            except AzureFailure as failure:
                if not failure.is_taken or await self._tree.blob_at(place):
                    raise
            # To Azurite the blocks of a write that broke off are a blob, except for a commit.
            name = block_name(f"{secrets.token_hex(16)}{0:06d}")
            if content:
                await self._calls.put_block(place, name, content)
            return await self._calls.commit(place, [name] if content else [], condition)

        return await self._store(place, len(content), put, overwrite=overwrite)

    async def _store(self, place: AzurePlace, total: int, store: Store, *, overwrite: bool) -> FileStatus:
        """Raises PathExists; ChangedMeanwhile: other clients keep replacing the file, or removed our blocks."""
        for _ in range(_COMMIT_TRIES):
            condition = await self._condition(place, overwrite=overwrite)
            try:
                headers = await store(condition)
            except AzureFailure as failure:
                if failure.code == "InvalidBlockList" and not overwrite:
                    raise _exists(place) from None
                if not failure.is_taken:
                    raise
            else:
                modified_at = entries.time(headers.get("last-modified", ""))
                return entries.blob(place.path, total, modified_at, headers.get("etag", ""))
        raise ChangedMeanwhile(f"abfs://{place.path} was changed meanwhile.")

    async def _condition(self, place: AzurePlace, *, overwrite: bool) -> dict[str, str]:
        """The condition under which the file gets its name. Raises PathExists."""
        current = await self._tree.blob_at(place)
        if current is None:
            if await self._tree.has_entries(place):
                raise _exists(place)
            return {"if-none-match": "*"}
        if not overwrite or current.is_directory:
            raise _exists(place)
        return {"if-match": f'"{current.tag}"'}

    async def _sizes(self, place: AzurePlace) -> Mapping[str, int]:
        """Of the blocks that the account holds under a name."""
        try:
            return await self._calls.blocks(place)
        except AzureFailure as failure:
            if failure.is_missing:
                return {}
            raise

    async def begin_parts(self, place: AzurePlace) -> str:
        """Raises PathNotFound, NotADirectory."""
        if not (await self._tree.find(place.parent)).is_directory:
            raise NotADirectory(f"abfs://{place.parent.path} is not a directory.")
        staging = secrets.token_hex(16)
        await self._calls.put(unfinished(place, staging), b"", {"if-none-match": "*"})
        return staging

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart:
        """A block that replaces the former one of that index when it is complete."""
        length = part_length(plan, index)
        # Blocks without a commit leave the time of the blob as it was, and old ones are swept.
        await self._calls.touch(staged)
        if length:
            async with aclosing(exactly(body, length)) as content:
                await self._calls.stream_block(staged, _part_name(index), content, length)
        else:
            await drain(body)
        return StoredPart(index, length, receipt="")

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """A blob of a reserved name, of which the file is made. Committed parts may be committed again."""
        staged, total = unfinished(place, staging), joined_size(plan, parts)
        await self._condition(place, overwrite=overwrite)
        await self.complete_parts(plan, staged, parts)
        async with aclosing(self._reader.read(staged, 0, None, None)) as body:
            status = await self.write(place, body, overwrite=overwrite, size_bytes=total)
        if status.size_bytes != total:
            raise VerificationFailed("The store holds other bytes than were sent.")
        await self.discard(staged)
        return status

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        names = [_part_name(part.index) for part in sorted(parts, key=lambda part: part.index) if part.size_bytes]
        _verify(await self._sizes(staged), names, joined_size(plan, parts))
        await self._calls.commit(staged, names, {})

    async def discard(self, staged: AzurePlace) -> None:
        await self._tree.delete_blob(staged)

    async def sweep(self, folder: AzurePlace, before: datetime) -> int:
        prefix = f"{folder.key}/{RESERVED_PREFIX}" if folder.key else RESERVED_PREFIX
        await self._tree.find(folder)
        marker, swept = "", 0
        while True:
            page = await self._calls.blobs(folder.container, prefix, marker=marker, delimiter=True)
            for item in page.items:
                written_at = entries.time(item.last_modified)
                if not item.is_prefix and written_at is not None and written_at < before:
                    await self.discard(folder.child(item.name.rpartition("/")[2]))
                    swept += 1
            if not page.marker:
                return swept
            marker = page.marker


def block_size(usual: int, announced_bytes: int | None) -> int:
    """Large enough for the file to have at most 50,000 blocks."""
    return max(usual, min(-(-(announced_bytes or 0) // _MOST_BLOCKS), _LARGEST_BLOCK))


def _verify(sizes: Mapping[str, int], names: Sequence[str], total: int) -> None:
    if sum(sizes.get(name, 0) for name in names) != total:
        raise VerificationFailed("The store holds other bytes than were sent.")


def _part_name(index: int) -> str:
    return block_name(f"{index:06d}")


def _exists(place: AzurePlace) -> PathExists:
    return PathExists(f"abfs://{place.path} exists.")


class FlatStorage(AzureStorage):
    """The same for every user."""

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        self._account = account
        self._calls = BlobCalls(client)
        self._tree = FlatTree(self._calls)
        reader = Reader(client, self._tree.find, is_folder)
        uploads = FlatUploads(self._calls, self._tree, reader, account.block_bytes)
        super().__init__(self._tree, reader, uploads)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:  # noqa: ARG002 a flat account has none
        """Directly below the root it makes a container, where the settings allow it."""
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
        """The directory that held the last entry stays."""
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
