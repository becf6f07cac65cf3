"""What an upload in parts became is written down, whatever happens to the database meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from tests.refusals import raises_code

from queryserver.errors.base import DatabaseUnavailable
from queryserver.files.model import EntryKind, FileStatus, Scheme, StoragePath, StorageUser
from queryserver.files.part_uploads import Joining
from queryserver.files.protocol import PartPlan
from queryserver.files.upload_repository import PartUpload, UploadTerms


class Records:
    """Out of reach for the first calls."""

    def __init__(self, outages: int, *, is_ours: bool = True) -> None:
        self.outages = outages
        self.is_ours = is_ours
        self.ended: list[UUID] = []

    async def finished(self, upload_id: UUID, claimant: UUID, result: FileStatus) -> bool:
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
        joining = Joining(None, records, records, threads)  # type: ignore[arg-type]
        await joining.keep(UPLOAD, uuid4(), ENTRY)


async def test_a_moment_without_database_does_not_lose_the_file() -> None:
    records = Records(outages=3)
    await keep(records)
    assert records.ended == [UPLOAD.id]


async def test_a_lost_claim_is_told_at_once() -> None:
    records = Records(outages=0, is_ours=False)
    with raises_code("part_conflict"):
        await keep(records)
    assert records.ended == []
