"""The field `wait`, the call `storage/operation`, and takeovers from processes that died (Contract storage 7.5,
7.6).
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Caller, until
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import StoreFolder, World, memory_stores, open_world
from tests.fakes.storage_faults import FaultyFileSystem, FaultyStorage

from queryserver.errors.files import OperationInProgress, StorageError
from queryserver.files.access import Caller as StoreCaller
from queryserver.files.model import (
    FileStatus,
    KeyState,
    Scheme,
    StorageUser,
    Transfer,
    TransferClaim,
    TransferKey,
    TransferKind,
    TransferState,
)
from queryserver.files.moves import Transfers, final_body
from queryserver.files.operations import Progress
from queryserver.files.repository import TRANSFERS, OperationRecords, TransferRecords
from queryserver.files.transfer_steps import TransferSteps
from queryserver.files.upload_repository import UnfinishedWrites
from queryserver.identity.model import User
from queryserver.platform.logs import AUDIT_LOGGER, FIELDS
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role


class Gate(FaultyFileSystem):
    """A store whose copies or deletions block from the given call number on, until the gate opens."""

    def __init__(self, inner: FaultyFileSystem, call: str, number: int = 1) -> None:
        super().__init__(inner.inner)
        self.call, self.number, self.passed = call, number, 0
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    def as_user(self, user: StorageUser) -> FaultyStorage:
        return _Gated(self.inner.as_user(user), self)

    async def pass_through(self, call: str) -> None:
        if call != self.call:
            return
        self.passed += 1
        if self.passed >= self.number:
            self.reached.set()
            await self.open.wait()


class _Gated(FaultyStorage):
    def __init__(self, inner: Any, gate: Gate) -> None:
        super().__init__(inner)
        self.gate = gate

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        await self.gate.pass_through("copy")
        return await self.inner.copy(source, target, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> None:
        await self.gate.pass_through("delete")
        await self.inner.delete(path, recursive=recursive)


@pytest.fixture
async def gate(world: World) -> AsyncIterator[Gate]:
    store = world.faulty[Scheme.S3A]
    honest, gate = store.inner, Gate(store, "copy")
    store.inner = gate
    yield gate
    gate.open.set()
    store.inner = honest


async def ended(caller: Caller, operation_id: str) -> dict[str, Any]:
    """Wait for the operation's end; return its last status."""
    body: dict[str, Any] = {}

    async def has_ended() -> bool:
        body.update((await caller.get("storage/operation", id=operation_id)).json())
        return body["state"] != "running"

    await until(has_ended)
    return body


def three(folder: StoreFolder) -> None:
    folder.put(d__a=b"a", d__b=b"b", d__sub__c=b"c")


@pytest.mark.storage(70)
@pytest.mark.parametrize("call", ["move", "copy", "rename"])
async def test_call_without_waiting_returns_its_body_later(eva, world, gate, call):
    gate.reached.clear()
    gate.open.clear()
    folder = world.folder(Scheme.S3A)
    three(folder)
    started = await eva.post(f"storage/{call}?wait=0", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert started.status_code == 202
    body = started.json()
    assert (body["status"], body["path"], body["state"]) == (0, folder.at("e"), "running")
    await gate.reached.wait()
    running = (await eva.get("storage/operation", id=body["operation_id"])).json()
    assert (running["state"], running["done"], running["total"], running["result"]) == ("running", 0, 3, None)
    gate.open.set()
    end = await ended(eva, body["operation_id"])
    assert (end["state"], end["done"], end["total"]) == ("done", 3, 3)
    other = world.folder(Scheme.S3A)
    three(other)
    waited = await eva.post(f"storage/{call}", src_path=other.at("d"), dest_path=other.at("e"))
    assert end["result"] == {
        key: value if key == "status" else value.replace(other.path, folder.path)
        for key, value in waited.json().items()
    }


async def test_short_operation_within_its_wait_returns_directly(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(x=b"x")
    answer = await eva.post("storage/rename", src_path=folder.at("x"), dest_path="y", wait="600")
    assert (answer.status_code, answer.json()["path"]) == (200, folder.at("y"))


async def test_failure_after_the_response_is_reported_with_its_error_body(
    eva: Caller, world: World, gate: Gate
) -> None:
    folder = world.folder(Scheme.S3A)
    three(folder)
    started = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"), wait="0")
    await gate.reached.wait()
    world.fail(Scheme.S3A, "copy", StorageError("Broken."))
    folder.put_at("e/a", b"foreign")
    gate.open.set()
    end = await ended(eva, started.json()["operation_id"])
    assert end["state"] == "failed"
    assert (end["result"]["status"], end["result"]["details"]) == (-1, {"rolled_back": True})
    assert end["result"]["code"] == "already_exists"
    assert folder.all()["e/a"] == b"foreign"


async def test_validation_errors_are_returned_immediately(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.S3A)
    answer = await eva.post("storage/move", src_path=folder.at("none"), dest_path=folder.at("e"), wait="0")
    assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found")


async def test_ozone_copy_operation_returns_its_text(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.OFS)
    folder.put(large=b"x" * 101)
    started = await eva.post("storage/copy", src_path=folder.at("large"), dest_path=folder.at("e"), wait="0")
    end = await ended(eva, started.json()["operation_id"])
    assert end["result"] == f"Following files were skipped due to file size limitations:\n- {folder.at('large')}"


async def test_bulk_call_can_continue_in_the_background(eva: Caller, world: World, gate: Gate) -> None:
    folder = world.folder(Scheme.S3A)
    folder.put(a=b"a", into=None)
    sources = [folder.at("a"), folder.at("none")]
    started = await eva.post("storage/copy/bulk", source_path=sources, destination_path=folder.at("into"), wait="0")
    assert (started.status_code, started.json()["path"]) == (202, folder.at("into"))
    gate.open.set()
    end = await ended(eva, started.json()["operation_id"])
    assert (end["state"], end["done"], end["total"]) == ("failed", 2, 2)
    assert end["result"]["code"] == "partial_failure"
    assert [end["result"]["results"][source]["status"] for source in sources] == [0, -1]


@pytest.mark.security("S9", "T20")
async def test_operations_of_other_users_and_unknown_ids_are_not_found(eva: Caller, world: World, gate: Gate) -> None:
    folder = world.folder(Scheme.S3A)
    three(folder)
    started = await eva.post("storage/move", src_path=folder.at("d"), dest_path=folder.at("e"), wait="0")
    bob = await world.api.user("bob")
    admin = await world.api.user("admin", admin=True)
    for caller in (bob, admin):
        answer = await caller.get("storage/operation", id=started.json()["operation_id"])
        assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")
    for wrong in ("x", "../x", "00000000-0000-0000-0000-000000000000"):
        answer = await eva.get("storage/operation", id=wrong)
        assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")
    answer = await eva.get("storage/operation")
    assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")


async def test_identical_call_is_refused_while_the_first_runs(eva: Caller, world: World, gate: Gate) -> None:
    folder = world.folder(Scheme.S3A)
    three(folder)
    asked = {"src_path": folder.at("d"), "dest_path": folder.at("e")}
    started = await eva.post("storage/move", **asked, wait="0")
    await gate.reached.wait()
    again = await eva.post("storage/move", **asked)
    assert (again.status_code, again.json()["code"]) == (409, "operation_in_progress")
    gate.open.set()
    assert (await ended(eva, started.json()["operation_id"]))["state"] == "done"


async def test_disconnected_client_does_not_stop_the_operation(eva: Caller, world: World, gate: Gate) -> None:
    folder = world.folder(Scheme.S3A)
    three(folder)
    call = asyncio.create_task(eva.post("storage/move", src_path=folder.at("d"), dest_path=folder.at("e")))
    await gate.reached.wait()
    call.cancel()
    await asyncio.wait({call})
    gate.open.set()
    await until(lambda: not any(path == "d" or path.startswith("d/") for path in folder.all()))
    assert folder.all() == {"e": None, "e/a": b"a", "e/b": b"b", "e/sub": None, "e/sub/c": b"c"}


@dataclass
class Held:
    """A process whose second copy or deletion is blocked, as if the process had died."""

    open_second: Callable[[], AbstractAsyncContextManager[World]]
    gate: Gate
    eva: Caller
    folder: StoreFolder
    before: Mapping[str, bytes | None]
    asked: Mapping[str, str]
    started: Mapping[str, Any]

    @asynccontextmanager
    async def second(self) -> AsyncGenerator[tuple[World, Caller]]:
        """Open another application on the same database and stores. Yields the application and a caller for the same
        user.
        """
        async with self.open_second() as second:
            yield second, Caller(second.api, self.eva.username, self.eva.headers)


@asynccontextmanager
async def held(tmp_path: Path, database_dsn: str, call: str, stage: str) -> AsyncGenerator[Held]:
    # No process sends a second heartbeat during the test.
    rare = {"desktop": {"task_server": {"heartbeat_s": 3600}}, "tables": {"editor": {"lease_timeout_s": 10_800}}}
    memory, settings = memory_stores(), storage_settings(tmp_path, database_dsn, **rare)
    open_one = partial(open_world, settings, tmp_path / "files", memory)
    async with open_one() as first:
        gate = Gate(first.faulty[Scheme.S3A], stage, number=2)
        first.faulty[Scheme.S3A].inner = gate
        eva = await first.api.user("ana")
        folder = first.folder(Scheme.S3A)
        three(folder)
        before, asked = folder.all(), {"src_path": folder.at("d"), "dest_path": folder.at("e")}
        started = (await eva.post(call, **asked, wait="0")).json()
        await gate.reached.wait()
        yield Held(open_one, gate, eva, folder, before, asked, started)


async def let_others_die(world: World) -> None:
    """Let the last heartbeats of all other processes become too old."""
    await world.api.database.execute(
        "update instances set alive_until = now() - interval '1 s' where id <> $1", world.api.services.ownership.id
    )


@pytest.mark.storage(65, 66)
@pytest.mark.parametrize("stage", ["copy", "delete"])
async def test_another_process_completes_the_work_of_a_dead_process(
    tmp_path: Path, database_dsn: str, stage: str
) -> None:
    """Both processes are applications in this process. The first one blocks at its second copy or deletion, as if it
    had died.
    """
    async with held(tmp_path, database_dsn, "storage/move", stage) as first:
        folder, asked = first.folder, first.asked
        async with first.second() as (second, heir):
            busy = await heir.post("storage/move", **asked)
            assert (busy.status_code, busy.json()["code"]) == (409, "operation_in_progress")
            await let_others_die(second)
            await second.api.services.storage.transfers.take_over()
            end = (await heir.get("storage/operation", id=first.started["operation_id"])).json()
            if stage == "copy":
                assert (end["state"], end["result"]["details"]) == ("failed", {"rolled_back": True})
                assert folder.all() == first.before
                assert (await heir.post("storage/move", **asked)).status_code == 200
            else:
                assert (end["state"], end["result"]["path"]) == ("done", folder.at("e"))
            moved = folder.all()
            assert moved == {"e": None, "e/a": b"a", "e/b": b"b", "e/sub": None, "e/sub/c": b"c"}
            # The first process resumes. It no longer owns the transfer, so it must not undo anything.
            first.gate.open.set()
            await asyncio.sleep(0.3)
            assert folder.all() == moved


@pytest.mark.security("S15")
@pytest.mark.parametrize(("stage", "outcome"), [("copy", "storage_error"), ("delete", "ok")])
async def test_takeover_is_audited_and_incomplete_files_are_recorded(
    tmp_path: Path, database_dsn: str, caplog: pytest.LogCaptureFixture, stage: str, outcome: str
) -> None:
    async with held(tmp_path, database_dsn, "storage/move", stage) as first:
        folder = first.folder
        async with first.second() as (second, heir):
            await let_others_die(second)
            # The dead process's own records are deleted, so that only the records of the takeover remain.
            await second.api.database.execute("delete from unfinished_writes")
            caplog.clear()
            with audited(caplog):
                await second.api.services.storage.transfers.take_over()
            assert events(caplog, heir) == [("storage.move", heir.username, folder.at("d"), outcome)]
            noted = await second.api.database.fetch("select directory || '/' || name as path from unfinished_writes")
            # These files were being copied concurrently when the process died.
            begun = {folder.inner(f"e/{name}") for name in ("a", "b", "sub/c")}
            assert {row["path"] for row in noted} == (begun if stage == "copy" else set())


@pytest.mark.parametrize("stage", ["copy", "delete"])
async def test_identical_call_takes_over_from_a_dead_process(tmp_path: Path, database_dsn: str, stage: str) -> None:
    async with held(tmp_path, database_dsn, "storage/rename", stage) as first:
        folder, asked = first.folder, first.asked
        async with first.second() as (second, heir):
            await let_others_die(second)
            again = await heir.post("storage/rename", **asked)
            assert (again.status_code, again.json()["path"]) == (200, folder.at("e"))
            assert folder.all() == {"e": None, "e/a": b"a", "e/b": b"b", "e/sub": None, "e/sub/c": b"c"}


@pytest.fixture
def no_takeovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls take over transfers of dead processes, but no application does so in the background."""

    async def none(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(TransferRecords, "claim_orphan", none)


@pytest.mark.usefixtures("no_takeovers")
@pytest.mark.storage(65)
async def test_identical_call_waits_until_the_last_file_of_the_dead_process_can_be_removed(eva: Caller, world: World):
    """A recent file with a reserved name may be an upload in progress. A file becomes old if nothing is written to
    it.
    """
    folder = world.folder(Scheme.FILE)
    folder.put(d__a=b"a", e=None)
    left = folder.directory / "e" / f"._qs_upload_{'0' * 32}"
    left.write_bytes(b"half")
    user_id = await world.api.database.value("select id from users where username = $1", eva.username)
    stores, records = world.api.services.storage.stores, TransferRecords(world.api.database)
    caller = StoreCaller.of(User(user_id, eva.username, is_admin=True))
    source, target = (stores.location(caller, stores.path(folder.at(name))) for name in ("d", "e"))
    transfer = Transfer(user_id, caller.acting, TransferKind.COPY, source.path, target.path)
    claimed = await records.begin(transfer, owner="dead")
    assert claimed is not None
    made = TransferKey(0, replace(await source.storage.stat(source.path.path), path=""), KeyState.COPIED)
    assert await records.add_keys(claimed.claim, [made])
    asked = {"src_path": folder.at("d"), "dest_path": folder.at("e")}
    early = await eva.post("storage/copy", **asked)
    assert (early.status_code, early.json()["code"]) == (409, "operation_in_progress")
    os.utime(left, (time.time() - 100,) * 2)
    # As the heartbeat does a lease later, because the process no longer works on the transfer.
    assert await world.api.database.execute(TRANSFERS.expire, *await owned_transfer(world)) == 1
    again = await eva.post("storage/copy", **asked)
    assert (again.status_code, again.json()["path"]) == (200, folder.at("e"))
    assert folder.all() == {"d": None, "d/a": b"a", "e": None, "e/a": b"a"}


@pytest.mark.parametrize(("owner", "lease"), [("killed", "infinity"), (None, "2026-01-01")])
async def test_operation_without_a_process_has_failed(eva: Caller, world: World, owner: str | None, lease: str) -> None:
    """Processes of older versions have no owner in the row, but a lease that expires."""
    await world.api.database.execute("delete from storage_operations")
    await world.api.database.execute(
        """insert into storage_operations (id, user_id, kind, path, state, owner, lease_until)
        select '11111111-2222-3333-4444-555555555555', id, 'storage.delete', '/x', 'running', $2,
            $3::text::timestamptz
        from users where username = $1""",
        eva.username,
        owner,
        lease,
    )
    await world.api.services.storage.operations.sweep()
    body = (await eva.get("storage/operation", id="11111111-2222-3333-4444-555555555555")).json()
    assert (body["state"], body["result"]["status"], body["result"]["code"]) == ("failed", -1, "internal_error")


async def test_unfinished_work_is_left_to_other_processes_on_shutdown(tmp_path: Path, database_dsn: str) -> None:
    async with held(tmp_path, database_dsn, "storage/copy", "copy") as first:
        pass
    async with first.second() as (second, heir):
        await second.api.services.storage.transfers.take_over()
        assert first.folder.all() == first.before
        end = await ended(heir, first.started["operation_id"])
        assert (end["state"], end["result"]["details"]) == ("failed", {"rolled_back": True})


@contextmanager
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Capture audit events until the context exits."""
    logger = logging.getLogger(AUDIT_LOGGER)
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger=AUDIT_LOGGER):
            yield
    finally:
        logger.removeHandler(caplog.handler)


def events(caplog: pytest.LogCaptureFixture, caller: Caller) -> list[tuple[str, str, str, str]]:
    """Return the different audit events that a user has caused, as operation, user, path and outcome."""
    found = [
        (record.getMessage(), fields["user"], fields["path"], fields["outcome"])
        for record in caplog.records
        if record.name == AUDIT_LOGGER and (fields := getattr(record, FIELDS))["user"] == caller.username
    ]
    return list(dict.fromkeys(found))


@pytest.mark.security("S15")
async def test_every_move_and_refusal_is_audited(eva, world, caplog):
    folder = world.folder(Scheme.S3A)
    folder.put(a=b"a", b=b"b")
    with audited(caplog):
        await eva.post("storage/move", src_path=folder.at("a"), dest_path=folder.at("c"))
        await eva.post("storage/copy", src_path=folder.at("none"), dest_path=folder.at("d"))
        world.fail(Scheme.S3A, "copy", StorageError("Broken."))
        await eva.post("storage/rename", src_path=folder.at("b"), dest_path="d")
    assert events(caplog, eva) == [
        ("storage.move", eva.username, folder.at("a"), "ok"),
        ("storage.copy", eva.username, folder.at("none"), "path_not_found"),
        ("storage.rename", eva.username, folder.at("b"), "storage_error"),
    ]


class PausedProcess:
    """A process that is paused by the test after its first heartbeat."""

    def __init__(self, world: World) -> None:
        self.now = 0.0
        self.is_checked = asyncio.Event()
        self.ownership = Ownership(world.api.database, lease=timedelta(hours=1), clock=lambda: self.now)
        self._world = world

    async def transfers(self) -> Transfers:
        await self.ownership.beat(Role.SERVER, Load())
        is_checked = self.is_checked

        class Records(TransferRecords):
            async def require(self, claim: TransferClaim) -> None:
                await super().require(claim)
                is_checked.set()

        database, storage = self._world.api.database, self._world.api.services.storage
        return Transfers(
            Records(database),
            OperationRecords(database),
            UnfinishedWrites(database, self.ownership),
            storage.stores,
            storage.audit,
            final_body,
            self.ownership,
        )


@pytest.mark.usefixtures("no_takeovers")
async def test_process_that_lost_its_transfer_stops_without_rollback(eva, world, gate):
    folder = world.folder(Scheme.S3A)
    three(folder)
    user_id = await world.api.database.value("select id from users where username = $1", eva.username)
    caller = StoreCaller.of(User(user_id, eva.username, is_admin=True))
    stores = world.api.services.storage.stores
    source, target = (stores.location(caller, stores.path(folder.at(name))) for name in ("d", "e"))
    transfer = Transfer(user_id, caller.acting, TransferKind.MOVE, source.path, target.path)
    entry = await source.storage.stat(source.path.path)
    paused = PausedProcess(world)
    transfers = await paused.transfers()
    loser = asyncio.create_task(transfers.begin(transfer, (source, target), entry, Progress()))
    await gate.reached.wait()
    digests = [transfer.digest]
    records = TransferRecords(world.api.database)
    heir = world.api.services.ownership.id
    assert await records.claim_same(digests, owner=heir) == (True, None)
    paused.now += 3601
    await world.api.database.execute("update instances set alive_until = now() where id = $1", paused.ownership.id)
    _, claimed = await records.claim_same(digests, owner=heir)
    assert claimed is not None
    assert (claimed.claim.owner, claimed.state) == (heir, TransferState.COPYING)
    with pytest.raises(OperationInProgress):
        await loser
    assert {path for path in folder.all() if path[0] == "d"} == {"d", "d/a", "d/b", "d/sub", "d/sub/c"}
    # The other process now owns the entries that the first process created.
    assert {"e", "e/sub"} <= set(folder.all())
    unfinished = UnfinishedWrites(world.api.database, world.api.services.ownership)
    await TransferSteps(records, unfinished, claimed, (source, target), Progress()).roll_back()
    assert not any(path[0] == "e" for path in folder.all())


async def test_process_that_was_paused_continues_if_no_other_has_taken_over(
    eva: Caller, world: World, gate: Gate
) -> None:
    folder = world.folder(Scheme.S3A)
    three(folder)
    user_id = await world.api.database.value("select id from users where username = $1", eva.username)
    caller = StoreCaller.of(User(user_id, eva.username, is_admin=True))
    stores = world.api.services.storage.stores
    source, target = (stores.location(caller, stores.path(folder.at(name))) for name in ("d", "e"))
    transfer = Transfer(user_id, caller.acting, TransferKind.COPY, source.path, target.path)
    entry = await source.storage.stat(source.path.path)
    paused = PausedProcess(world)
    transfers = await paused.transfers()
    work = asyncio.create_task(transfers.begin(transfer, (source, target), entry, Progress()))
    await gate.reached.wait()
    paused.now += 3601
    await asyncio.wait_for(paused.is_checked.wait(), 60)
    gate.open.set()
    assert (await work).target == target.path


async def owned_transfer(world: World) -> tuple[str, str, int]:
    """Return the owner, key and fence of the only transfer that the application owns."""
    owner = world.api.services.ownership.id
    (row,) = await world.api.database.fetch(TRANSFERS.owned_rows, owner)
    return owner, row["key"], row["fence"]
