"""Directories of an S3 store, page by page in order of keys."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import (
    DirectoryNotEmpty,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    bucket_listing_denied,
)
from queryserver.files.model import EntryKind, FileStatus, is_name
from queryserver.files.protocol import Batch
from queryserver.files.stores.s3.connection import (
    FILE_PERMISSIONS,
    MAX_KEY_BYTES,
    Meanings,
    PastTheEnd,
    Place,
    S3Connection,
    directory,
    is_bucket_name,
    s3_errors,
)

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


class Reading:
    """Reads ranges of objects."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def pieces(
        self, place: Place, offset: int, length: int | None, version: FileStatus | None
    ) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length). Raises PathNotFound, NotAFile, ChangedMeanwhile, StorageError."""
        if length == 0 and version is not None:
            return
        try:
            # An empty range cannot be asked for; one byte tells whether the file is there.
            answer = await self._open(place, offset, 1 if length == 0 else length, version)
        except PastTheEnd:
            return
        except PathNotFound:
            if await self._objects.keys_below(place, 1):
                raise NotAFile(f"{place.label} is a directory.") from None
            raise
        async with answer["Body"] as body:
            if length == 0:
                return
            expected, received = int(answer["ContentLength"]), 0
            while received < expected and (piece := await self._piece(place, body)):
                received += len(piece)
                yield piece
        if received < expected:
            raise StorageError(f"The store broke off in the middle of {place.label}.")

    async def _open(self, place: Place, offset: int, length: int | None, version: FileStatus | None) -> Any:
        arguments: dict[str, object] = {"Bucket": place.bucket, "Key": place.key}
        if offset or length is not None:
            arguments["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        if version is not None and version.tag:
            arguments["IfMatch"] = f'"{version.tag}"'
        return await self._connection.ask("get_object", arguments, about=place.label)

    async def _piece(self, place: Place, body: Any) -> bytes:
        with s3_errors(place.label):
            async with asyncio.timeout(self._connection.options.timeout_s):
                return await body.read(self._connection.read_sizes.piece_bytes)
