"""The Storage contract over HttpFS, the gateway of a real HDFS."""

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
from tests.engines.hdfs import SERVICE_USER
from tests.engines.servers import HttpAddress

from queryserver.storages.webhdfs import WebHdfsAddress, WebHdfsFileSystem

pytestmark = [pytest.mark.engine("hdfs"), pytest.mark.engine("httpfs")]


@pytest.fixture
async def file_system(httpfs_gateway: HttpAddress) -> AsyncGenerator[WebHdfsFileSystem]:
    file_system = WebHdfsFileSystem(WebHdfsAddress([f"{httpfs_gateway.url}/webhdfs/v1"], SERVICE_USER))
    yield file_system
    await file_system.close()


class TestHttpFsStorage(
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
        name="HDFS (HttpFS)",
        place="user/alice",
        server_words=("127.0.0.1", "localhost", "java", "org.apache", "webhdfs"),
        owner_change=("alice", "analysts"),
    )
    tested_with = "Hadoop 3.4"
