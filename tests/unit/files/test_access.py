"""Home directories on the stores for users with unusual names."""

from collections.abc import Sequence

import pytest
from tests.fakes.storage import MemoryFileSystem

from queryserver.errors.files import InvalidPath, StorageNotConfigured
from queryserver.files.access import Caller, FileSystems, Stores
from queryserver.files.model import PathReader, Scheme, StoragePath
from queryserver.identity.model import User

TOO_LONG = "日" * 100
RESERVED = "._qs_ana"


class Nobody:
    """An empty directory of users and groups."""

    async def names(self) -> tuple[Sequence[str], Sequence[str]]:
        return (), ()


@pytest.mark.parametrize("name", [TOO_LONG, RESERVED])
async def test_user_without_a_valid_directory_name_has_no_home_but_can_list(name: str) -> None:
    caller = Caller.of(User(1, name, is_admin=True))
    hdfs, s3a = MemoryFileSystem(Scheme.HDFS), MemoryFileSystem(Scheme.S3A)
    homes = {Scheme.S3A: "s3a://lake/user/${USER}"}
    stores = Stores([hdfs, s3a], PathReader((Scheme.HDFS, Scheme.S3A)), homes)
    file_systems = FileSystems(stores, Nobody())
    assert [known.scheme for known in await file_systems.all(caller)] == [Scheme.HDFS, Scheme.S3A]
    assert stores.home(caller, Scheme.S3A) == StoragePath(Scheme.S3A, "")
    place = stores.location(caller, StoragePath(Scheme.HDFS, ""))
    assert await file_systems.existing_home(caller, place) is None


def test_other_users_have_the_configured_home() -> None:
    stores = Stores([], PathReader((Scheme.S3A,)), {Scheme.S3A: "s3a://lake/user/${USER}"})
    assert str(stores.home(Caller.of(User(1, "ana")), Scheme.S3A)) == "s3a://lake/user/ana"


def test_error_names_only_the_stores_the_caller_may_use() -> None:
    stores = Stores(
        [MemoryFileSystem(Scheme.HDFS), MemoryFileSystem(Scheme.S3A)], PathReader((Scheme.HDFS, Scheme.S3A))
    )
    for user, usable in ((User(1, "ana"), "hdfs"), (User(2, "root", is_admin=True), "hdfs, s3a")):
        error = stores.with_available_stores(StorageNotConfigured("The store ofs is not configured."), Caller.of(user))
        assert isinstance(error, StorageNotConfigured)
        assert error.message == f"The store ofs is not configured. Configured: {usable}."
        other = InvalidPath("The path contains encoded dots.")
        assert stores.with_available_stores(other, Caller.of(user)) is other
