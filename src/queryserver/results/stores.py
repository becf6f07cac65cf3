"""Builds the result store from `desktop.task_server.result_file_storage` (Contract platform 10.3), and lists results.

The server accesses the store with the store's own credentials, regardless of who runs the statements.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit
from uuid import UUID

from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath, PathExists, PathNotFound
from queryserver.files.model import FileStatus, StorageUser, names_of
from queryserver.files.protocol import FileSystem, Storage
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.platform.machine_limits import disk_floor
from queryserver.platform.settings.sections import AbfsResults, HdfsResults, LocalResults, S3Results
from queryserver.platform.settings.stores import HdfsClusterSettings
from queryserver.platform.settings.tree import Settings
from queryserver.results.disk_cache import DiskCache
from queryserver.results.segments import PING_DIRECTORY, ResultStore, single_piece

_SHARD_DIGITS = 2
_BATCH = 500
_OWNER_FILE = "owner"
"""Name of an object that contains the id of the service database to which the results belong."""

RESULTS = "desktop.task_server.result_file_storage"
_PRIVATE_UMASK = 0o077
# Requests to remote stores spend most of their time waiting, so more of them can run concurrently.
_REMOTE_LOADS = 8
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SERVICE = StorageUser("queryserver")


@dataclass(frozen=True, slots=True)
class ResultDirectory:
    """The directory of one statement's result in the store."""

    id: UUID
    directory: FileStatus


class ResultListing:
    """Lists and cleans up the directories of a result store."""

    def __init__(self, storage: Storage, root: str = "") -> None:
        self._storage = storage
        self._root = root

    async def belongs_to(self, database_id: str, *, claims: bool) -> bool:
        """Return whether the store belongs to the database or has no owner.

        If `claims` is set and the store has no owner, the database becomes the owner.

        A sweep with a different database would delete all results here, because that database has no records of them.
        """
        path = self._at(_OWNER_FILE)
        for _ in range(2):
            with suppress(PathNotFound):
                return b"".join([piece async for piece in self._storage.read(path)]) == database_id.encode()
            if not claims:
                return True
            with suppress(PathExists):
                await self._storage.write(path, single_piece(database_id.encode()), overwrite=False)
                return True
        return False

    async def statements(self) -> AsyncGenerator[Sequence[ResultDirectory]]:
        """Yield all statements that have a directory, in batches of up to 500. Skips other entries."""
        shards = [entry async for entry in self._entries("") if len(entry.name) == _SHARD_DIGITS]
        batch: list[ResultDirectory] = []
        for shard in shards:
            async for entry in self._entries(shard.name):
                statement_id = _parse_id(entry.name)
                if statement_id is not None and statement_id.hex.endswith(shard.name):
                    batch.append(ResultDirectory(statement_id, entry))
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    async def last_written(self, stored: ResultDirectory) -> datetime | None:
        """Return the time of the last write according to the store's clock, or None if it is unknown."""
        name = f"{stored.id.hex[-_SHARD_DIGITS:]}/{stored.id}"
        times = [entry.modified_at async for entry in self._entries(name)]
        # If there are no files, only the directory has a time. Object stores provide none.
        known = [time for time in (times or [stored.directory.modified_at]) if time is not None]
        return max(known, default=None)

    async def remove_orphans(self, older_than: timedelta, now: datetime, *, dry_run: bool = False) -> int:
        """Delete files that crashed processes left behind while writing to the store or checking it.

        Return their number. If `dry_run` is set, only count them.
        """
        removed = 0
        async for entry in self._entries(PING_DIRECTORY):
            if entry.is_file and entry.modified_at is not None and now - entry.modified_at > older_than:
                removed += 1
                if not dry_run:
                    with suppress(PathNotFound):
                        await self._storage.delete(self._at(f"{PING_DIRECTORY}/{entry.name}"), recursive=False)
        if isinstance(self._storage, PrivateStorage):
            # Other stores hide incomplete files, or keep them in the directory of the statement.
            removed += await self._storage.sweep_all_directories(older_than, dry_run=dry_run)
        return removed

    async def _entries(self, path: str) -> AsyncGenerator[FileStatus]:
        """Yield the entries of a directory. Yields nothing if it does not exist."""
        with suppress(PathNotFound):
            async with aclosing(self._storage.list_directory(self._at(path))) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        yield entry

    def _at(self, path: str) -> str:
        return "/".join(part for part in (self._root, path) if part)


def _parse_id(name: str) -> UUID | None:
    try:
        parsed = UUID(name)
    except ValueError:
        return None
    return parsed if str(parsed) == name else None


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """A storage, and the directory in it that contains the results. The caller must call `close`."""

    storage: Storage
    root: str
    close: Callable[[], Awaitable[None]]
    is_remote: bool


@dataclass(frozen=True, slots=True)
class OpenResults:
    """The open result store, and the listing of its results."""

    store: ResultStore
    listing: ResultListing


def build_result_files(settings: Settings) -> ResultFiles:
    """Open the configured store. The default is a local directory, which is created.

    Does not connect to remote stores.
    Raises ConfigurationError, whose messages contain no values of settings.
    """
    store = settings.desktop.task_server.result_file_storage
    if store is None or isinstance(store, LocalResults):
        try:
            storage = PrivateStorage(results_directory(settings), floor=disk_floor(settings))
        except OSError as error:
            raise _configuration_error(f"location: the directory cannot be used: {error.strerror}.") from error
        return ResultFiles(storage, "", storage.close, is_remote=False)
    if isinstance(store, S3Results):
        return _s3(store)
    if isinstance(store, HdfsResults):
        return _hdfs(store, settings)
    return _abfs(store, settings)


def results_directory(settings: Settings) -> Path:
    """Return the directory for local results."""
    store = settings.desktop.task_server.result_file_storage
    return Path(store.location) if isinstance(store, LocalResults) else settings.results_dir


def is_remote(settings: Settings) -> bool:
    """Return whether results are kept in a store that all hosts can access."""
    store = settings.desktop.task_server.result_file_storage
    return store is not None and not isinstance(store, LocalResults)


@asynccontextmanager
async def open_results(settings: Settings) -> AsyncGenerator[OpenResults]:
    """Open the configured result store, and close it on exit. Does not connect. Raises ConfigurationError, OSError."""
    async with AsyncExitStack() as stack:
        files = build_result_files(settings)
        stack.push_async_callback(files.close)
        cache_bytes = settings.desktop.task_server.result_cache_max_bytes
        disk_cache = None
        if files.is_remote and cache_bytes:
            directory = settings.desktop.data_dir / "result-cache"
            disk_cache = await stack.enter_async_context(DiskCache(directory, cache_bytes, floor=disk_floor(settings)))
        more: Mapping[str, int] = MappingProxyType({"max_loads": _REMOTE_LOADS} if files.is_remote else {})
        store = ResultStore(files.storage, root=files.root, disk_cache=disk_cache, **more)
        yield OpenResults(await stack.enter_async_context(store), ResultListing(files.storage, files.root))


def _s3(store: S3Results) -> ResultFiles:
    from queryserver.files.stores.s3.connection import S3Keys, S3Options  # noqa: PLC0415 slow to import
    from queryserver.files.stores.s3.storage import S3FileSystem  # noqa: PLC0415 as above

    root = _valid_root(store.location.partition("://")[2])
    if not _BUCKET.fullmatch(root.partition("/")[0]):
        raise _configuration_error("location: must be s3a://<bucket>/<prefix>.")
    key_id, secret, token = (
        value.get_secret_value().strip()
        for value in (store.access_key_id, store.secret_access_key, store.session_token)
    )
    if bool(key_id) != bool(secret):
        raise _configuration_error("access_key_id and secret_access_key must be set together.")
    if token and not key_id:
        raise _configuration_error("session_token requires access_key_id and secret_access_key.")
    if store.endpoint:
        _require_url("endpoint", store.endpoint)
    options = S3Options(
        # Stores other than AWS accept any region. For AWS, the environment may specify the region.
        region=store.region or ("us-east-1" if store.endpoint else ""),
        endpoint=store.endpoint.rstrip("/"),
        # Only AWS is certain to have a separate host name for each bucket.
        path_style=bool(store.endpoint) and not (urlsplit(store.endpoint).hostname or "").endswith("amazonaws.com"),
        keys=S3Keys(key_id, secret, token) if key_id else None,
        encryption=store.sse,
    )
    return _remote_files(S3FileSystem(options), root)


def _hdfs(store: HdfsResults, settings: Settings) -> ResultFiles:
    from queryserver.files.stores.webhdfs.storage import WebHdfsFileSystem, cluster_address  # noqa: PLC0415 slow to import

    root = _valid_root(store.location.partition("://")[2].partition("/")[2])
    if not root:
        raise _configuration_error("location: must name a directory.")
    cluster = _cluster(store, settings)
    if store.user and not cluster.security_enabled:
        # Without Kerberos, the service can use any user name, and needs no proxy user rights.
        cluster = cluster.model_copy(update={"service_user": store.user})
    address = replace(cluster_address(RESULTS, cluster, settings), umask=_PRIVATE_UMASK)
    user = StorageUser(store.user or cluster.service_user)
    return _remote_files(WebHdfsFileSystem(address), root, user)


def _cluster(store: HdfsResults, settings: Settings) -> HdfsClusterSettings:
    """Return the cluster that the location names, by default the first. `webhdfs_url` overrides its address."""
    clusters = list(settings.hadoop.hdfs_clusters.values())
    authority = urlsplit(store.location).netloc
    if authority:
        matching = [
            cluster for cluster in clusters if urlsplit(cluster.fs_defaultfs).netloc.lower() == authority.lower()
        ]
        if not matching and not store.webhdfs_url:
            raise _configuration_error(
                "location: does not name a cluster of hadoop.hdfs_clusters; webhdfs_url is required."
            )
        clusters = matching or clusters
    if not clusters and not store.webhdfs_url:
        raise _configuration_error("webhdfs_url is required, because hadoop.hdfs_clusters is empty.")
    cluster = clusters[0] if clusters else HdfsClusterSettings()
    return cluster.model_copy(update={"webhdfs_url": store.webhdfs_url}) if store.webhdfs_url else cluster


def _abfs(store: AbfsResults, settings: Settings) -> ResultFiles:
    from queryserver.files.stores.adls.file_system import AdlsFileSystem, account_at  # noqa: PLC0415 as above
    from queryserver.files.stores.adls.http import ClientCredentials, SharedKey  # noqa: PLC0415 slow to import

    authority, _, path = store.location.partition("://")[2].partition("/")
    container, _, host = authority.rpartition("@")
    root = _valid_root(f"{container}/{path}")
    account_key, secret = (store.account_key.get_secret_value(), store.client_secret.get_secret_value())
    try:
        if account_key:
            credential = SharedKey(host.partition(".")[0], account_key)
        elif store.tenant_id and store.client_id and secret:
            credential = ClientCredentials(store.tenant_id, store.client_id, secret)
        else:
            raise _configuration_error("account_key, or tenant_id, client_id and client_secret are required.")
        file_system = AdlsFileSystem(replace(account_at(host, credential, settings), umask=_PRIVATE_UMASK))
    except ConfigurationError as error:
        raise _configuration_error(*(problem.partition(": ")[2] for problem in error.problems)) from None
    return _remote_files(file_system, root)


def _remote_files(file_system: FileSystem, root: str, user: StorageUser = _SERVICE) -> ResultFiles:
    return ResultFiles(file_system.as_user(user), root, file_system.close, is_remote=True)


def _valid_root(path: str) -> str:
    """Return the path in the store, without leading and trailing slashes. Raises ConfigurationError."""
    try:
        names_of(root := path.strip("/"))
    except InvalidPath as error:
        raise _configuration_error(f"location: {error.message}") from error
    return root


def _require_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username or parts.password:
        raise _configuration_error(f"{name}: must be http(s)://<host>:<port>.")


def _configuration_error(*texts: str) -> ConfigurationError:
    return ConfigurationError([f"{RESULTS}: {text}" for text in texts])
