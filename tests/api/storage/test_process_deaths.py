"""Files and operations of processes that died, or that count as dead because their heartbeats are late (ADR 84)."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.api.driving import Api, open_api
from tests.api.storage.conftest import storage_settings
from tests.fixtures.owners import Clock

from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import OperationInProgress, StorageError
from queryserver.files import part_uploads
from queryserver.files.access import Caller as Acting
from queryserver.files.model import ClaimedTransfer, ExtensionRules, StoragePath, Transfer, TransferKind, TransferState
from queryserver.files.moves import Transfers, final_body
from queryserver.files.operations import LongOperations, Progress, Work
from queryserver.files.part_uploads import CompletionRequest, PartRequest, PartUploading, UploadJoiner
from queryserver.files.protocol import PartPlan
from queryserver.files.repository import OperationRecords, TransferRecords
from queryserver.files.transfer_steps import TransferResult
from queryserver.files.upload_repository import (
    NewUpload,
    OrphanSweep,
    PartUpload,
    PartUploads,
    UnfinishedWrite,
    UnfinishedWrites,
    UploadTerms,
)
from queryserver.files.uploads import UploadRules
from queryserver.identity.model import User
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role

# Only the tests send heartbeats.
LEASE = timedelta(hours=1)
RARE: dict[str, Any] = {
    "desktop": {"task_server": {"heartbeat_s": 3600}},
    "tables": {"editor": {"lease_timeout_s": 10_800}},
}
STAGED = f"._qs_upload_{'1' * 32}"


@dataclass(frozen=True, slots=True)
class Site:
    """An application, whose user ana uploads to a shared directory."""

    api: Api
    shared: Path
    ana: Acting

    def stage(self, *, age_s: float) -> Path:
        """Create a temporary file as an upload does."""
        staged = self.shared / STAGED
        staged.write_bytes(b"part of a file")
        modified = time.time() - age_s
        os.utime(staged, (modified, modified))
        return staged

    async def process(self, name: str, clock: Callable[[], float] = time.monotonic) -> Ownership:
        """Another process, which is alive."""
        ownership = Ownership(self.api.database, lease=LEASE, name=name, clock=clock)
        await ownership.beat(Role.SERVER, Load())
        return ownership

    def transfers(self, owner: Ownership) -> Transfers:
        database, storage = self.api.database, self.api.services.storage
        records, operations = TransferRecords(database), OperationRecords(database)
        writes = UnfinishedWrites(database, owner)
        return Transfers(records, operations, writes, storage.stores, storage.audit, final_body, owner)

    async def moved_by(self, owner: str, name: str) -> UUID:
        """Record a move of a file, whose target is complete. Return the id of its operation."""
        database, operation_id = self.api.database, uuid4()
        source, target = self.path(name), self.path(f"new-{name}")
        user_id = self.ana.user.id
        await OperationRecords(database).begin(
            operation_id, user_id=user_id, kind="storage.move", path=str(source), owner=owner
        )
        records = TransferRecords(database)
        move = Transfer(user_id, self.ana.acting, TransferKind.MOVE, source, target, operation_id=operation_id)
        claimed = await records.begin(move, owner=owner)
        assert claimed is not None
        await records.advance(claimed.claim, TransferState.VERIFIED)
        return operation_id

    async def open_upload(self, records: PartUploads) -> PartUpload:
        """Record an upload of two parts, of which none has been received."""
        path = self.path("new.csv")
        terms = UploadTerms(path, PartPlan(path.path, 8, 4, 2), overwrite=False)
        new = NewUpload(uuid4(), self.ana.user.id, uuid4(), self.ana.acting, terms)
        upload = await records.open(new, keep=timedelta(days=1), max_open=1)
        assert upload is not None
        return upload

    def path(self, name: str) -> StoragePath:
        return self.api.services.storage.stores.path(f"file:///shared/{name}")

    async def last_heartbeat(self, owner: Ownership, seconds_ago: float) -> None:
        """Let a process count as dead: its last heartbeat is this old, and its lease has ended since."""
        await self.api.database.execute(
            """update instances set heartbeat_at = now() - make_interval(secs => $2),
                alive_until = now() - interval '1 ms' where id = $1""",
            owner.id,
            seconds_ago,
        )

    async def unfinished(self) -> int:
        return await self.api.database.value("select count(*) from unfinished_writes")


@pytest.fixture
async def site(tmp_path: Path, database_dsn: str) -> AsyncIterator[Site]:
    async with open_api(storage_settings(tmp_path, database_dsn, **RARE)) as api:
        ana = await api.user("ana")
        user_id = await api.database.value("select id from users where username = $1", ana.username)
        yield Site(api, tmp_path / "files" / "shared", Acting.of(User(user_id, ana.username, is_admin=True)))


class TestTemporaryFiles:
    async def test_process_with_a_late_heartbeat_keeps_the_file_that_it_writes(self, site: Site) -> None:
        storage = site.api.services.storage
        async with storage.orphans.recorded_write(site.ana, site.path("new.csv")):
            staged = site.stage(age_s=600)  # the machine was suspended for ten minutes
            await site.last_heartbeat(site.api.services.ownership, 600)
            assert await storage.orphans.sweep_dead() == 0
            assert staged.exists()
            assert await site.unfinished() == 1

    async def test_files_of_a_failed_long_upload_are_removed_later(self, site: Site) -> None:
        storage = site.api.services.storage
        records = PartUploads(site.api.database, site.api.services.ownership)
        upload = await site.open_upload(records)
        await storage.orphans.begin(upload.id, site.ana, upload.terms.target)
        await self._let_pass(site, minutes=10)
        staged = site.stage(age_s=0)
        with ThreadPoolExecutor(1) as threads:
            joiner = UploadJoiner(storage.stores, records, storage.orphans, threads)
            await joiner.forget_failed(upload, StorageError("The store failed."))
        assert await storage.orphans.sweep_dead() == 0, "the file may be too recent to be removed"
        await self._let_pass(site, minutes=10)
        site.stage(age_s=600)
        assert await storage.orphans.sweep_dead() == 1
        assert not staged.exists()

    async def test_files_that_a_crashed_process_wrote_after_its_last_heartbeat_are_removed(self, site: Site) -> None:
        storage = site.api.services.storage
        crashed = await site.process("crashed")
        path = site.path("new.csv")
        write = UnfinishedWrite(uuid4(), path.parent, path.name, site.ana.acting)
        await UnfinishedWrites(site.api.database, crashed).begin(write, is_running=True)
        await site.last_heartbeat(crashed, 80)
        staged = site.stage(age_s=55)
        assert await storage.orphans.sweep_dead() == 0
        assert staged.exists()
        assert await site.unfinished() == 1, "a later sweep must find the file"
        await site.last_heartbeat(crashed, 91)
        site.stage(age_s=66)
        assert await storage.orphans.sweep_dead() == 1
        assert not staged.exists()
        assert await site.unfinished() == 0

    async def _let_pass(self, site: Site, *, minutes: float) -> None:
        await site.api.database.execute(
            "update unfinished_writes set touched_at = touched_at - make_interval(secs => $1)", minutes * 60
        )


class TestTakeOver:
    @pytest.mark.parametrize("work", ["operations", "transfers", "writes"])
    async def test_process_whose_heartbeat_was_late_waits_for_the_heartbeats_of_others(
        self, site: Site, work: str
    ) -> None:
        """After an outage of the database, all processes count as dead until their next heartbeats."""
        now, database = 0.0, site.api.database
        process = await site.process("first", clock=lambda: now)
        writes, storage = UnfinishedWrites(database, process), site.api.services.storage
        sweep: Mapping[str, Callable[[], Awaitable[int]]] = {
            "operations": LongOperations(OperationRecords(database), process).sweep,
            "transfers": site.transfers(process).take_over,
            "writes": OrphanSweep(storage.stores, writes, PartUploads(database, process)).sweep_dead,
        }
        path = site.path("new.csv")
        if work == "operations":
            await OperationRecords(database).begin(uuid4(), user_id=site.ana.user.id, kind="k", path="p", owner="other")
        elif work == "transfers":
            await site.moved_by("other", "a.csv")
        else:
            await writes.begin(UnfinishedWrite(uuid4(), path.parent, path.name, site.ana.acting))
            await database.execute("update unfinished_writes set touched_at = now() - interval '1 day'")
        now += LEASE.total_seconds()
        assert await sweep[work]() == 0, "this process may count as dead"
        await process.beat(Role.SERVER, Load())
        assert await sweep[work]() == 0, "another process may be alive, but has not sent its heartbeat yet"
        now += LEASE.total_seconds() / 2
        assert await sweep[work]() == 1

    async def test_retried_call_takes_over_only_after_the_heartbeats_of_others(self, site: Site) -> None:
        now = 0.0
        process = await site.process("first", clock=lambda: now)
        transfers = site.transfers(process)
        await site.moved_by("other", "a.csv")
        again = site.ana.user.id, TransferKind.MOVE, site.path("a.csv"), [site.path("new-a.csv")]
        now += LEASE.total_seconds()
        with pytest.raises(OperationInProgress):
            await transfers.claim_unfinished(*again)
        now += LEASE.total_seconds() / 2
        claimed = await transfers.claim_unfinished(*again)
        assert claimed is not None
        assert claimed.claim.owner == "first"

    async def test_transfers_are_taken_over_one_at_a_time(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process owns only the transfers that it works on. Others could claim the rest, because it holds no row."""
        for name in "ab":
            await site.moved_by("dead", name)
        is_resumed, may_go_on = asyncio.Event(), asyncio.Event()
        resume = Transfers.resume

        async def slowly(self: Transfers, claimed: ClaimedTransfer, progress: Progress) -> TransferResult:
            is_resumed.set()
            await may_go_on.wait()
            return await resume(self, claimed, progress)

        monkeypatch.setattr(Transfers, "resume", slowly)
        work = asyncio.create_task(site.transfers(await site.process("first")).take_over())
        await asyncio.wait_for(is_resumed.wait(), 30)
        await site.process("second")
        claimed = await TransferRecords(site.api.database).claim_orphan(owner="second")
        assert claimed is not None
        assert claimed.transfer.source == site.path("b")
        may_go_on.set()
        assert await work == 1
        states = await site.api.database.fetch("select state from storage_operations order by path")
        assert [row["state"] for row in states] == ["done", "running"]

    @pytest.mark.parametrize("error", [OperationInProgress("Lost."), DatabaseUnavailable()])
    async def test_operation_stays_open_if_its_transfer_may_still_be_completed(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, error: QueryServerError
    ) -> None:
        await site.moved_by("dead", "a")

        async def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(Transfers, "resume", fail)
        transfers = site.transfers(await site.process("first"))
        if isinstance(error, DatabaseUnavailable):
            with pytest.raises(DatabaseUnavailable):
                await transfers.take_over()
        else:
            assert await transfers.take_over() == 1
        assert await site.api.database.value("select state from storage_operations") == "running"

    @pytest.mark.parametrize("claim", ["write", "upload", "part", "operation", "transfer"])
    async def test_process_sends_a_late_heartbeat_before_it_claims(self, site: Site, claim: str) -> None:
        """Otherwise, other processes could take over immediately what it claims."""
        now, database = 0.0, site.api.database
        process = await site.process("first", clock=lambda: now)
        uploads = PartUploads(database, process)
        upload, path = await site.open_upload(uploads), site.path("new.csv")
        now += LEASE.total_seconds()
        await site.last_heartbeat(process, 3600)
        if claim == "write":
            write = UnfinishedWrite(uuid4(), path.parent, path.name, site.ana.acting)
            await UnfinishedWrites(database, process).begin(write, is_running=True)
        elif claim == "upload":
            assert await uploads.claim(upload.id)
        elif claim == "part":
            assert await uploads.claim_part(upload.id, 0)
        elif claim == "operation":
            may_end = asyncio.Event()

            async def wait(_: Progress) -> None:
                await may_end.wait()

            operations = LongOperations(OperationRecords(database), process)
            async with operations.running():
                await operations.run(site.ana, Work("k", "p", wait, lambda _: {"status": 0}), wait_s=0)
                may_end.set()
        else:
            assert await site.transfers(process).claim_unfinished(1, TransferKind.MOVE, path, [path]) is None
        assert await database.value("select alive_until > now() from instances where id = 'first'")


class Body:
    """A request body that arrives in two pieces. The second one arrives once `may_end` is set."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self._pieces = first, second
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def pieces(self) -> AsyncGenerator[bytes]:
        yield self._pieces[0]
        self.has_begun.set()
        await self.may_end.wait()
        yield self._pieces[1]


async def body(content: bytes) -> AsyncGenerator[bytes]:
    yield content


@dataclass(frozen=True, slots=True)
class TwoServers:
    """An upload that two servers receive. The first one is paused in the meantime, until the other has claimed it."""

    site: Site
    client_uuid: UUID
    paused: Ownership
    first: PartUploading
    second: PartUploading

    clock: Clock

    async def pause(self) -> None:
        """Let the first server count as dead. Its next check sends a heartbeat."""
        await self.site.last_heartbeat(self.paused, 3600)
        self.clock.now += LEASE.total_seconds()

    def request(self, index: int = 0, *, parts: int = 2) -> PartRequest:
        directory = self.site.path("f.csv").parent
        offset, part_bytes = 4 * index, 4 if parts else None
        return PartRequest(self.client_uuid, directory, "f.csv", index, offset, 8, parts, part_bytes, overwrite=True)

    def written(self) -> bytes:
        return (self.site.shared / "f.csv").read_bytes()


class TestUploadByTwoServers:
    @pytest.fixture
    async def servers(self, site: Site) -> AsyncIterator[TwoServers]:
        clock, storage, database = Clock(), site.api.services.storage, site.api.database
        paused, heir = await site.process("paused", clock), await site.process("heir")
        rules = UploadRules(storage.stores, ExtensionRules())
        with ThreadPoolExecutor(2) as threads:
            first, second = [
                PartUploading(
                    storage.stores, PartUploads(database, one), rules, storage.orphans, storage.audit, threads
                )
                for one in (paused, heir)
            ]
            yield TwoServers(site, uuid4(), paused, first, second, clock)

    @pytest.mark.parametrize("beats", [True, False])
    async def test_paused_server_does_not_overwrite_a_part_that_another_has_received(
        self, servers: TwoServers, beats: bool
    ) -> None:
        ana, old = servers.site.ana, Body(b"o", b"ld!")
        await servers.second.receive(ana, servers.request(1), body(b"TAIL"))
        first = asyncio.create_task(servers.first.receive(ana, servers.request(0), old.pieces()))
        await asyncio.wait_for(old.has_begun.wait(), 30)
        await servers.pause()
        await servers.second.receive(ana, servers.request(0), body(b"NEW!"))
        if beats:
            await servers.paused.beat(Role.SERVER, Load())
        old.may_end.set()
        with pytest.raises(QueryServerError, match="took over part 0"):
            await first
        await servers.second.complete(ana, servers.client_uuid, CompletionRequest())
        assert servers.written() == b"NEW!TAIL"

    async def test_paused_server_does_not_replace_a_whole_file_that_another_has_received(
        self, servers: TwoServers
    ) -> None:
        ana, old = servers.site.ana, Body(b"old", b" file")
        request = servers.request(parts=0)
        first = asyncio.create_task(servers.first.receive(ana, request, old.pieces()))
        await asyncio.wait_for(old.has_begun.wait(), 30)
        await servers.pause()
        received = await servers.second.receive(ana, request, body(b"new file"))
        assert received.result is not None
        old.may_end.set()
        with pytest.raises(QueryServerError, match="took over part 0"):
            await first
        assert servers.written() == b"new file"
        assert (await servers.second.state(ana, servers.client_uuid)).result == received.result

    async def test_paused_server_does_not_write_the_file_of_an_upload_that_was_discarded(
        self, servers: TwoServers
    ) -> None:
        """The other server claims the upload, but not its part."""
        ana, old = servers.site.ana, Body(b"old", b" file")
        first = asyncio.create_task(servers.first.receive(ana, servers.request(parts=0), old.pieces()))
        await asyncio.wait_for(old.has_begun.wait(), 30)
        await servers.pause()
        await servers.second.discard(ana, servers.client_uuid)
        old.may_end.set()
        with pytest.raises(QueryServerError, match="took over part 0"):
            await first
        assert list(servers.site.shared.iterdir()) == []

    async def test_paused_server_that_was_not_replaced_receives_the_rest(self, servers: TwoServers) -> None:
        ana, slow = servers.site.ana, Body(b"new", b" file")
        first = asyncio.create_task(servers.first.receive(ana, servers.request(parts=0), slow.pieces()))
        await asyncio.wait_for(slow.has_begun.wait(), 30)
        await servers.pause()
        slow.may_end.set()
        assert (await first).result is not None
        assert servers.written() == b"new file"

    @pytest.mark.parametrize("is_same", [True, False])
    async def test_paused_server_neither_joins_nor_discards_parts_that_another_has_joined(
        self, servers: TwoServers, monkeypatch: pytest.MonkeyPatch, is_same: bool
    ) -> None:
        ana, digest = servers.site.ana, b"x" * 32
        for index, content in enumerate((b"new ", b"file")):
            await servers.second.receive(ana, servers.request(index), body(content))
        is_reading, may_end = asyncio.Event(), asyncio.Event()

        async def sha256_of(content: AsyncGenerator[bytes], _: object) -> bytes:
            await content.aclose()
            is_reading.set()
            await may_end.wait()
            return digest if is_same else b"y" * 32

        monkeypatch.setattr(part_uploads, "sha256_of", sha256_of)
        first = asyncio.create_task(
            servers.first.complete(ana, servers.client_uuid, CompletionRequest(), sha256=digest)
        )
        await asyncio.wait_for(is_reading.wait(), 30)
        await servers.pause()
        joined = await servers.second.complete(ana, servers.client_uuid, CompletionRequest())
        assert joined.result is not None
        may_end.set()
        with pytest.raises(QueryServerError, match="took over this upload"):
            await first
        assert servers.written() == b"new file"
        assert (await servers.second.state(ana, servers.client_uuid)).result == joined.result
