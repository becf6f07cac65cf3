"""Flat accounts via the Blob service: its calls, entries, uploads and the Storage.

Uploads are a single put, or blocks that become visible when committed. A commit discards all of its blob's blocks that
it does not list, so a file's parts are uploaded to a separate blob.
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
from queryserver.files.model import RESERVED_PREFIX, EntryKind, FileStatus, ambiguous
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls import shared as entries
from queryserver.files.stores.adls.credentials import AzureAccount
from queryserver.files.stores.adls.errors import AzureFailure, azure_errors, unless_missing
from queryserver.files.stores.adls.http import AzureCall, AzureClient
from queryserver.files.stores.adls.shared import AzurePlace, AzureStorage, condition_of
from queryserver.files.stores.block_sizes import Blocks
from queryserver.files.stores.keys import has_marker, name_of

FOLDER = "hdi_isfolder"
"""Metadata that marks an empty blob as a folder. Hadoop and Azure's tools write it."""

PAGE = 1000
"""Page size. The service's limit is 5000; XML with 1000 blobs is parsed in a few milliseconds."""

_BIG_XML = 256 * 1024
_DELETES_AT_ONCE = 16
_MOST_BLOCKS = 50_000
# Limits a block's memory, so announced sizes above 4.7 TiB are ignored.
_LARGEST_BLOCK = 100 * 1024 * 1024
_COMMIT_TRIES = 5
_DOTS = frozenset({".", ".."})

Store = Callable[[dict[str, str]], Awaitable[httpx.Headers]]
"""Makes a file appear under its name, subject to the conditions in these headers."""


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """One item on a page. `name` is the whole key, or a container's name; prefixes end with `/`."""

    name: str
    is_prefix: bool = False
    is_folder: bool = False
    size_bytes: int = 0
    last_modified: str = ""
    etag: str = ""


class BlobCalls:
    """Calls to one account. They raise AzureFailure."""

    def __init__(self, client: AzureClient) -> None:
        self._client = client

    async def pages(
        self, container: str | None, prefix: str = "", *, marker: str = "", size: int = PAGE, delimiter: str = ""
    ) -> AsyncGenerator[tuple[Sequence[ListedBlob], str]]:
        """List containers (if None), or a container's blobs whose keys start with `prefix`, up to the next `delimiter`.

        Yields items in the service's order, and the marker for the next page. A page may be empty even if others
        follow.
        """
        names, kind = ((), "Container") if container is None else ((container,), "Blob")
        query: dict[str, str | int] = {"comp": "list", "maxresults": min(size, PAGE)}
        if container is not None:
            query |= {"restype": "container", "prefix": prefix, "include": "metadata"}
        if delimiter:
            query["delimiter"] = delimiter
        while True:
            answer = await self._client.read(AzureCall("GET", names, query | ({"marker": marker} if marker else {})))
            root = await _parsed(answer.body)
            marker = root.findtext("NextMarker") or ""
            yield [_listed(element) for element in root.iter() if element.tag in {kind, "BlobPrefix"}], marker
            if not marker:
                return

    async def facts(self, place: AzurePlace) -> httpx.Headers:
        """Return a blob's properties, including the mark of a folder."""
        return (await self._client.read(AzureCall("HEAD", place.names))).headers

    async def put(self, place: AzurePlace, content: bytes, headers: Mapping[str, str]) -> httpx.Headers:
        """Create a blob in one call."""
        all_headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream", **headers}
        return (await self._client.change(AzureCall("PUT", place.names, {}, all_headers, content))).headers

    async def put_folder(self, place: AzurePlace) -> None:
        """Create a folder's marker. Fails if a blob has that name."""
        await self.put(place, b"", {f"x-ms-meta-{FOLDER}": "true", "if-none-match": "*"})

    async def put_block(self, place: AzurePlace, block: str, content: bytes) -> None:
        """Upload a block. May be repeated."""
        await self._client.repeat(AzureCall("PUT", place.names, {"comp": "block", "blockid": block}, {}, content))

    async def commit(self, place: AzurePlace, blocks: Sequence[str], headers: Mapping[str, str]) -> httpx.Headers:
        """Create the blob from these blocks, in this order."""
        latest = "".join(f"<Latest>{block}</Latest>" for block in blocks)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        kinds = {"content-type": "application/xml", "x-ms-blob-content-type": "application/octet-stream"}
        call = AzureCall("PUT", place.names, {"comp": "blocklist"}, {**kinds, **headers}, content)
        return (await self._client.change(call)).headers


def block_name(text: str) -> str:
    """Encode a block id. All block ids of a blob must have the same length."""
    return base64.b64encode(text.encode()).decode()


def is_folder(headers: Mapping[str, str]) -> bool:
    return headers.get(f"x-ms-meta-{FOLDER}", "").lower() == "true"


def _listed(element: ET.Element) -> ListedBlob:
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
    """Return an item's name, which is percent-encoded if XML cannot represent it."""
    name = element.find("Name")
    if name is None:
        return ""
    text = name.text or ""
    return unquote(text) if name.get("Encoded") == "true" else text


async def _parsed(body: bytes) -> ET.Element:
    # DTD entities could expand without limit, and the service does not send any.
    if b"<!DOCTYPE" in body:
        raise AzureFailure(200, "UnexpectedAnswer")
    try:
        if len(body) > _BIG_XML:
            return await asyncio.to_thread(ET.fromstring, body)
        return ET.fromstring(body)  # noqa: S314 no document type
    except ET.ParseError:
        raise AzureFailure(200, "UnexpectedAnswer") from None


class AzureFlatStorage(AzureStorage):
    """Implements `Storage` for a flat account, shared by all users."""

    has_flat_keys = True

    def __init__(self, account: AzureAccount, client: AzureClient) -> None:
        super().__init__(account, client, {"restype": "container"})
        self._calls = BlobCalls(client)

    @staticmethod
    def _is_directory(headers: Mapping[str, str]) -> bool:
        return is_folder(headers)

    async def _find_entry(self, place: AzurePlace) -> FileStatus:
        if status := await self._blob_at(place):
            return status
        if await self._keys_below(place, 1):
            return entries.directory(place.path)
        raise errors.PathNotFound(f"abfs://{place.path} does not exist.")

    async def _blob_at(self, place: AzurePlace) -> FileStatus | None:
        """Return the blob with exactly this name, which is a file or a folder's marker."""
        if not (place.names[-1] or place.is_blob):
            return None  # the key of the parent folder's marker
        with unless_missing():
            facts = await self._calls.facts(place)
            if place.is_marker and not int(facts.get("content-length", "0")):
                return None
            modified_at = entries.time(facts.get("last-modified", ""))
            if is_folder(facts):
                return entries.directory(place.path, modified_at)
            return entries.blob(place.path, int(facts.get("content-length", "0")), modified_at, facts.get("etag", ""))
        return None

    async def _keys_below(self, place: AzurePlace, at_most: int) -> list[str]:
        """Return the first blobs below this name. They make it a folder even without a marker."""
        if place.is_blob:
            return []
        async with aclosing(self._calls.pages(place.container, _prefix(place), size=at_most)) as pages:
            async for items, _ in pages:
                if items:
                    return [item.name for item in items]
        return []

    async def _replaced(self, place: AzurePlace, *, overwrite: bool) -> FileStatus | None:
        current = await self._blob_at(place)
        is_taken = not overwrite or current.is_directory if current else bool(await self._keys_below(place, 1))
        if is_taken:
            raise errors.PathExists(f"abfs://{place.path} exists.")
        return current

    async def _make_folders(self, place: AzurePlace) -> None:
        """Create markers for this folder and its parents. Raises NotADirectory if one of them is a file."""
        missing: list[AzurePlace] = []
        while not place.is_container and not await self._is_marked(place):
            missing += [place] if has_marker(place.names[-1]) else []
            place = place.parent
        for folder in reversed(missing):
            try:
                await self._calls.put_folder(folder)
            except AzureFailure as failure:
                if not failure.is_taken:
                    raise
                await self._is_marked(folder)

    async def _is_marked(self, place: AzurePlace) -> bool:
        status = await self._blob_at(place)
        if status is not None and not status.is_directory:
            raise errors.NotADirectory(f"abfs://{place.path} is not a directory.")
        return status is not None

    async def _make_directory(self, place: AzurePlace, permissions: int | None) -> None:
        del permissions  # a flat account has no permissions
        if place.is_blob:
            raise errors.InvalidPath(f"abfs://{place.path} cannot be a directory.")
        await self._replaced(place, overwrite=False)
        await self._make_folders(place.parent)
        if not has_marker(place.names[-1]):
            return
        try:
            await self._calls.put_folder(place)
        except AzureFailure as failure:
            if failure.is_taken:
                raise errors.PathExists(f"abfs://{place.path} exists.") from None
            raise

    async def _is_empty(self, container: AzurePlace) -> bool:
        return not await self._keys_below(container, 1)

    async def _delete_entry(self, place: AzurePlace, *, recursive: bool) -> None:
        """Delete an entry. Its parent directory remains even if it becomes empty."""
        found = await self._find(place)
        if found.is_directory:
            await self._require_deletable(place, recursive=recursive)
        elif recursive and await self._keys_below(place, 1):
            raise ambiguous(f"abfs://{place.path}")
        await self._make_folders(place.parent)
        if found.is_directory:
            await self._delete_below(place)
        if found.is_file or place.names[-1]:
            await self._discard(place)

    async def is_ambiguous(self, path: str) -> bool:
        place = self._place(path)
        if place is None or place.is_container:
            return False
        with azure_errors(path):
            found = await self._blob_at(place)
            return found is not None and found.is_file and bool(await self._keys_below(place, 1))

    async def _require_deletable(self, place: AzurePlace, *, recursive: bool) -> None:
        """Check that an entry can be deleted. Raises DirectoryNotEmpty, or InvalidName if a key below it has a dot
        segment, which requests cannot contain.
        """
        if not recursive:
            if set(await self._keys_below(place, 2)) - {f"{place.key}/"} or await self._blob_at(place.marker):
                raise errors.DirectoryNotEmpty(f"abfs://{place.path} is not empty.")
            return
        async with aclosing(self._calls.pages(place.container, _prefix(place))) as pages:
            async for items, _ in pages:
                for item in items:
                    if not _DOTS.isdisjoint(item.name.split("/")):
                        raise errors.InvalidName(
                            f"abfs://{place.path} holds a name of dots, which no call to the account can hold."
                            " Delete the other entries alone, or that one with the account's own tools."
                        )

    async def _delete_below(self, place: AzurePlace) -> None:
        async with aclosing(self._calls.pages(place.container, _prefix(place))) as pages:
            async for items, _ in pages:
                below = [AzurePlace((place.container, *item.name.split("/"))) for item in items]
                for start in range(0, len(below), _DELETES_AT_ONCE):
                    some = below[start : start + _DELETES_AT_ONCE]
                    for outcome in await asyncio.gather(*map(self._discard, some), return_exceptions=True):
                        if isinstance(outcome, BaseException):
                            raise outcome

    async def _discard(self, staged: AzurePlace) -> None:
        with unless_missing():
            await self._client.change(AzureCall("DELETE", staged.names, {}, {"x-ms-delete-snapshots": "include"}))

    async def _containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        async with aclosing(self._calls.pages(None, marker=cursor or "", size=size)) as pages:
            async for items, marker in pages:
                found = [entries.directory(item.name, entries.time(item.last_modified)) for item in items]
                yield Batch(tuple(found), marker or None)

    async def _entries(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """Yield the entries. Raises NotADirectory, PathNotFound."""
        prefix, is_known = _prefix(place), cursor is not None
        begin, above = ("", list[str]()) if cursor is None else json.loads(cursor)
        async with aclosing(
            self._calls.pages(place.container, prefix, marker=begin, size=size, delimiter="/")
        ) as pages:
            async for items, marker in pages:
                is_known = is_known or bool(items)
                if not is_known and not marker:
                    await self._require_directory(place)
                found, above = _entries(place, prefix, items, above)
                yield Batch(tuple(found), json.dumps([marker, above]) if marker else None)

    async def _reserved_in(self, folder: AzurePlace) -> AsyncGenerator[tuple[str, str]]:
        await self._find(folder)
        async with aclosing(
            self._calls.pages(folder.container, _prefix(folder) + RESERVED_PREFIX, delimiter="/")
        ) as pages:
            async for items, _ in pages:
                for item in items:
                    if not item.is_prefix:
                        yield item.name.rpartition("/")[2], item.last_modified

    async def _write(
        self, place: AzurePlace, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        """Upload a file in blocks. Uncommitted blocks expire after a week."""
        await self._replaced(place, overwrite=overwrite)
        await self._make_folders(place.parent)
        upload, names, total, last = secrets.token_hex(16), list[str](), 0, b""
        block_bytes, blocks = block_size(self._account.block_bytes, size_bytes), Blocks(body)
        while block := bytes(await blocks.take(block_bytes)):
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
            await self._replaced(place, overwrite=overwrite)
            raise errors.EntryChanged(f"abfs://{place.path} was changed meanwhile.")
        _verify(sizes, names, total)
        return await self._store(place, total, partial(self._calls.commit, place, names), overwrite=overwrite)

    async def _put(self, place: AzurePlace, content: bytes, *, overwrite: bool) -> FileStatus:
        """Upload a file in one call. The service verifies the digest."""
        digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()

        async def put(condition: dict[str, str]) -> httpx.Headers:
            try:
                return await self._calls.put(place, content, {"content-md5": digest, **condition})
            except AzureFailure as failure:
                if not failure.is_taken or await self._blob_at(place):
                    raise
            # Azurite treats an interrupted write's blocks as a blob, except when committing.
            name = block_name(f"{secrets.token_hex(16)}{0:06d}")
            if content:
                await self._calls.put_block(place, name, content)
            return await self._calls.commit(place, [name] if content else [], condition)

        return await self._store(place, len(content), put, overwrite=overwrite)

    async def _store(self, place: AzurePlace, total: int, store: Store, *, overwrite: bool) -> FileStatus:
        """Make a file appear. Raises PathExists, or EntryChanged if other clients interfere repeatedly."""
        for _ in range(_COMMIT_TRIES):
            condition = condition_of(await self._replaced(place, overwrite=overwrite))
            try:
                headers = await store(condition)
            except AzureFailure as failure:
                if failure.code == "InvalidBlockList" and not overwrite:
                    raise errors.PathExists(f"abfs://{place.path} exists.") from None
                if not failure.is_taken:
                    raise
            else:
                modified_at = entries.time(headers.get("last-modified", ""))
                return entries.blob(place.path, total, modified_at, headers.get("etag", ""))
        raise errors.EntryChanged(f"abfs://{place.path} was changed meanwhile.")

    async def _sizes(self, place: AzurePlace) -> Mapping[str, int]:
        """Return the sizes of a blob's blocks, whether committed or not."""
        query = {"comp": "blocklist", "blocklisttype": "all"}
        with unless_missing():
            root = await _parsed((await self._client.read(AzureCall("GET", place.names, query))).body)
            return {block.findtext("Name", ""): int(block.findtext("Size", "0")) for block in root.iter("Block")}
        return {}

    async def _create_staged(self, staged: AzurePlace) -> None:
        await self._calls.put(staged, b"", {"if-none-match": "*"})

    async def _send_part(self, plan: PartPlan, staged: AzurePlace, index: int, content: AsyncIterator[bytes]) -> None:
        """Upload a part as a block. When complete, it replaces an earlier block with the same index."""
        # Uncommitted blocks do not update the modification time, and old blobs are swept. Setting metadata updates the
        # time.
        headers = {"x-ms-meta-queryserver": "upload"}
        await self._client.change(AzureCall("PUT", staged.names, {"comp": "metadata"}, headers))
        query = {"comp": "block", "blockid": _part_name(index)}
        await self._client.send(AzureCall("PUT", staged.names, query, {}, content, plan.size_of(index)))

    async def _complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        names = [_part_name(part.index) for part in sorted(parts, key=lambda part: part.index) if part.size_bytes]
        _verify(await self._sizes(staged), names, plan.size_bytes)
        await self._calls.commit(staged, names, {})

    async def _publish(self, staged: AzurePlace, place: AzurePlace, size_bytes: int, *, overwrite: bool) -> FileStatus:
        """Copy the blob with the reserved name to the file."""
        async with aclosing(self._content(staged)) as body:
            status = await self._write(place, body, overwrite=overwrite, size_bytes=size_bytes)
        if status.size_bytes != size_bytes:
            raise errors.VerificationFailed("The store holds other bytes than were sent.")
        await self._discard(staged)
        return status


def _prefix(place: AzurePlace) -> str:
    """Return the key prefix of a folder's or container's entries."""
    return "" if place.is_container else f"{place.key}/"


def _entries(
    place: AzurePlace, prefix: str, items: Sequence[ListedBlob], above: list[str]
) -> tuple[list[FileStatus], list[str]]:
    """Return a page's entries, and the folder markers whose names may still appear as a prefix.

    A folder `d` with a marker appears as a blob and, if it has entries, also as the prefix `d/`, possibly several pages
    later because `d-x` sorts in between. Only names that start with `d` sort in between, so there are few markers to
    remember.
    """
    found: list[FileStatus] = []
    for item in sorted(items, key=lambda item: item.name):
        modified_at = entries.time(item.last_modified)
        if item.name == prefix and not item.is_prefix:
            # A blob with content is listed. An empty blob is this folder's marker.
            if item.size_bytes:
                found.append(entries.blob(place.marker.path, item.size_bytes, modified_at, item.etag))
            continue
        segment = item.name[len(prefix) :].removesuffix("/" if item.is_prefix else "")
        above = [mark for mark in above if segment.startswith(mark)]
        name = name_of(segment)
        if name is None or (item.is_prefix and segment in above):
            continue
        path = f"{place.path}/{name}"
        if segment in _DOTS:
            found.append(FileStatus(path, EntryKind.UNKNOWN, 0, modified_at))
        elif item.is_prefix or item.is_folder:
            found.append(entries.directory(path, modified_at))
        else:
            found.append(entries.blob(path, item.size_bytes, modified_at, item.etag))
        if item.is_folder:
            above.append(segment)
    return found, above


def block_size(usual: int, announced_bytes: int | None) -> int:
    """Return a block size that divides the file into at most 50,000 blocks."""
    return max(usual, min(-(-(announced_bytes or 0) // _MOST_BLOCKS), _LARGEST_BLOCK))


def _verify(sizes: Mapping[str, int], names: Sequence[str], total: int) -> None:
    if sum(sizes.get(name, 0) for name in names) != total:
        raise errors.VerificationFailed("The store holds other bytes than were sent.")


def _part_name(index: int) -> str:
    return block_name(f"{index:06d}")
