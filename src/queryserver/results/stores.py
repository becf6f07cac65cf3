"""Builds the result store from `desktop.task_server.result_file_storage` (Contract platform 10.3).

The store is accessed with its own credentials, whoever runs the statements.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.files.model import StorageUser, names_of
from queryserver.files.protocol import FileSystem, Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.platform.disk_floor import disk_floor
from queryserver.platform.settings.sections import AbfsResults, HdfsResults, LocalResults, S3Results
from queryserver.platform.settings.stores import HdfsClusterSettings
from queryserver.platform.settings.tree import Settings
from queryserver.results.disk_cache import DiskCache
from queryserver.results.listing import ResultListing
from queryserver.results.segments import ResultStore

RESULTS = "desktop.task_server.result_file_storage"
_PRIVATE_UMASK = 0o077
# Remote stores are bound by latency, so more concurrent loads are free.
_REMOTE_LOADS = 8
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SERVICE = StorageUser("queryserver")


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """A store and the location of the results in it. The owner closes it."""

    storage: Storage
    root: str
    close: Callable[[], Awaitable[None]]
    is_remote: bool


@dataclass(frozen=True, slots=True)
class OpenResults:
    """The result store and its listing."""

    store: ResultStore
    listing: ResultListing


def build_result_files(settings: Settings) -> ResultFiles:
    """Open the configured store, by default a local directory, which is created. Does not connect to a remote one.

    Raises ConfigurationError, whose problems quote no values.
    """
    chosen = settings.desktop.task_server.result_file_storage
    if chosen is None or isinstance(chosen, LocalResults):
        try:
            storage = PrivateStorage(results_directory(settings), floor=disk_floor(settings))
        except OSError as error:
            raise _problem(f"location: the directory cannot be used: {error.strerror}.") from error
        return ResultFiles(storage, "", storage.close, is_remote=False)
    if isinstance(chosen, S3Results):
        return _s3(chosen)
    if isinstance(chosen, HdfsResults):
        return _hdfs(chosen, settings)
    return _abfs(chosen, settings)


def results_directory(settings: Settings) -> Path:
    """The directory of local results."""
    chosen = settings.desktop.task_server.result_file_storage
    return Path(chosen.location) if isinstance(chosen, LocalResults) else settings.results_dir


def is_remote(settings: Settings) -> bool:
    """Whether results are in a store that all hosts can reach."""
    chosen = settings.desktop.task_server.result_file_storage
    return chosen is not None and not isinstance(chosen, LocalResults)


@asynccontextmanager
async def open_results(settings: Settings) -> AsyncGenerator[OpenResults]:
    """The configured results, closed on exit. Does not connect. Raises ConfigurationError, OSError."""
    async with AsyncExitStack() as stack:
        files = build_result_files(settings)
        stack.push_async_callback(files.close)
        cache_bytes = settings.desktop.task_server.result_cache_max_bytes
        disk_cache = None
        if files.is_remote and cache_bytes:
            place = settings.desktop.data_dir / "result-cache"
            disk_cache = await stack.enter_async_context(DiskCache(place, cache_bytes, floor=disk_floor(settings)))
        more: Mapping[str, int] = MappingProxyType({"max_loads": _REMOTE_LOADS} if files.is_remote else {})
        store = ResultStore(files.storage, root=files.root, disk_cache=disk_cache, **more)
        yield OpenResults(await stack.enter_async_context(store), ResultListing(files.storage, files.root))


def _s3(chosen: S3Results) -> ResultFiles:
    from queryserver.files.stores.s3.connection import S3Keys, S3Options  # noqa: PLC0415 slow to import
    from queryserver.files.stores.s3.storage import S3FileSystem  # noqa: PLC0415 as above

    root = _checked_root(chosen.location.partition("://")[2])
    if not _BUCKET.fullmatch(root.partition("/")[0]):
        raise _problem("location: must be s3a://<bucket>/<prefix>.")
    key_id, secret, token = (
        given.get_secret_value().strip()
        for given in (chosen.access_key_id, chosen.secret_access_key, chosen.session_token)
    )
    if bool(key_id) != bool(secret):
        raise _problem("access_key_id and secret_access_key belong together.")
    if token and not key_id:
        raise _problem("session_token needs access_key_id and secret_access_key.")
    if chosen.endpoint:
        _require_url("endpoint", chosen.endpoint)
    options = S3Options(
        # Stores other than AWS accept any region; for AWS the environment may name it.
        region=chosen.region or ("us-east-1" if chosen.endpoint else ""),
        endpoint=chosen.endpoint.rstrip("/"),
        # Only AWS is certain to have a host name per bucket.
        path_style=bool(chosen.endpoint) and not (urlsplit(chosen.endpoint).hostname or "").endswith("amazonaws.com"),
        keys=S3Keys(key_id, secret, token) if key_id else None,
        encryption=chosen.sse,
    )
    return _remote(S3FileSystem(options), root)


def _hdfs(chosen: HdfsResults, settings: Settings) -> ResultFiles:
    from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem, address  # noqa: PLC0415 slow to import

    root = _checked_root(chosen.location.partition("://")[2].partition("/")[2])
    if not root:
        raise _problem("location: names no directory.")
    given = _cluster(chosen, settings)
    if chosen.user and not given.security_enabled:
        # Without Kerberos, the service can log in with any name, and needs no proxy user right.
        given = given.model_copy(update={"service_user": chosen.user})
    place = replace(address(RESULTS, given, settings), umask=_PRIVATE_UMASK)
    user = StorageUser(chosen.user or given.service_user)
    return _remote(WebHdfsFileSystem(place), root, user)


def _cluster(chosen: HdfsResults, settings: Settings) -> HdfsClusterSettings:
    """The cluster named by the location, by default the first one. `webhdfs_url` overrides its address."""
    clusters = list(settings.hadoop.hdfs_clusters.values())
    authority = urlsplit(chosen.location).netloc
    if authority:
        named = [one for one in clusters if urlsplit(one.fs_defaultfs).netloc.lower() == authority.lower()]
        if not named and not chosen.webhdfs_url:
            raise _problem("location: names no cluster of hadoop.hdfs_clusters; webhdfs_url is needed.")
        clusters = named or clusters
    if not clusters and not chosen.webhdfs_url:
        raise _problem("webhdfs_url is needed, since hadoop.hdfs_clusters has no cluster.")
    cluster = clusters[0] if clusters else HdfsClusterSettings()
    return cluster.model_copy(update={"webhdfs_url": chosen.webhdfs_url}) if chosen.webhdfs_url else cluster


def _abfs(chosen: AbfsResults, settings: Settings) -> ResultFiles:
    from queryserver.files.stores.adls.credentials import ClientCredentials, SharedKey  # noqa: PLC0415 slow to import
    from queryserver.files.stores.adls.file_system import AdlsFileSystem, account_at  # noqa: PLC0415 as above

    authority, _, path = chosen.location.partition("://")[2].partition("/")
    container, _, host = authority.rpartition("@")
    root = _checked_root(f"{container}/{path}")
    account_key, secret = chosen.account_key.get_secret_value(), chosen.client_secret.get_secret_value()
    try:
        if account_key:
            credential = SharedKey(host.partition(".")[0], account_key)
        elif chosen.tenant_id and chosen.client_id and secret:
            credential = ClientCredentials(chosen.tenant_id, chosen.client_id, secret)
        else:
            raise _problem("needs account_key, or tenant_id, client_id and client_secret.")
        file_system = AdlsFileSystem(replace(account_at(host, credential, settings), umask=_PRIVATE_UMASK))
    except ConfigurationError as error:
        raise _problem(*(problem.partition(": ")[2] for problem in error.problems)) from None
    return _remote(file_system, root)


def _remote(file_system: FileSystem, root: str, user: StorageUser = _SERVICE) -> ResultFiles:
    return ResultFiles(file_system.as_user(user), root, file_system.close, is_remote=True)


def _checked_root(path: str) -> str:
    """A path in a store, without leading and trailing slashes."""
    try:
        names_of(root := path.strip("/"))
    except InvalidPath as error:
        raise _problem(f"location: {error.message}") from error
    return root


def _require_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username or parts.password:
        raise _problem(f"{name}: must be http(s)://<host>:<port>.")


def _problem(*texts: str) -> ConfigurationError:
    return ConfigurationError([f"{RESULTS}: {text}" for text in texts])
