"""What a client says about a part, held against itself (Contract storage 9.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from queryserver.domain.errors.base import InvalidParameter
from queryserver.domain.files import StoragePath
from queryserver.interfaces.storage import PartPlan
from queryserver.interfaces.storage_uploads import PartUpload

MAX_PARTS = 10_000
MAX_PART_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GivenPart:
    """One part as its client announces it."""

    client_uuid: UUID
    directory: StoragePath
    file_name: str
    index: int
    offset: int
    total_bytes: int
    parts: int
    """0: the whole file is in this part, and completes the upload."""
    part_bytes: int | None = None
    overwrite: bool = False
    sha256: bytes | None = None
    """What the digest of the part must be."""

    @property
    def is_whole(self) -> bool:
        """Whether the upload is completed at once."""
        return self.parts == 0


def plan_of(given: GivenPart, path: str) -> PartPlan:
    """How the file is cut. Raises InvalidParameter: numbers that contradict each other, or above their limits."""
    parts = max(given.parts, 1)
    if given.index >= parts:
        raise InvalidParameter("qqpartindex must be below qqtotalparts.")
    if parts > MAX_PARTS:
        raise InvalidParameter(f"An upload has at most {MAX_PARTS} parts.")
    part_bytes = _part_bytes(given, parts)
    if parts > 1 and not (parts - 1) * part_bytes < given.total_bytes <= parts * part_bytes:
        raise InvalidParameter("qqtotalparts, qqchunksize and qqtotalfilesize contradict each other.")
    if given.offset != given.index * part_bytes:
        raise InvalidParameter("qqpartbyteoffset must be qqpartindex times the chunk size.")
    if not given.is_whole and part_bytes > MAX_PART_BYTES:
        raise InvalidParameter(f"A part has at most {MAX_PART_BYTES} bytes.")
    return PartPlan(path, given.total_bytes, part_bytes, parts)


def _part_bytes(given: GivenPart, parts: int) -> int:
    """The size of every part but the last. Clients may tell the last one's own size with it."""
    if parts == 1:
        return given.total_bytes
    if given.part_bytes is None:
        raise InvalidParameter("qqchunksize is required.")
    if given.index == parts - 1 and given.part_bytes == given.total_bytes - given.offset:
        return given.offset // given.index
    return given.part_bytes


def size_of_part(plan: PartPlan, index: int) -> int:
    """How many bytes the part has."""
    return min(plan.part_bytes, plan.size_bytes - index * plan.part_bytes)


def missing_parts(upload: PartUpload) -> Sequence[int]:
    """Indexes of the parts that have not arrived."""
    return [index for index in range(upload.terms.plan.parts) if index not in upload.arrived]


def received(upload: PartUpload) -> list[list[int]]:
    """The ranges of bytes that arrived, ends exclusive, in order, neighbours joined."""
    plan = upload.terms.plan
    ranges: list[list[int]] = []
    for index in sorted(upload.arrived):
        start = index * plan.part_bytes
        end = start + size_of_part(plan, index)
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] = end
        elif end > start:
            ranges.append([start, end])
    return ranges


def contiguous(upload: PartUpload) -> int:
    """How many bytes from the start on arrived without a gap."""
    ranges = received(upload)
    return ranges[0][1] if ranges and ranges[0][0] == 0 else 0
