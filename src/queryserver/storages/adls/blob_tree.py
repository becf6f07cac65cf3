"""Folders in a flat account: blobs that are marked as such, or names that lead to others."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from queryserver.domain.errors.files import DirectoryNotEmpty, NotADirectory, PathNotFound
from queryserver.domain.files import FileStatus
from queryserver.domain.storage_names import is_name
from queryserver.interfaces.storage import Batch
from queryserver.storages.adls import entries
from queryserver.storages.adls.blob_calls import PAGE, BlobCalls, Listed, is_folder
from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.places import AzurePlace

_DELETES_AT_ONCE = 16


class FlatTree:
    """What lies where. Raises AzureFailure besides domain errors."""

    def __init__(self, calls: BlobCalls) -> None:
        self._calls = calls

    async def find(self, place: AzurePlace) -> FileStatus:
        """Raises PathNotFound."""
        if place.is_container:
            facts = await self._calls.container_facts(place.container)
            return entries.directory(place.path, entries.time(facts.headers.get("last-modified", "")))
        if status := await self.blob_at(place):
            return status
        if await self.has_entries(place):
            return entries.directory(place.path)
        raise PathNotFound(f"abfs://{place.path} does not exist.")

    async def blob_at(self, place: AzurePlace) -> FileStatus | None:
        """The blob of exactly this name, be it a file or the mark of a folder."""
        try:
            facts = await self._calls.facts(place)
        except AzureFailure as failure:
            if failure.is_missing:
                return None
            raise
        modified_at = entries.time(facts.get("last-modified", ""))
        if is_folder(facts):
            return entries.directory(place.path, modified_at)
        return entries.blob(place.path, int(facts.get("content-length", "0")), modified_at, facts.get("etag", ""))

    async def make_folders(self, place: AzurePlace) -> None:
        """Marks for this folder and those above it. Raises NotADirectory: one of them is a file."""
        missing: list[AzurePlace] = []
        while not place.is_container and not await self._is_marked(place):
            missing.append(place)
            place = place.parent
        for folder in reversed(missing):
            try:
                await self._calls.put_folder(folder)
            except AzureFailure as failure:
                if not failure.is_taken:
                    raise
                await self._is_marked(folder)

    async def _is_marked(self, place: AzurePlace) -> bool:
        status = await self.blob_at(place)
        if status is not None and not status.is_directory:
            raise NotADirectory(f"abfs://{place.path} is not a directory.")
        return status is not None

    async def delete_folder(self, place: AzurePlace, *, recursive: bool) -> None:
        """A folder that is there, with all below it. Raises DirectoryNotEmpty."""
        if not recursive and set(await self._keys_below(place, 2)) - {f"{place.key}/"}:
            raise DirectoryNotEmpty(f"abfs://{place.path} is not empty.")
        marker, is_last = "", False
        while not is_last:
            page = await self._calls.blobs(place.container, f"{place.key}/", marker=marker)
            for start in range(0, len(page.items), _DELETES_AT_ONCE):
                await self._delete_all(place.container, page.items[start : start + _DELETES_AT_ONCE])
            marker, is_last = page.marker, not page.marker
        await self.delete_blob(place)

    async def delete_blob(self, place: AzurePlace) -> None:
        """Nothing happens when it is gone."""
        try:
            await self._calls.delete(place)
        except AzureFailure as failure:
            if not failure.is_missing:
                raise

    async def has_entries(self, place: AzurePlace) -> bool:
        """Whether any blob lies below this name, which makes a folder of it without a mark."""
        return bool(await self._keys_below(place, 1))

    async def is_empty(self, container: str) -> bool:
        """Whether a container has no blob."""
        return not (await self._calls.blobs(container, "", size=1)).items

    async def _delete_all(self, container: str, items: Sequence[Listed]) -> None:
        places = [AzurePlace((container, *item.name.split("/"))) for item in items]
        outcomes = await asyncio.gather(*map(self.delete_blob, places), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _keys_below(self, place: AzurePlace, at_most: int) -> list[str]:
        """Pages may be empty although others follow."""
        marker = ""
        while True:
            page = await self._calls.blobs(place.container, f"{place.key}/", marker=marker, size=at_most)
            if page.items or not page.marker:
                return [item.name for item in page.items]
            marker = page.marker

    async def list_containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """The root."""
        while True:
            page = await self._calls.containers(cursor or "", min(size, PAGE))
            found = [entries.directory(item.name, entries.time(item.last_modified)) for item in page.items]
            cursor = page.marker or None
            yield Batch(tuple(found), cursor)
            if cursor is None:
                return

    async def list_directory(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """Raises NotADirectory, PathNotFound."""
        prefix = f"{place.key}/" if place.key else ""
        is_known = cursor is not None
        marker, above = _resumed(cursor)
        while True:
            page = await self._calls.blobs(place.container, prefix, marker=marker, size=min(size, PAGE), delimiter=True)
            is_known = is_known or bool(page.items)
            if not is_known and not page.marker and not (await self.find(place)).is_directory:
                raise NotADirectory(f"abfs://{place.path} is not a directory.")
            found, above = _entries(place, len(prefix), page.items, above)
            cursor = json.dumps([page.marker, above]) if page.marker else None
            yield Batch(tuple(found), cursor)
            if cursor is None:
                return
            marker = page.marker


def _resumed(cursor: str | None) -> tuple[str, list[str]]:
    if cursor is None:
        return "", []
    marker, above = json.loads(cursor)
    return str(marker), [str(name) for name in above]


def _entries(
    place: AzurePlace, prefix_length: int, items: Sequence[Listed], above: list[str]
) -> tuple[list[FileStatus], list[str]]:
    """The entries of a page, and the blobs of it whose names with a slash may come as a prefix yet.

    A marked folder `d` comes as a blob and, when it has entries, as the prefix `d/` too, perhaps pages later: `d-x`
    lies between. Only names that begin with `d` can, so the few blobs to remember begin one another.
    """
    found: list[FileStatus] = []
    for item in sorted(items, key=lambda item: item.name):
        name = item.name[prefix_length:].removesuffix("/" if item.is_prefix else "")
        above = [blob for blob in above if name.startswith(blob)]
        if not is_name(name) or (item.is_prefix and name in above):
            continue
        path = f"{place.path}/{name}"
        modified_at = entries.time(item.last_modified)
        if item.is_prefix or item.is_folder:
            found.append(entries.directory(path, modified_at))
        else:
            found.append(entries.blob(path, item.size_bytes, modified_at, item.etag))
        if not item.is_prefix:
            above.append(name)
    return found, above
