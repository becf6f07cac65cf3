"""Store `ofs`: every table of `desktop.ozone` is a service with its gateway."""

from urllib.parse import urlsplit

from queryserver.container.storages.webhdfs import address
from queryserver.domain.errors.base import ConfigurationError
from queryserver.interfaces.storage import FileSystem
from queryserver.settings import Settings
from queryserver.storages.ozone import OzoneFileSystem
from queryserver.storages.webhdfs import WebHdfsAddress


def build(settings: Settings) -> FileSystem | None:
    """None without any. The least `ofs_chunk_size` counts for all. Raises ConfigurationError."""
    services: dict[str, WebHdfsAddress] = {}
    for table, service in settings.desktop.ozone.items():
        name = urlsplit(service.fs_defaultfs).netloc.rpartition("@")[2].lower()
        if not name:
            raise ConfigurationError([f"desktop.ozone.{table}.fs_defaultfs must be ofs://<service>."])
        services[name] = address(f"desktop.ozone.{table}", service, settings)
    if not services:
        return None
    return OzoneFileSystem(services, max_copy_bytes=min(s.ofs_chunk_size for s in settings.desktop.ozone.values()))
