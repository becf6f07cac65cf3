"""Accounts with a hierarchical namespace, over the DFS service (Azure Data Lake Storage Gen2 REST API)."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import (
    ChangedMeanwhile,
    DirectoryNotEmpty,
    NotADirectory,
    PathExists,
    TargetInsideSource,
    VerificationFailed,
    root_not_allowed,
)
from queryserver.files.model import RESERVED_PREFIX, FileStatus, is_name
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls import shared as entries
from queryserver.files.stores.adls.credentials import AzureAccount
from queryserver.files.stores.adls.errors import AzureFailure, azure_errors
from queryserver.files.stores.adls.http import AzureAnswer, AzureCall, AzureClient
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
    place_of,
    unfinished,
)

MOST_PATHS = 5000
"""The service's limit of a page."""
_CLEANING_S = 15.0
_RENAME_TRIES = 5


@dataclass(frozen=True, slots=True)
class DfsPage:
    """JSON objects of a page, and where the next one begins."""

    items: Sequence[Mapping[str, Any]]
    continuation: str


class DfsCalls:
    """The calls of one account. Failures are AzureFailure."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    async def containers(self, continuation: str, size: int) -> DfsPage:
        query: dict[str, str | int] = {"resource": "account", "maxResults": size}
        return _page(await self._client.read(AzureCall("GET", (), _continued(query, continuation))), "filesystems")

    async def container_facts(self, container: str) -> httpx.Headers:
        return (await self._client.read(AzureCall("HEAD", (container,), {"resource": "filesystem"}))).headers

    async def create_container(self, container: str) -> None:
        await self._client.change(AzureCall("PUT", (container,), {"resource": "filesystem"}))

    async def delete_container(self, container: str) -> None:
        await self._client.change(AzureCall("DELETE", (container,), {"resource": "filesystem"}))

    async def paths(self, place: AzurePlace, continuation: str, size: int) -> DfsPage:
        """The direct entries of a directory."""
        query: dict[str, str | int] = {"resource": "filesystem", "recursive": "false", "maxResults": size}
        if place.key:
            query["directory"] = place.key
        call = AzureCall("GET", (place.container,), _continued(query, continuation))
        return _page(await self._client.read(call), "paths")

    async def facts(self, place: AzurePlace) -> httpx.Headers:
        return (await self._client.read(AzureCall("HEAD", place.names, {"action": "getStatus"}))).headers

    async def create(self, place: AzurePlace, resource: str, permissions: int, umask: int) -> None:
        """A file or directory with its missing parents. Fails when there is anything of that name."""
        headers = {"if-none-match": "*", "x-ms-permissions": f"{permissions:04o}", "x-ms-umask": f"{umask:04o}"}
        await self._client.change(AzureCall("PUT", place.names, {"resource": resource}, headers))

    async def append(self, place: AzurePlace, position: int, content: bytes) -> None:
        """Bytes that a flush adds to the file. It may be sent twice."""
        query = {"action": "append", "position": position}
        await self._client.repeat(AzureCall("PATCH", place.names, query, {}, content))

    async def stream_append(self, place: AzurePlace, position: int, content: AsyncIterator[bytes], length: int) -> None:
        """As `append`; nothing of it stays when the content breaks off."""
        query = {"action": "append", "position": position}
        await self._client.send(AzureCall("PATCH", place.names, query, {}, content, length))

    async def flush(self, place: AzurePlace, size_bytes: int) -> None:
        """Fails unless what was appended is without gaps up to this size."""
        query: dict[str, str | int] = {"action": "flush", "position": size_bytes, "close": "true"}
        await self._client.change(AzureCall("PATCH", place.names, query))

    async def touch(self, place: AzurePlace) -> None:
        """Set a later time of change, by setting the same content type."""
        headers = {"x-ms-content-type": "application/octet-stream"}
        await self._client.change(AzureCall("PATCH", place.names, {"action": "setProperties"}, headers))

    async def access_list(self, place: AzurePlace) -> str:
        return (await self._client.read(AzureCall("HEAD", place.names, {"action": "getAccessControl"}))).headers[
            "x-ms-acl"
        ]

    async def set_access(self, place: AzurePlace, headers: Mapping[str, str]) -> None:
        """`x-ms-permissions` or `x-ms-acl`, `x-ms-owner`, `x-ms-group`."""
        await self._client.change(AzureCall("PATCH", place.names, {"action": "setAccessControl"}, headers))

    async def rename(self, source: AzurePlace, target: AzurePlace, condition: Mapping[str, str]) -> None:
        """One step for the service; large trees of some accounts take several calls."""
        headers = {"x-ms-rename-source": "/" + "/".join(quote(name, safe="") for name in source.names), **condition}
        await self._change_all(AzureCall("PUT", target.names, {}, headers))

    async def delete(self, place: AzurePlace, *, recursive: bool) -> None:
        await self._change_all(AzureCall("DELETE", place.names, {"recursive": str(recursive).lower()}))

    async def _change_all(self, call: AzureCall) -> None:
        """The call, repeated while the service has more to do."""
        continuation = ""
        while True:
            answer = await self._client.change(replace(call, query=_continued(call.query, continuation)))
            continuation = answer.headers.get("x-ms-continuation", "")
            if not continuation:
                return


def is_directory(headers: Mapping[str, str]) -> bool:
    return headers.get("x-ms-resource-type", "").lower() == "directory"


def _continued(query: Mapping[str, str | int], continuation: str) -> Mapping[str, str | int]:
    return {**query, "continuation": continuation} if continuation else query


def _page(answer: AzureAnswer, key: str) -> DfsPage:
    try:
        items = json.loads(answer.body)[key]
    except (ValueError, KeyError, TypeError):
        raise AzureFailure(answer.status, "UnexpectedAnswer") from None
    return DfsPage(items, answer.headers.get("x-ms-continuation", ""))


class HierarchicalTree:
    """The entries of an account. Raises AzureFailure besides domain errors."""

    def __init__(self, calls: DfsCalls) -> None:
        self._calls = calls

    async def find(self, place: AzurePlace) -> FileStatus:
        if place.is_container:
            facts = await self._calls.container_facts(place.container)
            return entries.directory(place.path, entries.time(facts.get("last-modified", "")))
        facts = await self._calls.facts(place)
        own = {name.removeprefix("x-ms-"): value for name, value in facts.items()}
        size_bytes = int(facts.get("content-length", "0"))
        return entries.hierarchical(place.path, is_directory=is_directory(facts), size_bytes=size_bytes, facts=own)

    async def find_or_none(self, place: AzurePlace) -> FileStatus | None:
        try:
            return await self.find(place)
        except AzureFailure as failure:
            if failure.is_missing:
                return None
            raise

    async def refuse_file_above(self, place: AzurePlace) -> None:
        """Raises NotADirectory: the path leads through a file."""
        while not (place := place.parent).is_container:
            if found := await self.find_or_none(place):
                if not found.is_directory:
                    raise NotADirectory(f"abfs://{place.path} is not a directory.")
                return

    async def list_containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        while True:
            page = await self._calls.containers(cursor or "", min(size, MOST_PATHS))
            found = [
                entries.directory(str(item.get("name", "")), entries.time(str(item.get("lastModified", ""))))
                for item in page.items
            ]
            cursor = page.continuation or None
            yield Batch(tuple(found), cursor)
            if cursor is None:
                return

    async def list_directory(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """Raises NotADirectory."""
        if cursor is None and not (await self.find(place)).is_directory:
            raise NotADirectory(f"abfs://{place.path} is not a directory.")
        skipped = len(place.key) + 1 if place.key else 0
        while True:
            page = await self._calls.paths(place, cursor or "", min(size, MOST_PATHS))
            found = [_entry(place, item, skipped) for item in page.items]
            cursor = page.continuation or None
            yield Batch(tuple(entry for entry in found if is_name(entry.name)), cursor)
            if cursor is None:
                return


def _entry(place: AzurePlace, item: Mapping[str, Any], skipped: int) -> FileStatus:
    """Booleans and numbers come as texts."""
    facts = {name: str(value) for name, value in item.items()}
    return entries.hierarchical(
        f"{place.path}/{facts.get('name', '')[skipped:]}",
        is_directory=facts.get("isDirectory", "").lower() == "true",
        size_bytes=int(facts.get("contentLength", "0")),
        facts={**facts, "last-modified": facts.get("lastModified", "")},
    )


class HierarchicalUploads:
    """Uploads to an account. Raises AzureFailure besides domain errors."""

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
        await self._replaced(place, overwrite=overwrite)
        staged = unfinished(place)
        try:
            try:
                await self._calls.create(staged, "file", 0o666, self._account.umask)
            except AzureFailure as failure:
                if failure.status in {400, 404, 409}:
                    await self._tree.refuse_file_above(staged)
                raise
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

    async def _complete(self, staged: AzurePlace, total: int) -> None:
        """Raises VerificationFailed. A file that was completed before stays so."""
        if (await self._tree.find(staged)).size_bytes != total:
            await self._calls.flush(staged, total)
            if (await self._tree.find(staged)).size_bytes != total:
                raise VerificationFailed("The store holds other bytes than were sent.")

    async def _name(self, staged: AzurePlace, place: AzurePlace, *, overwrite: bool) -> FileStatus:
        """Replace exactly the file whose permissions were taken over."""
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
        """The file to be replaced. Raises PathExists."""
        old = await self._tree.find_or_none(place)
        if old is not None and (old.is_directory or not overwrite):
            raise PathExists(f"abfs://{place.path} exists.")
        return old

    async def _take_over(self, staged: AzurePlace, place: AzurePlace, old: FileStatus) -> None:
        """Copy permissions and owner where the account allows: owners set the first, superusers both."""
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
        await self._calls.create(unfinished(place, staging), "file", 0o666, self._account.umask)
        return staging

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart:
        """Append it at its position in one call, so that half of it never counts."""
        length = plan.size_of(index)
        if length:
            async with aclosing(exactly(body, length)) as content:
                await self._calls.stream_append(staged, index * plan.part_bytes, content, length)
            # Bytes without a flush leave the time of the file as it was, and old files are swept.
            await self._calls.touch(staged)
        else:
            await drain(body)
        return StoredPart(index, length, receipt="")

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See `Storage.join_parts`. A flush of fewer bytes would lose the others."""
        staged = unfinished(place, staging)
        await self._replaced(place, overwrite=overwrite)
        await self._complete(staged, joined_size(plan, parts))
        return await self._name(staged, place, overwrite=overwrite)

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        await self._complete(staged, joined_size(plan, parts))

    async def discard(self, staged: AzurePlace) -> None:
        try:
            await self._calls.delete(staged, recursive=False)
        except AzureFailure as failure:
            if not failure.is_missing:
                raise

    async def sweep(self, folder: AzurePlace, before: datetime) -> int:
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


class HierarchicalStorage(AzureStorage):
    """The store as all users see it; also RenamingStorage, ModeStorage, OwnedStorage."""

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        self._account = account
        self._calls = DfsCalls(client)
        self._tree = HierarchicalTree(self._calls)
        reader = Reader(client, self._tree.find, is_directory)
        super().__init__(self._tree, reader, HierarchicalUploads(self._calls, self._tree, account))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Directly below the root it makes a container, where the settings allow it."""
        with azure_errors(path):
            if "/" not in path:
                allowed = self._account.allow_container_creation
                await make_container(path, self._tree.find, self._calls.create_container, is_allowed=allowed)
                return
            place = file_place(path)
            umask = self._account.umask if permissions is None else 0
            try:
                await self._calls.create(place, "directory", 0o777 if permissions is None else permissions, umask)
            except AzureFailure as failure:
                if failure.is_taken:
                    raise PathExists(f"abfs://{path} exists.") from None
                if failure.status in {400, 404, 409}:
                    await self._tree.refuse_file_above(place)
                raise

    async def delete(self, path: str, *, recursive: bool) -> None:
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
        return source.partition("/")[0] == target.partition("/")[0]

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
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
        existing = await self._tree.find_or_none(target)
        if existing is None:
            return {"if-none-match": "*"}
        if not overwrite or not existing.is_file or not source.is_file:
            raise PathExists(f"abfs://{target.path} exists.")
        return {"if-match": f'"{existing.tag}"'}

    async def set_permissions(self, path: str, permissions: int) -> None:
        await self._set_access(path, {"x-ms-permissions": f"{permissions:04o}"})

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """Owners are object ids of the directory service, or `$superuser`."""
        headers = {"x-ms-owner": owner, "x-ms-group": group}
        await self._set_access(path, {name: value for name, value in headers.items() if value is not None})

    async def _set_access(self, path: str, headers: dict[str, str]) -> None:
        place = place_of(path)
        if place is None or place.is_container:
            raise root_not_allowed("Containers have no permissions.")
        with azure_errors(path):
            await self._calls.set_access(place, headers)
