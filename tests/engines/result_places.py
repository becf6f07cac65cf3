"""Settings that store results in a new location on a real store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.engines.azurite import ACCOUNT, ACCOUNT_KEY
from tests.engines.hdfs import SERVICE_USER, HdfsCluster
from tests.engines.servers import HttpAddress
from tests.engines.versitygw import S3Address

from queryserver.files.model import StorageUser
from queryserver.files.protocol import FileSystem
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.http import AzureAccount, SharedKey
from queryserver.files.stores.s3.connection import S3Keys, S3Options
from queryserver.files.stores.s3.storage import S3FileSystem

_USER = StorageUser("tests")


@dataclass(frozen=True, slots=True)
class ResultsPlace:
    """The value of `result_file_storage`, and the other settings tables that it needs."""

    setting: str
    tables: Mapping[str, Any] = field(default_factory=dict)


async def s3_results(address: S3Address) -> ResultsPlace:
    """Create a new bucket for results; return the settings that use it."""
    bucket = f"results-{uuid4().hex}"
    keys = S3Keys(address.access_key_id, address.secret_access_key)
    options = S3Options(endpoint=address.url, path_style=True, keys=keys, allow_bucket_creation=True)
    await _make(S3FileSystem(options), bucket)
    properties = {
        "location": f"s3a://{bucket}/of/ours",
        "endpoint": address.url,
        "region": address.region,
        "access_key_id": address.access_key_id,
        "secret_access_key": address.secret_access_key,
    }
    return ResultsPlace(_setting("s3", properties))


async def hdfs_results(cluster: HdfsCluster) -> ResultsPlace:
    """Return settings with a new directory of a user who needs no permission to impersonate others."""
    location = f"hdfs:///user/{SERVICE_USER}/results-{uuid4().hex}"
    properties = {"location": location, "webhdfs_url": cluster.webhdfs_url, "user": SERVICE_USER}
    return ResultsPlace(_setting("hdfs", properties))


async def abfs_results(address: HttpAddress) -> ResultsPlace:
    """Create a new container in an account without a hierarchical namespace; return the settings that use it. The file
    store settings contain the account's address.
    """
    container = f"results{uuid4().hex}"
    blob_url = f"http://127.0.0.1:{address.port}/{ACCOUNT}"
    account = AzureAccount(
        dfs_url="http://127.0.0.1:9",
        blob_url=blob_url,
        credential=SharedKey(ACCOUNT, ACCOUNT_KEY),
        is_hierarchical=False,
        allow_container_creation=True,
    )
    await _make(AdlsFileSystem(account), container)
    host = f"{ACCOUNT}.dfs.core.windows.net"
    cluster = {
        "fs_defaultfs": f"abfs://{container}@{host}",
        "webhdfs_url": "http://127.0.0.1:9",
        "blob_url": blob_url,
        "hierarchical_namespace": False,
    }
    properties = {"location": f"abfs://{container}@{host}/of/ours", "account_key": ACCOUNT_KEY}
    tables = {
        "azure": {"abfs_clusters": {"default": cluster}, "azure_accounts": {"default": {"account_key": ACCOUNT_KEY}}}
    }
    return ResultsPlace(_setting("abfs", properties), tables)


async def _make(file_system: FileSystem, container: str) -> None:
    try:
        await file_system.as_user(_USER).mkdir(container)
    finally:
        await file_system.close()


def _setting(backend: str, properties: Mapping[str, str]) -> str:
    return json.dumps({"backend": backend, "properties": properties})
