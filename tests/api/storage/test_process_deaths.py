"""Files and operations of processes that died, or that count as dead because their heartbeats are late (ADR 84)."""

import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from tests.api.driving import Api, open_api
from tests.api.storage.conftest import storage_settings

from queryserver.errors.files import StorageError
from queryserver.files.access import Caller as Acting
from queryserver.files.part_uploads import UploadJoiner
from queryserver.files.protocol import PartPlan
from queryserver.files.upload_repository import NewUpload, PartUploads, UnfinishedWrite, UnfinishedWrites, UploadTerms
from queryserver.identity.model import User
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role

# Only the tests send heartbeats.
RARE = {"desktop": {"task_server": {"heartbeat_s": 3600}}, "tables": {"editor": {"lease_timeout_s": 10_800}}}
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
        os.utime(staged, (time.time() - age_s,) * 2)
        return staged

    async def process(self, name: str) -> Ownership:
        """Another process, which is alive."""
        ownership = Ownership(self.api.database, lease=timedelta(hours=1), name=name)
        await ownership.beat(Role.SERVER, Load())
        return ownership

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
        async with storage.orphans.recorded_write(site.ana, storage.stores.path("file:///shared/new.csv")):
            staged = site.stage(age_s=600)  # the machine was suspended for ten minutes
            await site.last_heartbeat(site.api.services.ownership, 600)
            assert await storage.orphans.sweep_dead() == 0
            assert staged.exists()
            assert await site.unfinished() == 1

    async def test_files_of_a_failed_long_upload_are_removed_later(self, site: Site) -> None:
        storage = site.api.services.storage
        path, ownership = storage.stores.path("file:///shared/new.csv"), site.api.services.ownership
        records = PartUploads(site.api.database, ownership)
        terms = UploadTerms(path, PartPlan(path.path, 10, 10, 1), overwrite=False)
        new = NewUpload(uuid4(), site.ana.user.id, uuid4(), site.ana.acting, terms)
        upload = await records.open(new, keep=timedelta(days=1), max_open=1)
        assert upload is not None
        await storage.orphans.begin(new.id, site.ana, path)
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
        path = storage.stores.path("file:///shared/new.csv")
        write = UnfinishedWrite(uuid4(), path.parent, path.name, site.ana.acting)
        await UnfinishedWrites(site.api.database, crashed).begin(write, is_running=True)
        await site.last_heartbeat(crashed, 95)
        staged = site.stage(age_s=85)
        assert await storage.orphans.sweep_dead() == 0
        assert staged.exists()
        assert await site.unfinished() == 1, "a later sweep must find the file"
        await site.last_heartbeat(crashed, 155)
        site.stage(age_s=145)
        assert await storage.orphans.sweep_dead() == 1
        assert not staged.exists()
        assert await site.unfinished() == 0

    async def _let_pass(self, site: Site, *, minutes: float) -> None:
        await site.api.database.execute(
            "update unfinished_writes set touched_at = touched_at - make_interval(secs => $1)", minutes * 60
        )
