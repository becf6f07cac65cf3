"""Uploads: their content, their division into parts, and the joining of the parts."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import DatabaseUnavailable, InvalidParameter
from queryserver.errors.files import VerificationFailed
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath, StorageUser
from queryserver.files.part_uploads import (
    PartRequest,
    UploadJoiner,
    contiguous_bytes,
    missing_parts,
    plan_of,
    received_ranges,
)
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.upload_repository import PartUpload, ReceivedPart, UploadTerms, attempts
from queryserver.files.uploads import CheckedContent

UUID_0 = UUID(int=0)
PLACE = StoragePath(Scheme.FILE, "d")


class Source:
    """The chunks of an upload, with a count of the chunks read."""

    def __init__(self, *pieces: bytes) -> None:
        self.asked = 0
        self.is_closed = False
        self._pieces = pieces

    async def content(self) -> AsyncGenerator[bytes]:
        try:
            for piece in self._pieces:
                self.asked += 1
                yield piece
        finally:
            self.is_closed = True


async def test_digest_and_size_cover_all_chunks() -> None:
    with ThreadPoolExecutor(1) as threads:
        checked = CheckedContent(Source(b"ab", b"c" * 100_000).content(), threads)
        passed = b"".join([piece async for piece in checked.pieces()])
    assert (checked.size_bytes, checked.sha256) == (100_002, hashlib.sha256(passed).digest())


async def test_wrong_digest_and_excess_bytes_fail_before_the_end() -> None:
    with ThreadPoolExecutor(1) as threads:
        source = Source(b"ab", b"c", b"d")
        with pytest.raises(VerificationFailed):
            [piece async for piece in CheckedContent(source.content(), threads, sha256=b"0" * 32).pieces()]
        with raises_code("file_too_large"):
            [piece async for piece in CheckedContent(source.content(), threads, max_bytes=3).pieces()]


async def test_one_chunk_is_read_ahead_and_early_close_closes_the_source() -> None:
    source = Source(*[b"x" * 64 * 1024] * 10)
    with ThreadPoolExecutor(1) as threads:
        pieces = CheckedContent(source.content(), threads).pieces()
        await anext(pieces)
        await asyncio.sleep(0)
        assert source.asked == 2
        await pieces.aclose()
    assert source.is_closed


async def test_attempts_stop_after_their_time_limit() -> None:
    assert len([None async for _ in attempts(0)]) == 1
    assert len([None async for _ in attempts(0.1)]) >= 2


def given(index: int, offset: int, total: int, parts: int, part_bytes: int | None) -> PartRequest:
    return PartRequest(UUID_0, PLACE, "a", index, offset, total, parts, part_bytes)


@pytest.mark.parametrize(("part", "cut"),
    [(given(0, 0, 25, 3, 10), (10, 3)), (given(2, 20, 25, 3, 10), (10, 3)), (given(2, 20, 25, 3, 5), (10, 3)),
    (given(1, 10, 20, 2, 10), (10, 2)), (given(0, 0, 25, 1, 100), (25, 1)), (given(0, 0, 25, 0, None), (25, 1)),
    (given(0, 0, 0, 1, 10), (0, 1))])  # fmt: skip
def test_part_numbers_determine_the_plan(part: PartRequest, cut: tuple[int, int]) -> None:
    plan = plan_of(part, "d/a")
    assert (plan.part_bytes, plan.parts) == cut


@pytest.mark.parametrize("part",
    [given(3, 30, 25, 3, 10), given(1, 11, 25, 3, 10), given(0, 0, 20, 3, 10), given(0, 0, 31, 3, 10),
    given(0, 0, 10, 2, 0), given(1, 0, 10, 2, 10), given(1, 10, 25, 3, None), given(0, 0, 10_001, 10_001, 1),
    given(1, 1, 5, 0, None), given(0, 0, 2**28, 1, 2**28)])  # fmt: skip
def test_numbers_that_contradict_each_other_are_refused(part: PartRequest) -> None:
    with pytest.raises(InvalidParameter):
        plan_of(part, "d/a")


def test_adjacent_ranges_are_merged() -> None:
    plan = PartPlan("d/a", 45, 10, 5)
    arrived = {index: ReceivedPart(StoredPart(index, 10, ""), b"") for index in (4, 0, 1, 3)}
    upload = PartUpload(
        UUID_0, UUID_0, StorageUser("ana"), UploadTerms(PLACE, plan, False), "s", None, datetime.now(UTC), arrived
    )  # fmt: skip
    assert received_ranges(upload) == [[0, 20], [30, 45]]
    assert contiguous_bytes(upload) == 20
    assert missing_parts(upload) == [2]


class Records:
    """Upload records whose database is unavailable during the first `outages` calls."""

    def __init__(self, outages: int, *, is_ours: bool = True) -> None:
        self.outages = outages
        self.is_ours = is_ours
        self.ended: list[UUID] = []

    async def record_result(self, upload_id: UUID, claimant: UUID, result: FileStatus) -> bool:
        del upload_id, claimant, result
        self.outages -= 1
        if self.outages >= 0:
            raise DatabaseUnavailable
        return self.is_ours

    async def end(self, write_id: UUID) -> None:
        self.ended.append(write_id)


UPLOAD = PartUpload(
    uuid4(),
    uuid4(),
    StorageUser("ana"),
    UploadTerms(StoragePath(Scheme.FILE, "a"), PartPlan("a", 1, 1, 1), overwrite=False),
    "staging",
    None,
    datetime.now(UTC) + timedelta(hours=24),
)
ENTRY = FileStatus("a", EntryKind.FILE, 1, None)


async def keep(records: Records) -> None:
    with ThreadPoolExecutor(1) as threads:
        joining = UploadJoiner(None, records, records, threads)  # type: ignore[arg-type]
        await joining.record_file(UPLOAD, uuid4(), ENTRY)


async def test_short_database_outage_does_not_lose_the_file() -> None:
    records = Records(outages=3)
    await keep(records)
    assert records.ended == [UPLOAD.id]


async def test_lost_claim_is_reported_immediately() -> None:
    records = Records(outages=0, is_ours=False)
    with raises_code("part_conflict"):
        await keep(records)
    assert records.ended == []
