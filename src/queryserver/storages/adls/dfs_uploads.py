"""Files on their way into a hierarchical account: appended to a file of a reserved name, which is then renamed."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import ChangedMeanwhile, NotADirectory, PathExists, VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.domain.storage_names import RESERVED_PREFIX
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.adls import entries
from queryserver.storages.adls.account import AzureAccount
from queryserver.storages.adls.dfs_calls import MOST_PATHS, DfsCalls
from queryserver.storages.adls.dfs_tree import HierarchicalTree
from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.places import AzurePlace, unfinished
from queryserver.storages.adls.transfers import blocks_of, drained, exactly, joined_size, part_length

_CLEANING_S = 15.0
_RENAME_TRIES = 5
_FILE = 0o666


class HierarchicalUploads:
    """Raises AzureFailure besides domain errors."""

    def __init__(self, calls: DfsCalls, tree: HierarchicalTree, account: AzureAccount) -> None:
        self._calls = calls
        self._tree = tree
        self._account = account

    async def write(
        self,
        place: AzurePlace,
        body: AsyncIterator[bytes],
        *,
        overwrite: bool,
        size_bytes: int | None,  # noqa: ARG002 appends need none
    ) -> FileStatus:
        """See `Storage.write`."""
        await self._replaced(place, overwrite=overwrite)
        staged = unfinished(place)
        try:
            await self._create(staged)
            total = 0
            async with aclosing(blocks_of(body, self._account.block_bytes)) as blocks:
                async for block in blocks:
                    await self._calls.append(staged, total, block)
                    total += len(block)
            await self._complete(staged, total)
            return await self._name(staged, place, overwrite=overwrite)
        except BaseException:  # a cancel too: no part of a file may stay
            await asyncio.shield(self._clean(staged))
            raise

    async def _create(self, staged: AzurePlace) -> None:
        try:
            await self._calls.create(staged, "file", _FILE, self._account.umask)
        except AzureFailure as failure:
            if failure.status in {400, 404, 409}:
                await self._tree.refuse_file_above(staged)
            raise

    async def _complete(self, staged: AzurePlace, total: int) -> None:
        """Raises VerificationFailed. A file that was completed before stays so."""
        if (await self._tree.find(staged)).size_bytes != total:
            await self._calls.flush(staged, total)
            if (await self._tree.find(staged)).size_bytes != total:
                raise VerificationFailed("The store holds other bytes than were sent.")

    async def _name(self, staged: AzurePlace, place: AzurePlace, *, overwrite: bool) -> FileStatus:
        """Replaces exactly the file whose permissions were taken over."""
        for _ in range(_RENAME_TRIES):
            old = await self._replaced(place, overwrite=overwrite)
            if old is not None:
                await self._take_over(staged, place, old)
            condition = {"if-none-match": "*"} if old is None else {"if-match": f'"{old.tag}"'}
            try:
                await self._calls.rename(staged, place, condition)
            except AzureFailure as failure:
                if not failure.is_taken:
                    raise
            else:
                return await self._tree.find(place)
        raise ChangedMeanwhile(f"abfs://{place.path} was changed meanwhile.")

    async def _replaced(self, place: AzurePlace, *, overwrite: bool) -> FileStatus | None:
        """The file that will be replaced. Raises PathExists."""
        old = await self._tree.find_or_none(place)
        if old is not None and (old.is_directory or not overwrite):
            raise PathExists(f"abfs://{place.path} exists.")
        return old

    async def _take_over(self, staged: AzurePlace, place: AzurePlace, old: FileStatus) -> None:
        """Only owners may give permissions, and only superusers owners."""
        access = {"x-ms-permissions": f"{old.permissions:04o}"}
        if old.has_acl:
            access = {"x-ms-acl": await self._calls.access_list(place)}
        for headers in (access, {"x-ms-owner": old.owner, "x-ms-group": old.group}):
            try:
                if all(headers.values()):
                    await self._calls.set_access(staged, headers)
            except AzureFailure as failure:
                if failure.status != 403:
                    raise

    async def _clean(self, staged: AzurePlace) -> None:
        """What cannot be removed now is swept later."""
        with suppress(AzureFailure, QueryServerError, TimeoutError):
            async with asyncio.timeout(_CLEANING_S):
                await self._calls.delete(staged, recursive=False)

    async def begin_parts(self, place: AzurePlace) -> str:
        """Raises NotADirectory."""
        if not (await self._tree.find(place.parent)).is_directory:
            raise NotADirectory(f"abfs://{place.parent.path} is not a directory.")
        staging = secrets.token_hex(16)
        await self._calls.create(unfinished(place, staging), "file", _FILE, self._account.umask)
        return staging

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart:
        """Appended at its position in one call, so that half of it never counts."""
        length = part_length(plan, index)
        if length:
            async with aclosing(exactly(body, length)) as content:
                await self._calls.stream_append(staged, index * plan.part_bytes, content, length)
            # Bytes without a flush leave the time of the file as it was, and old files are swept.
            await self._calls.touch(staged)
        else:
            await drained(body)
        return StoredPart(index, length, receipt="")

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See `Storage.join_parts`. A flush at less than all bytes would lose the others."""
        staged = unfinished(place, staging)
        await self._replaced(place, overwrite=overwrite)
        await self._complete(staged, joined_size(plan, parts))
        return await self._name(staged, place, overwrite=overwrite)

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        """See `AccountUploads`. Files are flushed once, as `join_parts` does."""
        await self._complete(staged, joined_size(plan, parts))

    async def discard(self, staged: AzurePlace) -> None:
        """Nothing happens when it is gone."""
        try:
            await self._calls.delete(staged, recursive=False)
        except AzureFailure as failure:
            if not failure.is_missing:
                raise

    async def sweep(self, folder: AzurePlace, before: datetime) -> int:
        """See `Storage.sweep_leftovers`."""
        continuation, swept = "", 0
        while True:
            page = await self._calls.paths(folder, continuation, MOST_PATHS)
            for item in page.items:
                name = str(item.get("name", "")).rpartition("/")[2]
                written_at = entries.time(str(item.get("lastModified", "")))
                if name.startswith(RESERVED_PREFIX) and written_at is not None and written_at < before:
                    await self.discard(folder.child(name))
                    swept += 1
            continuation = page.continuation
            if not continuation:
                return swept
