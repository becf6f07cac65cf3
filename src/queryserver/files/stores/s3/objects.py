"""Looks up, lists and reads the objects and directories of an S3 store."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from queryserver import errors
from queryserver.files.model import EntryKind, FileStatus
from queryserver.files.protocol import Batch
from queryserver.files.stores.keys import has_marker
from queryserver.files.stores.s3.connection import (
    BUCKET_NAME,
    FILE_PERMISSIONS,
    MAX_KEY_BYTES,
    ErrorOverrides,
    ObjectLocation,
    RangePastEnd,
    S3Connection,
    directory_status,
    parse_location,
    s3_errors,
)

IF_ABSENT: ErrorOverrides = {
    "PreconditionFailed": errors.PathExists,
    "412": errors.PathExists,
    # A concurrent conditional write to the same key has succeeded.
    "ConditionalRequestConflict": errors.PathExists,
}
MAX_KEYS = 1000
"""Maximum number of keys per listing call."""


class Objects:
    """The objects and directories of a store. Listings are in key order, in which a folder sorts as `name/`."""

    def __init__(self, connection: S3Connection) -> None:
        self.connection = connection

    async def head(self, location: ObjectLocation) -> Mapping[str, Any] | None:
        """Return the HeadObject response, or None if there is no object at that key or only an empty directory
        marker.
        """
        if not location.key or (location.key.endswith("/") and not location.is_marker):
            return None
        try:
            answer = await self.connection.call("head_object", location.names, about=location.label)
            return None if location.is_marker and not answer["ContentLength"] else answer
        except errors.PathNotFound:
            return None
        except errors.StorageUnavailable:
            raise
        except (errors.PermissionDenied, errors.StorageError) as error:
            # HEAD responses have no error message. A listing fails with an error that distinguishes wrong access keys,
            # clocks and regions.
            await self.keys_below(location, 1)
            if isinstance(error, errors.StorageError) and not has_marker(location.segments[-1]):
                return None  # a store that resolves dots cannot have such an object
            raise

    async def find(self, location: ObjectLocation) -> FileStatus | None:
        found = await self.head(location)
        return None if found is None else file_status(location.path, found, found["ContentLength"])

    async def keys_below(self, location: ObjectLocation, limit: int) -> Sequence[str]:
        """Return at most `limit` keys of a directory, including its marker. Raises PathNotFound if the bucket is
        missing.
        """
        if location.is_object or len(location.prefix.encode()) > MAX_KEY_BYTES:
            return ()
        found = await self.connection.call(
            "list_objects_v2",
            {"Bucket": location.bucket, "Prefix": location.prefix, "MaxKeys": limit},
            about=location.label,
        )
        return [entry["Key"] for entry in found.get("Contents", ())]

    async def status(self, location: ObjectLocation) -> FileStatus:
        """Return the status of a bucket, a file or a directory (a key prefix). Raises PathNotFound."""
        if not location.bucket:
            return directory_status("")
        if location.key and (found := await self.find(location)):
            return found
        # A successful response, even an empty one, shows that the bucket exists.
        if await self.keys_below(location, 1) or not location.segments:
            return directory_status(location.path)
        raise errors.PathNotFound(f"{location.label} does not exist.")

    async def make_marker(self, location: ObjectLocation) -> None:
        """Create the empty marker object of a directory, if its name allows one. Raises PathExists, InvalidPath."""
        if location.is_object:
            raise errors.InvalidPath(f"{location.label} cannot be a directory.")
        if not has_marker(location.segments[-1]):
            return
        marker = {"Bucket": location.bucket, "Key": location.prefix, "Body": b""}
        await self.connection.create_object(
            "put_object", marker, about=location.label, overwrite=False, error_overrides=IF_ABSENT
        )

    async def batches(self, path: str, cursor: str | None, batch_size: int) -> AsyncGenerator[Batch]:
        """List a directory, with one batch per store call. The cursor is the store's continuation token, which does not
        expire and is valid on any instance.

        Raises PathNotFound, NotADirectory.
        """
        location = parse_location(path)
        if not location.bucket:
            yield await self._buckets()
            return
        if location.is_object:
            await self.status(location)
            raise errors.NotADirectory(f"{location.label} is a file.")
        async with aclosing(self.pages(location, cursor, batch_size, delimiter="/")) as pages:
            async for page in pages:
                if cursor is None and location.segments and not (page.get("Contents") or page.get("CommonPrefixes")):
                    if await self.find(location):
                        raise errors.NotADirectory(f"{location.label} is a file.")
                    raise errors.PathNotFound(f"{location.label} does not exist.")
                cursor = page["NextContinuationToken"] if page.get("IsTruncated") else None
                yield Batch(tuple(_entries(location, page)), cursor)

    async def below(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """Yield all entries below a bucket or folder, with one batch per store call."""
        location = parse_location(path)
        async with aclosing(self.pages(location)) as pages:
            async for page in pages:
                yield tuple(_keys(location, page))

    def pages(
        self, location: ObjectLocation, cursor: str | None = None, size: int = MAX_KEYS, *, delimiter: str = ""
    ) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the pages of a listing below a directory. If `delimiter` is given, keys are grouped at the next
        delimiter.
        """
        arguments: dict[str, object] = {
            "Bucket": location.bucket,
            "Prefix": location.prefix,
            "MaxKeys": max(1, min(size, MAX_KEYS)),
        }
        if delimiter:
            arguments["Delimiter"] = delimiter
        if cursor is not None:
            arguments["ContinuationToken"] = cursor
        follow = {"ContinuationToken": "NextContinuationToken"}
        return self.connection.pages("list_objects_v2", arguments, about=location.label, follow=follow)

    async def _buckets(self) -> Batch:
        """Return all buckets in one batch: the configured buckets if there are any (without a store call), otherwise
        those that the store lists. Raises bucket_listing_denied.
        """
        configured = self.connection.options.buckets
        names = set(configured) or {name async for name in self._listed_buckets()}
        shown = sorted((name for name in names if BUCKET_NAME.fullmatch(name)), key=lambda name: f"{name}/")
        return Batch(tuple(directory_status(name) for name in shown), None)

    async def _listed_buckets(self) -> AsyncGenerator[str]:
        arguments: dict[str, object] = {}
        while True:
            try:
                answer = await self.connection.call("list_buckets", arguments, about="s3a://")
            except errors.PermissionDenied:
                raise errors.bucket_listing_denied("the credentials lack permission to list buckets.") from None
            for bucket in answer.get("Buckets", ()):
                yield bucket["Name"]
            following = answer.get("ContinuationToken")
            if not following or following == arguments.get("ContinuationToken"):
                return
            arguments = {"ContinuationToken": following}

    async def pieces(
        self, location: ObjectLocation, offset: int, length: int | None, version: FileStatus | None
    ) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length). Raises PathNotFound, NotAFile, EntryChanged, StorageError."""
        if length == 0 and version is not None:
            return
        try:
            answer = await self._open(location, offset, length, version)
        except RangePastEnd:
            return
        except errors.PathNotFound:
            if await self.keys_below(location, 1):
                raise errors.NotAFile(f"{location.label} is a directory.") from None
            raise
        async with answer["Body"] as body:
            if length == 0:
                return
            expected, received = int(answer["ContentLength"]), 0
            while received < expected:
                with s3_errors(location.label):
                    async with asyncio.timeout(self.connection.options.timeout_s):
                        piece = await body.read(self.connection.read_sizes.piece_bytes)
                if not piece:
                    break
                received += len(piece)
                yield piece
        if received < expected:
            raise errors.StorageError(f"The store closed the connection while sending {location.label}.")

    async def _open(
        self, location: ObjectLocation, offset: int, length: int | None, version: FileStatus | None
    ) -> Mapping[str, Any]:
        arguments = location.names
        if offset or length is not None:
            # HTTP ranges cannot be empty, so one byte is requested to find out whether the file exists.
            last = "" if length is None else offset + max(length, 1) - 1
            arguments["Range"] = f"bytes={offset}-{last}"
        if version is not None and version.tag:
            arguments["IfMatch"] = f'"{version.tag}"'
        return await self.connection.call("get_object", arguments, about=location.label)


def file_status(path: str, answer: Mapping[str, Any], size_bytes: int) -> FileStatus:
    """Convert a HeadObject response or a listing entry to a file status."""
    modified_at: datetime | None = answer.get("LastModified")
    return FileStatus(
        path,
        EntryKind.FILE,
        size_bytes,
        # Some stores report fractional seconds only in listings.
        modified_at and modified_at.astimezone(UTC).replace(microsecond=0),
        permissions=FILE_PERMISSIONS,
        tag=tag_of(answer),
    )


def tag_of(answer: Mapping[str, Any]) -> str:
    """Return the ETag without quotes, or an empty string if there is none."""
    return str(answer.get("ETag") or "").removeprefix("W/").strip('"')


def _entries(location: ObjectLocation, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Yield the entries in key order. The directory's own marker object is included if it is not empty."""
    found = {entry["Key"]: entry for entry in page.get("Contents", ())}
    found.update({entry["Prefix"]: None for entry in page.get("CommonPrefixes", ())})
    for key in sorted(found):
        answer = found[key]
        if key == location.prefix:
            yield from _marker(location, answer)
        elif (path := location.path_of(key)) is not None:
            yield directory_status(path) if answer is None else file_status(path, answer, answer["Size"])


def _marker(location: ObjectLocation, answer: Mapping[str, Any]) -> Iterator[FileStatus]:
    if answer["Size"]:
        yield file_status(location.marker.path, answer, answer["Size"])


def _keys(location: ObjectLocation, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Yield files and folders with a marker. The directory's own marker object is included if it is not empty."""
    for answer in page.get("Contents", ()):
        key = answer["Key"]
        if key == location.prefix:
            yield from _marker(location, answer)
        elif (path := location.path_of(key)) is None:
            continue
        elif key.endswith("/"):
            yield directory_status(path)
            yield from _marker(ObjectLocation(path, location.bucket, tuple(key[:-1].split("/"))), answer)
        else:
            yield file_status(path, answer, answer["Size"])
