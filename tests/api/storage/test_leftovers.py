"""The clean-up of uploads that were never finished (Contract storage 9.1.4, 9.2.6; platform 12.2)."""

import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.cases import each
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem, MemoryStorage
from tests.fakes.storage_faults import FaultyFileSystem

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.places import Caller as Acting
from queryserver.files.protocol import PartPlan, StorageTraits
from queryserver.files.upload_repository import OrphanSweep, PartUploads, UnfinishedWrites, attempts
from queryserver.identity.model import User

DAY_S = 24 * 3600


async def send_part(
    caller: Caller, dest: str, *, index: int = 0, uuid: str | None = None
) -> tuple[str, httpx.Response]:
    uuid = uuid or str(uuid4())
    query = {
        "qquuid": uuid,
        "qqpartindex": index,
        "qqpartbyteoffset": 10 * index,
        "qqtotalfilesize": 20,
        "qqtotalparts": 2,
        "qqchunksize": 10,
        "qqfilename": "a.bin",
        "dest": dest,
    }
    answer = await caller.send("POST", "storage/upload/chunks", params=query, files={"file": ("x", b"x" * 10)})
    return uuid, answer


async def turn_clock(api: Api, hours: int = 25) -> None:
    """As if everything had happened so long ago."""
    await api.database.execute(f"update part_uploads set expires_at = expires_at - interval '{hours} hours'")
    await api.database.execute(f"update unfinished_writes set touched_at = touched_at - interval '{hours} hours'")


def everything(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def age(directory: Path, seconds: float) -> None:
    for entry in directory.iterdir():
        os.utime(entry, (time.time() - seconds,) * 2)


class TestExpiry:
    async def test_an_upload_expires_a_day_after_its_last_part(self, tmp_path: Path, database_dsn: str):
        shared = tmp_path / "files" / "shared"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, first = await send_part(ana, "file:///shared")
            assert first.status_code == 200, first.text
            await turn_clock(api, 23)
            await send_part(ana, "file:///shared", index=1, uuid=uuid)
            await turn_clock(api, 23)
            counts = await api.services.retention.clean_up()
            assert counts["expired uploads"] == 0
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).json()["offset"] == 20
            await turn_clock(api, 2)
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).status_code == 404
            announced = await api.services.retention.clean_up(dry_run=True)
            assert announced["expired uploads"] == 1
            assert everything(shared) != []
            counts = await api.services.retention.clean_up()
            assert (counts["expired uploads"], counts["interrupted uploads"]) == (1, 1)
            assert everything(shared) == []
            assert await api.database.value("select count(*) from part_uploads") == 0
            assert await api.database.value("select count(*) from unfinished_writes") == 0

    async def test_parts_of_a_deleted_user_go_at_once(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await send_part(ana, "file:///shared")
            await api.database.execute("delete from users where username = $1", ana.username)
            assert (await api.services.retention.clean_up())["expired uploads"] == 1
        assert everything(tmp_path / "files" / "shared") == []

    async def test_the_same_number_begins_anew_after_expiry(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, _ = await send_part(ana, "file:///shared")
            await turn_clock(api)
            _, answer = await send_part(ana, "file:///shared", index=1, uuid=uuid)
            assert answer.json()["received"] == [[10, 20]]
            assert (await api.services.retention.clean_up())["expired uploads"] == 1
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).json()["received"] == [[10, 20]]
            _, answer = await send_part(ana, "file:///shared", uuid=uuid)
            assert answer.json()["offset"] == 20
            assert (await ana.post("storage/upload/complete", qquuid=uuid)).status_code == 201


class TestSweeping:
    async def test_only_old_temporary_files_of_interrupted_writes_go(self, tmp_path: Path, database_dsn: str):
        shared = tmp_path / "files" / "shared"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await ana.send("POST", "storage/upload/file?dest=file:///shared", files={"file": ("kept", b"x")})
            (shared / f"._qs_upload_{'0' * 32}").write_bytes(b"old")
            age(shared, DAY_S + 10)
            (shared / f"._qs_upload_{'1' * 32}").write_bytes(b"young")
            await self._interrupted(api, ana)
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 0
            await turn_clock(api)
            assert (await api.services.retention.clean_up(dry_run=True))["interrupted uploads"] == 1
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 1
            assert everything(shared) == [f"._qs_upload_{'1' * 32}", "kept"]
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 0

    async def test_a_write_gives_signs_of_life_so_that_its_file_is_old_when_its_record_is(
        self, tmp_path: Path, database_dsn: str
    ):
        """A record that ended before its file is old enough would leave the file for ever."""
        touched = "select touched_at > now() - interval '1 minute' from unfinished_writes"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            stores = api.services.storage.stores
            orphans = OrphanSweep(
                stores,
                UnfinishedWrites(api.database),
                PartUploads(api.database),
                touch_every=timedelta(milliseconds=20),
            )
            async with orphans.recorded(Acting.of(User(1, "ana")), stores.path("file:///shared/a")):
                await turn_clock(api, 30)
                async for _ in attempts(30):
                    if await api.database.value(touched):
                        break
                else:
                    pytest.fail("It gave no sign of life.")
            assert await api.database.value("select count(*) from unfinished_writes") == 0

    async def test_a_directory_with_an_open_upload_is_left_alone(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, _ = await send_part(ana, "file:///shared")
            await self._interrupted(api, ana)
            await api.database.execute("update unfinished_writes set touched_at = now() - interval '3 days'")
            age(tmp_path / "files" / "shared", 3 * DAY_S)
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 0
            await send_part(ana, "file:///shared", index=1, uuid=uuid)
            assert (await ana.post("storage/upload/complete", qquuid=uuid)).status_code == 201
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 1

    @each(("error", "left"), [(StorageUnavailable("It is away."), 1), (PermissionDenied("Not any more."), 0)])
    async def test_a_store_that_is_away_is_asked_again(
        self, tmp_path: Path, database_dsn: str, error: Exception, left: int
    ):
        store = _Unsweepable(error)
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
            ana = await api.user("ana")
            await send_part(ana, "file:///shared")
            await turn_clock(api)
            store.fails = True
            await api.services.retention.clean_up()
            for table in ("part_uploads", "unfinished_writes"):
                assert await api.database.value(f"select count(*) from {table}") == left
            store.fails = False
            await api.services.retention.clean_up()
            for table in ("part_uploads", "unfinished_writes"):
                assert await api.database.value(f"select count(*) from {table}") == 0

    async def test_of_unseen_uploads_only_old_ones_of_noted_files_go(self, tmp_path: Path, database_dsn: str):
        """In an object store they may belong to another program."""
        store = MemoryFileSystem(Scheme.S3A, StorageTraits(container_levels=1), LIKE_S3, containers=["lake"])
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            now = datetime.now(UTC)
            store.tree.unseen += [("lake/mine", now), ("lake/mine", now - timedelta(hours=25))]
            store.tree.unseen += [("lake/other", now - timedelta(days=9))]
            await api.database.execute(
                """insert into unfinished_writes (id, scheme, directory, name, username)
                values ($1, 's3a', 'lake', 'mine', $2)""",
                uuid4(),
                ana.username,
            )
            await turn_clock(api)
            assert (await api.services.retention.clean_up())["interrupted uploads"] == 1
            assert store.tree.unseen == [("lake/mine", now), ("lake/other", now - timedelta(days=9))]

    async def _interrupted(self, api: Api, caller: Caller) -> None:
        """What a crash leaves in the database."""
        await api.database.execute(
            "insert into unfinished_writes (id, scheme, directory, username) values ($1, 'file', 'shared', $2)",
            uuid4(),
            caller.username,
        )


NOTED = [
    ("mkdir", {"path": "/area", "name": "new"}, "mkdir", "new"),
    ("touch", {"path": "/area", "name": "new"}, "write", "new"),
    ("save", {"path": "/area/old", "contents": "text"}, "write", "old"),
    ("copy", {"src_path": "/area/old", "dest_path": "/area/copy"}, "copy", "copy"),
    ("rename", {"src_path": "/area/new_one", "dest_path": "old", "overwrite": "true"}, "rename", "old"),
]


class TestNotes:
    async def test_of_a_tree_each_file_is_noted_whose_copy_the_store_broke_off(self, tmp_path: Path, database_dsn: str):
        """The note of the tree names its directory only, and an object store keeps what is unseen for each file."""
        traits = StorageTraits(lists_in_order=True, container_levels=1)
        store = FaultyFileSystem(MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["lake"]))
        inner = store.as_user(StorageUser("hdfs"))
        await inner.write("lake/d/whole", _body(b"x"), overwrite=False)
        await inner.write("lake/d/broken", _body(b"x"), overwrite=False)
        store.failures["copy"] = lambda _, path: StorageUnavailable("It is away.") if "broken" in path else None
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            copied = await ana.post("storage/copy", src_path="s3a://lake/d", dest_path="s3a://lake/e")
            assert (copied.status_code, copied.json()["details"]) == (503, {"rolled_back": True})
            noted = await api.database.fetch("select directory || '/' || name as path from unfinished_writes")
            assert {row["path"] for row in noted} == {"lake/e", "lake/e/broken"}

    @pytest.mark.storage(59)
    @each(("call", "fields", "step", "name"), NOTED)
    async def test_what_is_written_is_noted_until_it_is_there(
        self, tmp_path: Path, database_dsn: str, call: str, fields: dict[str, str], step: str, name: str
    ):
        """So that the clean-up finds what a crash leaves, an old file that stepped aside too."""
        traits = StorageTraits(lists_in_order=True, acts_as_user=True)
        store = FaultyFileSystem(MemoryFileSystem(Scheme.HDFS, traits, LIKE_HDFS, containers=["area"]))
        inner = store.as_user(StorageUser("hdfs"))
        for old in ("old", "new_one"):
            await inner.write(f"area/{old}", _body(b"x"), overwrite=False)
        store.failures[step] = StorageUnavailable("It is away.")
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.HDFS: lambda _: store}) as api:
            ana = await api.user("ana")
            noted = "select directory || '/' || name from unfinished_writes"
            assert (await ana.post(f"storage/{call}", **fields)).status_code == 503
            assert await api.database.value(noted) == f"area/{name}"
            await api.database.execute("delete from unfinished_writes")
            store.failures.clear()
            assert (await ana.post(f"storage/{call}", **fields)).status_code in {200, 201}
            assert await api.database.value(noted) is None


async def _body(content: bytes) -> AsyncIterator[bytes]:
    yield content


class _Unsweepable(MemoryFileSystem):
    """A store that removes nothing while it `fails`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Scheme.FILE, containers=["shared"])
        self.error = error
        self.fails = False

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _UnsweepableStorage(self, user)


class _UnsweepableStorage(MemoryStorage):
    def __init__(self, store: _Unsweepable, user: StorageUser) -> None:
        super().__init__(store.tree, user, store.traits)
        self._store = store

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        if self._store.fails:
            raise self._store.error
        await super().discard_parts(plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        if self._store.fails:
            raise self._store.error
        return await super().sweep_orphans(path, older_than_s)
