"""Uploads, copies and deletes objects in S3. Small files are sent in one call, larger files in parts, in bounded
memory.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec

from queryserver import errors
from queryserver.files.model import FileStatus, ambiguous_name_error
from queryserver.files.stores.s3.connection import MultipartUploadMissing, ObjectLocation
from queryserver.files.stores.s3.objects import IF_ABSENT, Objects, file_status, tag_of
from queryserver.files.stores.transfer_blocks import Blocks

P = ParamSpec("P")

MIB = 1024 * 1024
MIN_PART_BYTES = 5 * MIB
MAX_PARTS = 10_000
# Maximum object size. Caps the part size if a client announces an excessive file size.
_MAX_OBJECT_BYTES = 5 * MIB * MIB
# If the size of the body is unknown, the next part has a thousandth of the bytes sent so far, so that 10,000 parts
# suffice for 40 TiB.
_SENT_BYTES_PER_PART_BYTE = 1000
# Timeout factor: S3 may take minutes to join many parts.
_JOIN_TIMES = 10
_ABORTS = 3
_LAST_PART_S = 5.0
_TAG_LENGTH = 32


@dataclass(frozen=True, slots=True)
class SentPart:
    """A part stored in S3. Part numbers start at 1 and may have gaps."""

    number: int
    size_bytes: int
    tag: str


def _wait_when_canceled(send: Callable[P, Coroutine[Any, Any, SentPart]]) -> Callable[P, Coroutine[Any, Any, SentPart]]:
    """Make a canceled `send` wait briefly for its part, because a part stored after the upload is aborted would
    remain.
    """

    @wraps(send)
    async def waiting(*arguments: P.args, **options: P.kwargs) -> SentPart:
        task = asyncio.ensure_future(send(*arguments, **options))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=_LAST_PART_S)
            task.cancel()
            await asyncio.wait({task})
            raise

    return waiting


class MultipartUpload:
    """A multipart upload. Its object remains invisible until `complete` succeeds. The upload must end with `complete`
    or `abort`.
    """

    def __init__(self, objects: Objects, location: ObjectLocation, upload_id: str) -> None:
        self._connection = objects.connection
        self._objects = objects
        self._location = location
        self.upload_id = upload_id

    @classmethod
    async def begin(
        cls, objects: Objects, location: ObjectLocation, attributes: Mapping[str, object] | None = None
    ) -> "MultipartUpload":
        """Begin an upload. `attributes` are attributes of the new object, such as ContentType."""
        arguments = {**location.names, **(attributes or {})}
        call = objects.connection.call("create_multipart_upload", arguments, about=location.label, repeatable=False)
        return cls(objects, location, str((await call)["UploadId"]))

    async def stored_parts(self) -> Sequence[SentPart]:
        """Return the stored parts, ordered by number. Raises MultipartUploadMissing."""
        return [SentPart(part["PartNumber"], part["Size"], tag_of(part)) async for part in self._listed_parts()]

    async def last_sent_at(self, begun_at: datetime) -> datetime:
        """Return when the last part was stored, or `begun_at` if there is none. Raises MultipartUploadMissing."""
        return max([begun_at, *[part["LastModified"] async for part in self._listed_parts() if "LastModified" in part]])

    async def complete(self, parts: Sequence[SentPart], *, overwrite: bool) -> FileStatus:
        """Join these parts, in this order, into the object.

        Raises PathExists (unless `overwrite` is set), and VerificationFailed if the store has other parts or sizes.
        """
        if not set(parts) <= set(await self.stored_parts()):
            raise errors.VerificationFailed(
                f"The store does not have all parts of {self._location.label} that were sent."
            )
        try:
            await self._join(parts, overwrite=overwrite)
        except errors.StorageUnavailable:
            # The object may have been completed although the response was lost.
            if not await self.is_complete(parts):
                raise
        status = await self._objects.status(self._location)
        if status.tag == joined_tag(parts) and status.size_bytes != sum(part.size_bytes for part in parts):
            raise errors.VerificationFailed(
                f"The size of {self._location.label} differs from the number of bytes sent."
            )
        return status

    async def run(self, sending: Coroutine[Any, Any, Sequence[SentPart]], *, overwrite: bool) -> FileStatus:
        """Await `sending` and complete the object. If this fails or is canceled, even repeatedly, abort the upload."""
        try:
            return await self.complete(await sending, overwrite=overwrite)
        except BaseException:  # includes CancelledError: no parts may remain
            ending = asyncio.ensure_future(self.abort())
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                await ending
                raise
            raise

    async def is_complete(self, parts: Sequence[SentPart]) -> bool:
        """Return whether the object exists and consists of these parts."""
        found = await self._objects.find(self._location)
        return found is not None and found.tag == joined_tag(parts) != ""

    async def abort(self) -> None:
        """Delete all parts, if the upload still exists. Errors are ignored.

        A part that is being sent may survive an abort, so the abort is repeated, up to three times, until the upload no
        longer exists.
        """
        with suppress(errors.QueryServerError):
            for _ in range(_ABORTS):
                await self.discard()
                await self.stored_parts()

    async def discard(self) -> None:
        """Abort the upload once, if it still exists."""
        with suppress(MultipartUploadMissing):
            await self._connection.call("abort_multipart_upload", self._names, about=self._location.label)

    async def _listed_parts(self) -> AsyncGenerator[Mapping[str, Any]]:
        follow = {"PartNumberMarker": "NextPartNumberMarker"}
        async for answer in self._connection.pages(
            "list_parts", self._names, about=self._location.label, follow=follow
        ):
            for part in answer.get("Parts", ()):
                yield part

    @_wait_when_canceled
    async def send(self, number: int, block: bytearray) -> SentPart:
        """Store a part, replacing a part with the same number. Raises MultipartUploadMissing."""
        try:
            sent = await self._connection.call(
                "upload_part",
                {**self._names, "PartNumber": number, "Body": block},
                about=self._location.label,
                timeout_s=self._connection.time_for(len(block)),
            )
        except errors.StorageUnavailable:
            # A store that rejects a part without reading it may close the connection before its response arrives.
            # Listing the parts reveals the actual error.
            await self.stored_parts()
            raise
        return SentPart(number, len(block), tag_of(sent))

    @_wait_when_canceled
    async def copy(self, number: int, source: ObjectLocation, tag: str, start: int, end: int) -> SentPart:
        """Store bytes [start, end) of another object as a part. Raises EntryChanged if the tag of that object is no
        longer `tag`.
        """
        copied = await self._connection.call(
            "upload_part_copy",
            {
                **self._names,
                "PartNumber": number,
                "CopySource": source.names,
                "CopySourceIfMatch": f'"{tag}"',
                "CopySourceRange": f"bytes={start}-{end - 1}",
            },
            about=source.label,
            timeout_s=self._connection.time_for(end - start),
        )
        return SentPart(number, end - start, tag_of(copied["CopyPartResult"]))

    async def _join(self, parts: Sequence[SentPart], *, overwrite: bool) -> None:
        joined = [{"PartNumber": part.number, "ETag": f'"{part.tag}"'} for part in parts]
        arguments = {**self._names, "MultipartUpload": {"Parts": joined}}
        await self._connection.create_object(
            "complete_multipart_upload",
            arguments,
            about=self._location.label,
            overwrite=overwrite,
            error_overrides=IF_ABSENT,
            timeout_s=self._connection.options.timeout_s * _JOIN_TIMES,
            repeatable=False,
        )

    @property
    def _names(self) -> Mapping[str, object]:
        return {**self._location.names, "UploadId": self.upload_id}


def joined_tag(parts: Sequence[SentPart]) -> str:
    """Return the tag that S3 gives an object joined from these parts. It is empty if the tags of the parts are not MD5
    sums.
    """
    try:
        sums = [bytes.fromhex(part.tag) for part in parts if len(part.tag) == _TAG_LENGTH]
    except ValueError:
        return ""
    if len(sums) < len(parts):
        return ""
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(parts)}"


def part_bytes(sent_bytes: int, announced_bytes: int | None) -> int:
    """Return the size of the next part, chosen so that 10,000 parts suffice.

    It depends on the announced size until that many bytes have been sent, then on the bytes sent so far.
    """
    if announced_bytes is not None and sent_bytes < announced_bytes:
        wanted = -(-min(announced_bytes, _MAX_OBJECT_BYTES) // MAX_PARTS)
    else:
        wanted = sent_bytes // _SENT_BYTES_PER_PART_BYTE
    return max(MIN_PART_BYTES, -(-wanted // MIB) * MIB)


UPLOAD_BYTES = 16 * MIB
"""Memory limit per upload, for the parts being sent and the part being filled. A single large part may exceed it."""

SINGLE_COPY_BYTES = 128 * MIB
"""Larger objects are copied in parts, concurrently. Above 5 GiB, S3 requires this."""
_PART_BYTES = 64 * MIB
_MAX_CONCURRENT_PARTS = 8
_ATTRIBUTES = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")

_BATCH_TIMEOUT_S = 120.0
# Stores based on file systems keep the marker of a directory until its entries are deleted, so several passes may be
# needed.
_PASSES = 3
_FIRST_PRINTABLE = " "
# DeleteObjects sends its keys as XML, which cannot represent these characters.
_NOT_IN_XML = frozenset("\ufffe\uffff")


class S3Upload:
    """Uploads one body as one object."""

    def __init__(
        self, objects: Objects, location: ObjectLocation, *, overwrite: bool, announced_bytes: int | None
    ) -> None:
        self._connection = objects.connection
        self._objects = objects
        self._location = location
        self._overwrite = overwrite
        self._announced_bytes = announced_bytes
        self._sent_bytes = 0
        self._block = bytearray()

    async def run(self, body: AsyncIterator[bytes]) -> FileStatus:
        """Store the body. If the body raises an error or the call is canceled, nothing is left behind. Raises
        PathExists, VerificationFailed.
        """
        blocks = Blocks(body)
        size = part_bytes(0, self._announced_bytes)
        # This is the only reference to the block, so that its memory is freed as soon as it has been sent.
        self._block = await blocks.take(size)
        if len(self._block) < size:
            return await self._put(self._block)
        upload = await MultipartUpload.begin(self._objects, self._location)
        return await upload.run(self._send(upload, blocks), overwrite=self._overwrite)

    async def _put(self, content: bytearray) -> FileStatus:
        about = self._location.label
        stored = await self._connection.create_object(
            "put_object",
            {**self._location.names, "Body": content},
            about=about,
            overwrite=self._overwrite,
            error_overrides=IF_ABSENT,
            timeout_s=self._connection.time_for(len(content)),
        )
        status = await self._objects.find(self._location)
        if status is None:
            raise errors.StorageError(f"{about} disappeared immediately after it was stored.")
        # A different tag means that another client has replaced the object in the meantime.
        if status.tag == tag_of(stored) and status.size_bytes != len(content):
            raise errors.VerificationFailed(f"The size of {about} differs from the number of bytes sent.")
        return status

    async def _send(self, upload: MultipartUpload, blocks: Blocks) -> Sequence[SentPart]:
        parts = list[SentPart]()
        try:
            async with asyncio.TaskGroup() as group:
                sending = deque[asyncio.Task[SentPart]]()
                number = 0
                while self._block:
                    number += 1
                    self._sent_bytes += len(self._block)
                    sending.append(group.create_task(upload.send(number, self._block)))
                    self._block = bytearray()
                    size = part_bytes(self._sent_bytes, self._announced_bytes)
                    while sending and (len(sending) + 1) * size > UPLOAD_BYTES:
                        parts.append(await sending.popleft())
                    self._block = await blocks.take(size)
                parts += [await part for part in sending]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return parts


async def copy(objects: Objects, source: ObjectLocation, target: ObjectLocation, *, overwrite: bool) -> FileStatus:
    """Copy an object and its attributes.

    Raises PathNotFound, NotAFile, PathExists, VerificationFailed, and EntryChanged if the source changes during the
    copy.
    """
    answer = await objects.head(source)
    if answer is None:
        if await objects.keys_below(source, 1):
            raise errors.NotAFile(f"{source.label} is a directory.")
        raise errors.PathNotFound(f"{source.label} does not exist.")
    found = file_status(source.path, answer, answer["ContentLength"])
    if found.size_bytes > SINGLE_COPY_BYTES:
        attributes = {name: answer[name] for name in _ATTRIBUTES if answer.get(name)}
        upload = await MultipartUpload.begin(objects, target, attributes)
        copied = await upload.run(_copy_parts(upload, source, found), overwrite=overwrite)
    else:
        copied = await _copy_in_one_call(objects, source, target, found, overwrite=overwrite)
    if copied.size_bytes != found.size_bytes:
        raise errors.VerificationFailed(f"{target.label} and {source.label} have different sizes.")
    return copied


async def _copy_in_one_call(
    objects: Objects, source: ObjectLocation, target: ObjectLocation, found: FileStatus, *, overwrite: bool
) -> FileStatus:
    arguments = {**target.names, "CopySource": source.names, "CopySourceIfMatch": f'"{found.tag}"'}
    timeout_s = objects.connection.time_for(found.size_bytes)
    try:
        await objects.connection.create_object(
            "copy_object", arguments, about=source.label, overwrite=overwrite, timeout_s=timeout_s
        )
    except errors.EntryChanged:
        # The store returns the same error code for the conditions on source and target.
        if not overwrite and await objects.find(target):
            raise errors.PathExists(f"{target.label} already exists.") from None
        raise
    return await objects.status(target)


async def _copy_parts(upload: MultipartUpload, source: ObjectLocation, found: FileStatus) -> Sequence[SentPart]:
    copying, parts = deque[asyncio.Task[SentPart]](), list[SentPart]()
    try:
        async with asyncio.TaskGroup() as group:
            for number, (start, end) in enumerate(copy_ranges(found.size_bytes), start=1):
                if len(copying) == _MAX_CONCURRENT_PARTS:
                    parts.append(await copying.popleft())
                copying.append(group.create_task(upload.copy(number, source, found.tag, start, end)))
            parts += [await part for part in copying]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return parts


def copy_ranges(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the range [start, end) of each part. There are at most 10,000 parts of at most 5 GiB."""
    part = max(_PART_BYTES, -(-size_bytes // MAX_PARTS))
    for start in range(0, size_bytes, part):
        yield start, min(start + part, size_bytes)


async def delete(objects: Objects, location: ObjectLocation, *, recursive: bool) -> None:
    """Delete an entry. If its parent becomes empty, a marker preserves the parent. Raises PathNotFound,
    DirectoryNotEmpty, AmbiguousName.
    """
    if await objects.head(location) is not None:
        if recursive and await objects.keys_below(location, 1):
            raise ambiguous_name_error(location.label)
        await _delete_key(objects, location, location.key)
    else:
        await _delete_directory(objects, location, recursive=recursive)
    if location.parent.segments and not await objects.keys_below(location.parent, 1):
        with suppress(errors.PathExists):
            await objects.make_marker(location.parent)


async def _delete_directory(objects: Objects, location: ObjectLocation, *, recursive: bool) -> None:
    keys = await objects.keys_below(location, 2)
    if not keys:
        raise errors.PathNotFound(f"{location.label} does not exist.")
    if not recursive and (any(key != location.prefix for key in keys) or await objects.find(location.marker)):
        raise errors.DirectoryNotEmpty(f"{location.label} is not empty.")
    for _ in range(_PASSES):
        async for page in objects.pages(location):
            await _delete_keys(objects, location, [entry["Key"] for entry in page.get("Contents", ())])
        if not await objects.keys_below(location, 1):
            return
    raise errors.StorageError(f"The store did not delete all entries of {location.label}.")


async def _delete_keys(objects: Objects, location: ObjectLocation, keys: Sequence[str]) -> None:
    """Delete up to 1000 keys.

    Keys that XML cannot represent are deleted one by one; the others in one batch, deepest first. Raises
    PermissionDenied. Other errors that the batch reports are ignored, because the caller lists the keys again.
    """
    for key in filter(_needs_single_deletion, keys):
        await _delete_key(objects, location, key)
    if not (batch := [{"Key": key} for key in sorted(keys, reverse=True) if not _needs_single_deletion(key)]):
        return
    answer = await objects.connection.call(
        "delete_objects",
        {"Bucket": location.bucket, "Delete": {"Objects": batch, "Quiet": True}},
        about=location.label,
        timeout_s=_BATCH_TIMEOUT_S,
    )
    if any(error.get("Code") == "AccessDenied" for error in answer.get("Errors", ())):
        raise errors.PermissionDenied(f"The store denied permission to delete entries of {location.label}.")


async def _delete_key(objects: Objects, location: ObjectLocation, key: str) -> None:
    await objects.connection.call("delete_object", {"Bucket": location.bucket, "Key": key}, about=location.label)


def _needs_single_deletion(key: str) -> bool:
    """Return whether the key must be deleted by itself, because it contains a character that XML cannot represent."""
    return any(character < _FIRST_PRINTABLE or character in _NOT_IN_XML for character in key)
