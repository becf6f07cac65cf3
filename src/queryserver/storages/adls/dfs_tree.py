"""Entries of a hierarchical account."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from queryserver.domain.errors.files import NotADirectory
from queryserver.domain.files import FileStatus
from queryserver.domain.storage_names import is_name
from queryserver.interfaces.storage import Batch
from queryserver.storages.adls import entries
from queryserver.storages.adls.dfs_calls import MOST_PATHS, DfsCalls, is_directory
from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.places import AzurePlace


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
