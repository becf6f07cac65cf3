"""Files on their way in: small ones in one call, larger ones in parts with bounded memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from queryserver.domain.errors.files import StorageError, VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.storages.s3.blocks import MIB, Blocks, part_bytes
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.multipart import MultipartUpload, SentPart, finished
from queryserver.storages.s3.objects import IF_ABSENT, Objects, tag_of
from queryserver.storages.s3.places import Place

UPLOAD_BYTES = 16 * MIB
"""Memory of one upload: the parts on their way and the one that is filled. A single part may need more."""


class Upload:
    """One body that becomes one object."""

    def __init__(
        self, connection: S3Connection, objects: Objects, place: Place, *, overwrite: bool, announced_bytes: int | None
    ) -> None:
        self._connection = connection
        self._objects = objects
        self._place = place
        self._overwrite = overwrite
        self._announced_bytes = announced_bytes
        self._sent_bytes = 0
        self._block = bytearray()

    async def run(self, body: AsyncIterator[bytes]) -> FileStatus:
        """Store it. A body that raises, and a cancel, leave nothing. Raises PathExists, VerificationFailed."""
        blocks = Blocks(body)
        size = self._next_size()
        # Held by nobody else, so that a block is gone as soon as it was sent.
        self._block = await blocks.take(size)
        if len(self._block) < size:
            return await self._put(self._block)
        upload = await MultipartUpload.begin(self._connection, self._objects, self._place)
        try:
            parts = await self._send(upload, blocks)
            return await upload.complete(parts, overwrite=self._overwrite)
        except BaseException:  # a cancel too: the parts must not stay
            await finished(upload)
            raise

    async def _put(self, content: bytearray) -> FileStatus:
        arguments = {"Bucket": self._place.bucket, "Key": self._place.key, "Body": content}
        about, timeout_s = self._place.label, self._connection.time_for(len(content))
        if self._overwrite:
            stored = await self._connection.ask("put_object", arguments, about=about, timeout_s=timeout_s)
        else:
            stored = await self._connection.ask_if_absent(
                "put_object", arguments, about=about, means=IF_ABSENT, timeout_s=timeout_s
            )
        status = await self._objects.find(self._place)
        if status is None:
            raise StorageError(f"{about} is gone as soon as it was stored.")
        # With another tag somebody else has replaced it since.
        if status.tag == tag_of(stored) and status.size_bytes != len(content):
            raise VerificationFailed(f"{about} has another size than what was sent.")
        return status

    async def _send(self, upload: MultipartUpload, blocks: Blocks) -> Sequence[SentPart]:
        """All parts, while the next one is read."""
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
                    size = self._next_size()
                    while sending and (len(sending) + 1) * size > UPLOAD_BYTES:
                        parts.append(await sending.popleft())
                    self._block = await blocks.take(size)
                parts += [await part for part in sending]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return parts

    def _next_size(self) -> int:
        return part_bytes(self._sent_bytes, self._announced_bytes)
