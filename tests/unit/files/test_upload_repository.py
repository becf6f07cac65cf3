"""Upload records in a real PostgreSQL database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from tests.fixtures.database import PATIENT

from queryserver.files.model import (
    EntryKind,
    FileStatus,
    Scheme,
    StoragePath,
    StorageUser,
    Transfer,
    TransferKind,
    TransferState,
)
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.repository import TransferRecords
from queryserver.files.upload_repository import (
    NewUpload,
    PartUpload,
    PartUploads,
    ReceivedPart,
    UnfinishedWrite,
    UnfinishedWrites,
    UploadTerms,
)
from queryserver.platform.database import Database, open_database
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role

ANA = StorageUser("ana", is_admin=True)
DAY = timedelta(days=1)
LEASE = timedelta(minutes=1)
ENDED = timedelta(seconds=-1)


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as opened:
        yield opened


@pytest.fixture
def uploads(database: Database) -> PartUploads:
    return PartUploads(database)


async def user(database: Database, name: str = "ana") -> int:
    return await database.value("insert into users (username, username_key) values ($1, $1) returning id", name)


def new(user_id: int, client_uuid: UUID | None = None, *, path: str = "d/a.csv", parts: int = 2) -> NewUpload:
    terms = UploadTerms(StoragePath(Scheme.HDFS, path), PartPlan(path, 15, 10, parts), overwrite=True)
    return NewUpload(uuid4(), user_id, client_uuid or uuid4(), ANA, terms)


async def opened(uploads: PartUploads, upload: NewUpload, *, keep: timedelta = DAY, max_open: int = 20) -> PartUpload:
    found = await uploads.open(upload, keep=keep, max_open=max_open)
    assert found is not None
    return found


def part(index: int = 0) -> ReceivedPart:
    return ReceivedPart(StoredPart(index, 10, f"receipt {index}"), bytes([index]) * 32)


async def test_upload_keeps_the_terms_of_its_first_part(database: Database, uploads: PartUploads) -> None:
    first = new(await user(database))
    found = await opened(uploads, first)
    assert (found.id, found.user, found.terms, found.staging, found.received_parts) == (
        first.id,
        ANA,
        first.terms,
        None,
        {},
    )
    again = await opened(uploads, new(first.user_id, first.client_uuid, path="other"))
    assert again == found
    assert await uploads.read(first.user_id, first.client_uuid) == found


@pytest.mark.security("T20")
async def test_same_uuid_of_another_user_is_another_upload(database: Database, uploads: PartUploads) -> None:
    mine = await opened(uploads, new(await user(database)))
    bob = await user(database, "bob")
    assert await uploads.read(bob, mine.client_uuid) is None
    assert (await opened(uploads, new(bob, mine.client_uuid))).id != mine.id


@pytest.mark.security("T30")
async def test_open_uploads_are_limited_per_user_even_if_concurrent(database, uploads) -> None:
    ana = await user(database)
    begun = await asyncio.gather(*(uploads.open(new(ana), keep=DAY, max_open=3) for _ in range(8)))
    assert sum(upload is not None for upload in begun) == 3


async def test_one_of_many_claimants_wins_until_the_claim_ends(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    claimants = [uuid4() for _ in range(6)]
    won = await asyncio.gather(*(uploads.claim(upload.id, claimant, lease=LEASE) for claimant in claimants))
    assert sum(won) == 1
    winner, loser = claimants[won.index(True)], claimants[won.index(False)]
    assert await uploads.claim(upload.id, winner, lease=ENDED)
    assert await uploads.claim(upload.id, loser, lease=LEASE)
    assert not await uploads.record_staging(upload.id, winner, "place")
    assert await uploads.record_staging(upload.id, loser, "place")
    assert await uploads.claim(upload.id, winner, lease=LEASE)
    await uploads.release(upload.id, winner)
    assert await uploads.claim(upload.id, loser, lease=LEASE)


async def test_part_is_stored_once(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    first, second = uuid4(), uuid4()
    assert await uploads.claim_part(upload.id, 0, first, lease=LEASE)
    assert await uploads.claim_part(upload.id, 0, first, lease=LEASE)
    assert not await uploads.claim_part(upload.id, 0, second, lease=LEASE)
    await uploads.release_part(upload.id, 0, first)
    assert await uploads.claim_part(upload.id, 0, second, lease=LEASE)
    assert not await uploads.record_part(upload.id, first, part(), keep=DAY)
    assert await uploads.record_part(upload.id, second, part(), keep=2 * DAY)
    assert not await uploads.claim_part(upload.id, 0, first, lease=LEASE)
    found = await opened(uploads, new(await _owner(database), upload.client_uuid))
    assert found.received_parts == {0: part()}
    assert found.expires_at > datetime.now(UTC) + 1.9 * DAY


async def _owner(database: Database) -> int:
    return await database.value("select max(user_id) from part_uploads")


async def test_expired_part_claim_can_be_taken_over(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    assert await uploads.claim_part(upload.id, 1, uuid4(), lease=ENDED)
    assert await uploads.claim_part(upload.id, 1, uuid4(), lease=LEASE)


async def test_result_is_stored_completely(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    claimant = uuid4()
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    entry = FileStatus(
        "d/é.csv", EntryKind.FILE, 15, moment, 0o640, moment, "ana", "staff", True, 128, 3, "tag", "file id"
    )  # fmt: skip
    assert not await uploads.record_result(upload.id, claimant, entry)
    assert await uploads.claim(upload.id, claimant, lease=LEASE)
    assert await uploads.record_result(upload.id, claimant, entry)
    read = await uploads.read(await _owner(database), upload.client_uuid)
    assert read is not None
    assert read.result == entry
    assert not await uploads.claim_part(upload.id, 0, claimant, lease=LEASE)


async def test_expired_upload_is_unknown_and_awaits_cleanup(database, uploads) -> None:
    ana = await user(database)
    old = await opened(uploads, new(ana))
    await database.execute("update part_uploads set expires_at = now() - interval '1 second'")
    assert await uploads.read(ana, old.client_uuid) is None
    assert [upload.id for upload in await uploads.expired(limit=10)] == [old.id]
    fresh = await opened(uploads, new(ana, old.client_uuid), max_open=1)
    assert fresh.id != old.id
    assert [upload.id for upload in await uploads.expired(limit=10)] == [old.id]
    await uploads.forget(old.id)
    assert await uploads.expired(limit=10) == []


async def test_uploads_of_a_deleted_user_expire_immediately(database: Database, uploads: PartUploads) -> None:
    ana = await user(database)
    upload = await opened(uploads, new(ana))
    await database.execute("delete from users where id = $1", ana)
    assert [found.id for found in await uploads.expired(limit=10)] == [upload.id]


async def test_old_writes_are_abandoned_except_next_to_an_open_upload(database, uploads) -> None:
    writes = UnfinishedWrites(database, Ownership(database, lease=timedelta(seconds=30)))
    root = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, ""), "", ANA)
    beside = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "d"), "x", ANA)
    elsewhere = UnfinishedWrite(uuid4(), StoragePath(Scheme.S3A, "d"), "é", StorageUser("bob"))
    for write in (root, beside, elsewhere):
        await writes.begin(write)
    upload = await opened(uploads, new(await user(database)))
    assert await abandoned(writes, timedelta(minutes=1)) == []
    # A write that was touched in the last 15 minutes protects all writes in its directory, including itself.
    assert await abandoned(writes, timedelta(0)) == []
    await database.execute("update unfinished_writes set touched_at = now() - interval '1 day'")
    assert set(await abandoned(writes, timedelta(0))) == {root, elsewhere}
    await uploads.forget(upload.id)
    await writes.end(root.id)
    assert set(await abandoned(writes, timedelta(0))) == {beside, elsewhere}


async def test_running_transfer_protects_the_directories_of_its_target(database: Database) -> None:
    writes = UnfinishedWrites(database, Ownership(database, lease=timedelta(seconds=30)))
    inner = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "to/t/d"), "x", ANA)
    beside = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "to/tt"), "x", ANA)
    for write in (inner, beside):
        await writes.begin(write)
    await database.execute("update unfinished_writes set touched_at = now() - interval '1 hour'")
    transfer = Transfer(
        await user(database), ANA, TransferKind.COPY, StoragePath(Scheme.S3A, "b/t"), StoragePath(Scheme.HDFS, "to/t")
    )
    records = TransferRecords(database)
    one = Ownership(database, lease=timedelta(hours=1))
    claimed = await records.begin(transfer, owner=one.id)
    assert claimed is not None
    assert set(await abandoned(writes, timedelta(minutes=6))) == {inner, beside}, "that process is not alive"
    await one.beat(Role.SERVER, Load())
    assert await abandoned(writes, timedelta(minutes=6)) == [beside]
    await records.advance(claimed.claim, TransferState.DONE)
    assert set(await abandoned(writes, timedelta(minutes=6))) == {inner, beside}


async def test_running_write_is_abandoned_some_time_after_the_last_heartbeat(database: Database) -> None:
    one = Ownership(database, lease=timedelta(hours=1))
    await one.beat(Role.SERVER, Load())
    writes = UnfinishedWrites(database, one)
    write = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "d"), "x", ANA)
    beside = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "d"), "y", ANA)
    await writes.begin(write, is_running=True)
    await writes.begin(beside)
    old = "update unfinished_writes set touched_at = now() - interval '1 day' where id = $1"
    await database.execute(old, beside.id)
    beat = "update instances set heartbeat_at = now() - interval '{}', alive_until = now() + interval '{}'"
    # The process is alive, even if its heartbeats are rare.
    await database.execute(beat.format("2 days", "1 s"))
    assert await abandoned(writes, timedelta(minutes=6)) == []
    # It has died, but its files may be more recent than the minimum age.
    await database.execute(beat.format("2 minutes", "-1 s"))
    assert await abandoned(writes, timedelta(minutes=6)) == []
    await database.execute(beat.format("16 minutes", "-1 s"))
    assert set(await abandoned(writes, timedelta(minutes=6))) == {write, beside}
    await database.execute("delete from instances")  # it has exited, or died a day ago
    assert set(await abandoned(writes, timedelta(minutes=6))) == {write, beside}


async def test_stopped_write_is_abandoned_some_time_after_its_end(database: Database) -> None:
    now = 0.0
    one = Ownership(database, lease=timedelta(hours=1), clock=lambda: now)
    await one.beat(Role.SERVER, Load())
    writes = UnfinishedWrites(database, one)
    failed, stray = [UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, name), "x", ANA) for name in "ab"]
    for write in (failed, stray):
        await writes.begin(write, is_running=True)
    await writes.release(failed.id)
    await one.release_strays()
    now = 3601.0
    await one.release_strays()  # the release of the second one was lost
    assert await database.value("select count(*) from unfinished_writes where now() - touched_at < '1 minute'") == 2
    await database.execute("update unfinished_writes set touched_at = touched_at - interval '20 minutes'")
    assert set(await abandoned(writes, timedelta(minutes=6))) == {failed, stray}


async def abandoned(writes: UnfinishedWrites, older_than: timedelta) -> list[UnfinishedWrite]:
    fifteen = timedelta(minutes=15)
    return list(await writes.abandoned(older_than=older_than, others_within=fifteen, schemes=tuple(Scheme)))
