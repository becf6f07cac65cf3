"""The storage contract for WebHDFS on a real HDFS, and HDFS-specific behavior."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
from tests.contract.storage_basis import batches, body, content, entries, names, put
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_facts import StorageFacts
from tests.contract.storage_powers import (
    ModesContract,
    OwnersContract,
    RenamingContract,
    ReplicationContract,
    SummaryContract,
    TrashContract,
)
from tests.engines.hdfs import SERVICE_USER, HdfsCluster

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import InvalidPath, StorageUnavailable, StoreQuotaExceeded
from queryserver.files.model import StorageUser
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.webhdfs.gateway import WebHdfsAddress
from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem
from queryserver.files.stores.webhdfs.tree import NewFile

pytestmark = pytest.mark.engine("hdfs")


@pytest.fixture
async def file_system(hdfs_cluster: HdfsCluster) -> AsyncGenerator[WebHdfsFileSystem]:
    file_system = WebHdfsFileSystem(WebHdfsAddress([hdfs_cluster.webhdfs_url], SERVICE_USER))
    yield file_system
    await file_system.close()


class TestWebHdfsStorage(
    StorageContract,
    RenamingContract,
    TrashContract,
    ReplicationContract,
    SummaryContract,
    ModesContract,
    OwnersContract,
):
    """The storage contract for WebHDFS. The service impersonates `alice`."""

    facts = StorageFacts(
        name="HDFS (WebHDFS)",
        place="user/alice",
        server_words=("127.0.0.1", "localhost", "java", "org.apache", "webhdfs"),
        owner_change=("alice", "analysts"),
    )
    tested_with = "Hadoop 3.4"


ALICE, BOB = StorageUser("alice"), StorageUser("bob")


@pytest.fixture
def storage(file_system):
    return file_system.as_user(ALICE)


@pytest.fixture
async def base(storage) -> AsyncGenerator[str]:
    path = f"user/alice/{uuid4().hex}"
    await storage.mkdir(path)
    yield path
    await storage.delete(path, recursive=True)


@pytest.mark.security("S9")
@pytest.mark.storage(36, 92)
async def test_store_decides_other_users_permissions(file_system, storage, base):
    await put(storage, f"{base}/file")
    await storage.set_permissions(base, 0o700)
    other = file_system.as_user(BOB)
    for call in (
        other.stat(f"{base}/file"),
        names(other, base),
        content(other, f"{base}/file"),
        put(other, f"{base}/new"),
        other.mkdir(f"{base}/new"),
        other.delete(base, recursive=True),
        other.rename(f"{base}/file", "user/bob/file"),
        other.set_owner("user/alice", owner="bob", group=None),
    ):
        with pytest.raises(PermissionDenied) as told:
            await call
        assert "java" not in told.value.message
        assert "127.0.0.1" not in told.value.message
    assert await content(storage, f"{base}/file") == b"x"


async def test_service_without_impersonation_rights_is_refused(hdfs_cluster):
    file_system = WebHdfsFileSystem(WebHdfsAddress([hdfs_cluster.webhdfs_url], "bob"))
    with pytest.raises(PermissionDenied):
        await file_system.as_user(ALICE).stat("user/alice")
    await file_system.close()


async def test_cluster_reports_superuser_and_trash(file_system):
    facts = await file_system.facts(ALICE)
    assert (facts.is_trash_enabled, facts.is_superuser) == (True, False)
    assert (facts.superuser, facts.supergroup) == ("hdfs", "supergroup")
    assert (await file_system.facts(StorageUser("hdfs"))).is_superuser


@pytest.mark.storage(30)
async def test_directories_of_many_batches_are_counted_exactly(file_system, storage, base):
    await asyncio.gather(*(storage.mkdir(f"{base}/{number:03}") for number in range(120)))
    found = await batches(storage, base)
    assert [len(batch.entries) for batch in found] == [50, 50, 20]
    assert [batch.remaining for batch in found] == [70, 20, 0]
    assert [entry.name for batch in found for entry in batch.entries] == [f"{number:03}" for number in range(120)]
    assert (await batches(storage, base, cursor=found[0].cursor))[0].entries[0].name == "050"


async def test_entries_with_no_longer_permitted_names_can_be_used(hdfs_cluster, storage, base):
    for name in ("back%5Cslash", "new%0Aline", "semi%3Bcolon", "%20blank%20"):
        hdfs_cluster.call("PUT", f"/{base}/{name}", "MKDIRS", user=SERVICE_USER, doas="alice")
    found = await names(storage, base)
    assert found == [" blank ", "back\\slash", "new\nline", "semi;colon"]
    for name in found:
        assert (await storage.stat(f"{base}/{name}")).is_directory
        await put(storage, f"{base}/{name}/file")
        await storage.rename(f"{base}/{name}", f"{base}/renamed")
        await storage.delete(f"{base}/renamed", recursive=True)
    with pytest.raises(InvalidPath):
        await put(storage, f"{base}/a:b")


async def test_exceeded_quota_is_reported_and_leaves_nothing(hdfs_cluster, storage, base):
    await put(storage, f"{base}/file")
    hdfs_cluster.call("PUT", f"/{base}", "SETQUOTA", namespacequota="2")
    for call in (put(storage, f"{base}/more"), storage.mkdir(f"{base}/d")):
        with pytest.raises(StoreQuotaExceeded):
            await call
    hdfs_cluster.call("PUT", f"/{base}", "SETQUOTA", namespacequota="1000", storagespacequota="1024")
    with pytest.raises(StoreQuotaExceeded):
        await put(storage, f"{base}/large", b"x" * 4096)
    assert [entry.name async for entry in storage.tree.all_entries(base)] == ["file"]


@pytest.mark.storage(9)
async def test_safe_mode_makes_store_unavailable(hdfs_cluster, storage, base):
    await put(storage, f"{base}/file")
    await asyncio.to_thread(hdfs_cluster.administer, "-safemode", "enter")
    try:
        assert await names(storage, base) == ["file"]
        for call in (put(storage, f"{base}/new"), storage.mkdir(f"{base}/d"), storage.delete(base, recursive=True)):
            with pytest.raises(StorageUnavailable) as told:
                await call
            assert told.value.message == "The store is in safe mode."
    finally:
        await asyncio.to_thread(hdfs_cluster.administer, "-safemode", "leave")


@pytest.mark.storage(59)
async def test_replaced_file_keeps_mode_group_and_replication(hdfs_cluster, storage, base):
    await put(storage, f"{base}/file", b"old")
    await storage.set_permissions(f"{base}/file", 0o640)
    await storage.set_replication(f"{base}/file", 3)
    await storage.set_owner(f"{base}/file", owner=None, group="analysts")
    status = await put(storage, f"{base}/file", b"new", overwrite=True)
    assert (status.permissions, status.replication, status.group) == (0o640, 3, "analysts")
    copied = await storage.copy(f"{base}/file", f"{base}/copy")
    assert (copied.permissions, copied.replication, copied.block_size) == (0o640, 3, status.block_size)


async def test_parts_are_joined_without_reading_and_join_can_be_resumed(storage, base):
    plan = PartPlan(f"{base}/file", 10, 4, 3)
    staging = await storage.begin_parts(plan)
    parts = [await storage.write_part(plan, staging, number, body(b"abcd"[: 10 - 4 * number])) for number in range(3)]
    directory = f"{base}/._qs_parts_{staging}"
    # This is the state that a process leaves if it dies between two CONCAT calls.
    await storage.tree.upload(f"{directory}/joined", body(), _new_file())
    await storage.tree.concat(f"{directory}/joined", [f"{directory}/{parts[0].receipt}"])
    status = await storage.join_parts(plan, staging, parts, overwrite=False)
    assert status.size_bytes == 10
    assert await content(storage, f"{base}/file") == b"abcdabcdab"
    assert [entry.name async for entry in storage.tree.all_entries(base)] == ["file"]


def _new_file() -> NewFile:
    return NewFile(0o644)


@pytest.mark.storage(86)
async def test_files_orphaned_by_a_crash_are_swept_and_old_files_restored(storage, base):
    tree = storage.tree
    await tree.upload(f"{base}/._qs_upload_{'0' * 32}", body(b"half"), _new_file())
    await tree.make_directory(f"{base}/._qs_parts_{'1' * 32}", 0o700)
    await tree.upload(f"{base}/._qs_old_{'2' * 32}/lost", body(b"only copy"), _new_file())
    await tree.upload(f"{base}/._qs_old_{'3' * 32}/replaced", body(b"old"), _new_file())
    await put(storage, f"{base}/replaced", b"new")
    assert await names(storage, base) == ["replaced"]
    assert await storage.sweep_orphans(base, older_than_s=3600) == 0
    await asyncio.sleep(0.05)
    assert await storage.sweep_orphans(base, older_than_s=0) == 4
    assert await names(storage, base) == ["lost", "replaced"]
    assert await content(storage, f"{base}/lost") == b"only copy"
    assert await content(storage, f"{base}/replaced") == b"new"
    assert [entry.name async for entry in tree.all_entries(base)] == ["lost", "replaced"]


async def test_first_of_several_name_nodes_may_be_down(hdfs_cluster):
    urls = ["http://127.0.0.1:1/webhdfs/v1", hdfs_cluster.webhdfs_url]
    file_system = WebHdfsFileSystem(WebHdfsAddress(urls, SERVICE_USER))
    storage, path = file_system.as_user(ALICE), f"user/alice/{uuid4().hex}"
    await put(storage, path, b"content")
    assert await content(storage, path) == b"content"
    await storage.delete(path, recursive=False)
    await file_system.close()
    alone = WebHdfsFileSystem(WebHdfsAddress(urls[:1], SERVICE_USER))
    with pytest.raises(StorageUnavailable):
        await alone.as_user(ALICE).stat("")
    await alone.close()


async def test_many_concurrent_files_share_one_pool(storage, base):
    written = [put(storage, f"{base}/{number}", b"%d" % number * 1000) for number in range(30)]
    assert not [outcome for outcome in await asyncio.gather(*written) if isinstance(outcome, QueryServerError)]
    read = await asyncio.gather(*(content(storage, f"{base}/{number}") for number in range(30)))
    assert read == [b"%d" % number * 1000 for number in range(30)]
    assert len(await entries(storage, base)) == 30
