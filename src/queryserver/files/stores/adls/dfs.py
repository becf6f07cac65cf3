"""The calls of the DFS service that we make (Azure Data Lake Storage Gen2 REST API). Failures are AzureFailure."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from queryserver.errors.files import NotADirectory
from queryserver.files.model import FileStatus
from queryserver.files.paths import is_name
from queryserver.files.protocol import Batch
from queryserver.files.stores.adls import places as entries
from queryserver.files.stores.adls.errors import AzureFailure
from queryserver.files.stores.adls.http import Answer, AzureClient, Call
from queryserver.files.stores.adls.places import AzurePlace

MOST_PATHS = 5000
"""The service's limit of a page."""


@dataclass(frozen=True, slots=True)
class DfsPage:
    """JSON objects of a page, and where the next one begins."""

    items: Sequence[Mapping[str, Any]]
    continuation: str


class DfsCalls:
    """Of one account."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    async def containers(self, continuation: str, size: int) -> DfsPage:
        query: dict[str, str | int] = {"resource": "account", "maxResults": size}
        return _page(await self._client.read(Call("GET", (), _continued(query, continuation))), "filesystems")

    async def container_facts(self, container: str) -> httpx.Headers:
        return (await self._client.read(Call("HEAD", (container,), {"resource": "filesystem"}))).headers

    async def create_container(self, container: str) -> None:
        await self._client.change(Call("PUT", (container,), {"resource": "filesystem"}))

    async def delete_container(self, container: str) -> None:
        await self._client.change(Call("DELETE", (container,), {"resource": "filesystem"}))

    async def paths(self, place: AzurePlace, continuation: str, size: int) -> DfsPage:
        """What lies directly in a directory."""
        query: dict[str, str | int] = {"resource": "filesystem", "recursive": "false", "maxResults": size}
        if place.key:
            query["directory"] = place.key
        call = Call("GET", (place.container,), _continued(query, continuation))
        return _page(await self._client.read(call), "paths")

    async def facts(self, place: AzurePlace) -> httpx.Headers:
        """System properties of an entry."""
        return (await self._client.read(Call("HEAD", place.names, {"action": "getStatus"}))).headers

    async def create(self, place: AzurePlace, resource: str, permissions: int, umask: int) -> None:
        """A file or directory with its missing parents. Fails when there is anything of that name."""
        headers = {
            "if-none-match": "*",
            "x-ms-permissions": f"{permissions:04o}",
            "x-ms-umask": f"{umask:04o}",
        }
        await self._client.change(Call("PUT", place.names, {"resource": resource}, headers))

    async def append(self, place: AzurePlace, position: int, content: bytes) -> None:
        """Bytes that a flush makes part of the file. Sent twice they take the same place."""
        query = {"action": "append", "position": position}
        await self._client.repeat(Call("PATCH", place.names, query, {}, content))

    async def stream_append(self, place: AzurePlace, position: int, content: AsyncIterator[bytes], length: int) -> None:
        """As `append`; nothing of it stays when the content breaks off."""
        query = {"action": "append", "position": position}
        await self._client.send(Call("PATCH", place.names, query, {}, content, length))

    async def flush(self, place: AzurePlace, size_bytes: int) -> None:
        """Fails unless what was appended is without gaps up to this size."""
        query: dict[str, str | int] = {"action": "flush", "position": size_bytes, "close": "true"}
        await self._client.change(Call("PATCH", place.names, query))

    async def touch(self, place: AzurePlace) -> None:
        """A later time of change: it gets the content type that it has."""
        headers = {"x-ms-content-type": "application/octet-stream"}
        await self._client.change(Call("PATCH", place.names, {"action": "setProperties"}, headers))

    async def access_list(self, place: AzurePlace) -> str:
        """The access control list, which holds the permissions too."""
        return (await self._client.read(Call("HEAD", place.names, {"action": "getAccessControl"}))).headers["x-ms-acl"]

    async def set_access(self, place: AzurePlace, headers: Mapping[str, str]) -> None:
        """`x-ms-permissions` or `x-ms-acl`, `x-ms-owner`, `x-ms-group`."""
        await self._client.change(Call("PATCH", place.names, {"action": "setAccessControl"}, headers))

    async def rename(self, source: AzurePlace, target: AzurePlace, condition: Mapping[str, str]) -> None:
        """One step for the service; large trees of some accounts take several calls."""
        headers = {"x-ms-rename-source": "/" + "/".join(quote(name, safe="") for name in source.names), **condition}
        continuation = ""
        while True:
            query = _continued({}, continuation)
            answer = await self._client.change(Call("PUT", target.names, query, headers))
            continuation = answer.headers.get("x-ms-continuation", "")
            if not continuation:
                return

    async def delete(self, place: AzurePlace, *, recursive: bool) -> None:
        continuation = ""
        while True:
            query = _continued({"recursive": str(recursive).lower()}, continuation)
            answer = await self._client.change(Call("DELETE", place.names, query))
            continuation = answer.headers.get("x-ms-continuation", "")
            if not continuation:
                return


def is_directory(headers: Mapping[str, str]) -> bool:
    """What an entry's properties say."""
    return headers.get("x-ms-resource-type", "").lower() == "directory"


def _continued(query: dict[str, str | int], continuation: str) -> dict[str, str | int]:
    return {**query, "continuation": continuation} if continuation else query


def _page(answer: Answer, key: str) -> DfsPage:
    try:
        items = json.loads(answer.body)[key]
    except (ValueError, KeyError, TypeError):
        raise AzureFailure(answer.status, "UnexpectedAnswer") from None
    return DfsPage(items, answer.headers.get("x-ms-continuation", ""))


class HierarchicalTree:
    """What lies where. Raises AzureFailure besides domain errors."""

    def __init__(self, calls: DfsCalls) -> None:
        self._calls = calls

    async def find(self, place: AzurePlace) -> FileStatus:
        """Raises AzureFailure: there is nothing."""
        if place.is_container:
            facts = await self._calls.container_facts(place.container)
            return entries.directory(place.path, entries.time(facts.get("last-modified", "")))
        facts = await self._calls.facts(place)
        own = {name.removeprefix("x-ms-"): value for name, value in facts.items()}
        size_bytes = int(facts.get("content-length", "0"))
        return entries.hierarchical(place.path, is_directory=is_directory(facts), size_bytes=size_bytes, facts=own)

    async def find_or_none(self, place: AzurePlace) -> FileStatus | None:
        """None when there is nothing. Raises PathNotFound never."""
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
        """The root."""
        while True:
            page = await self._calls.containers(cursor or "", min(size, MOST_PATHS))
            found = [_container(item) for item in page.items]
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


def _container(item: Mapping[str, Any]) -> FileStatus:
    return entries.directory(str(item.get("name", "")), entries.time(str(item.get("lastModified", ""))))


def _entry(place: AzurePlace, item: Mapping[str, Any], skipped: int) -> FileStatus:
    """Booleans and numbers come as texts."""
    facts = {name: str(value) for name, value in item.items()}
    return entries.hierarchical(
        f"{place.path}/{facts.get('name', '')[skipped:]}",
        is_directory=facts.get("isDirectory", "").lower() == "true",
        size_bytes=int(facts.get("contentLength", "0")),
        facts={**facts, "last-modified": facts.get("lastModified", "")},
    )
