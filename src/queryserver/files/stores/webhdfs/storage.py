"""Implements `Storage` for HDFS via WebHDFS or HttpFS, and the operations shared with Ozone.

The parts of a file (Contract storage 9.2) are files in a directory `._qs_parts_<hex>` next to the target. They are
joined with CONCAT, which moves blocks without copying them, or by streaming if the store does not support CONCAT. Both
methods can be resumed after a failure.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from queryserver import errors
from queryserver.files import model
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart, empty_body
from queryserver.files.stores.webhdfs.gateway import (
    ErrorTranslator,
    Gateway,
    Negotiate,
    Tokens,
    WebHdfsAddress,
    WebHdfsCall,
    acting_name,
)
from queryserver.files.stores.webhdfs.statuses import RemoteFailure, content_summary
from queryserver.files.stores.webhdfs.tree import (
    OLD_PREFIX,
    ClusterFeatures,
    ListingOperation,
    NewFile,
    WebHdfsTree,
    child_path,
    keep_owner,
    remove_broken,
    restore,
    run_to_completion,
    write_verified,
)
from queryserver.platform.settings.stores import HdfsClusterSettings, OzoneSettings
from queryserver.platform.settings.tree import Settings

_BATCH_ENTRIES = 1000
_FACTS_S = 2.0
_JOINED = "joined"
# If CONCAT fails with one of these errors, streaming would fail as well, so it is not tried.
_OTHER_ERRORS = (errors.StorageUnavailable, errors.PermissionDenied, errors.StoreQuotaExceeded)


class GatewayStorage(ABC):
    """The operations that HDFS and Ozone have in common."""

    @abstractmethod
    def at(self, path: str) -> tuple[WebHdfsTree, str]:
        """Return the tree that contains `path`, and the path within the tree. Raises InvalidPath, PathNotFound,
        NotSupported.
        """

    def at_file(self, path: str) -> tuple[WebHdfsTree, str]:
        """Like `at`, for an existing or new file."""
        return self.at(path)

    async def stat(self, path: str) -> model.FileStatus:
        tree, path = self.at(path)
        return await tree.stat(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """Yield the entries of a directory in batches. The cursor is the name of the last entry.

        A directory that fits in one batch is sorted by code points. A larger one is listed in the order of the store:
        HDFS compares names as signed bytes, so non-ASCII names come first.
        """
        tree, path = self.at(path)
        batch_entries, is_first = max(batch_size, _BATCH_ENTRIES), cursor is None
        while True:
            async with aclosing(tree.entries(path, cursor, batch_entries)) as entries:
                async for found in entries:
                    cursor = None if found.remaining == 0 else found.last
                    statuses = found.statuses(path, model.is_name, by_name=is_first and cursor is None)
                    is_first = False
                    yield Batch(statuses, cursor, _exact_remaining(found.remaining, found.last))
            if cursor is None:
                return

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: model.FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file. The last chunk is yielded only if the file has not changed since `version`."""
        tree, path = self.at(path)
        status = version or await tree.stat(path)
        if not status.is_file:
            raise errors.NotAFile(f"/{path} is not a file.")
        wanted = status.size_bytes - offset if length is None else min(length, status.size_bytes - offset)
        if wanted <= 0:
            await _check(tree, path, version)
            return
        last_chunk = b""
        try:
            async with aclosing(tree.content(path, offset, wanted)) as pieces:
                async for piece in pieces:
                    if last_chunk:
                        yield last_chunk
                    last_chunk = piece
        except (errors.StorageError, errors.PathNotFound):
            # Reading a file that has been truncated can fail in several ways.
            await _check(tree, path, version)
            raise
        await _check(tree, path, version)
        if last_chunk:
            yield last_chunk

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> model.FileStatus:
        del size_bytes  # the body is sent with chunked transfer encoding, which does not need the size
        tree, path = self.at_file(path)
        former = await _replaceable(tree, path, overwrite=overwrite)
        return await _write(tree, path, body, former, _new_file(tree, former))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        tree, path = self.at(path)
        if not path:
            raise errors.PathExists("The root already exists.")
        wanted = 0o777 & ~tree.features.umask if permissions is None else permissions
        await tree.features.renaming.make_directory(tree, path, wanted)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> model.FileStatus:
        """Copy a file by streaming its bytes through queryserver."""
        tree, path = self.at(target)
        status = await self.stat(source)
        if not status.is_file:
            raise errors.NotAFile(f"/{source} is not a file.")
        former = await _replaceable(tree, path, overwrite=overwrite)
        async with aclosing(self.read(source, version=status)) as body:
            new = NewFile(status.permissions, status.replication, status.block_size)
            return await _write(
                tree, path, body, former, new if tree.features.has_attributes else _new_file(tree, None)
            )

    async def delete(self, path: str, *, recursive: bool) -> None:
        tree, path = self.at(path)
        if not path:
            raise errors.root_not_allowed("The root cannot be deleted.")
        if not await tree.remove(path, recursive=recursive):
            await tree.stat(path)
            raise errors.StorageError("The store did not delete the entry.")

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        (tree, source), (_, target) = self.at(source), self.at(target)
        if not source:
            raise errors.root_not_allowed("The root cannot be renamed.")
        if not target:
            raise errors.PathExists("The root already exists.")
        await tree.features.renaming.rename(tree, source, target, overwrite=overwrite)

    async def set_replication(self, path: str, factor: int) -> None:
        tree, path = self.at(path)
        status = await tree.stat(path)
        if not status.is_file:
            raise errors.NotAFile(f"/{path} is not a file.")
        try:
            is_done = await tree.set_replication(path, factor)
        except errors.StorageUnavailable:
            raise
        except errors.StorageError as error:
            # The permitted range is configured in the cluster, and only the message shows that it was exceeded.
            if "replication" in error.message.lower():
                raise errors.InvalidParameter(error.message) from error
            raise
        if not is_done:
            raise errors.PathNotFound(f"/{path} does not exist.")

    async def content_summary(self, path: str) -> model.ContentSummary:
        tree, path = self.at(path)
        return content_summary(await tree.request_value("GETCONTENTSUMMARY", path, "ContentSummary"))

    async def set_permissions(self, path: str, permissions: int) -> None:
        tree, path = self.at(path)
        await tree.set_permissions(path, permissions)

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        tree, path = self.at(path)
        await tree.set_owner(path, owner, group)

    async def begin_parts(self, plan: PartPlan) -> str:
        """Create a staging directory, and return the hexadecimal part of its name."""
        tree, path = self.at_file(plan.path)
        parent = path.rpartition("/")[0]
        if not (await tree.stat(parent)).is_directory:
            raise errors.NotADirectory(f"/{parent} is not a directory.")
        staging = uuid4().hex
        await tree.make_directory(_parts_directory(path, staging), 0o700)
        return staging

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Write a part to a file of its own. Each attempt uses a new file name, which serves as the receipt."""
        tree, path = self.at_file(plan.path)
        directory = _parts_directory(path, staging)
        if await tree.find(directory) is None:
            raise errors.PathNotFound("The parts of this upload no longer exist.")
        name = f"{index}_{uuid4().hex}"
        size = (await write_verified(tree, f"{directory}/{name}", body, NewFile(0o600))).size_bytes
        if size != plan.size_of(index):
            await tree.remove(f"{directory}/{name}", recursive=False)
            raise errors.VerificationFailed(f"Part {index} has {size} instead of {plan.size_of(index)} bytes.")
        return StoredPart(index, size, name)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> model.FileStatus:
        tree, path = self.at_file(plan.path)
        former = await _replaceable(tree, path, overwrite=overwrite)
        joined = await _join(tree, _parts_directory(path, staging), plan, parts, _new_file(tree, former))
        if former is not None:
            await keep_owner(tree, joined, await tree.stat(joined), former)
        status = await tree.features.renaming.publish(tree, joined, path, former)
        await run_to_completion(tree.remove(_parts_directory(path, staging), recursive=True))
        return status

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        tree, path = self.at_file(plan.path)
        stored = await _stored_files(tree, _parts_directory(path, staging))
        names = [_JOINED, *(part.receipt for part in _parts_to_join(parts, stored))]
        async with aclosing(_stream_files(tree, [stored[name] for name in names if name in stored])) as pieces:
            async for piece in pieces:
                yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        tree, path = self.at_file(plan.path)
        await tree.remove(_parts_directory(path, staging), recursive=True)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files. Also restore files that were moved aside for a replacement that was never
        completed.
        """
        tree, path = self.at(path)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        count = 0
        async with aclosing(tree.all_entries(path)) as entries:
            async for entry in entries:
                if entry.name.startswith(model.RESERVED_PREFIX) and entry.modified_at and entry.modified_at < before:
                    if entry.name.startswith(OLD_PREFIX) and entry.is_directory:
                        await restore(tree, path, entry.path)
                    else:
                        await tree.remove(entry.path, recursive=True)
                    count += 1
        return count


class WebHdfsStorage(GatewayStorage):
    """Accesses HDFS with one user's permissions. Supports trash."""

    def __init__(self, tree: WebHdfsTree) -> None:
        self.tree = tree

    def at(self, path: str) -> tuple[WebHdfsTree, str]:
        model.names_of(path)
        return self.tree, path

    async def trash_root(self, path: str) -> str:
        """Return the trash directory that applies to `path`. Encryption zones have their own trash."""
        model.names_of(path)
        try:
            root = await self.tree.request_value("GETTRASHROOT", path, "Path")
        except errors.NotSupported:
            return f"user/{self.tree.user}/.Trash"
        return str(root).strip("/")


async def _write(
    tree: WebHdfsTree, path: str, body: AsyncIterator[bytes], former: model.FileStatus | None, new: NewFile
) -> model.FileStatus:
    """Write a temporary file next to the target, and rename it. On failure or cancellation, the temporary file is
    deleted. Raises the errors of `write`.
    """
    temporary_path = child_path(path.rpartition("/")[0], f"{model.RESERVED_PREFIX}upload_{uuid4().hex}")
    try:
        status = await write_verified(tree, temporary_path, body, new)
        if former is not None:
            await keep_owner(tree, temporary_path, status, former)
        return await tree.features.renaming.publish(tree, temporary_path, path, former)
    except BaseException:  # includes CancelledError: no partial file may remain
        with suppress(errors.QueryServerError):
            await run_to_completion(remove_broken(tree, temporary_path))
        raise


async def _replaceable(tree: WebHdfsTree, path: str, *, overwrite: bool) -> model.FileStatus | None:
    """Return the file that a new file at `path` will replace, or None. Raises PathExists if the entry must not be
    replaced.
    """
    if not path:
        raise errors.PathExists("The root already exists.")
    former = await tree.find(path)
    if former is not None and (not overwrite or not former.is_file):
        raise errors.PathExists(f"/{path} already exists.")
    return former


def _new_file(tree: WebHdfsTree, former: model.FileStatus | None) -> NewFile:
    """Return the attributes of a new file, which replaces `former` if it is not None."""
    if former is None or not tree.features.has_attributes:
        return NewFile(0o666 & ~tree.features.umask)
    return NewFile(former.permissions, former.replication)


async def _check(tree: WebHdfsTree, path: str, version: model.FileStatus | None) -> None:
    """Raise EntryChanged if `version` is given and the file has changed since."""
    if version is None:
        return
    with suppress(errors.PathNotFound, errors.NotADirectory):
        if (await tree.stat(path)).is_same_content(version):
            return
    raise errors.EntryChanged(f"/{path} was modified concurrently.")


async def _join(tree: WebHdfsTree, directory: str, plan: PartPlan, parts: Sequence[StoredPart], new: NewFile) -> str:
    """Join all parts into one file in the staging directory, and return its path. Raises VerificationFailed,
    PathNotFound.
    """
    joined = f"{directory}/{_JOINED}"
    stored = await _stored_files(tree, directory)
    missing = _parts_to_join(parts, stored)
    if sum(part.size_bytes for part in parts) != plan.size_bytes:
        raise errors.VerificationFailed("The total size of the parts does not match the size of the file.")
    if _JOINED not in stored:
        await write_verified(tree, joined, empty_body(), new)
    await _append(tree, directory, [f"{directory}/{part.receipt}" for part in missing if part.size_bytes], new)
    status = await tree.stat(joined)
    if status.size_bytes != plan.size_bytes:
        raise errors.VerificationFailed(f"The store joined {status.size_bytes} of {plan.size_bytes} bytes.")
    return joined


async def _append(tree: WebHdfsTree, directory: str, sources: Sequence[str], new: NewFile) -> None:
    joined = f"{directory}/{_JOINED}"
    try:
        await tree.concat(joined, sources)
    except _OTHER_ERRORS:
        raise
    except errors.QueryServerError:
        # Encryption zones, erasure coding and Ozone do not support CONCAT, each with a different error message.
        remaining = {entry.path: entry async for entry in tree.all_entries(directory)}
        files = [remaining[source] for source in (joined, *sources) if source == joined or source in remaining]
        copy = f"{directory}/{_JOINED}_{uuid4().hex}"
        await write_verified(tree, copy, _stream_files(tree, files), new)
        await tree.remove(joined, recursive=False)
        await tree.rename(copy, joined, overwrite=False)


async def _stored_files(tree: WebHdfsTree, directory: str) -> Mapping[str, model.FileStatus]:
    return {entry.name: entry async for entry in tree.all_entries(directory)}


async def _stream_files(tree: WebHdfsTree, files: Sequence[model.FileStatus]) -> AsyncGenerator[bytes]:
    for file in files:
        if file.size_bytes:
            async with aclosing(tree.content(file.path, 0, file.size_bytes)) as pieces:
                async for piece in pieces:
                    yield piece


def _parts_directory(path: str, staging: str) -> str:
    """Return the path of the staging directory. Raises InvalidParameter if `staging` is not a valid id."""
    if len(staging) != 32 or not set(staging) <= set("0123456789abcdef"):
        raise errors.InvalidParameter("The upload id is not valid.")
    return child_path(path.rpartition("/")[0], f"{model.RESERVED_PREFIX}parts_{staging}")


def _parts_to_join(parts: Sequence[StoredPart], stored: Mapping[str, model.FileStatus]) -> Sequence[StoredPart]:
    """Return the parts that earlier calls have not joined yet, in order. Raises VerificationFailed."""
    parts = sorted(parts, key=lambda part: part.index)
    done = stored[_JOINED].size_bytes if _JOINED in stored else 0
    start = 0
    while done > 0 and start < len(parts):
        done -= parts[start].size_bytes
        start += 1
    for part in parts[start:]:
        stored_part = stored.get(part.receipt)
        if stored_part is None or stored_part.size_bytes != part.size_bytes:
            raise errors.VerificationFailed(f"Part {part.index} does not match its stored state.")
    if done:
        raise errors.VerificationFailed("The joined parts do not match the stored parts.")
    return parts[start:]


def _exact_remaining(remaining: int | None, last: str) -> int | None:
    """Return how many entries follow, or None if these may include reserved names, which listings omit."""
    is_after_reserved_names = last[:1].isascii() and last > f"{model.RESERVED_PREFIX}\U0010ffff"
    return remaining if remaining == 0 or is_after_reserved_names else None


class WebHdfsCluster:
    """Connections to one cluster or gateway. Must be closed."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        login: httpx.Auth | None = None,
        translate_error: ErrorTranslator = RemoteFailure.error,
        has_attributes: bool = True,
        listing: ListingOperation | None = None,
    ) -> None:
        """`login` authenticates requests for delegation tokens; None means Kerberos. Raises ConfigurationError."""
        if address.uses_tokens:
            self._login = Gateway(address, auth=login or Negotiate(), translate_error=translate_error)
            self.gateway = Gateway(address, Tokens(self._obtain, self._renew), translate_error=translate_error)
        else:
            self._login = self.gateway = Gateway(address, translate_error=translate_error)
        self._service_user = address.service_user
        self._features = ClusterFeatures(address.umask, has_attributes, listing or ListingOperation())

    def tree(self, user: model.StorageUser) -> WebHdfsTree:
        """Return the cluster's file tree, accessed with the user's permissions. Raises PermissionDenied if the store
        would map the name to another user.
        """
        return WebHdfsTree(self.gateway, acting_name(user.name), self._features)

    async def close(self) -> None:
        await self.gateway.close()
        await self._login.close()

    async def _obtain(self, user: str) -> str:
        call = WebHdfsCall("GET", "GETDELEGATIONTOKEN", parameters={"renewer": self._service_user}, is_repeatable=True)
        token = await self._login.request_value(user, call, "Token")
        if not isinstance(token, Mapping) or not isinstance(text := token.get("urlString"), str):
            raise errors.StorageError("The store did not return a delegation token.")
        return text

    async def _renew(self, token: str) -> None:
        call = WebHdfsCall("PUT", "RENEWDELEGATIONTOKEN", parameters={"token": token}, is_repeatable=True)
        await self._login.request(self._service_user, call)


class WebHdfsFileSystem(WebHdfsCluster):
    """One HDFS cluster."""

    scheme = model.Scheme.HDFS
    traits = StorageTraits(
        lists_in_order=True, acts_as_user=True, deletes_to_trash=True, changes_modes_of_trees=True, home_parent="user"
    )

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        superuser: str = "hdfs",
        supergroup: str = "supergroup",
        trash_interval_min: int = 0,
        login: httpx.Auth | None = None,
    ) -> None:
        """Does not connect. If `trash_interval_min` is 0, the interval of the cluster applies. Raises
        ConfigurationError.
        """
        super().__init__(address, login=login)
        self._superuser = superuser
        self._supergroup = supergroup
        self._trash_interval_min = trash_interval_min

    def as_user(self, user: model.StorageUser) -> WebHdfsStorage:
        """Return the user's storage. Raises PermissionDenied."""
        return WebHdfsStorage(self.tree(user))

    async def facts(self, user: model.StorageUser) -> model.ClusterFacts:
        """Return facts about the cluster and the user. The owner of the root directory is assumed to be the
        superuser.
        """
        tree = self.tree(user)
        try:
            async with asyncio.timeout(_FACTS_S):
                superuser = (await tree.stat("")).owner or self._superuser
                minutes = self._trash_interval_min
                if not minutes:
                    found = await tree.request_value("GETSERVERDEFAULTS", "", "FsServerDefaults", "trashInterval")
                    minutes = found if isinstance(found, int) else 0
        except TimeoutError as error:
            raise errors.StorageUnavailable("The store did not respond in time.") from error
        return model.ClusterFacts(
            is_trash_enabled=minutes > 0,
            is_superuser=user.name == superuser,
            superuser=superuser,
            supergroup=self._supergroup,
        )


def cluster_address(table: str, cluster: HdfsClusterSettings | OzoneSettings, settings: Settings) -> WebHdfsAddress:
    """Create the address of a cluster from its settings. Raises ConfigurationError."""
    urls = [url.strip() for url in cluster.webhdfs_url.split(",") if url.strip()]
    if not urls:
        raise errors.ConfigurationError([f"{table}.webhdfs_url is missing."])
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise errors.ConfigurationError([f"{table}.webhdfs_url must be http(s)://<host>:<port>/webhdfs/v1."])
    return WebHdfsAddress(
        urls=urls,
        service_user=cluster.service_user,
        tls=ssl.create_default_context() if cluster.ssl_cert_ca_verify else False,
        uses_tokens=cluster.security_enabled,
        redirect_hosts=cluster.redirect_hosts,
        umask=int(settings.filebrowser.umask, 8),
    )


def build(settings: Settings) -> FileSystem | None:
    """Return the first configured cluster, or None if there is none. Raises ConfigurationError."""
    for name, cluster in settings.hadoop.hdfs_clusters.items():
        return WebHdfsFileSystem(
            cluster_address(f"hadoop.hdfs_clusters.{name}", cluster, settings),
            superuser=cluster.superuser,
            supergroup=cluster.supergroup,
            trash_interval_min=cluster.trash_interval,
        )
    return None
