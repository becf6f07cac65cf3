"""Tables of settings that configure real stores as the stores of an application."""

from collections.abc import Mapping
from typing import Any

from tests.engines.azurite import ACCOUNT, ACCOUNT_KEY
from tests.engines.hdfs import SERVICE_USER, HdfsCluster
from tests.engines.servers import HttpAddress
from tests.engines.versitygw import S3Address


def s3_tables(address: S3Address, *, as_guest: bool = False) -> Mapping[str, Any]:
    """Return the tables for S3. A guest has no access to any bucket."""
    account = {
        "access_key_id": address.guest_key_id if as_guest else address.access_key_id,
        "secret_access_key": address.guest_secret if as_guest else address.secret_access_key,
        "endpoint": address.url,
        "region": address.region,
        "path_style": True,
        "is_secure": False,
    }
    return {"aws": {"aws_accounts": {"default": account}}}


def hdfs_tables(cluster: HdfsCluster, webhdfs_url: str) -> Mapping[str, Any]:
    """Return the tables for HDFS. The URL is that of the NameNode or of a gateway."""
    table = {
        "fs_defaultfs": f"hdfs://127.0.0.1:{cluster.rpc_port}",
        "webhdfs_url": webhdfs_url,
        "service_user": SERVICE_USER,
    }
    return {"hadoop": {"hdfs_clusters": {"default": table}}}


def flat_azure_tables(azurite: HttpAddress, container: str) -> Mapping[str, Any]:
    """Return the tables for an Azure account without a hierarchical namespace."""
    cluster = {
        "fs_defaultfs": f"abfs://{container}@{ACCOUNT}.dfs.core.windows.net",
        "blob_url": f"{azurite.url}/{ACCOUNT}",
        "hierarchical_namespace": False,
    }
    return azure_tables(cluster, ACCOUNT_KEY)


def azure_tables(cluster: Mapping[str, Any], account_key: str) -> Mapping[str, Any]:
    tables = {"abfs_clusters": {"default": cluster}, "azure_accounts": {"default": {"account_key": account_key}}}
    return {"azure": tables}
