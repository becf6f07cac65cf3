"""Part uploads: each part of the file is one part of a multipart upload, or several of bounded size."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queryserver.errors.base import NotSupported
from queryserver.errors.files import VerificationFailed
from queryserver.files.model import FileStatus
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.s3.connection import Place, S3Connection, UploadGone
from queryserver.files.stores.s3.listing import Objects
from queryserver.files.stores.s3.multipart import MAX_PARTS, Blocks, MultipartUpload, SentPart
from queryserver.files.stores.s3.writing import UPLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """Which numbers at the store the parts of a plan have. A part has several when memory is too small for it."""

    plan: PartPlan

    @property
    def per_part(self) -> int:
        """Numbers of one part."""
        return max(1, min(-(-self.plan.part_bytes // UPLOAD_BYTES), MAX_PARTS // max(self.plan.parts, 1)))

    @property
    def block_bytes(self) -> int:
        """Size of what has one number; the last one of a part may be smaller."""
        return max(1, -(-self.plan.part_bytes // self.per_part))

    def size_of(self, index: int) -> int:
        """Bytes of one part."""
        return max(0, min(self.plan.part_bytes, self.plan.size_bytes - index * self.plan.part_bytes))

    def of(self, index: int) -> Iterator[tuple[int, int]]:
        """Numbers of one part and the sizes of what they stand for; an empty part has one as well."""
        first, whole = index * self.per_part + 1, self.size_of(index)
        for number, start in enumerate(range(0, max(whole, 1), self.block_bytes), start=first):
            yield number, min(self.block_bytes, whole - start)


async def send_part(upload: MultipartUpload, plan: PartPlan, index: int, body: AsyncIterator[bytes]) -> StoredPart:
    """Store one part; holds a block of it at a time."""
    numbers, blocks = PartNumbers(plan), Blocks(body)
    sent: list[SentPart] = []
    for number, size in numbers.of(index):
        block = await blocks.take(size)
        is_last = sum(part.size_bytes for part in sent) + size == numbers.size_of(index)
        if len(block) < size or (is_last and await blocks.take(1)):
            raise VerificationFailed("A part is not as long as was agreed.")
        sent.append(await upload.send(number, block))
    return StoredPart(index, numbers.size_of(index), ",".join(part.tag for part in sent))


async def join(
    upload: MultipartUpload, plan: PartPlan, parts: Sequence[StoredPart], *, overwrite: bool
) -> FileStatus | None:
    """The file of all parts; None when the upload has become another file or is gone.

    Raises VerificationFailed, PathExists; the parts are still there then.
    """
    if sum(part.size_bytes for part in parts) != plan.size_bytes:
        raise VerificationFailed("The parts are not as long as the file was said to be.")
    sent = [number for part in sorted(parts, key=lambda part: part.index) for number in _sent(plan, part)]
    try:
        return await upload.complete(sent, overwrite=overwrite)
    except UploadGone:
        # An earlier call may have joined them and its answer may be lost.
        if not await upload.is_complete(sent):
            raise
        return None


def _sent(plan: PartPlan, part: StoredPart) -> Iterator[SentPart]:
    for (number, size), tag in zip(PartNumbers(plan).of(part.index), part.receipt.split(","), strict=False):
        yield SentPart(number, size, tag)


class Sweep:
    """Aborts old uploads of one key. S3 does not tell whose they are: whoever calls must have written to that key."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def run(self, target: Place, older_than_s: float) -> int:
        """Abort the uploads of a file that got their last part before that time; how many."""
        before, swept = datetime.now(UTC) - timedelta(seconds=older_than_s), 0
        async for upload, begun_at in self._uploads(target):
            try:
                if begun_at < before and await upload.last_sent_at(begun_at) < before:
                    await upload.discard()
                    swept += 1
            except UploadGone:
                continue  # completed meanwhile
        return swept

    async def _uploads(self, target: Place) -> AsyncGenerator[tuple[MultipartUpload, datetime]]:
        arguments: dict[str, object] = {"Bucket": target.bucket, "Prefix": target.key}
        while True:
            try:
                told = await self._connection.ask("list_multipart_uploads", arguments, about=target.label)
            except NotSupported:
                return
            for entry in told.get("Uploads", ()):
                if entry["Key"] == target.key:
                    upload = MultipartUpload(self._connection, self._objects, target, entry["UploadId"])
                    yield upload, entry["Initiated"]
            if not told.get("IsTruncated"):
                return
            arguments["KeyMarker"] = told["NextKeyMarker"]
            arguments["UploadIdMarker"] = told["NextUploadIdMarker"]
