"""Upload records in a real PostgreSQL database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from tests.fixtures.database import PATIENT
from tests.fixtures.owners import result_of_late_claim

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
    PART_UPLOADS,
    PARTS,
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


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as opened:
        yield opened


@pytest.fixture
async def uploads(database: Database) -> PartUploads:
    return await process(database)


async def process(database: Database, name: str = "one") -> PartUploads:
    """The uploads of a process that is alive."""
    ownership = Ownership(database, lease=timedelta(hours=1), name=name)
    await ownership.beat(Role.SERVER, Load())
    return PartUploads(database, ownership)


async def died(database: Database, name: str = "one") -> None:
    """Let the last heartbeat of a process become too old."""
    await database.execute("update instances set alive_until = now() - interval '1 s' where id = $1", name)


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


async def test_upload_is_claimed_once_until_its_release_or_the_death_of_the_process(
    database: Database, uploads: PartUploads
) -> None:
    upload = await opened(uploads, new(await user(database)))
    others = [uploads, await process(database, "two"), await process(database, "three")]
    fences = await asyncio.gather(*(other.claim(upload.id) for other in 2 * others))
    assert sorted(filter(None, fences)) == [1]
    winner = (2 * others)[fences.index(1)]
    await died(database, winner._owner)
    heir = next(other for other in others if other is not winner)
    assert await heir.claim(upload.id) == 2
    assert not await winner.record_staging(upload.id, 1, "place")
    assert not await heir.record_staging(upload.id, 1, "place")
    assert await heir.record_staging(upload.id, 2, "place")
    fence = await heir.claim(upload.id)
    assert fence == 3
    async with heir.holding(upload.id, fence):
        assert await heir.claim(upload.id) is None
    assert await heir.claim(upload.id) == 4


async def test_part_claimed_by_a_process_that_starts_is_not_claimed_by_an_earlier_query(
    database: Database, uploads: PartUploads
) -> None:
    upload = await opened(uploads, new(await user(database)))
    fence = await uploads.claim_part(upload.id, 0)
    await died(database)
    other = await process(database, "two")
    assert await result_of_late_claim(database, PARTS, other.claim_part(upload.id, 0)) is None
    assert await database.value("select fence from part_upload_parts") == (fence or 0) + 1


@pytest.mark.parametrize("claim", ["work", "removal"])
async def test_upload_claimed_by_a_process_that_starts_is_not_claimed_by_an_earlier_query(
    database: Database, uploads: PartUploads, claim: str
) -> None:
    upload = await opened(uploads, new(await user(database)))
    fence = await uploads.claim(upload.id)
    assert fence is not None
    await died(database)
    other = await process(database, "two")
    if claim == "removal":
        await database.execute("update part_uploads set expires_at = now() - interval '1 second'")
    late = other.claim(upload.id) if claim == "work" else other.retire(upload.id)
    assert await result_of_late_claim(database, PART_UPLOADS, late) is None
    assert await database.value("select fence from part_uploads where user_id is not null") == fence + 1


@pytest.mark.parametrize("ends", ["released", "died"])
async def test_part_is_stored_once(database: Database, uploads: PartUploads, ends: str) -> None:
    """A process may receive the same part over several connections. Their claims differ in the fence."""
    upload = await opened(uploads, new(await user(database)))
    other = uploads if ends == "released" else await process(database, "two")
    assert await uploads.claim_part(upload.id, 0) == 1
    assert await uploads.claim_part(upload.id, 0) is None
    assert await other.claim_part(upload.id, 0) is None
    if ends == "died":
        await died(database)
    else:
        await fail_part(uploads, upload)
    assert await other.claim_part(upload.id, 0) == 2
    assert not await uploads.record_part(upload.id, 1, part(), keep=DAY)
    await fail_part(uploads, upload)  # releases nothing
    assert await other.claim_part(upload.id, 0) is None
    assert await other.record_part(upload.id, 2, part(), keep=2 * DAY)
    assert await other.claim_part(upload.id, 0) is None
    found = await opened(uploads, new(await _owner(database), upload.client_uuid))
    assert found.received_parts == {0: part()}
    assert found.expires_at > datetime.now(UTC) + 1.9 * DAY


async def fail_part(uploads: PartUploads, upload: PartUpload) -> None:
    """Let the first claim of the first part end without storing the part."""
    with pytest.raises(TimeoutError):
        async with uploads.holding_part(upload.id, 0, 1):
            raise TimeoutError


async def test_claims_of_older_programs_last_until_their_lease_ends(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    soon, over = timedelta(minutes=1), timedelta(seconds=-1)
    old = "update part_uploads set claimed_by = gen_random_uuid(), claimed_until = now() + $1::interval"
    old_part = """insert into part_upload_parts as part (upload_id, index, claimed_by, claimed_until)
        values ($1, 0, gen_random_uuid(), now() + $2::interval)
        on conflict (upload_id, index) do update set claimed_until = excluded.claimed_until"""
    await database.execute(old, soon)
    await database.execute(old_part, upload.id, soon)
    assert await uploads.claim(upload.id) is None
    assert await uploads.claim_part(upload.id, 0) is None
    await database.execute(old, over)
    await database.execute(old_part, upload.id, over)
    assert await uploads.claim(upload.id) == 1
    assert await uploads.claim_part(upload.id, 0) == 1
    # How older programs decide whether they may claim.
    is_free = "select claimed_by is null or claimed_until < now() from"
    assert not await database.value(f"{is_free} part_uploads")
    assert not await database.value(f"{is_free} part_upload_parts")
    async with uploads.holding(upload.id, 1):
        await fail_part(uploads, upload)
    assert await database.value(f"{is_free} part_uploads")
    assert await database.value("select claimed_until < now() from part_upload_parts")


async def _owner(database: Database) -> int:
    return await database.value("select max(user_id) from part_uploads")


async def test_result_is_stored_completely(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    entry = FileStatus(
        "d/é.csv", EntryKind.FILE, 15, moment, 0o640, moment, "ana", "staff", True, 128, 3, "tag", "file id"
    )  # fmt: skip
    assert not await uploads.record_result(upload.id, 1, entry)
    assert await uploads.claim(upload.id) == 1
    assert await uploads.record_result(upload.id, 1, entry)
    read = await uploads.read(await _owner(database), upload.client_uuid)
    assert read is not None
    assert read.result == entry
    assert await uploads.claim_part(upload.id, 0) is None


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


async def test_expired_upload_is_retired_unless_it_is_claimed(database: Database, uploads: PartUploads) -> None:
    upload = await opened(uploads, new(await user(database)))
    assert not await uploads.retire(upload.id), "it has not expired"
    fence = await uploads.claim(upload.id)
    assert fence is not None
    await database.execute("update part_uploads set expires_at = now() - interval '1 second'")
    async with uploads.holding(upload.id, fence):
        assert not await uploads.retire(upload.id)
    retired = await uploads.retire(upload.id)
    assert retired is not None
    await database.execute("update part_uploads set expires_at = now() + interval '1 hour'")
    assert await uploads.claim(upload.id) is None
    await uploads.release(upload.id, retired)
    assert await uploads.retire(upload.id), "the parts could not be removed the first time"
    assert [found.id for found in await uploads.expired(limit=10)] == [upload.id]


async def test_upload_that_the_command_cleanup_removes_is_claimed_by_no_other_process(
    database: Database, uploads: PartUploads
) -> None:
    """The command sends no heartbeats, so its claim must be valid without them."""
    upload = await opened(uploads, new(await user(database)))
    command = PartUploads(database, Ownership(database, lease=timedelta(hours=1), name="command"))
    fence = await uploads.claim(upload.id)
    assert fence == 1
    await database.execute("update part_uploads set expires_at = now() - interval '1 second'")
    await died(database)
    removed = await command.retire(upload.id)
    assert removed == 2
    assert await uploads.retire(upload.id) is None
    assert await (await process(database, "two")).retire(upload.id) is None
    assert not await uploads.record_staging(upload.id, fence, "place"), "the previous owner was only paused"
    await database.execute("update part_uploads set claimed_until = now() - interval '1 second'")
    assert await uploads.retire(upload.id) == 3, "the command has crashed"


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
    writes, others = UnfinishedWrites(database, one), UnfinishedWrites(database, Ownership(database, lease=DAY))
    write = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "d"), "x", ANA)
    beside = UnfinishedWrite(uuid4(), StoragePath(Scheme.HDFS, "d"), "y", ANA)
    await writes.begin(write, is_running=True)
    await writes.begin(beside)
    old = "update unfinished_writes set touched_at = now() - interval '1 day' where id = $1"
    await database.execute(old, beside.id)
    beat = "update instances set heartbeat_at = now() - interval '{}', alive_until = now() + interval '{}'"
    # The process is alive, even if its heartbeats are rare.
    await database.execute(beat.format("2 days", "1 s"))
    assert await abandoned(others, timedelta(minutes=6)) == []
    # It has died, but its files may be more recent than the minimum age.
    await database.execute(beat.format("2 minutes", "-1 s"))
    assert await abandoned(others, timedelta(minutes=6)) == []
    await database.execute(beat.format("16 minutes", "-1 s"))
    assert set(await abandoned(others, timedelta(minutes=6))) == {write, beside}
    await database.execute("delete from instances")  # it has exited, or died a day ago
    assert set(await abandoned(others, timedelta(minutes=6))) == {write, beside}
    assert await abandoned(writes, timedelta(minutes=6)) == [], "the process itself knows that it is writing"


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
