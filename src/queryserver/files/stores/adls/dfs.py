"""Implements `Storage` for accounts with a hierarchical namespace, via the Azure Data Lake Storage Gen2 REST API
(DFS).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from queryserver import errors
from queryserver.files.model import RESERVED_PREFIX, FileStatus, is_name
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls import shared as entries
from queryserver.files.stores.adls.http import (
    AzureAccount,
    AzureCall,
    AzureClient,
    AzureFailure,
    azure_errors,
    unless_missing,
)
from queryserver.files.stores.adls.shared import (
    AzureLocation,
    AzureStorage,
    parse_location,
    staging_location,
    write_condition,
)
from queryserver.files.stores.transfer_blocks import Blocks

_MAX_PATHS = 5000
"""The maximum page size of the service."""
_CLEANING_S = 15.0
_RENAME_TRIES = 5


class HierarchicalStorage(AzureStorage):
    """Implements `Storage`, `RenamingStorage`, `ModeStorage` and `OwnedStorage` for a hierarchical account. All users
    share one instance.
    """

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        super().__init__(account, client, {"resource": "filesystem"})

    @staticmethod
    def _is_directory(headers: Mapping[str, str]) -> bool:
        return headers.get("x-ms-resource-type", "").lower() == "directory"

    async def _find_entry(self, location: AzureLocation) -> FileStatus:
        facts = (await self._client.read(AzureCall("HEAD", location.names, {"action": "getStatus"}))).headers
        own = {name.removeprefix("x-ms-"): value for name, value in facts.items()}
        size_bytes = int(facts.get("content-length", "0"))
        return entries.hierarchical_status(
            location.path, is_directory=self._is_directory(facts), size_bytes=size_bytes, facts=own
        )

    async def _find_or_none(self, location: AzureLocation) -> FileStatus | None:
        with unless_missing():
            return await self._find(location)
        return None

    async def _find_replaced(self, location: AzureLocation, *, overwrite: bool) -> FileStatus | None:
        old = await self._find_or_none(location)
        if old is not None and (old.is_directory or not overwrite):
            raise errors.PathExists(f"abfs://{location.path} already exists.")
        return old

    async def _pages(
        self, names: tuple[str, ...], query: Mapping[str, str | int], key: str, continuation: str = ""
    ) -> AsyncGenerator[tuple[Sequence[Mapping[str, Any]], str]]:
        """Yield the JSON objects of each page, and the continuation token for the next page."""
        while True:
            answer = await self._client.read(AzureCall("GET", names, _continued(query, continuation)))
            try:
                items = json.loads(answer.body)[key]
            except (ValueError, KeyError, TypeError):
                raise AzureFailure(answer.status, "UnexpectedAnswer") from None
            continuation = answer.headers.get("x-ms-continuation", "")
            yield items, continuation
            if not continuation:
                return

    def _paths(
        self, location: AzureLocation, continuation: str = "", size: int = _MAX_PATHS
    ) -> AsyncGenerator[tuple[Sequence[Mapping[str, Any]], str]]:
        """Yield pages of the direct entries of a directory."""
        query: dict[str, str | int] = {"resource": "filesystem", "recursive": "false"}
        query["maxResults"] = min(size, _MAX_PATHS)
        if location.key:
            query["directory"] = location.key
        return self._pages((location.container,), query, "paths", continuation)

    async def _containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        query = {"resource": "account", "maxResults": min(size, _MAX_PATHS)}
        async with aclosing(self._pages((), query, "filesystems", cursor or "")) as pages:
            async for items, continuation in pages:
                found = [
                    entries.directory_status(
                        str(item.get("name", "")), entries.parse_time(str(item.get("lastModified", "")))
                    )
                    for item in items
                ]
                yield Batch(tuple(found), continuation or None)

    async def _entries(self, location: AzureLocation, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        if cursor is None:
            await self._require_directory(location)
        skipped = len(location.key) + 1 if location.key else 0
        async with aclosing(self._paths(location, cursor or "", size)) as pages:
            async for items, continuation in pages:
                found = [_entry(location, item, skipped) for item in items]
                yield Batch(tuple(entry for entry in found if is_name(entry.name)), continuation or None)

    async def _is_empty(self, container: AzureLocation) -> bool:
        async with aclosing(self._paths(container, size=1)) as pages:
            items, _ = await anext(pages)
        return not items

    async def _reserved_in(self, folder: AzureLocation) -> AsyncGenerator[tuple[str, str]]:
        async with aclosing(self._paths(folder)) as pages:
            async for items, _ in pages:
                for item in items:
                    name = str(item.get("name", "")).rpartition("/")[2]
                    if name.startswith(RESERVED_PREFIX):
                        yield name, str(item.get("lastModified", ""))

    async def _create(self, location: AzureLocation, resource: str, permissions: int, umask: int) -> None:
        """Create a file or directory and its missing parents. Raises AzureFailure if the name is taken."""
        headers = {"if-none-match": "*", "x-ms-permissions": f"{permissions:04o}", "x-ms-umask": f"{umask:04o}"}
        await self._client.change(AzureCall("PUT", location.names, {"resource": resource}, headers))

    async def _require_directories_above(self, failure: AzureFailure, location: AzureLocation) -> None:
        """Raise NotADirectory if the call failed because a parent is a file."""
        while failure.status in {400, 404, 409} and not (location := location.parent).is_container:
            if found := await self._find_or_none(location):
                if not found.is_directory:
                    raise errors.NotADirectory(f"abfs://{location.path} is not a directory.")
                return

    async def _make_directory(self, location: AzureLocation, permissions: int | None) -> None:
        umask = self._account.umask if permissions is None else 0
        try:
            await self._create(location, "directory", 0o777 if permissions is None else permissions, umask)
        except AzureFailure as failure:
            if failure.is_taken:
                raise errors.PathExists(f"abfs://{location.path} already exists.") from None
            await self._require_directories_above(failure, location)
            raise

    async def _create_staged(self, staged: AzureLocation) -> None:
        await self._create(staged, "file", 0o666, self._account.umask)

    async def _write(
        self, location: AzureLocation, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        del size_bytes  # appending does not require the size in advance
        await self._find_replaced(location, overwrite=overwrite)
        staged = staging_location(location)
        try:
            try:
                await self._create_staged(staged)
            except AzureFailure as failure:
                await self._require_directories_above(failure, staged)
                raise
            total = 0
            blocks = Blocks(body)
            while block := bytes(await blocks.take(self._account.block_bytes)):
                # Appended bytes become part of the file only when they are flushed, so an append may be repeated.
                query = {"action": "append", "position": total}
                await self._client.repeat(AzureCall("PATCH", staged.names, query, {}, block))
                total += len(block)
            await self._flush(staged, total)
            return await self._publish(staged, location, total, overwrite=overwrite)
        except BaseException:  # includes CancelledError: no partial file may remain
            await asyncio.shield(self._clean(staged))
            raise

    async def _flush(self, staged: AzureLocation, total: int) -> None:
        """Flush appended bytes, so that the file has `total` bytes. Raises VerificationFailed if it has another
        size.
        """
        if (await self._find(staged)).size_bytes != total:
            # The flush fails if there are gaps in the appended bytes before this position.
            query: dict[str, str | int] = {"action": "flush", "position": total, "close": "true"}
            await self._client.change(AzureCall("PATCH", staged.names, query))
            if (await self._find(staged)).size_bytes != total:
                raise errors.VerificationFailed("The stored bytes do not match the bytes that were sent.")

    async def _publish(
        self, staged: AzureLocation, location: AzureLocation, size_bytes: int, *, overwrite: bool
    ) -> FileStatus:
        """Rename the staged file to its target. An existing file is replaced only if it has not changed since its
        permissions were copied.

        Raises PathExists, or EntryChanged if the target changes repeatedly.
        """
        del size_bytes  # a rename does not need the size
        for _ in range(_RENAME_TRIES):
            old = await self._find_replaced(location, overwrite=overwrite)
            if old is not None:
                await self._copy_access(staged, location, old)
            try:
                await self._rename(staged, location, write_condition(old))
            except AzureFailure as failure:
                if not failure.is_taken:
                    raise
            else:
                return await self._find(location)
        raise errors.EntryChanged(f"abfs://{location.path} was modified concurrently.")

    async def _copy_access(self, staged: AzureLocation, location: AzureLocation, old: FileStatus) -> None:
        """Copy the permissions and the owner of the replaced file as far as the service allows. A file's owner may set
        only its permissions; superusers may set both.
        """
        access = {"x-ms-permissions": f"{old.permissions:04o}"}
        if old.has_acl:
            call = AzureCall("HEAD", location.names, {"action": "getAccessControl"})
            access = {"x-ms-acl": (await self._client.read(call)).headers["x-ms-acl"]}
        for headers in (access, {"x-ms-owner": old.owner, "x-ms-group": old.group}):
            try:
                if all(headers.values()):
                    await self._set_access(staged, headers)
            except AzureFailure as failure:
                if failure.status != 403:
                    raise

    async def _clean(self, staged: AzureLocation) -> None:
        """Delete a staged file. If this fails, the orphan sweep deletes it later."""
        with suppress(AzureFailure, errors.QueryServerError, TimeoutError):
            async with asyncio.timeout(_CLEANING_S):
                await self._discard(staged)

    async def _send_part(
        self, plan: PartPlan, staged: AzureLocation, index: int, content: AsyncIterator[bytes]
    ) -> None:
        """Append a part at its position, in one call, so that an interrupted call stores nothing."""
        query = {"action": "append", "position": index * plan.part_bytes}
        await self._client.send(AzureCall("PATCH", staged.names, query, {}, content, plan.size_of(index)))
        # Unflushed bytes do not update the modification time, and the orphan sweep deletes old files. Setting the
        # content type (to the same value) updates the time.
        headers = {"x-ms-content-type": "application/octet-stream"}
        await self._client.change(AzureCall("PATCH", staged.names, {"action": "setProperties"}, headers))

    async def _complete_parts(self, plan: PartPlan, staged: AzureLocation, parts: Sequence[StoredPart]) -> None:
        del parts
        await self._flush(staged, plan.size_bytes)

    async def _discard(self, staged: AzureLocation) -> None:
        with unless_missing():
            await self._delete(staged, recursive=False)

    async def _delete_entry(self, location: AzureLocation, *, recursive: bool) -> None:
        await self._find(location)
        await self._delete(location, recursive=recursive)

    async def _delete(self, location: AzureLocation, *, recursive: bool) -> None:
        await self._change_all(AzureCall("DELETE", location.names, {"recursive": str(recursive).lower()}))

    async def _rename(self, source: AzureLocation, target: AzureLocation, condition: Mapping[str, str]) -> None:
        """Rename an entry. For large trees, some accounts require several calls."""
        headers = {"x-ms-rename-source": "/" + "/".join(quote(name, safe="") for name in source.names), **condition}
        await self._change_all(AzureCall("PUT", target.names, {}, headers))

    async def _change_all(self, call: AzureCall) -> None:
        """Make a call, and repeat it as long as the service returns a continuation token."""
        continuation = ""
        while True:
            answer = await self._client.change(replace(call, query=_continued(call.query, continuation)))
            continuation = answer.headers.get("x-ms-continuation", "")
            if not continuation:
                return

    def can_rename(self, source: str, target: str) -> bool:
        return source.partition("/")[0] == target.partition("/")[0]

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        source_location, target_location = parse_location(source), parse_location(target)
        if source_location is None or source_location.is_container:
            raise errors.root_not_allowed("Containers cannot be moved or renamed.")
        if target_location is None or target_location.is_container:
            raise errors.PathExists(f"abfs://{target} is a container.")
        if source == target:
            raise errors.PathExists("Source and target are the same.")
        if target.startswith(f"{source}/"):
            raise errors.TargetInsideSource("The target is inside the source.")
        with azure_errors(source):
            found = await self._find(source_location)
        with azure_errors(target):
            with azure_errors(target_location.parent.path):
                await self._require_directory(target_location.parent)
            existing = await self._find_or_none(target_location)
            if existing is not None and not (overwrite and existing.is_file and found.is_file):
                raise errors.PathExists(f"abfs://{target} already exists.")
            try:
                await self._rename(source_location, target_location, write_condition(existing))
            except AzureFailure as failure:
                if failure.is_taken and existing is None:
                    raise errors.PathExists(f"abfs://{target} already exists.") from None
                raise

    async def set_permissions(self, path: str, permissions: int) -> None:
        with azure_errors(path):
            await self._set_access(_entry_location(path), {"x-ms-permissions": f"{permissions:04o}"})

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """Set owner and group, which are object ids of the directory service or `$superuser`."""
        headers = {"x-ms-owner": owner, "x-ms-group": group}
        changed = {name: value for name, value in headers.items() if value is not None}
        with azure_errors(path):
            await self._set_access(_entry_location(path), changed)

    async def _set_access(self, location: AzureLocation, headers: Mapping[str, str]) -> None:
        """Set access control from the headers: `x-ms-permissions` or `x-ms-acl`, `x-ms-owner` and `x-ms-group`."""
        await self._client.change(AzureCall("PATCH", location.names, {"action": "setAccessControl"}, headers))


def _entry_location(path: str) -> AzureLocation:
    location = parse_location(path)
    if location is None or location.is_container:
        raise errors.root_not_allowed("Containers do not support permissions.")
    return location


def _continued(query: Mapping[str, str | int], continuation: str) -> Mapping[str, str | int]:
    return {**query, "continuation": continuation} if continuation else query


def _entry(location: AzureLocation, item: Mapping[str, Any], skipped: int) -> FileStatus:
    """Convert an entry of a listing, whose booleans and numbers are strings."""
    facts = {name: str(value) for name, value in item.items()}
    return entries.hierarchical_status(
        f"{location.path}/{facts.get('name', '')[skipped:]}",
        is_directory=facts.get("isDirectory", "").lower() == "true",
        size_bytes=int(facts.get("contentLength", "0")),
        facts={**facts, "last-modified": facts.get("lastModified", "")},
    )
