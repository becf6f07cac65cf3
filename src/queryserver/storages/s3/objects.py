"""Single objects of an S3 store, and whether there are any."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import (
    DirectoryNotEmpty,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
)
from queryserver.domain.files import EntryKind, FileStatus
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.errors import Meanings
from queryserver.storages.s3.places import FILE_PERMISSIONS, MAX_KEY_BYTES, Place, directory

IF_ABSENT: Meanings = {
    "PreconditionFailed": PathExists,
    "412": PathExists,
    # Two conditional writes at once: the other one wins.
    "ConditionalRequestConflict": PathExists,
}


class Objects:
    """Calls of one object each."""

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection

    async def head(self, place: Place) -> Mapping[str, Any] | None:
        """The answer of HeadObject; None where there is no object of that key."""
        try:
            return await self._connection.ask(
                "head_object", {"Bucket": place.bucket, "Key": place.key}, about=place.label
            )
        except PathNotFound:
            return None
        except StorageUnavailable:
            raise
        except (PermissionDenied, StorageError):
            # Refusals of HEAD have no text; those of this call tell wrong keys, clocks and regions apart.
            await self.keys_below(place, 1)
            raise

    async def find(self, place: Place) -> FileStatus | None:
        """The file of that key."""
        found = await self.head(place)
        return None if found is None else file_status(place.path, found, found["ContentLength"])

    async def keys_below(self, place: Place, most: int) -> Sequence[str]:
        """The first keys of a directory, its marker among them. Raises PathNotFound: no such bucket."""
        if len(place.prefix.encode()) > MAX_KEY_BYTES:
            return ()
        found = await self._connection.ask(
            "list_objects_v2",
            {"Bucket": place.bucket, "Prefix": place.prefix, "MaxKeys": most},
            about=place.label,
        )
        return [entry["Key"] for entry in found.get("Contents", ())]

    async def status(self, place: Place) -> FileStatus:
        """What is there: a bucket, a file, or a prefix of keys. Raises PathNotFound."""
        if not place.bucket:
            return directory("")
        if place.key and (found := await self.find(place)):
            return found
        # Of a bucket the answer alone says that it is there.
        if await self.keys_below(place, 1) or not place.key:
            return directory(place.path)
        raise PathNotFound(f"{place.label} does not exist.")

    async def make_marker(self, place: Place) -> None:
        """Make the empty object that stands for an empty directory. Raises PathExists."""
        await self._connection.ask_if_absent(
            "put_object",
            {"Bucket": place.bucket, "Key": place.prefix, "Body": b""},
            about=place.label,
            means=IF_ABSENT,
        )

    async def make_bucket(self, place: Place) -> None:
        """Raises PathExists, InvalidName."""
        region = self._connection.options.region
        # The first region of AWS refuses to be named.
        where = {} if region in {"", "us-east-1"} else {"LocationConstraint": region}
        arguments = {"Bucket": place.bucket, **({"CreateBucketConfiguration": where} if where else {})}
        await self._connection.ask("create_bucket", arguments, about=place.label, repeatable=False)

    async def delete_bucket(self, place: Place) -> None:
        """Raises DirectoryNotEmpty, PathNotFound."""
        if await self.keys_below(place, 1):
            raise DirectoryNotEmpty(f"{place.label} is not empty.")
        await self._connection.ask("delete_bucket", {"Bucket": place.bucket}, about=place.label, repeatable=False)


def file_status(path: str, told: Mapping[str, Any], size_bytes: int) -> FileStatus:
    """An object as HeadObject or a listing tells it."""
    return FileStatus(
        path,
        EntryKind.FILE,
        size_bytes,
        _modified_at(told),
        permissions=FILE_PERMISSIONS,
        tag=tag_of(told),
    )


def _modified_at(told: Mapping[str, Any]) -> datetime | None:
    """In whole seconds: some stores tell more in listings than of an object."""
    modified_at: datetime | None = told.get("LastModified")
    return modified_at and modified_at.astimezone(UTC).replace(microsecond=0)


def tag_of(told: Mapping[str, Any]) -> str:
    """The ETag without quotes; empty: none."""
    return str(told.get("ETag") or "").removeprefix("W/").strip('"')
