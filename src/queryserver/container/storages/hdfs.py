"""Store `hdfs`: the first table of `hadoop.hdfs_clusters`."""

from queryserver.container.storages.webhdfs import address
from queryserver.interfaces.storage import FileSystem
from queryserver.settings import Settings
from queryserver.storages.webhdfs import WebHdfsFileSystem


def build(settings: Settings) -> FileSystem | None:
    """None without any. Raises ConfigurationError."""
    for name, cluster in settings.hadoop.hdfs_clusters.items():
        return WebHdfsFileSystem(
            address(f"hadoop.hdfs_clusters.{name}", cluster, settings),
            superuser=cluster.superuser,
            supergroup=cluster.supergroup,
            trash_interval_min=cluster.trash_interval,
        )
    return None
