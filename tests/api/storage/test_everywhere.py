"""The storage checklist over HTTP, for the local root and for real stores."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.api.driving import Api, open_api, sign_in
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.everywhere import STRANGE_NAMES, EverywhereContract, World
from tests.engines.hdfs import HdfsCluster
from tests.engines.ozone import SERVICE_USER as OZONE_USER
from tests.engines.ozone import OzoneGateway
from tests.engines.servers import HttpAddress
from tests.engines.standin_dfs import dfs_server
from tests.engines.store_tables import azure_tables, flat_azure_tables, hdfs_tables, s3_tables
from tests.engines.versitygw import S3Address


class TestLocalRoot(EverywhereContract):
    @pytest.fixture
    async def world(self, files: Files) -> World:
        return World(await files.api.user("ana"), "file:///shared", trash=True, summary=True, modes=True)


_CONTAINER = "everywhere"
Opener = Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Api]]


@pytest.fixture(scope="module")
def with_tables(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> Opener:
    """A function that opens an application with a store's tables of settings. The table `ozone` belongs to another
    section.
    """

    def opened(tables: Mapping[str, Any]) -> AbstractAsyncContextManager[Api]:
        directory = tmp_path_factory.mktemp("store")
        tables = dict(tables)
        ozone = tables.pop("ozone", None)
        settings = storage_settings(
            directory, shared_database_dsn, ozone=ozone, tables=tables, allow_bucket_creation=True
        )
        return open_api(settings)

    return opened


async def _with_bucket(api: Api, scheme: str) -> str:
    """Create a bucket through the API unless it already exists; return its path."""
    admin = await api.user("admin")
    made = await admin.post("storage/mkdir", path=f"{scheme}://{_CONTAINER}")
    assert made.status_code in {201, 409}, made.text
    return f"{scheme}://{_CONTAINER}"


async def _hdfs_world(api: Api, cluster: HdfsCluster) -> World:
    user = await api.user("ana")
    home = f"/user/{user.username}"
    cluster.call("PUT", home, "MKDIRS")
    cluster.call("PUT", home, "SETOWNER", owner=user.username, group=user.username)
    return World(user, home, trash=True, replication=True, summary=True, modes=True, owners=True)


@pytest.fixture(scope="module")
async def webhdfs_world(hdfs_cluster: HdfsCluster, with_tables: Opener) -> AsyncIterator[World]:
    async with with_tables(hdfs_tables(hdfs_cluster, hdfs_cluster.webhdfs_url)) as api:
        yield await _hdfs_world(api, hdfs_cluster)


@pytest.fixture(scope="module")
async def httpfs_world(
    hdfs_cluster: HdfsCluster, httpfs_gateway: HttpAddress, with_tables: Opener
) -> AsyncIterator[World]:
    async with with_tables(hdfs_tables(hdfs_cluster, f"{httpfs_gateway.url}/webhdfs/v1")) as api:
        yield await _hdfs_world(api, hdfs_cluster)


@pytest.fixture(scope="module")
async def s3_world(s3_server: S3Address, with_tables: Opener) -> AsyncIterator[World]:
    async with with_tables(s3_tables(s3_server)) as api:
        yield World(await api.user("ana"), await _with_bucket(api, "s3a"), makes_parents=False)


@pytest.fixture(scope="module")
async def flat_world(azurite: HttpAddress, with_tables: Opener) -> AsyncIterator[World]:
    async with with_tables(flat_azure_tables(azurite, _CONTAINER)) as api:
        yield World(await api.user("ana"), await _with_bucket(api, "abfs"), makes_parents=False)


@pytest.fixture(scope="module")
async def hierarchical_world(with_tables: Opener) -> AsyncIterator[World]:
    async with dfs_server() as server:
        cluster = {
            "fs_defaultfs": f"abfs://{_CONTAINER}@{server.access.account}.dfs.core.windows.net",
            "webhdfs_url": server.address.url,
        }
        async with with_tables(azure_tables(cluster, server.access.key)) as api:
            yield World(await api.user("ana"), await _with_bucket(api, "abfs"), modes=True, owners=True)


@pytest.fixture(scope="module")
async def ozone_world(ozone_gateway: OzoneGateway, with_tables: Opener) -> AsyncIterator[World]:
    table = {"fs_defaultfs": "ofs://om", "webhdfs_url": ozone_gateway.webhdfs_url, "service_user": OZONE_USER}
    async with with_tables({"ozone": {"default": table}}) as api:
        # The gateway has its own users. The volume `tests` belongs to alice.
        user = await sign_in(api, "alice", admin=False, groups=())
        yield World(user, "ofs://om/tests/one", summary=True, copies_as_text=True)


@pytest.mark.engine("hdfs")
class TestWebHdfs(EverywhereContract):
    @pytest.fixture
    def world(self, webhdfs_world: World) -> World:
        return webhdfs_world


@pytest.mark.engine("hdfs")
@pytest.mark.engine("httpfs")
class TestHttpFs(EverywhereContract):
    @pytest.fixture
    def world(self, httpfs_world: World) -> World:
        return httpfs_world


@pytest.mark.engine("s3")
class TestS3(EverywhereContract):
    @pytest.fixture
    def world(self, s3_world: World) -> World:
        return s3_world


@pytest.mark.engine("azurite")
class TestFlatAzure(EverywhereContract):
    @pytest.fixture
    def world(self, flat_world: World) -> World:
        return flat_world


@pytest.mark.engine("ozone")
class TestOzone(EverywhereContract):
    # The gateway interprets the characters & < > ' " in the target of a rename as XML.
    strange_names = tuple(name for name in STRANGE_NAMES if not set("&<>'\"") & set(name))

    @pytest.fixture
    def world(self, ozone_world: World) -> World:
        return ozone_world


class TestHierarchicalAzure(EverywhereContract):
    """Uses a server of this repository that imitates Azure."""

    @pytest.fixture
    def world(self, hierarchical_world: World) -> World:
        return hierarchical_world
