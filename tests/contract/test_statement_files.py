"""File access by statements on the local root, and on HDFS, Ozone, S3 and Azure where these servers are available."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.contract.folder_writes_contract import FolderWritesContract, MovedFoldersContract
from tests.contract.statement_files_contract import OwnersOfFilesContract, StatementFilesContract
from tests.contract.storage_basis import USER, names
from tests.contract.storage_facts import AWKWARD_NAMES, StorageFacts
from tests.contract.store_accounts import flat_account, s3_options
from tests.engines.hdfs import SERVICE_USER, HdfsCluster
from tests.engines.ozone import SERVICE_USER as OZONE_USER
from tests.engines.ozone import OzoneGateway
from tests.engines.servers import HttpAddress
from tests.engines.versitygw import S3Address
from tests.fakes.storage import LIKE_S3, MemoryFileSystem

from queryserver.files.model import Scheme
from queryserver.files.protocol import FileSystem, ModeStorage, Storage, StorageTraits
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.local.storage import LocalFileSystem
from queryserver.files.stores.ozone import OzoneFileSystem
from queryserver.files.stores.s3.storage import S3FileSystem
from queryserver.files.stores.webhdfs.gateway import WebHdfsAddress
from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem


class TestLocalRoot(StatementFilesContract, OwnersOfFilesContract, FolderWritesContract):
    facts = StorageFacts("local root", place="user/alice")

    @pytest.fixture
    async def file_system(self, tmp_path: Path) -> AsyncGenerator[FileSystem]:
        root = tmp_path / "root"
        root.mkdir()
        file_system = LocalFileSystem(root)
        await file_system.as_user(USER).stat("user/alice")
        yield file_system
        await file_system.close()


class TestMemory(StatementFilesContract, MovedFoldersContract):
    facts = StorageFacts("memory", place="bucket")

    @pytest.fixture
    def file_system(self) -> FileSystem:
        traits = StorageTraits(container_levels=1, lists_in_order=True)
        return MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["bucket"])


@pytest.mark.engine("s3")
class TestS3(StatementFilesContract, MovedFoldersContract):
    facts = StorageFacts("S3", place="statements")

    @pytest.fixture
    async def file_system(self, s3_server: S3Address) -> AsyncGenerator[FileSystem]:
        file_system = S3FileSystem(s3_options(s3_server))
        storage = file_system.as_user(USER)
        if self.facts.place not in await names(storage, ""):
            await storage.mkdir(self.facts.place)
        yield file_system
        await file_system.close()


@pytest.mark.engine("azurite")
class TestFlatAzure(StatementFilesContract, MovedFoldersContract):
    facts = StorageFacts("ABFS", place="statements")

    @pytest.fixture
    async def file_system(self, azurite: HttpAddress) -> AsyncGenerator[FileSystem]:
        file_system = AdlsFileSystem(flat_account(azurite.port))
        storage = file_system.as_user(USER)
        if self.facts.place not in await names(storage, ""):
            await storage.mkdir(self.facts.place)
        yield file_system
        await file_system.close()


@pytest.mark.engine("hdfs")
class TestHdfs(StatementFilesContract, OwnersOfFilesContract, FolderWritesContract):
    facts = StorageFacts("HDFS (WebHDFS)", place="user/alice", server_words=("127.0.0.1", "java", "org.apache"))

    @pytest.fixture
    async def file_system(self, hdfs_cluster: HdfsCluster) -> AsyncGenerator[FileSystem]:
        file_system = WebHdfsFileSystem(WebHdfsAddress([hdfs_cluster.webhdfs_url], SERVICE_USER))
        yield file_system
        await file_system.close()

    async def close_to_others(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, ModeStorage)
        await storage.set_permissions(base, 0o700)


@pytest.mark.engine("ozone")
class TestOzone(StatementFilesContract, FolderWritesContract):
    facts = StorageFacts(
        "Ozone (HttpFS)",
        place="om/tests/one",
        awkward_names=tuple(name for name in AWKWARD_NAMES if not set("&<>'\"").intersection(name)),
    )

    @pytest.fixture
    async def file_system(self, ozone_gateway: OzoneGateway) -> AsyncGenerator[FileSystem]:
        file_system = OzoneFileSystem(
            {"om": WebHdfsAddress([ozone_gateway.webhdfs_url], OZONE_USER)}, max_copy_bytes=1000
        )
        yield file_system
        await file_system.close()
