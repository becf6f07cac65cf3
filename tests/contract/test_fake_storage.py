"""The storage contract for the fake stores that other tests use."""

import pytest
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
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem, MemoryStorage
from tests.fakes.storage_faults import FaultyFileSystem, FaultyStorage

from queryserver.files.model import Scheme
from queryserver.files.protocol import StorageTraits

OBJECT_STORE = StorageTraits(lists_in_order=True, container_levels=1)


class TestMemoryStorage(StorageContract):
    facts = StorageFacts("memory")

    @pytest.fixture
    async def storage(self):
        return MemoryStorage()

    @pytest.fixture
    async def same_storage(self, storage):
        return MemoryStorage(storage.tree)

    @pytest.fixture
    def traits(self, storage):
        return storage.traits


class TestFaultyStorage(TestMemoryStorage):
    """The same tests through a FaultyStorage without injected failures."""

    facts = StorageFacts("memory", reads_parts=False)

    @pytest.fixture
    async def storage(self):
        return FaultyStorage(MemoryStorage())

    @pytest.fixture
    async def same_storage(self, storage):
        return FaultyStorage(MemoryStorage(storage.inner.tree))

    @pytest.fixture
    def traits(self, storage):
        return storage.inner.traits


class TestMemoryLikeHdfs(
    StorageContract,
    RenamingContract,
    TrashContract,
    ReplicationContract,
    SummaryContract,
    ModesContract,
    OwnersContract,
):
    facts = StorageFacts("memory like HDFS", owner_change=("bob", "staff"))

    @pytest.fixture
    def file_system(self):
        return MemoryFileSystem(Scheme.HDFS, StorageTraits(lists_in_order=True, acts_as_user=True), LIKE_HDFS)


class TestMemoryLikeS3(StorageContract):
    facts = StorageFacts("memory like S3", place="bucket")

    @pytest.fixture
    def file_system(self):
        return MemoryFileSystem(Scheme.S3A, OBJECT_STORE, LIKE_S3, containers=["bucket"])


class TestFaultyFileSystem(TestMemoryLikeHdfs):
    """The same tests through a wrapper, which must have the optional powers of the wrapped file system."""

    @pytest.fixture
    def file_system(self):
        return FaultyFileSystem(MemoryFileSystem(Scheme.HDFS, powers=LIKE_HDFS))


class TestFaultyLikeS3(TestMemoryLikeS3):
    """The same tests through a wrapper, which must not add optional powers."""

    @pytest.fixture
    def file_system(self):
        return FaultyFileSystem(MemoryFileSystem(Scheme.S3A, OBJECT_STORE, LIKE_S3, containers=["bucket"]))
