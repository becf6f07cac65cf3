"""The storage contract for the HttpFS gateway of a real Ozone, and Ozone-specific behavior."""

from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest
from tests.contract.storage_basis import content, entries, failing_body, names, put
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_facts import AWKWARD_NAMES, StorageFacts
from tests.contract.storage_powers import (
    ModesContract,
    OwnersContract,
    RenamingContract,
    ReplicationContract,
    SummaryContract,
)
from tests.engines.ozone import SERVICE_USER, OzoneGateway
from tests.refusals import raises_code

from queryserver.errors.base import NotSupported
from queryserver.errors.files import (
    DirectoryNotEmpty,
    InvalidName,
    InvalidPath,
    PathExists,
    PathNotFound,
    upload_aborted,
)
from queryserver.files.model import StorageUser
from queryserver.files.protocol import TrashStorage
from queryserver.files.stores.ozone import OzoneFileSystem
from queryserver.files.stores.webhdfs.gateway import WebHdfsAddress

pytestmark = pytest.mark.engine("ozone")

_NO_MODES = pytest.mark.never("Ozone's gateway has no call for it and answers that it is unsupported (501)")


@pytest.fixture
async def file_system(ozone_gateway: OzoneGateway) -> AsyncGenerator[OzoneFileSystem]:
    address = WebHdfsAddress([ozone_gateway.webhdfs_url], SERVICE_USER)
    file_system = OzoneFileSystem({"om": address, "other": address}, max_copy_bytes=1000)
    yield file_system
    await file_system.close()


class TestOzoneStorage(
    StorageContract, RenamingContract, ReplicationContract, SummaryContract, ModesContract, OwnersContract
):
    """The storage contract for Ozone. The service impersonates `alice`."""

    facts = StorageFacts(
        name="Ozone (HttpFS)",
        place="om/tests/one",
        excludes_makers=False,
        awkward_names=tuple(name for name in AWKWARD_NAMES if not set("&<>'\"").intersection(name)),
        default_permissions=(0o777, 0o666),
        server_words=("127.0.0.1", "localhost", "java", "org.apache", "webhdfs"),
    )
    tested_with = "Ozone 2.2"
    known_failures: ClassVar = {
        "test_file_has_the_requested_replication_factor": _NO_MODES,
        "test_stat_returns_the_permissions_set": _NO_MODES,
        "test_new_directory_has_the_requested_permissions": _NO_MODES,
        "test_owner_and_group_are_those_that_were_set": _NO_MODES,
    }


@pytest.fixture
def storage(file_system: OzoneFileSystem):
    return file_system.as_user(StorageUser("alice"))


async def test_root_lists_services_then_volumes_then_buckets(storage):
    assert await names(storage, "") == ["om", "other"]
    assert "om/tests" in [entry.path for entry in await entries(storage, "om")]
    assert [entry.path for entry in await entries(storage, "other/tests")] == ["other/tests/one", "other/tests/two"]
    assert (await storage.stat("om")).is_directory
    with pytest.raises(PathNotFound):
        await storage.stat("unknown/tests")


@pytest.mark.storage(77)
async def test_volumes_and_buckets_are_top_levels_and_deleted_only_when_empty(storage):
    for path in ("om/fresh", "om/fresh/bucket"):
        await storage.mkdir(path)
        with pytest.raises(PathExists):
            await storage.mkdir(path)
    await put(storage, "om/fresh/bucket/file")
    for path in ("om/fresh", "om/fresh/bucket"):
        with pytest.raises(DirectoryNotEmpty):
            await storage.delete(path, recursive=True)
    assert await content(storage, "om/fresh/bucket/file") == b"x"
    await storage.delete("om/fresh/bucket/file", recursive=False)
    for path in ("om/fresh/bucket", "om/fresh"):
        await storage.delete(path, recursive=True)
        with pytest.raises(PathNotFound):
            await storage.stat(path)
    with raises_code("root_not_allowed"):
        await storage.delete("om", recursive=True)


async def test_names_refused_by_ozone_are_reported(storage):
    with pytest.raises(InvalidName):
        await storage.mkdir("om/tests/UPPER")
    for path in ("om/tests/file", "om/file"):
        with pytest.raises(InvalidPath):
            await put(storage, path)


async def test_rename_stays_within_its_bucket(storage):
    assert storage.can_rename("om/tests/one/a", "om/tests/one/b/c")
    await put(storage, "om/tests/one/file")
    for target in ("om/tests/two/file", "other/tests/one/file"):
        assert not storage.can_rename("om/tests/one/file", target)
        with pytest.raises(NotSupported):
            await storage.rename("om/tests/one/file", target)
        copied = await storage.copy("om/tests/one/file", target, overwrite=True)
        assert copied.path == target
    await storage.delete("om/tests/one/file", recursive=False)
    await storage.delete("om/tests/two/file", recursive=False)


async def test_names_the_gateway_would_change_can_be_created_but_not_replaced(storage):
    names_of_html = ("R&D", "<b>", "quote'\"")
    for name in names_of_html:
        await storage.mkdir(f"om/tests/two/{name}")
        status = await put(storage, f"om/tests/two/{name}/{name}", b"old")
        assert status.path == f"om/tests/two/{name}/{name}"
        with pytest.raises(PathExists):
            await put(storage, f"om/tests/two/{name}/{name}", b"new")
        for call in (
            put(storage, f"om/tests/two/{name}/{name}", b"new", overwrite=True),
            storage.rename(f"om/tests/two/{name}/{name}", f"om/tests/two/{name}/b"),
        ):
            with pytest.raises(NotSupported):
                await call
        with raises_code("upload_aborted"):
            await storage.write(
                f"om/tests/two/{name}/broken", failing_body(b"x", error=upload_aborted("gone")), overwrite=False
            )
        assert await names(storage, f"om/tests/two/{name}") == [name]
        assert await content(storage, f"om/tests/two/{name}/{name}") == b"old"
        await storage.delete(f"om/tests/two/{name}", recursive=True)


@pytest.mark.storage(79)
async def test_unsupported_gateway_operations_are_reported(storage):
    await put(storage, "om/tests/two/file")
    for call in (
        storage.set_permissions("om/tests/two/file", 0o600),
        storage.set_owner("om/tests/two/file", owner="bob", group=None),
        storage.set_replication("om/tests/two/file", 2),
    ):
        with pytest.raises(NotSupported):
            await call
    assert not isinstance(storage, TrashStorage)
    await storage.delete("om/tests/two/file", recursive=False)


@pytest.mark.storage(94)
async def test_alternating_users_keep_identities(file_system):
    alice, bob = (file_system.as_user(StorageUser(name)) for name in ("alice", "bob"))
    for turn in range(3):
        await alice.mkdir(f"om/tests/two/alice{turn}")
        await bob.mkdir(f"om/tests/two/bob{turn}")
    owners = {entry.name: entry.owner for entry in await entries(alice, "om/tests/two")}
    assert owners == {f"{name}{turn}": name for name in ("alice", "bob") for turn in range(3)}
    for name in owners:
        await alice.delete(f"om/tests/two/{name}", recursive=True)
