"""The Storage contract over WebHDFS of a real HDFS, and what only HDFS does."""

from collections.abc import AsyncGenerator

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
from tests.engines.hdfs import SERVICE_USER, HdfsCluster

from queryserver.storages.webhdfs import WebHdfsAddress, WebHdfsFileSystem

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
    """As `alice`, for whom the service acts."""

    facts = StorageFacts(
        name="HDFS (WebHDFS)",
        place="user/alice",
        server_words=("127.0.0.1", "localhost", "java", "org.apache", "webhdfs"),
        owner_change=("alice", "analysts"),
    )
    tested_with = "Hadoop 3.4"
