"""Copies of objects that the store makes itself."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queryserver.domain.errors.files import ChangedMeanwhile, NotAFile, PathExists, PathNotFound, VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.storages.s3.blocks import MAX_PARTS, MIB
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.multipart import (
    MultipartUpload,
    SentPart,
    finished,
)
from queryserver.storages.s3.objects import Objects, file_status
from queryserver.storages.s3.places import Place

SINGLE_COPY_BYTES = 128 * MIB
"""Larger objects are copied in parts, side by side. S3 demands it above 5 GiB."""
_PART_BYTES = 64 * MIB
_AT_ONCE = 8
_ATTRIBUTES = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")


class Copies:
    """Copies within a store."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def copy(self, source: Place, target: Place, *, overwrite: bool) -> FileStatus:
        """Copy an object with its attributes. The store refuses when it changes meanwhile.

        Raises PathNotFound, NotAFile, PathExists, ChangedMeanwhile, VerificationFailed.
        """
        told = await self._objects.head(source)
        if told is None:
            if await self._objects.keys_below(source, 1):
                raise NotAFile(f"{source.label} is a directory.")
            raise PathNotFound(f"{source.label} does not exist.")
        found = file_status(source.path, told, told["ContentLength"])
        if found.size_bytes > SINGLE_COPY_BYTES:
            copied = await self._in_parts(source, target, found, told, overwrite=overwrite)
        else:
            copied = await self._at_once(source, target, found, overwrite=overwrite)
        if copied.size_bytes != found.size_bytes:
            raise VerificationFailed(f"{target.label} has another size than {source.label}.")
        return copied

    async def _at_once(self, source: Place, target: Place, found: FileStatus, *, overwrite: bool) -> FileStatus:
        arguments = {
            "Bucket": target.bucket,
            "Key": target.key,
            "CopySource": {"Bucket": source.bucket, "Key": source.key},
            "CopySourceIfMatch": f'"{found.tag}"',
        }
        timeout_s = self._connection.time_for(found.size_bytes)
        try:
            if overwrite:
                await self._connection.ask("copy_object", arguments, about=source.label, timeout_s=timeout_s)
            else:
                await self._connection.ask_if_absent("copy_object", arguments, about=source.label, timeout_s=timeout_s)
        except ChangedMeanwhile:
            # One code for both conditions, that of the source and that of the target.
            if not overwrite and await self._objects.find(target):
                raise PathExists(f"{target.label} exists.") from None
            raise
        return await self._objects.status(target)

    async def _in_parts(
        self, source: Place, target: Place, found: FileStatus, told: Mapping[str, Any], *, overwrite: bool
    ) -> FileStatus:
        attributes = {name: told[name] for name in _ATTRIBUTES if told.get(name)}
        upload = await MultipartUpload.begin(self._connection, self._objects, target, attributes)
        try:
            parts = await _copy_parts(upload, source, found)
            return await upload.complete(parts, overwrite=overwrite)
        except BaseException:  # a cancel too: the parts must not stay
            await finished(upload)
            raise


async def _copy_parts(upload: MultipartUpload, source: Place, found: FileStatus) -> Sequence[SentPart]:
    copying, parts = deque[asyncio.Task[SentPart]](), list[SentPart]()
    try:
        async with asyncio.TaskGroup() as group:
            for number, (start, end) in enumerate(copy_ranges(found.size_bytes), start=1):
                if len(copying) == _AT_ONCE:
                    parts.append(await copying.popleft())
                copying.append(group.create_task(upload.copy(number, source, found.tag, start, end)))
            parts += [await part for part in copying]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return parts


def copy_ranges(size_bytes: int) -> Iterator[tuple[int, int]]:
    """First byte of each part and the one behind its last, in at most 10,000 parts of at most 5 GiB."""
    part = max(_PART_BYTES, -(-size_bytes // MAX_PARTS))
    for start in range(0, size_bytes, part):
        yield start, min(start + part, size_bytes)
