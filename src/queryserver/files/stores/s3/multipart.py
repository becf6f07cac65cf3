"""Multipart uploads: objects that come in parts and appear when all of them are there."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import StorageUnavailable, VerificationFailed
from queryserver.files.model import FileStatus
from queryserver.files.stores.s3.connection import ObjectPlace, UploadGone
from queryserver.files.stores.s3.listing import IF_ABSENT, Objects, tag_of

MIB = 1024 * 1024
MIN_PART_BYTES = 5 * MIB
"""Smallest part that S3 takes, except for the last."""
MAX_PARTS = 10_000
"""Most parts that S3 takes."""
# No object is larger: a larger announced size would only make this process hold larger parts.
_MAX_OBJECT_BYTES = 5 * MIB * MIB
# Of a body of unknown size each part may be a thousandth of what came before: 10,000 parts are 40 TiB then.
_GROWTH = 1000
# S3 may take minutes to join many parts.
_JOIN_TIMES = 10
_ABORTS = 3
_LAST_PART_S = 5.0
_TAG_LENGTH = 32


@dataclass(frozen=True, slots=True)
class SentPart:
    """A part that the store has. Numbers count from 1 and may have gaps."""

    number: int
    size_bytes: int
    tag: str


class MultipartUpload:
    """One upload under way. It ends by `complete` or `abort`; until then it shows nowhere."""

    def __init__(self, objects: Objects, place: ObjectPlace, upload_id: str) -> None:
        self._connection = objects.connection
        self._objects = objects
        self._place = place
        self.upload_id = upload_id

    @classmethod
    async def begin(
        cls, objects: Objects, place: ObjectPlace, attributes: Mapping[str, object] | None = None
    ) -> "MultipartUpload":
        """A new upload. `attributes` are those of the object to be, such as ContentType."""
        arguments = {"Bucket": place.bucket, "Key": place.key, **(attributes or {})}
        call = objects.connection.ask("create_multipart_upload", arguments, about=place.label, repeatable=False)
        return cls(objects, place, str((await call)["UploadId"]))

    async def send(self, number: int, block: bytearray) -> SentPart:
        """Store a part. Another one of the same number is replaced. Raises UploadGone."""
        return await _landed(self._send(number, block))

    async def copy(self, number: int, source: ObjectPlace, tag: str, start: int, end: int) -> SentPart:
        """Store bytes [start, end) of another object as a part. Raises ChangedMeanwhile: it has not that tag."""
        return await _landed(self._copy(number, source, tag, start, end))

    async def stored(self) -> Sequence[SentPart]:
        """The parts that the store has, by number. Raises UploadGone."""
        return [SentPart(part["PartNumber"], part["Size"], tag_of(part)) async for part in self._listed_parts()]

    async def last_sent_at(self, begun_at: datetime) -> datetime:
        """When the last part arrived; `begun_at` without any. Raises UploadGone."""
        return max([begun_at, *[part["LastModified"] async for part in self._listed_parts() if "LastModified" in part]])

    async def complete(self, parts: Sequence[SentPart], *, overwrite: bool) -> FileStatus:
        """The object, of these parts in this order.

        Raises PathExists (without `overwrite`), VerificationFailed (before: the store has others or other sizes).
        """
        if not set(parts) <= set(await self.stored()):
            raise VerificationFailed(f"The store has not the parts of {self._place.label} that were sent.")
        try:
            await self._join(parts, overwrite=overwrite)
        except StorageUnavailable:
            # The answer may be lost and the object complete.
            if not await self.is_complete(parts):
                raise
        status = await self._objects.status(self._place)
        if status.tag == joined_tag(parts) and status.size_bytes != sum(part.size_bytes for part in parts):
            raise VerificationFailed(f"{self._place.label} has another size than what was sent.")
        return status

    async def is_complete(self, parts: Sequence[SentPart]) -> bool:
        """Whether the object is there and made of these parts."""
        found = await self._objects.find(self._place)
        return found is not None and found.tag == joined_tag(parts) != ""

    async def abort(self) -> None:
        """Remove all parts. Nothing happens when the upload is gone, and what cannot be removed now stays.

        A part that is being sent may be kept all the same, so it is repeated until the store does not know the upload.
        """
        with suppress(QueryServerError):
            for _ in range(_ABORTS):
                await self.discard()
                await self.stored()

    async def discard(self) -> None:
        """Remove all parts that arrived. Nothing happens when the upload is gone."""
        with suppress(UploadGone):
            await self._connection.ask("abort_multipart_upload", self._names, about=self._place.label)

    async def _listed_parts(self) -> AsyncGenerator[Mapping[str, Any]]:
        arguments: dict[str, object] = dict(self._names)
        while True:
            told = await self._connection.ask("list_parts", arguments, about=self._place.label)
            for part in told.get("Parts", ()):
                yield part
            if not told.get("IsTruncated"):
                return
            arguments["PartNumberMarker"] = told["NextPartNumberMarker"]

    async def _send(self, number: int, block: bytearray) -> SentPart:
        try:
            sent = await self._connection.ask(
                "upload_part",
                {**self._names, "PartNumber": number, "Body": block},
                about=self._place.label,
                timeout_s=self._connection.time_for(len(block)),
            )
        except StorageUnavailable:
            # A store that refuses a part without reading it may close the connection before its answer arrives.
            await self.stored()
            raise
        return SentPart(number, len(block), tag_of(sent))

    async def _copy(self, number: int, source: ObjectPlace, tag: str, start: int, end: int) -> SentPart:
        copied = await self._connection.ask(
            "upload_part_copy",
            {
                **self._names,
                "PartNumber": number,
                "CopySource": {"Bucket": source.bucket, "Key": source.key},
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
        about, operation = self._place.label, "complete_multipart_upload"
        timeout_s = self._connection.options.timeout_s * _JOIN_TIMES
        if overwrite:
            await self._connection.ask(operation, arguments, about=about, timeout_s=timeout_s, repeatable=False)
        else:
            await self._connection.ask_if_absent(
                operation, arguments, about=about, means=IF_ABSENT, timeout_s=timeout_s
            )

    @property
    def _names(self) -> Mapping[str, object]:
        return {"Bucket": self._place.bucket, "Key": self._place.key, "UploadId": self.upload_id}


def joined_tag(parts: Sequence[SentPart]) -> str:
    """The tag that S3 gives an object of these parts; empty where their own tags are no MD5 sums."""
    try:
        sums = [bytes.fromhex(part.tag) for part in parts if len(part.tag) == _TAG_LENGTH]
    except ValueError:
        return ""
    if len(sums) < len(parts):
        return ""
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(parts)}"


async def finished(upload: MultipartUpload) -> None:
    """Abort an upload even when the caller is cancelled meanwhile."""
    ending = asyncio.ensure_future(upload.abort())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await ending
        raise


async def _landed(sending: Coroutine[Any, Any, SentPart]) -> SentPart:
    """Wait for a part. A cancel gives it a moment to arrive: one that arrives after the abort would be left behind."""
    task = asyncio.ensure_future(sending)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=_LAST_PART_S)
        task.cancel()
        await asyncio.wait({task})
        raise


class Blocks:
    """Takes blocks from a body. Holds what is left of one piece."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._rest = memoryview(b"")

    async def take(self, size_bytes: int) -> bytearray:
        """The next `size_bytes`; fewer only at the end."""
        block = bytearray()
        while len(block) < size_bytes:
            if not self._rest:
                piece = await anext(self._body, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            wanted = size_bytes - len(block)
            block += self._rest[:wanted]
            self._rest = self._rest[wanted:]
        return block


def part_bytes(sent_bytes: int, announced_bytes: int | None) -> int:
    """Size of the next part of a body, so that 10,000 parts suffice. What was announced counts until it is wrong."""
    if announced_bytes is not None and sent_bytes < announced_bytes:
        wanted = -(-min(announced_bytes, _MAX_OBJECT_BYTES) // MAX_PARTS)
    else:
        wanted = sent_bytes // _GROWTH
    return max(MIN_PART_BYTES, -(-wanted // MIB) * MIB)
