"""Directories of an S3 store, page by page in order of keys."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import NotADirectory, PathNotFound, StorageError, bucket_listing_denied
from queryserver.domain.files import FileStatus
from queryserver.domain.storage_names import is_name
from queryserver.interfaces.storage import Batch
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.objects import Objects, file_status
from queryserver.storages.s3.places import Place, directory, is_bucket_name

MAX_KEYS = 1000
"""Most that a store tells in one call."""


class Listing:
    """Listings of directories. A folder counts as `name/`, as in keys."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def batches(self, place: Place, cursor: str | None, batch_size: int) -> AsyncGenerator[Batch]:
        """One batch for each call of the store. A cursor is the store's own token, good for any instance at any time.

        Raises PathNotFound, NotADirectory.
        """
        if not place.bucket:
            yield await self._buckets()
            return
        page = await self._page(place, cursor, batch_size)
        if cursor is None and place.key and not _has_keys(page):
            await self._refuse_absent(place)
        while True:
            following = _following(page, cursor)
            yield Batch(tuple(_entries(place, page)), following)
            if following is None:
                return
            cursor = following
            page = await self._page(place, cursor, batch_size)

    async def below(self, place: Place) -> AsyncGenerator[Sequence[FileStatus]]:
        """All keys below a bucket or a folder, one batch for each call of the store."""
        cursor: str | None = None
        while True:
            page = await self._page(place, cursor, MAX_KEYS, delimiter="")
            yield tuple(_keys(place, page))
            cursor = _following(page, cursor)
            if cursor is None:
                return

    async def _page(
        self, place: Place, cursor: str | None, batch_size: int, *, delimiter: str = "/"
    ) -> Mapping[str, Any]:
        arguments: dict[str, object] = {
            "Bucket": place.bucket,
            "Prefix": place.prefix,
            "MaxKeys": max(1, min(batch_size, MAX_KEYS)),
        }
        if delimiter:
            arguments["Delimiter"] = delimiter
        if cursor is not None:
            arguments["ContinuationToken"] = cursor
        return await self._connection.ask("list_objects_v2", arguments, about=place.label)

    async def _refuse_absent(self, place: Place) -> None:
        if await self._objects.find(place):
            raise NotADirectory(f"{place.label} is a file.")
        raise PathNotFound(f"{place.label} does not exist.")

    async def _buckets(self) -> Batch:
        """All in one batch: the configured ones, which nobody is asked about, else those that the store tells."""
        configured = self._connection.options.buckets
        names = set(configured) or {name async for name in self._told_buckets()}
        shown = sorted((name for name in names if is_bucket_name(name)), key=lambda name: f"{name}/")
        return Batch(tuple(directory(name) for name in shown), None)

    async def _told_buckets(self) -> AsyncGenerator[str]:
        arguments: dict[str, object] = {}
        while True:
            try:
                told = await self._connection.ask("list_buckets", arguments, about="s3a://")
            except PermissionDenied:
                raise bucket_listing_denied("the store does not tell these credentials its buckets.") from None
            for bucket in told.get("Buckets", ()):
                yield bucket["Name"]
            following = told.get("ContinuationToken")
            if not following or following == arguments.get("ContinuationToken"):
                return
            arguments = {"ContinuationToken": following}


def _has_keys(page: Mapping[str, Any]) -> bool:
    return bool(page.get("Contents") or page.get("CommonPrefixes"))


def _following(page: Mapping[str, Any], cursor: str | None) -> str | None:
    if not page.get("IsTruncated"):
        return None
    following = page.get("NextContinuationToken")
    if not following or following == cursor:
        raise StorageError("The store does not tell how its listing goes on.")
    return str(following)


def _entries(place: Place, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Entries that a path can name, in order of keys; the directory's own marker is none."""
    found = {entry["Key"]: entry for entry in page.get("Contents", ())}
    found.update({entry["Prefix"]: None for entry in page.get("CommonPrefixes", ())})
    for key in sorted(found):
        name = key[len(place.prefix) :].removesuffix("/")
        if not is_name(name):
            continue
        told = found[key]
        path = place.path_of(key)
        yield directory(path) if told is None else file_status(path, told, told["Size"])


def _keys(place: Place, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Files and markers of folders whose every name a path can have; the place's own marker is none."""
    for told in page.get("Contents", ()):
        key = told["Key"]
        names = key[len(place.prefix) :].removesuffix("/").split("/")
        if all(map(is_name, names)):
            path = place.path_of(key)
            yield directory(path) if key.endswith("/") else file_status(path, told, told["Size"])
