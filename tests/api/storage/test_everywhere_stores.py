"""The checklist on real stores, through the settings that an operator writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.everywhere import EverywhereContract, World
from tests.engines import azurite as emulator
from tests.engines.hdfs import SERVICE_USER, HdfsCluster
from tests.engines.servers import HttpAddress
from tests.engines.standin_dfs import dfs_server
from tests.engines.versitygw import S3Address

_CONTAINER = "everywhere"


async def _with_bucket(api: Api, scheme: str) -> str:
    """A bucket that the test makes through the API, if it is not there yet."""
    admin = await api.user("admin")
    made = await admin.post("storage/mkdir", path=f"{scheme}://{_CONTAINER}")
    assert made.status_code in {201, 409}, made.text
    return f"{scheme}://{_CONTAINER}"


class _Hdfs(EverywhereContract):
    @pytest.fixture
    async def world(self, hdfs_cluster: HdfsCluster, hdfs_url: str, tmp_path: Path, shared_database_dsn: str):
        cluster = {
            "fs_defaultfs": f"hdfs://127.0.0.1:{hdfs_cluster.rpc_port}",
            "webhdfs_url": hdfs_url,
            "service_user": SERVICE_USER,
        }
        tables = {"hadoop": {"hdfs_clusters": {"default": cluster}}}
        settings = storage_settings(tmp_path, shared_database_dsn, tables=tables)
        async with open_api(settings) as api:
            user = await api.user("ana")
            home = f"/user/{user.username}"
            hdfs_cluster.call("PUT", home, "MKDIRS")
            hdfs_cluster.call("PUT", home, "SETOWNER", owner=user.username, group=user.username)
            yield World(user, home, trash=True, replication=True, summary=True, modes=True, owners=True)


@pytest.mark.engine("hdfs")
class TestWebHdfs(_Hdfs):
    @pytest.fixture
    def hdfs_url(self, hdfs_cluster: HdfsCluster) -> str:
        return hdfs_cluster.webhdfs_url


@pytest.mark.engine("httpfs")
class TestHttpFs(_Hdfs):
    @pytest.fixture
    def hdfs_url(self, httpfs_gateway: HttpAddress) -> str:
        return f"{httpfs_gateway.url}/webhdfs/v1"


@pytest.mark.engine("s3")
class TestS3(EverywhereContract):
    @pytest.fixture
    async def world(self, s3_server: S3Address, tmp_path: Path, shared_database_dsn: str):
        account = {
            "access_key_id": s3_server.access_key_id,
            "secret_access_key": s3_server.secret_access_key,
            "endpoint": s3_server.url,
            "region": s3_server.region,
            "path_style": True,
            "is_secure": False,
        }
        tables = {"aws": {"aws_accounts": {"default": account}}}
        settings = storage_settings(tmp_path, shared_database_dsn, tables=tables, allow_bucket_creation=True)
        async with open_api(settings) as api:
            yield World(await api.user("ana"), await _with_bucket(api, "s3a"), makes_parents=False)


@pytest.mark.engine("azurite")
class TestFlatAzure(EverywhereContract):
    @pytest.fixture
    async def world(self, azurite: HttpAddress, tmp_path: Path, shared_database_dsn: str):
        cluster = {
            "fs_defaultfs": f"abfs://{_CONTAINER}@{emulator.ACCOUNT}.dfs.core.windows.net",
            "blob_url": f"{azurite.url}/{emulator.ACCOUNT}",
            "hierarchical_namespace": False,
        }
        tables = {"azure": _azure(cluster, emulator.ACCOUNT_KEY)}
        settings = storage_settings(tmp_path, shared_database_dsn, tables=tables, allow_bucket_creation=True)
        async with open_api(settings) as api:
            yield World(await api.user("ana"), await _with_bucket(api, "abfs"), makes_parents=False)


class TestHierarchicalAzure(EverywhereContract):
    """On our own stand-in."""

    @pytest.fixture
    async def world(self, tmp_path: Path, shared_database_dsn: str):
        async with dfs_server() as server:
            cluster = {
                "fs_defaultfs": f"abfs://{_CONTAINER}@{server.access.account}.dfs.core.windows.net",
                "webhdfs_url": server.address.url,
            }
            tables = {"azure": _azure(cluster, server.access.key)}
            settings = storage_settings(tmp_path, shared_database_dsn, tables=tables, allow_bucket_creation=True)
            async with open_api(settings) as api:
                root = await _with_bucket(api, "abfs")
                yield World(await api.user("ana"), root, modes=True, owners=True)


def _azure(cluster: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return {"abfs_clusters": {"default": cluster}, "azure_accounts": {"default": {"account_key": key}}}
