"""After any operations, a store's content equals the model's, and the store refuses what the model refuses."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from tests.engines.hdfs import SERVICE_USER
from tests.examples import examples
from tests.fakes.storage import LIKE_S3, MemoryFileSystem
from tests.property.storage_model import OPERATIONS, Comparison, compare

from queryserver.errors.files import PathExists
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.protocol import FileSystem, StorageTraits
from queryserver.files.stores.local.storage import LocalFileSystem
from queryserver.files.stores.s3.connection import S3Keys, S3Options
from queryserver.files.stores.s3.storage import S3FileSystem
from queryserver.files.stores.webhdfs.gateway import WebHdfsAddress
from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem

ALICE = StorageUser("alice")


@asynccontextmanager
async def place(file_system: FileSystem, directory: str, *, has_directories: bool = True) -> AsyncGenerator[Comparison]:
    """Yield a comparison on a new directory; delete the directory with its content at the end."""
    try:
        storage, base = file_system.as_user(ALICE), f"{directory}/{uuid4().hex}"
        with suppress(PathExists):
            await storage.mkdir(directory)
        await storage.mkdir(base)
        yield Comparison(storage, base, has_directories)
        await storage.delete(base, recursive=True)
    finally:
        await file_system.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local-root")


class TestLocal:
    @examples(50)
    @given(operations=OPERATIONS)
    def test_local_root_matches_its_model(self, root, operations):
        compare(place(LocalFileSystem(root), "user/alice"), operations)


class TestMemory:
    @given(operations=OPERATIONS)
    def test_fake_matches_its_model(self, operations):
        compare(place(MemoryFileSystem(), "user/alice"), operations)

    @given(operations=OPERATIONS)
    def test_fake_object_store_matches_its_model(self, operations):
        traits = StorageTraits(lists_in_order=True, container_levels=1)
        file_system = MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["bucket"])
        compare(place(file_system, "bucket"), operations)


@pytest.mark.engine("hdfs")
class TestWebHdfs:
    @examples(8)
    @given(operations=OPERATIONS)
    def test_hdfs_matches_its_model(self, hdfs_cluster, operations):
        file_system = WebHdfsFileSystem(WebHdfsAddress([hdfs_cluster.webhdfs_url], SERVICE_USER))
        compare(place(file_system, "user/alice"), operations)


@pytest.mark.engine("s3")
class TestS3:
    @examples(8)
    @given(operations=OPERATIONS)
    def test_s3_matches_its_model(self, s3_server, operations):
        keys = S3Keys(s3_server.access_key_id, s3_server.secret_access_key)
        options = S3Options(endpoint=s3_server.url, path_style=True, keys=keys, allow_bucket_creation=True)
        compare(place(S3FileSystem(options), "model", has_directories=False), operations)
