"""content_summary (Contract storage 5.6)."""

from pathlib import Path

import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.worlds import World, builders
from tests.cases import each
from tests.fakes.storage import MemoryFileSystem, MemoryStorage

from queryserver.files.model import ContentSummary, Scheme, StorageUser
from queryserver.files.protocol import StorageTraits


class _Summed(MemoryStorage):
    """Tells what HDFS tells of a directory with quotas and erasure coding."""

    async def content_summary(self, path: str) -> ContentSummary:
        del path
        further = {"ecPolicy": "RS-6-3-1024k", "snapshotFileCount": 0, "typeQuota": {"SSD": {"quota": -1}}}
        return ContentSummary(1, 2, 4096, 12288, quota=10, space_quota_bytes=99, further=further)


class _SummedFileSystem(MemoryFileSystem):
    def as_user(self, user: StorageUser) -> MemoryStorage:
        del user
        return _Summed()


@pytest.fixture
async def ana(world: World) -> Caller:
    return await world.api.user("ana")


@pytest.mark.storage(80)
async def test_a_tree_of_the_local_root_is_summed_up(files: Files) -> None:
    caller, place = await files.api.user("ana"), files.place()
    (files.root / place / "d").mkdir()
    (files.root / place / "d" / "a").write_bytes(b"x" * 10)
    (files.root / place / "b").write_bytes(b"x" * 5)
    body = (await caller.get(f"storage/content_summary=file:///{place}")).json()
    counts = {
        "directoryCount": 2, "fileCount": 2, "length": 15, "quota": -1, "spaceQuota": -1, "typeQuota": {},
        "replication": 0, "spaceConsumed": body["spaceConsumed"],
    }  # fmt: skip
    assert body == {**counts, "status": 0, "message": "", "path": f"file:///{place}", "summary": counts}
    assert (await caller.get("storage/content_summary", path=f"file:///{place}")).json() == body


@pytest.mark.storage(80)
async def test_what_the_store_tells_besides_is_passed_on(tmp_path: Path, shared_database_dsn: str) -> None:
    store = _SummedFileSystem(Scheme.HDFS, StorageTraits())
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders({Scheme.HDFS: store})) as api:
        body = (await (await api.user("ana")).get("storage/content_summary=/x")).json()
    summary = body.pop("summary")
    assert summary == {
        "directoryCount": 1, "fileCount": 2, "length": 4096, "quota": 10, "spaceConsumed": 12288, "spaceQuota": 99,
        "typeQuota": {"SSD": {"quota": -1}}, "replication": 0, "ecPolicy": "RS-6-3-1024k", "snapshotFileCount": 0,
    }  # fmt: skip
    assert body == {**summary, "status": 0, "message": "", "path": "/x"}


@pytest.mark.storage(80)
@each("path", ["s3a://lake", "abfs://box", "s3a://lake/none"])
async def test_stores_that_sum_up_nothing_are_not_asked(world: World, ana: Caller, path: str) -> None:
    world.heal()
    for answer in (
        await ana.get(f"storage/content_summary={path}"),
        await ana.get("storage/content_summary", path=path),
    ):
        assert (answer.status_code, answer.json()["code"]) == (501, "not_supported")
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(80)
async def test_a_missing_path_is_404_and_none_is_400(ana: Caller) -> None:
    for path in ("/none", "ofs://service/volume/bucket/none", "file:///none"):
        answer = await ana.get(f"storage/content_summary={path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found"), path
    for answer in (await ana.get("storage/content_summary="), await ana.get("storage/content_summary")):
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")
