"""Part uploads: each part of the file is one part of a multipart upload, or several of bounded size."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from queryserver.domain.errors import UploadNotFound, VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.s3.blocks import MAX_PARTS, Blocks
from queryserver.storages.s3.multipart import MultipartUpload, SentPart
from queryserver.storages.s3.uploads import UPLOAD_BYTES


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
        return -(-self.plan.part_bytes // self.per_part)

    def of(self, index: int) -> range:
        """Numbers of one part."""
        return range(index * self.per_part + 1, (index + 1) * self.per_part + 1)


async def send_part(upload: MultipartUpload, plan: PartPlan, index: int, body: AsyncIterator[bytes]) -> StoredPart:
    """Store one part; holds a block of it at a time."""
    numbers, blocks = PartNumbers(plan), Blocks(body)
    sent: list[SentPart] = []
    for number in numbers.of(index):
        block = await blocks.take(numbers.block_bytes)
        if block or not sent:
            sent.append(await upload.send(number, block))
        if len(block) < numbers.block_bytes:
            break
    if await blocks.take(1):
        raise VerificationFailed("A part is longer than was agreed.")
    return StoredPart(index, sum(part.size_bytes for part in sent), ",".join(part.tag for part in sent))


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
    except UploadNotFound:
        # An earlier call may have joined them and its answer may be lost.
        if not await upload.is_complete(sent):
            raise
        return None


def _sent(plan: PartPlan, part: StoredPart) -> Iterator[SentPart]:
    numbers, left = PartNumbers(plan), part.size_bytes
    for number, tag in zip(numbers.of(part.index), part.receipt.split(","), strict=False):
        size = min(left, numbers.block_bytes)
        left -= size
        yield SentPart(number, size, tag)
