"""HDFS over WebHDFS or HttpFS: the Storage as one user sees it, with its trash, and the cluster.

Parts of a file (Contract storage 9.2) are files in a directory `._qs_parts_<hex>` beside the target. They become one
file by CONCAT, which moves blocks and copies nothing, or where the store refuses that, by a streamed join. Both can be
continued where they stopped.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from queryserver import errors
from queryserver.files import model
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart, no_bytes
from queryserver.files.stores.webhdfs.gateway import (
    ErrorOf,
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
    ListingOperation,
    NewFile,
    Renaming,
    WebHdfsTree,
    beside,
    finished,
    keep_owner,
    remove_broken,
    restore,
    write_verified,
)
from queryserver.platform.settings.stores import HdfsClusterSettings, OzoneSettings
from queryserver.platform.settings.tree import Settings

_MOST_IN_BATCH = 1000
_FACTS_S = 2.0
_JOINED = "joined"
# These errors are no refusal of CONCAT: a streamed join would fail with them, too.
_NO_REFUSALS = (errors.StorageUnavailable, errors.PermissionDenied, errors.StoreQuotaExceeded)


class WebHdfsStorage:
    def __init__(self, tree: WebHdfsTree, renaming: Renaming, *, umask: int) -> None:
        self.tree = tree
        self._renaming = renaming
        self._umask = umask

    async def stat(self, path: str) -> model.FileStatus:
        model.names_of(path)
        return await self.tree.stat(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """A cursor is the last name.

        HDFS compares names as signed bytes, so that names beyond ASCII come first. A directory of one batch is sorted
        by code points; larger ones keep the order of the store.
        """
        model.names_of(path)
        most, is_first = max(batch_size, _MOST_IN_BATCH), cursor is None
        while True:
            async with aclosing(self.tree.entries(path, cursor, most)) as entries:
                async for found in entries:
                    cursor = None if found.remaining == 0 else found.last
                    shown = found.statuses(path, model.is_name, by_name=is_first and cursor is None)
                    is_first = False
                    yield Batch(shown, cursor, _exact(found.remaining, found.last))
            if cursor is None:
                return

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: model.FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """The last piece is given only if the file is still that version."""
        model.names_of(path)
        status = version or await self.tree.stat(path)
        if not status.is_file:
            raise errors.NotAFile(f"/{path} is no file.")
        wanted = status.size_bytes - offset if length is None else min(length, status.size_bytes - offset)
        if wanted <= 0:
            await self._check(path, version)
            return
        held = b""
        try:
            async with aclosing(self.tree.content(path, offset, wanted)) as pieces:
                async for piece in pieces:
                    if held:
                        yield held
                    held = piece
        except (errors.StorageError, errors.PathNotFound):
            # A file that became shorter fails in several ways.
            await self._check(path, version)
            raise
        await self._check(path, version)
        if held:
            yield held

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> model.FileStatus:
        del size_bytes  # the body is sent in chunks, which need no announcement
        former = await self._replaceable(path, overwrite=overwrite)
        return await self._write(path, body, former, self._new_file(former))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        if not model.names_of(path):
            raise errors.PathExists("The root exists.")
        wanted = 0o777 & ~self._umask if permissions is None else permissions
        await self._renaming.make_directory(self.tree, path, wanted)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> model.FileStatus:
        """The bytes go through this server."""
        model.names_of(source)
        model.names_of(target)
        status = await self.tree.stat(source)
        if not status.is_file:
            raise errors.NotAFile(f"/{source} is no file.")
        former = await self._replaceable(target, overwrite=overwrite)
        async with aclosing(self.read(source, version=status)) as body:
            new = NewFile(status.permissions, status.replication, status.block_size)
            return await self._write(target, body, former, new if self.tree.has_attributes else self._new_file(None))

    async def delete(self, path: str, *, recursive: bool) -> None:
        if not model.names_of(path):
            raise errors.root_not_allowed("The root is not deleted.")
        if not await self.tree.remove(path, recursive=recursive):
            await self.tree.stat(path)
            raise errors.StorageError("The store does not delete this.")

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        if not model.names_of(source):
            raise errors.root_not_allowed("The root has no other name.")
        if not model.names_of(target):
            raise errors.PathExists("The root exists.")
        await self._renaming.rename(self.tree, source, target, overwrite=overwrite)

    async def trash_root(self, path: str) -> str:
        """Encryption zones have a trash of their own."""
        model.names_of(path)
        try:
            root = await self.tree.ask("GETTRASHROOT", path, "Path")
        except errors.NotSupported:
            return f"user/{self.tree.user}/.Trash"
        return str(root).strip("/")

    async def set_replication(self, path: str, factor: int) -> None:
        model.names_of(path)
        status = await self.tree.stat(path)
        if not status.is_file:
            raise errors.NotAFile(f"/{path} is no file.")
        try:
            is_done = await self.tree.set_replication(path, factor)
        except errors.StorageUnavailable:
            raise
        except errors.StorageError as error:
            # The bounds are the cluster's own; only the text names them.
            if "replication" in error.message.lower():
                raise errors.InvalidParameter(error.message) from error
            raise
        if not is_done:
            raise errors.PathNotFound(f"/{path} does not exist.")

    async def content_summary(self, path: str) -> model.ContentSummary:
        model.names_of(path)
        return content_summary(await self.tree.ask("GETCONTENTSUMMARY", path, "ContentSummary"))

    async def set_permissions(self, path: str, permissions: int) -> None:
        model.names_of(path)
        await self.tree.set_permissions(path, permissions)

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        model.names_of(path)
        await self.tree.set_owner(path, owner, group)

    async def begin_parts(self, plan: PartPlan) -> str:
        """The staging place is the hex of the directory's name."""
        model.names_of(plan.path)
        parent = plan.path.rpartition("/")[0]
        if not (await self.tree.stat(parent)).is_directory:
            raise errors.NotADirectory(f"/{parent} is no directory.")
        staging = uuid4().hex
        await self.tree.make_directory(_parts_directory(plan, staging), 0o700)
        return staging

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Each try has a name of its own, which is the receipt."""
        model.names_of(plan.path)
        directory = _parts_directory(plan, staging)
        if await self.tree.find(directory) is None:
            raise errors.PathNotFound("The parts of this upload are gone.")
        name = f"{index}_{uuid4().hex}"
        size = (await write_verified(self.tree, f"{directory}/{name}", body, NewFile(0o600))).size_bytes
        if size != plan.size_of(index):
            await self.tree.remove(f"{directory}/{name}", recursive=False)
            raise errors.VerificationFailed(f"Part {index} has {size} instead of {plan.size_of(index)} bytes.")
        return StoredPart(index, size, name)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> model.FileStatus:
        former = await self._replaceable(plan.path, overwrite=overwrite)
        joined = await self._join(plan, staging, parts, self._new_file(former))
        if former is not None:
            await keep_owner(self.tree, joined, await self.tree.stat(joined), former)
        status = await self._renaming.give_name(self.tree, joined, plan.path, former)
        await finished(self.tree.remove(_parts_directory(plan, staging), recursive=True))
        return status

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        model.names_of(plan.path)
        stored = await self._stored(_parts_directory(plan, staging))
        names = [_JOINED, *(part.receipt for part in _not_joined(parts, stored))]
        async with aclosing(self._streamed([stored[name] for name in names if name in stored])) as pieces:
            async for piece in pieces:
                yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        model.names_of(plan.path)
        await self.tree.remove(_parts_directory(plan, staging), recursive=True)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """A file that was moved aside for a new one is brought back if that never came."""
        model.names_of(path)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        count = 0
        async with aclosing(self.tree.all_entries(path)) as entries:
            async for entry in entries:
                if entry.name.startswith(model.RESERVED_PREFIX) and entry.modified_at and entry.modified_at < before:
                    if entry.name.startswith(OLD_PREFIX) and entry.is_directory:
                        await restore(self.tree, path, entry.path)
                    else:
                        await self.tree.remove(entry.path, recursive=True)
                    count += 1
        return count

    async def _write(
        self, path: str, body: AsyncIterator[bytes], former: model.FileStatus | None, new: NewFile
    ) -> model.FileStatus:
        """By a file beside the target, which a failure and a cancel delete. Raises as `write`."""
        beside_it = beside(path.rpartition("/")[0], f"{model.RESERVED_PREFIX}upload_{uuid4().hex}")
        try:
            status = await write_verified(self.tree, beside_it, body, new)
            if former is not None:
                await keep_owner(self.tree, beside_it, status, former)
            return await self._renaming.give_name(self.tree, beside_it, path, former)
        except BaseException:  # a cancel too: no part of a file may stay
            with suppress(errors.QueryServerError):
                await finished(remove_broken(self.tree, beside_it))
            raise

    async def _replaceable(self, path: str, *, overwrite: bool) -> model.FileStatus | None:
        """The file that a new one is to replace; None: there is none. Raises PathExists."""
        if not model.names_of(path):
            raise errors.PathExists("The root exists.")
        former = await self.tree.find(path)
        if former is not None and (not overwrite or not former.is_file):
            raise errors.PathExists(f"/{path} exists.")
        return former

    def _new_file(self, former: model.FileStatus | None) -> NewFile:
        """The attributes of a new file that replaces `former`."""
        if former is None or not self.tree.has_attributes:
            return NewFile(0o666 & ~self._umask)
        return NewFile(former.permissions, former.replication)

    async def _check(self, path: str, version: model.FileStatus | None) -> None:
        """Raises ChangedMeanwhile."""
        if version is None:
            return
        with suppress(errors.PathNotFound, errors.NotADirectory):
            if (await self.tree.stat(path)).is_same_content(version):
                return
        raise errors.ChangedMeanwhile(f"/{path} was changed meanwhile.")

    async def _join(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], new: NewFile) -> str:
        """One file of all parts, still in the staging directory. Raises VerificationFailed, PathNotFound."""
        directory = _parts_directory(plan, staging)
        joined = f"{directory}/{_JOINED}"
        stored = await self._stored(directory)
        missing = _not_joined(parts, stored)
        if sum(part.size_bytes for part in parts) != plan.size_bytes:
            raise errors.VerificationFailed("The parts are not as long as the file.")
        if _JOINED not in stored:
            await write_verified(self.tree, joined, no_bytes(), new)
        await self._append(directory, [f"{directory}/{part.receipt}" for part in missing if part.size_bytes], new)
        status = await self.tree.stat(joined)
        if status.size_bytes != plan.size_bytes:
            raise errors.VerificationFailed(f"The store joined {status.size_bytes} of {plan.size_bytes} bytes.")
        return joined

    async def _append(self, directory: str, sources: Sequence[str], new: NewFile) -> None:
        joined = f"{directory}/{_JOINED}"
        try:
            await self.tree.concat(joined, sources)
        except _NO_REFUSALS:
            raise
        except errors.QueryServerError:
            # Encryption zones, erasure coding and Ozone refuse it, each with texts of its own.
            left = {entry.path: entry async for entry in self.tree.all_entries(directory)}
            files = [left[source] for source in (joined, *sources) if source == joined or source in left]
            copy = f"{directory}/{_JOINED}_{uuid4().hex}"
            await write_verified(self.tree, copy, self._streamed(files), new)
            await self.tree.remove(joined, recursive=False)
            await self.tree.rename(copy, joined, overwrite=False)

    async def _stored(self, directory: str) -> Mapping[str, model.FileStatus]:
        return {entry.name: entry async for entry in self.tree.all_entries(directory)}

    async def _streamed(self, files: Sequence[model.FileStatus]) -> AsyncGenerator[bytes]:
        for file in files:
            if file.size_bytes:
                async with aclosing(self.tree.content(file.path, 0, file.size_bytes)) as pieces:
                    async for piece in pieces:
                        yield piece


def _parts_directory(plan: PartPlan, staging: str) -> str:
    """Raises InvalidParameter: a foreign staging place."""
    if len(staging) != 32 or not set(staging) <= set("0123456789abcdef"):
        raise errors.InvalidParameter("This is no upload of parts.")
    return beside(plan.path.rpartition("/")[0], f"{model.RESERVED_PREFIX}parts_{staging}")


def _not_joined(parts: Sequence[StoredPart], stored: Mapping[str, model.FileStatus]) -> Sequence[StoredPart]:
    """The parts, in order, that no earlier call has joined. Raises VerificationFailed."""
    parts = sorted(parts, key=lambda part: part.index)
    done = stored[_JOINED].size_bytes if _JOINED in stored else 0
    start = 0
    while done > 0 and start < len(parts):
        done -= parts[start].size_bytes
        start += 1
    for part in parts[start:]:
        kept = stored.get(part.receipt)
        if kept is None or kept.size_bytes != part.size_bytes:
            raise errors.VerificationFailed(f"Part {part.index} is not as it was stored.")
    if done:
        raise errors.VerificationFailed("The parts that were joined are not as they were stored.")
    return parts[start:]


def _exact(remaining: int | None, last: str) -> int | None:
    """How many entries follow; None where reserved names may be among them, which begin with an ASCII dot."""
    is_behind_ours = last[:1].isascii() and last > f"{model.RESERVED_PREFIX}\U0010ffff"
    return remaining if remaining == 0 or is_behind_ours else None


class WebHdfsCluster:
    """Connections to one cluster or gateway. To be closed by its owner."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        login: httpx.Auth | None = None,
        error_of: ErrorOf = RemoteFailure.error,
        has_attributes: bool = True,
        listing: ListingOperation | None = None,
    ) -> None:
        """`login`: how the service logs in to get tokens; None: by Kerberos. Raises ConfigurationError."""
        if address.uses_tokens:
            self._login = Gateway(address, auth=login or Negotiate(), error_of=error_of)
            self.gateway = Gateway(address, Tokens(self._obtain, self._renew), error_of=error_of)
        else:
            self._login = self.gateway = Gateway(address, error_of=error_of)
        self._service_user = address.service_user
        self._umask = address.umask
        self._has_attributes = has_attributes
        self._listing = listing or ListingOperation()
        self._renaming = Renaming()

    def tree(self, user: model.StorageUser) -> WebHdfsTree:
        """Raises PermissionDenied: a name that the store would read as another user's."""
        return WebHdfsTree(self.gateway, acting_name(user.name), self._listing, has_attributes=self._has_attributes)

    def storage(self, user: model.StorageUser) -> WebHdfsStorage:
        return WebHdfsStorage(self.tree(user), self._renaming, umask=self._umask)

    async def close(self) -> None:
        await self.gateway.close()
        await self._login.close()

    async def _obtain(self, user: str) -> str:
        call = WebHdfsCall("GET", "GETDELEGATIONTOKEN", parameters={"renewer": self._service_user}, is_repeatable=True)
        token = await self._login.ask(user, call, "Token")
        if not isinstance(token, Mapping) or not isinstance(text := token.get("urlString"), str):
            raise errors.StorageError("The store gives no delegation tokens.")
        return text

    async def _renew(self, token: str) -> None:
        call = WebHdfsCall("PUT", "RENEWDELEGATIONTOKEN", parameters={"token": token}, is_repeatable=True)
        await self._login.answer(self._service_user, call)


class WebHdfsFileSystem:
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
        """Connects to nothing. `trash_interval_min` 0: that of the cluster. Raises ConfigurationError."""
        self._cluster = WebHdfsCluster(address, login=login)
        self._superuser = superuser
        self._supergroup = supergroup
        self._trash_interval_min = trash_interval_min

    def as_user(self, user: model.StorageUser) -> WebHdfsStorage:
        """Raises PermissionDenied."""
        return self._cluster.storage(user)

    async def facts(self, user: model.StorageUser) -> model.ClusterFacts:
        """The superuser is the owner of the root."""
        tree = self._cluster.tree(user)
        try:
            async with asyncio.timeout(_FACTS_S):
                superuser = (await tree.stat("")).owner or self._superuser
                minutes = self._trash_interval_min
                if not minutes:
                    found = await tree.ask("GETSERVERDEFAULTS", "", "FsServerDefaults", "trashInterval")
                    minutes = found if isinstance(found, int) else 0
        except TimeoutError as error:
            raise errors.StorageUnavailable("The store does not answer in time.") from error
        return model.ClusterFacts(
            is_trash_enabled=minutes > 0,
            is_superuser=user.name == superuser,
            superuser=superuser,
            supergroup=self._supergroup,
        )

    async def close(self) -> None:
        await self._cluster.close()


def address(table: str, given: HdfsClusterSettings | OzoneSettings, settings: Settings) -> WebHdfsAddress:
    """The address of a cluster. Raises ConfigurationError."""
    urls = [url.strip() for url in given.webhdfs_url.split(",") if url.strip()]
    if not urls:
        raise errors.ConfigurationError([f"{table}.webhdfs_url is missing."])
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise errors.ConfigurationError([f"{table}.webhdfs_url must be http(s)://<host>:<port>/webhdfs/v1."])
    return WebHdfsAddress(
        urls=urls,
        service_user=given.service_user,
        tls=ssl.create_default_context() if given.ssl_cert_ca_verify else False,
        uses_tokens=given.security_enabled,
        redirect_hosts=given.redirect_hosts,
        umask=int(settings.filebrowser.umask, 8),
    )


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
