"""The calls of the DFS service that we make (Azure Data Lake Storage Gen2 REST API). Failures are AzureFailure."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.http import Answer, AzureClient, Call
from queryserver.storages.adls.places import AzurePlace

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
