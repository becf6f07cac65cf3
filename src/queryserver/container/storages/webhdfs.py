"""What settings of HDFS and Ozone have in common."""

import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from queryserver.domain.errors.base import ConfigurationError
from queryserver.settings import Settings
from queryserver.settings.stores import HdfsClusterSettings, OzoneSettings
from queryserver.storages.webhdfs import WebHdfsAddress


def address(table: str, given: HdfsClusterSettings | OzoneSettings, settings: Settings) -> WebHdfsAddress:
    """Where the calls of a cluster go. Raises ConfigurationError."""
    return WebHdfsAddress(
        urls=_urls(table, given.webhdfs_url),
        service_user=given.service_user,
        tls=ssl.create_default_context() if given.ssl_cert_ca_verify else False,
        uses_tokens=given.security_enabled,
        redirect_hosts=given.redirect_hosts,
        umask=int(settings.filebrowser.umask, 8),
    )


def _urls(table: str, text: str) -> Sequence[str]:
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise ConfigurationError([f"{table}.webhdfs_url is missing."])
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise ConfigurationError([f"{table}.webhdfs_url must be http(s)://<host>:<port>/webhdfs/v1."])
    return urls
