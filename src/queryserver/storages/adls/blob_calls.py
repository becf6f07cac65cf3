"""The calls of the Blob service that we make (Blob service REST API). Failures are AzureFailure."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import httpx

from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.http import Answer, AzureClient, Call
from queryserver.storages.adls.places import AzurePlace

FOLDER = "hdi_isfolder"
"""The metadata that makes a folder of an empty blob, as Hadoop and Azure's tools write it."""

PAGE = 1000
"""5000 is the service's limit; XML of 1000 blobs is parsed in a few milliseconds."""

_BIG_XML = 256 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """One item of a page. `name` is the whole key, or of a container; prefixes end with `/`."""

    name: str
    is_prefix: bool = False
    is_folder: bool = False
    size_bytes: int = 0
    last_modified: str = ""
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Items in the order of the service, and where the next page begins."""

    items: Sequence[Listed]
    marker: str


class BlobCalls:
    """Of one account."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    async def containers(self, marker: str, size: int) -> Page:
        query = {"comp": "list", "maxresults": size, **({"marker": marker} if marker else {})}
        return await _page(await self._client.read(Call("GET", (), query)), "Container")

    async def container_facts(self, container: str) -> Answer:
        return await self._client.read(Call("HEAD", (container,), {"restype": "container"}))

    async def create_container(self, container: str) -> None:
        await self._client.change(Call("PUT", (container,), {"restype": "container"}))

    async def delete_container(self, container: str) -> None:
        await self._client.change(Call("DELETE", (container,), {"restype": "container"}))

    async def blobs(
        self, container: str, prefix: str, *, marker: str = "", size: int = PAGE, delimiter: bool = False,
    ) -> Page:  # fmt: skip
        """Keys that begin with `prefix`; with `delimiter` only up to the next slash."""
        query: dict[str, str | int] = {"restype": "container", "comp": "list", "maxresults": size, "prefix": prefix}
        query["include"] = "metadata"
        if delimiter:
            query["delimiter"] = "/"
        if marker:
            query["marker"] = marker
        return await _page(await self._client.read(Call("GET", (container,), query)), "Blob")

    async def facts(self, place: AzurePlace) -> httpx.Headers:
        """Of a blob; a folder's hold its mark."""
        return (await self._client.read(Call("HEAD", place.names))).headers

    async def put(self, place: AzurePlace, content: bytes, headers: Mapping[str, str]) -> httpx.Headers:
        """A blob in one step."""
        all_headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream", **headers}
        return (await self._client.change(Call("PUT", place.names, {}, all_headers, content))).headers

    async def put_folder(self, place: AzurePlace) -> None:
        """Fails when there is a blob of that name."""
        await self.put(place, b"", {f"x-ms-meta-{FOLDER}": "true", "if-none-match": "*"})

    async def touch(self, place: AzurePlace) -> None:
        """A later time of change."""
        headers = {"x-ms-meta-queryserver": "upload"}
        await self._client.change(Call("PUT", place.names, {"comp": "metadata"}, headers))

    async def put_block(self, place: AzurePlace, block: str, content: bytes) -> None:
        """Sent twice it is the same block."""
        await self._client.repeat(Call("PUT", place.names, {"comp": "block", "blockid": block}, {}, content))

    async def stream_block(self, place: AzurePlace, block: str, content: AsyncIterator[bytes], length: int) -> None:
        query = {"comp": "block", "blockid": block}
        await self._client.send(Call("PUT", place.names, query, {}, content, length))

    async def blocks(self, place: AzurePlace) -> Mapping[str, int]:
        """Sizes of the blocks that were sent, committed or not."""
        answer = await self._client.read(Call("GET", place.names, {"comp": "blocklist", "blocklisttype": "all"}))
        root = await _parsed(answer.body)
        return {block.findtext("Name", ""): int(block.findtext("Size", "0")) for block in root.iter("Block")}

    async def commit(self, place: AzurePlace, blocks: Sequence[str], headers: Mapping[str, str]) -> httpx.Headers:
        """The blob of these blocks, in this order."""
        latest = "".join(f"<Latest>{block}</Latest>" for block in blocks)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        all_headers = {
            "content-type": "application/xml",
            "x-ms-blob-content-type": "application/octet-stream",
            **headers,
        }
        call = Call("PUT", place.names, {"comp": "blocklist"}, all_headers, content)
        return (await self._client.change(call)).headers

    async def delete(self, place: AzurePlace) -> None:
        """With its snapshots."""
        await self._client.change(Call("DELETE", place.names, {}, {"x-ms-delete-snapshots": "include"}))


def block_name(text: str) -> str:
    """An id as the service wants it; those of one blob must be of one length."""
    return base64.b64encode(text.encode()).decode()


def is_folder(headers: Mapping[str, str]) -> bool:
    """Whether a blob stands for a folder."""
    return headers.get(f"x-ms-meta-{FOLDER}", "").lower() == "true"


async def _page(answer: Answer, kind: str) -> Page:
    root = await _parsed(answer.body)
    items = [_listed(element) for element in root.iter() if element.tag in {kind, "BlobPrefix"}]
    return Page(items, root.findtext("NextMarker") or "")


def _listed(element: ET.Element) -> Listed:
    if element.tag == "BlobPrefix":
        return Listed(_name(element), is_prefix=True)
    metadata = element.find("Metadata")
    marks = [] if metadata is None else [e.text or "" for e in metadata if e.tag.lower() == FOLDER]
    return Listed(
        _name(element),
        is_folder=any(mark.lower() == "true" for mark in marks),
        size_bytes=int(element.findtext("Properties/Content-Length") or 0),
        last_modified=element.findtext("Properties/Last-Modified") or "",
        etag=element.findtext("Properties/Etag") or "",
    )


def _name(element: ET.Element) -> str:
    """Names that XML cannot hold come percent-encoded."""
    found = element.find("Name")
    if found is None:
        return ""
    text = found.text or ""
    return unquote(text) if found.get("Encoded") == "true" else text


async def _parsed(body: bytes) -> ET.Element:
    # Entities of a document type could grow without a bound; the service sends none.
    if b"<!DOCTYPE" in body:
        raise AzureFailure(200, "UnexpectedAnswer")
    try:
        if len(body) > _BIG_XML:
            return await asyncio.to_thread(ET.fromstring, body)
        return ET.fromstring(body)  # noqa: S314 no document type
    except ET.ParseError:
        raise AzureFailure(200, "UnexpectedAnswer") from None
