"""Objects and directories in an S3 store: lookups, ordered listings, reads."""

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
    Meanings,
    ObjectPlace,
    PastTheEnd,
    S3Connection,
    directory,
    place_of,
    s3_errors,
)

IF_ABSENT: Meanings = {
    "PreconditionFailed": errors.PathExists,
    "412": errors.PathExists,
    # If two conditional writes are concurrent, the other one wins.
    "ConditionalRequestConflict": errors.PathExists,
}
MAX_KEYS = 1000
"""Maximum number of keys listed by one call."""


class Objects:
    """A store's objects and directories. A folder is sorted as `name/`, as in keys."""

    def __init__(self, connection: S3Connection) -> None:
        self.connection = connection

    async def head(self, place: ObjectPlace) -> Mapping[str, Any] | None:
        """Return the response of HeadObject, or None if no object has that key, or only an empty marker."""
        if not place.key or (place.key.endswith("/") and not place.is_marker):
            return None
        try:
            answer = await self.connection.ask("head_object", place.names, about=place.label)
            return None if place.is_marker and not answer["ContentLength"] else answer
        except errors.PathNotFound:
            return None
        except errors.StorageUnavailable:
            raise
        except (errors.PermissionDenied, errors.StorageError) as error:
            # HEAD errors have no message. This call's errors distinguish wrong keys, clocks and regions.
            await self.keys_below(place, 1)
            if isinstance(error, errors.StorageError) and not has_marker(place.segments[-1]):
                return None  # a store that resolves dots cannot have such an object
            raise

    async def find(self, place: ObjectPlace) -> FileStatus | None:
        found = await self.head(place)
        return None if found is None else file_status(place.path, found, found["ContentLength"])

    async def keys_below(self, place: ObjectPlace, most: int) -> Sequence[str]:
        """Return a directory's first keys, including its marker. Raises PathNotFound for a missing bucket."""
        if place.is_object or len(place.prefix.encode()) > MAX_KEY_BYTES:
            return ()
        found = await self.connection.ask(
            "list_objects_v2", {"Bucket": place.bucket, "Prefix": place.prefix, "MaxKeys": most}, about=place.label
        )
        return [entry["Key"] for entry in found.get("Contents", ())]

    async def status(self, place: ObjectPlace) -> FileStatus:
        """Return the status of a bucket, a file, or a key prefix. Raises PathNotFound."""
        if not place.bucket:
            return directory("")
        if place.key and (found := await self.find(place)):
            return found
        # A successful response, even an empty one, shows that the bucket exists.
        if await self.keys_below(place, 1) or not place.segments:
            return directory(place.path)
        raise errors.PathNotFound(f"{place.label} does not exist.")

    async def make_marker(self, place: ObjectPlace) -> None:
        """Create a directory's empty marker object, if it gets one. Raises PathExists."""
        if place.is_object:
            raise errors.InvalidPath(f"{place.label} cannot be a directory.")
        if not has_marker(place.segments[-1]):
            return
        marker = {"Bucket": place.bucket, "Key": place.prefix, "Body": b""}
        await self.connection.store("put_object", marker, about=place.label, overwrite=False, means=IF_ABSENT)

    async def batches(self, path: str, cursor: str | None, batch_size: int) -> AsyncGenerator[Batch]:
        """List a directory, with one batch per call. A cursor is the store's token, which is always valid on any
        instance.

        Raises PathNotFound, NotADirectory.
        """
        place = place_of(path)
        if not place.bucket:
            yield await self._buckets()
            return
        if place.is_object:
            await self.status(place)
            raise errors.NotADirectory(f"{place.label} is a file.")
        async with aclosing(self.pages(place, cursor, batch_size, delimiter="/")) as pages:
            async for page in pages:
                if cursor is None and place.segments and not (page.get("Contents") or page.get("CommonPrefixes")):
                    if await self.find(place):
                        raise errors.NotADirectory(f"{place.label} is a file.")
                    raise errors.PathNotFound(f"{place.label} does not exist.")
                cursor = page["NextContinuationToken"] if page.get("IsTruncated") else None
                yield Batch(tuple(_entries(place, page)), cursor)

    async def below(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """Yield all keys below a bucket or folder, with one batch per call."""
        place = place_of(path)
        async with aclosing(self.pages(place)) as pages:
            async for page in pages:
                yield tuple(_keys(place, page))

    def pages(
        self, place: ObjectPlace, cursor: str | None = None, size: int = MAX_KEYS, *, delimiter: str = ""
    ) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the keys below a directory; with `delimiter`, only up to the next delimiter."""
        arguments: dict[str, object] = {
            "Bucket": place.bucket,
            "Prefix": place.prefix,
            "MaxKeys": max(1, min(size, MAX_KEYS)),
        }
        if delimiter:
            arguments["Delimiter"] = delimiter
        if cursor is not None:
            arguments["ContinuationToken"] = cursor
        follow = {"ContinuationToken": "NextContinuationToken"}
        return self.connection.pages("list_objects_v2", arguments, about=place.label, follow=follow)

    async def _buckets(self) -> Batch:
        """Return all buckets in one batch: the configured buckets, without a call, or else the buckets that the store
        lists.
        """
        configured = self.connection.options.buckets
        names = set(configured) or {name async for name in self._listed_buckets()}
        shown = sorted((name for name in names if BUCKET_NAME.fullmatch(name)), key=lambda name: f"{name}/")
        return Batch(tuple(directory(name) for name in shown), None)

    async def _listed_buckets(self) -> AsyncGenerator[str]:
        arguments: dict[str, object] = {}
        while True:
            try:
                answer = await self.connection.ask("list_buckets", arguments, about="s3a://")
            except errors.PermissionDenied:
                raise errors.bucket_listing_denied("the store does not tell these credentials its buckets.") from None
            for bucket in answer.get("Buckets", ()):
                yield bucket["Name"]
            following = answer.get("ContinuationToken")
            if not following or following == arguments.get("ContinuationToken"):
                return
            arguments = {"ContinuationToken": following}

    async def pieces(
        self, place: ObjectPlace, offset: int, length: int | None, version: FileStatus | None
    ) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length). Raises PathNotFound, NotAFile, EntryChanged, StorageError."""
        if length == 0 and version is not None:
            return
        try:
            answer = await self._open(place, offset, length, version)
        except PastTheEnd:
            return
        except errors.PathNotFound:
            if await self.keys_below(place, 1):
                raise errors.NotAFile(f"{place.label} is a directory.") from None
            raise
        async with answer["Body"] as body:
            if length == 0:
                return
            expected, received = int(answer["ContentLength"]), 0
            while received < expected:
                with s3_errors(place.label):
                    async with asyncio.timeout(self.connection.options.timeout_s):
                        piece = await body.read(self.connection.read_sizes.piece_bytes)
                if not piece:
                    break
                received += len(piece)
                yield piece
        if received < expected:
            raise errors.StorageError(f"The store broke off in the middle of {place.label}.")

    async def _open(
        self, place: ObjectPlace, offset: int, length: int | None, version: FileStatus | None
    ) -> Mapping[str, Any]:
        arguments = place.names
        if offset or length is not None:
            # A range cannot be empty, so one byte is read to find out whether the file exists.
            last = "" if length is None else offset + max(length, 1) - 1
            arguments["Range"] = f"bytes={offset}-{last}"
        if version is not None and version.tag:
            arguments["IfMatch"] = f'"{version.tag}"'
        return await self.connection.ask("get_object", arguments, about=place.label)


def file_status(path: str, answer: Mapping[str, Any], size_bytes: int) -> FileStatus:
    """Return an object's status from a response of HeadObject or a listing."""
    modified_at: datetime | None = answer.get("LastModified")
    return FileStatus(
        path,
        EntryKind.FILE,
        size_bytes,
        # Some stores only report fractions of seconds in listings.
        modified_at and modified_at.astimezone(UTC).replace(microsecond=0),
        permissions=FILE_PERMISSIONS,
        tag=tag_of(answer),
    )


def tag_of(answer: Mapping[str, Any]) -> str:
    """Return the ETag without quotes; empty if there is none."""
    return str(answer.get("ETag") or "").removeprefix("W/").strip('"')


def _entries(place: ObjectPlace, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Yield entries in key order, including the directory's own marker if it has content."""
    found = {entry["Key"]: entry for entry in page.get("Contents", ())}
    found.update({entry["Prefix"]: None for entry in page.get("CommonPrefixes", ())})
    for key in sorted(found):
        answer = found[key]
        if key == place.prefix:
            yield from _marker(place, answer)
        elif (path := place.path_of(key)) is not None:
            yield directory(path) if answer is None else file_status(path, answer, answer["Size"])


def _marker(place: ObjectPlace, answer: Mapping[str, Any]) -> Iterator[FileStatus]:
    if answer["Size"]:
        yield file_status(place.marker.path, answer, answer["Size"])


def _keys(place: ObjectPlace, page: Mapping[str, Any]) -> Iterator[FileStatus]:
    """Yield files and folder markers, including the directory's own marker if it has content."""
    for answer in page.get("Contents", ()):
        key = answer["Key"]
        if key == place.prefix:
            yield from _marker(place, answer)
        elif (path := place.path_of(key)) is None:
            continue
        elif key.endswith("/"):
            yield directory(path)
            yield from _marker(ObjectPlace(path, place.bucket, tuple(key[:-1].split("/"))), answer)
        else:
            yield file_status(path, answer, answer["Size"])
