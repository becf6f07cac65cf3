"""Deletion of objects and of whole prefixes."""

from collections.abc import Sequence
from contextlib import suppress

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import DirectoryNotEmpty, PathExists, PathNotFound, StorageError
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.listing import MAX_KEYS
from queryserver.storages.s3.objects import Objects
from queryserver.storages.s3.places import Place

_BATCH_TIMEOUT_S = 120.0
# Stores on file systems keep a directory's marker until its entries are gone.
_PASSES = 3
_FIRST_PRINTABLE = " "
# XML, in which keys are deleted by the thousand, has no way to write these.
_NOT_IN_XML = frozenset("\ufffe\uffff")


class Deletion:
    """Deletes entries; the directory that held them stays."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def delete(self, place: Place, *, recursive: bool) -> None:
        """Raises PathNotFound, DirectoryNotEmpty."""
        if await self._objects.head(place) is not None:
            await self._delete_key(place, place.key)
        else:
            await self._delete_directory(place, recursive=recursive)
        if place.parent.key:
            await self._keep(place.parent)

    async def _delete_directory(self, place: Place, *, recursive: bool) -> None:
        keys = await self._objects.keys_below(place, 2)
        if not keys:
            raise PathNotFound(f"{place.label} does not exist.")
        if not recursive and any(key != place.prefix for key in keys):
            raise DirectoryNotEmpty(f"{place.label} is not empty.")
        for _ in range(_PASSES):
            await self._pass(place)
            if not await self._objects.keys_below(place, 1):
                return
        raise StorageError(f"The store kept entries of {place.label}.")

    async def _pass(self, place: Place) -> None:
        """Delete all keys of a prefix once."""
        arguments: dict[str, object] = {"Bucket": place.bucket, "Prefix": place.prefix, "MaxKeys": MAX_KEYS}
        while True:
            page = await self._connection.ask("list_objects_v2", arguments, about=place.label)
            await self._delete_keys(place, [entry["Key"] for entry in page.get("Contents", ())])
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    async def _delete_keys(self, place: Place, keys: Sequence[str]) -> None:
        """Delete up to 1000 keys, the deepest first. Raises PermissionDenied."""
        for key in filter(_is_odd, keys):
            await self._delete_key(place, key)
        if not (batch := [{"Key": key} for key in sorted(keys, reverse=True) if not _is_odd(key)]):
            return
        answer = await self._connection.ask(
            "delete_objects",
            {"Bucket": place.bucket, "Delete": {"Objects": batch, "Quiet": True}},
            about=place.label,
            timeout_s=_BATCH_TIMEOUT_S,
        )
        if any(error.get("Code") == "AccessDenied" for error in answer.get("Errors", ())):
            raise PermissionDenied(f"The store refuses to delete entries of {place.label}.")

    async def _delete_key(self, place: Place, key: str) -> None:
        await self._connection.ask("delete_object", {"Bucket": place.bucket, "Key": key}, about=place.label)

    async def _keep(self, directory: Place) -> None:
        """A directory whose last entry went stays, by its marker."""
        if not await self._objects.keys_below(directory, 1):
            with suppress(PathExists):
                await self._objects.make_marker(directory)


def _is_odd(key: str) -> bool:
    return any(character < _FIRST_PRINTABLE or character in _NOT_IN_XML for character in key)
