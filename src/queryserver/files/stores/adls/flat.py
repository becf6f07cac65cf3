"""Implements `Storage` for flat accounts via the Blob service.

A file is uploaded in a single call, or in blocks that become visible when they are committed. A commit discards all
blocks of the blob that it does not list, so the parts of a multipart upload are sent to a separate blob.
"""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import httpx

from queryserver import errors
from queryserver.files.model import RESERVED_PREFIX, EntryKind, FileStatus, ambiguous_name_error
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
from queryserver.files.stores.adls.shared import AzureLocation, AzureStorage, write_condition
from queryserver.files.stores.keys import has_marker, path_name
from queryserver.files.stores.transfer_blocks import Blocks

FOLDER = "hdi_isfolder"
"""The metadata key that marks an empty blob as a folder, as Hadoop and the Azure tools do."""

PAGE_SIZE = 1000
"""Page size of listings. The service allows 5000, but the XML of 1000 blobs is parsed in a few milliseconds."""

_LARGE_XML_BYTES = 256 * 1024
_DELETES_AT_ONCE = 16
_MAX_BLOCKS = 50_000
# Limits the memory for a block. Files larger than 4.7 TiB do not fit in 50,000 blocks of this size.
_MAX_BLOCK_BYTES = 100 * 1024 * 1024
_COMMIT_TRIES = 5
_DOTS = frozenset({".", ".."})

Store = Callable[[dict[str, str]], Awaitable[httpx.Headers]]
"""Creates the blob, subject to the conditions in the given headers, and returns the response headers."""


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """One item of a listing page. `name` is the whole key or the name of a container; prefixes end with `/`."""

    name: str
    is_prefix: bool = False
    is_folder: bool = False
    size_bytes: int = 0
    last_modified: str = ""
    etag: str = ""


class BlobCalls:
    """The calls of the Blob service for one account. All raise AzureFailure."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    async def pages(
        self, container: str | None, prefix: str = "", *, marker: str = "", size: int = PAGE_SIZE, delimiter: str = ""
    ) -> AsyncGenerator[tuple[Sequence[ListedBlob], str]]:
        """List the containers if `container` is None, otherwise the blobs of a container whose keys start with
        `prefix`.

        If `delimiter` is given, keys are grouped at the next delimiter. Yields the items of each page in the order of
        the service, and the marker for the next page. A page may be empty even if more pages follow.
        """
        names, kind = ((), "Container") if container is None else ((container,), "Blob")
        query: dict[str, str | int] = {"comp": "list", "maxresults": min(size, PAGE_SIZE)}
        if container is not None:
            query |= {"restype": "container", "prefix": prefix, "include": "metadata"}
        if delimiter:
            query["delimiter"] = delimiter
        while True:
            answer = await self._client.read(AzureCall("GET", names, query | ({"marker": marker} if marker else {})))
            root = await _parse_xml(answer.body)
            marker = root.findtext("NextMarker") or ""
            yield [_parse_item(element) for element in root.iter() if element.tag in {kind, "BlobPrefix"}], marker
            if not marker:
                return

    async def facts(self, location: AzureLocation) -> httpx.Headers:
        """Return the properties of a blob, including the metadata that marks a folder."""
        return (await self._client.read(AzureCall("HEAD", location.names))).headers

    async def put(self, location: AzureLocation, content: bytes, headers: Mapping[str, str]) -> httpx.Headers:
        """Create or replace a blob in one call. `headers` may contain conditions."""
        all_headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream", **headers}
        return (await self._client.change(AzureCall("PUT", location.names, {}, all_headers, content))).headers

    async def put_folder(self, location: AzureLocation) -> None:
        """Create the marker blob of a folder. Raises AzureFailure if a blob of that name exists."""
        await self.put(location, b"", {f"x-ms-meta-{FOLDER}": "true", "if-none-match": "*"})

    async def put_block(self, location: AzureLocation, block: str, content: bytes) -> None:
        """Upload a block. Idempotent."""
        await self._client.repeat(AzureCall("PUT", location.names, {"comp": "block", "blockid": block}, {}, content))

    async def commit(self, location: AzureLocation, blocks: Sequence[str], headers: Mapping[str, str]) -> httpx.Headers:
        """Create or replace the blob with these blocks, in this order. `headers` may contain conditions."""
        latest = "".join(f"<Latest>{block}</Latest>" for block in blocks)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        kinds = {"content-type": "application/xml", "x-ms-blob-content-type": "application/octet-stream"}
        call = AzureCall("PUT", location.names, {"comp": "blocklist"}, {**kinds, **headers}, content)
        return (await self._client.change(call)).headers


def block_name(text: str) -> str:
    """Return the block id for `text`. All block ids of a blob must have the same length."""
    return base64.b64encode(text.encode()).decode()


def is_folder(headers: Mapping[str, str]) -> bool:
    return headers.get(f"x-ms-meta-{FOLDER}", "").lower() == "true"


def _parse_item(element: ET.Element) -> ListedBlob:
    if element.tag == "BlobPrefix":
        return ListedBlob(_name(element), is_prefix=True)
    metadata = element.find("Metadata")
    marks = [] if metadata is None else [e.text or "" for e in metadata if e.tag.lower() == FOLDER]
    return ListedBlob(
        _name(element),
        is_folder=any(mark.lower() == "true" for mark in marks),
        size_bytes=int(element.findtext("Properties/Content-Length") or 0),
        last_modified=element.findtext("Properties/Last-Modified") or "",
        etag=element.findtext("Properties/Etag") or "",
    )


def _name(element: ET.Element) -> str:
    """Return the name of an item. If XML cannot represent the name, it is percent-encoded in the response."""
    name = element.find("Name")
    if name is None:
        return ""
    text = name.text or ""
    return unquote(text) if name.get("Encoded") == "true" else text


async def _parse_xml(body: bytes) -> ET.Element:
    # Entities in a DTD could expand without limit. The service does not send any.
    if b"<!DOCTYPE" in body:
        raise AzureFailure(200, "UnexpectedAnswer")
    try:
        if len(body) > _LARGE_XML_BYTES:
            return await asyncio.to_thread(ET.fromstring, body)
        return ET.fromstring(body)  # noqa: S314 no document type
    except ET.ParseError:
        raise AzureFailure(200, "UnexpectedAnswer") from None


class AzureFlatStorage(AzureStorage):
    """Implements `Storage` for a flat account. All users share one instance."""

    has_flat_keys = True

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        super().__init__(account, client, {"restype": "container"})
        self._calls = BlobCalls(client)

    @staticmethod
    def _is_directory(headers: Mapping[str, str]) -> bool:
        return is_folder(headers)

    async def _find_entry(self, location: AzureLocation) -> FileStatus:
        if status := await self._blob_at(location):
            return status
        if await self._keys_below(location, 1):
            return entries.directory_status(location.path)
        raise errors.PathNotFound(f"abfs://{location.path} does not exist.")

    async def _blob_at(self, location: AzureLocation) -> FileStatus | None:
        """Return the status of the blob with exactly this key, a file or a folder marker, or None if there is none."""
        if not (location.names[-1] or location.is_blob):
            return None  # this is the key of the parent folder's marker
        with unless_missing():
            facts = await self._calls.facts(location)
            if location.is_marker and not int(facts.get("content-length", "0")):
                return None
            modified_at = entries.parse_time(facts.get("last-modified", ""))
            if is_folder(facts):
                return entries.directory_status(location.path, modified_at)
            return entries.blob_status(
                location.path, int(facts.get("content-length", "0")), modified_at, facts.get("etag", "")
            )
        return None

    async def _keys_below(self, location: AzureLocation, at_most: int) -> list[str]:
        """Return at most `at_most` keys below this location. If there are any, the location is a folder, even if it has
        no marker.
        """
        if location.is_blob:
            return []
        async with aclosing(self._calls.pages(location.container, _prefix(location), size=at_most)) as pages:
            async for items, _ in pages:
                if items:
                    return [item.name for item in items]
        return []

    async def _find_replaced(self, location: AzureLocation, *, overwrite: bool) -> FileStatus | None:
        current = await self._blob_at(location)
        is_taken = not overwrite or current.is_directory if current else bool(await self._keys_below(location, 1))
        if is_taken:
            raise errors.PathExists(f"abfs://{location.path} already exists.")
        return current

    async def _make_folders(self, location: AzureLocation) -> None:
        """Create the missing markers of this folder and its parents. Raises NotADirectory if one of them is a file."""
        missing: list[AzureLocation] = []
        while not location.is_container and not await self._is_marked(location):
            missing += [location] if has_marker(location.names[-1]) else []
            location = location.parent
        for folder in reversed(missing):
            try:
                await self._calls.put_folder(folder)
            except AzureFailure as failure:
                if not failure.is_taken:
                    raise
                await self._is_marked(folder)

    async def _is_marked(self, location: AzureLocation) -> bool:
        status = await self._blob_at(location)
        if status is not None and not status.is_directory:
            raise errors.NotADirectory(f"abfs://{location.path} is not a directory.")
        return status is not None

    async def _make_directory(self, location: AzureLocation, permissions: int | None) -> None:
        del permissions  # a flat account has no permissions
        if location.is_blob:
            raise errors.InvalidPath(f"abfs://{location.path} cannot be a directory.")
        await self._find_replaced(location, overwrite=False)
        await self._make_folders(location.parent)
        if not has_marker(location.names[-1]):
            return
        try:
            await self._calls.put_folder(location)
        except AzureFailure as failure:
            if failure.is_taken:
                raise errors.PathExists(f"abfs://{location.path} already exists.") from None
            raise

    async def _is_empty(self, container: AzureLocation) -> bool:
        return not await self._keys_below(container, 1)

    async def _delete_entry(self, location: AzureLocation, *, recursive: bool) -> None:
        """Delete an entry. Markers are created first, so that the parent directories remain even if they become
        empty.
        """
        found = await self._find(location)
        if found.is_directory:
            await self._require_deletable(location, recursive=recursive)
        elif recursive and await self._keys_below(location, 1):
            raise ambiguous_name_error(f"abfs://{location.path}")
        await self._make_folders(location.parent)
        if found.is_directory:
            await self._delete_below(location)
        if found.is_file or location.names[-1]:
            await self._discard(location)

    async def is_ambiguous(self, path: str) -> bool:
        location = self._location(path)
        if location is None or location.is_container:
            return False
        with azure_errors(path):
            found = await self._blob_at(location)
            return found is not None and found.is_file and bool(await self._keys_below(location, 1))

    async def _require_deletable(self, location: AzureLocation, *, recursive: bool) -> None:
        """Check that a directory can be deleted. Raises DirectoryNotEmpty, or InvalidName if a key below it has a
        segment `.` or `..`, which requests cannot contain.
        """
        if not recursive:
            if set(await self._keys_below(location, 2)) - {f"{location.key}/"} or await self._blob_at(location.marker):
                raise errors.DirectoryNotEmpty(f"abfs://{location.path} is not empty.")
            return
        async with aclosing(self._calls.pages(location.container, _prefix(location))) as pages:
            async for items, _ in pages:
                for item in items:
                    if not _DOTS.isdisjoint(item.name.split("/")):
                        raise errors.InvalidName(
                            f"abfs://{location.path} contains an entry named . or .., which the store API cannot"
                            " address. Delete the other entries separately, or delete this entry with the tools of the"
                            " storage account."
                        )

    async def _delete_below(self, location: AzureLocation) -> None:
        async with aclosing(self._calls.pages(location.container, _prefix(location))) as pages:
            async for items, _ in pages:
                below = [AzureLocation((location.container, *item.name.split("/"))) for item in items]
                for start in range(0, len(below), _DELETES_AT_ONCE):
                    some = below[start : start + _DELETES_AT_ONCE]
                    for outcome in await asyncio.gather(*map(self._discard, some), return_exceptions=True):
                        if isinstance(outcome, BaseException):
                            raise outcome

    async def _discard(self, staged: AzureLocation) -> None:
        with unless_missing():
            await self._client.change(AzureCall("DELETE", staged.names, {}, {"x-ms-delete-snapshots": "include"}))

    async def _containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        async with aclosing(self._calls.pages(None, marker=cursor or "", size=size)) as pages:
            async for items, marker in pages:
                found = [entries.directory_status(item.name, entries.parse_time(item.last_modified)) for item in items]
                yield Batch(tuple(found), marker or None)

    async def _entries(self, location: AzureLocation, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """Yield the entries of a folder. Raises NotADirectory, PathNotFound."""
        prefix, is_known = _prefix(location), cursor is not None
        begin, above = ("", list[str]()) if cursor is None else json.loads(cursor)
        async with aclosing(
            self._calls.pages(location.container, prefix, marker=begin, size=size, delimiter="/")
        ) as pages:
            async for items, marker in pages:
                is_known = is_known or bool(items)
                if not is_known and not marker:
                    await self._require_directory(location)
                found, above = _entries(location, prefix, items, above)
                yield Batch(tuple(found), json.dumps([marker, above]) if marker else None)

    async def _reserved_in(self, folder: AzureLocation) -> AsyncGenerator[tuple[str, str]]:
        await self._find(folder)
        async with aclosing(
            self._calls.pages(folder.container, _prefix(folder) + RESERVED_PREFIX, delimiter="/")
        ) as pages:
            async for items, _ in pages:
                for item in items:
                    if not item.is_prefix:
                        yield item.name.rpartition("/")[2], item.last_modified

    async def _write(
        self, location: AzureLocation, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        """Upload a file, in blocks unless it fits in one. If the upload fails, Azure removes the uncommitted blocks
        after a week.
        """
        await self._find_replaced(location, overwrite=overwrite)
        await self._make_folders(location.parent)
        upload, names, total, last = secrets.token_hex(16), list[str](), 0, b""
        block_bytes, blocks = block_size(self._account.block_bytes, size_bytes), Blocks(body)
        while block := bytes(await blocks.take(block_bytes)):
            if total:
                names.append(block_name(f"{upload}{len(names):06d}"))
                await self._calls.put_block(location, names[-1], last)
            last = block
            total += len(block)
        if not names:
            return await self._put(location, last, overwrite=overwrite)
        names.append(block_name(f"{upload}{len(names):06d}"))
        await self._calls.put_block(location, names[-1], last)
        del last
        sizes = await self._sizes(location)
        if not sizes.keys() >= set(names):
            await self._find_replaced(location, overwrite=overwrite)
            raise errors.EntryChanged(f"abfs://{location.path} was modified concurrently.")
        _verify(sizes, names, total)
        return await self._store(location, total, partial(self._calls.commit, location, names), overwrite=overwrite)

    async def _put(self, location: AzureLocation, content: bytes, *, overwrite: bool) -> FileStatus:
        """Upload a file in one call. The service verifies its digest."""
        digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()

        async def put(condition: dict[str, str]) -> httpx.Headers:
            try:
                return await self._calls.put(location, content, {"content-md5": digest, **condition})
            except AzureFailure as failure:
                if not failure.is_taken or await self._blob_at(location):
                    raise
            # Azurite treats the uncommitted blocks of an interrupted upload as an existing blob, except in a commit.
            name = block_name(f"{secrets.token_hex(16)}{0:06d}")
            if content:
                await self._calls.put_block(location, name, content)
            return await self._calls.commit(location, [name] if content else [], condition)

        return await self._store(location, len(content), put, overwrite=overwrite)

    async def _store(self, location: AzureLocation, total: int, store: Store, *, overwrite: bool) -> FileStatus:
        """Create the blob with `store`, on condition that the target is unchanged. Raises PathExists, or EntryChanged
        if it changes repeatedly.
        """
        for _ in range(_COMMIT_TRIES):
            condition = write_condition(await self._find_replaced(location, overwrite=overwrite))
            try:
                headers = await store(condition)
            except AzureFailure as failure:
                if failure.code == "InvalidBlockList" and not overwrite:
                    raise errors.PathExists(f"abfs://{location.path} already exists.") from None
                if not failure.is_taken:
                    raise
            else:
                modified_at = entries.parse_time(headers.get("last-modified", ""))
                return entries.blob_status(location.path, total, modified_at, headers.get("etag", ""))
        raise errors.EntryChanged(f"abfs://{location.path} was modified concurrently.")

    async def _sizes(self, location: AzureLocation) -> Mapping[str, int]:
        """Return the sizes of all blocks of a blob, committed or not, by block id."""
        query = {"comp": "blocklist", "blocklisttype": "all"}
        with unless_missing():
            root = await _parse_xml((await self._client.read(AzureCall("GET", location.names, query))).body)
            return {block.findtext("Name", ""): int(block.findtext("Size", "0")) for block in root.iter("Block")}
        return {}

    async def _create_staged(self, staged: AzureLocation) -> None:
        await self._calls.put(staged, b"", {"if-none-match": "*"})

    async def _send_part(
        self, plan: PartPlan, staged: AzureLocation, index: int, content: AsyncIterator[bytes]
    ) -> None:
        """Upload a part as a block. Once complete, it replaces an earlier block with the same index."""
        # Uncommitted blocks do not update the modification time, and the orphan sweep deletes old blobs. Setting
        # metadata updates the time.
        headers = {"x-ms-meta-queryserver": "upload"}
        await self._client.change(AzureCall("PUT", staged.names, {"comp": "metadata"}, headers))
        query = {"comp": "block", "blockid": _part_name(index)}
        await self._client.send(AzureCall("PUT", staged.names, query, {}, content, plan.size_of(index)))

    async def _complete_parts(self, plan: PartPlan, staged: AzureLocation, parts: Sequence[StoredPart]) -> None:
        names = [_part_name(part.index) for part in sorted(parts, key=lambda part: part.index) if part.size_bytes]
        _verify(await self._sizes(staged), names, plan.size_bytes)
        await self._calls.commit(staged, names, {})

    async def _publish(
        self, staged: AzureLocation, location: AzureLocation, size_bytes: int, *, overwrite: bool
    ) -> FileStatus:
        """Copy the staged blob to the target, then delete it."""
        async with aclosing(self._content(staged)) as body:
            status = await self._write(location, body, overwrite=overwrite, size_bytes=size_bytes)
        if status.size_bytes != size_bytes:
            raise errors.VerificationFailed("The stored bytes do not match the bytes that were sent.")
        await self._discard(staged)
        return status


def _prefix(location: AzureLocation) -> str:
    """Return the key prefix of the entries in a folder or container."""
    return "" if location.is_container else f"{location.key}/"


def _entries(
    location: AzureLocation, prefix: str, items: Sequence[ListedBlob], above: list[str]
) -> tuple[list[FileStatus], list[str]]:
    """Return the entries of a page, and the names of folder markers that may still appear as a prefix.

    A folder `d` with a marker appears as a blob and, if it has entries, also as the prefix `d/`, which must not be
    listed again. The prefix may come several pages later, because names such as `d-x` sort in between. All of these
    start with `d`, so only few markers have to be remembered.
    """
    found: list[FileStatus] = []
    for item in sorted(items, key=lambda item: item.name):
        modified_at = entries.parse_time(item.last_modified)
        if item.name == prefix and not item.is_prefix:
            # A blob with content is listed as a file. An empty blob is just the marker of this folder.
            if item.size_bytes:
                found.append(entries.blob_status(location.marker.path, item.size_bytes, modified_at, item.etag))
            continue
        segment = item.name[len(prefix) :].removesuffix("/" if item.is_prefix else "")
        above = [mark for mark in above if segment.startswith(mark)]
        name = path_name(segment)
        if name is None or (item.is_prefix and segment in above):
            continue
        path = f"{location.path}/{name}"
        if segment in _DOTS:
            found.append(FileStatus(path, EntryKind.UNKNOWN, 0, modified_at))
        elif item.is_prefix or item.is_folder:
            found.append(entries.directory_status(path, modified_at))
        else:
            found.append(entries.blob_status(path, item.size_bytes, modified_at, item.etag))
        if item.is_folder:
            above.append(segment)
    return found, above


def block_size(usual: int, announced_bytes: int | None) -> int:
    """Return `usual`, or a larger block size, up to 100 MiB, if the file would otherwise exceed 50,000 blocks."""
    return max(usual, min(-(-(announced_bytes or 0) // _MAX_BLOCKS), _MAX_BLOCK_BYTES))


def _verify(sizes: Mapping[str, int], names: Sequence[str], total: int) -> None:
    if sum(sizes.get(name, 0) for name in names) != total:
        raise errors.VerificationFailed("The stored bytes do not match the bytes that were sent.")


def _part_name(index: int) -> str:
    return block_name(f"{index:06d}")
