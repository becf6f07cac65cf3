"""The Storage of HDFS over WebHDFS or HttpFS, as one user sees it."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import httpx

from queryserver.errors.base import ConfigurationError, InvalidParameter, NotSupported
from queryserver.errors.files import (
    ChangedMeanwhile,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    root_not_allowed,
)
from queryserver.files.model import (
    RESERVED_PREFIX,
    ClusterFacts,
    ContentSummary,
    FileStatus,
    Scheme,
    StorageUser,
    is_name,
    names_of,
)
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart
from queryserver.files.stores.webhdfs import gateway as spnego
from queryserver.files.stores.webhdfs import writing as part_files
from queryserver.files.stores.webhdfs.gateway import (
    Call,
    ErrorOf,
    Gateway,
    Identity,
    NamedIdentity,
    TokenIdentity,
    WebHdfsAddress,
    acting_name,
)
from queryserver.files.stores.webhdfs.statuses import RemoteFailure, content_summary
from queryserver.files.stores.webhdfs.tree import ListingOperation, NewFile, Tree, finished
from queryserver.files.stores.webhdfs.writing import OLD_PREFIX, Renaming, keep_owner, restore, written
from queryserver.platform.settings.stores import HdfsClusterSettings, OzoneSettings
from queryserver.platform.settings.tree import Settings

_MOST_IN_BATCH = 1000


class WebHdfsStorage:
    """See the Protocols. `renaming` belongs to the FileSystem."""

    def __init__(self, tree: Tree, renaming: Renaming, *, umask: int) -> None:
        self._tree = tree
        self._renaming = renaming
        self._umask = umask

    async def stat(self, path: str) -> FileStatus:
        names_of(path)
        return await self._tree.stat(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. A cursor is the last name.

        HDFS compares names as signed bytes, so that names beyond ASCII come first. What comes in one batch is sorted
        by code points; larger directories keep the order of the store.
        """
        names_of(path)
        most, is_first = max(batch_size, _MOST_IN_BATCH), cursor is None
        while True:
            async with aclosing(self._tree.entries(path, cursor, most)) as entries:
                async for found in entries:
                    cursor = None if found.remaining == 0 else found.last
                    shown = found.statuses(path, is_name, by_name=is_first and cursor is None)
                    is_first = False
                    yield Batch(shown, cursor, _exact(found.remaining, found.last))
            if cursor is None:
                return

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """See the Protocol. The last piece is given when the file is still that version."""
        names_of(path)
        status = version or await self._tree.stat(path)
        if not status.is_file:
            raise NotAFile(f"/{path} is no file.")
        wanted = status.size_bytes - offset if length is None else min(length, status.size_bytes - offset)
        if wanted <= 0:
            await self._check(path, version)
            return
        held = b""
        try:
            async with aclosing(self._tree.content(path, offset, wanted)) as pieces:
                async for piece in pieces:
                    if held:
                        yield held
                    held = piece
        except (StorageError, PathNotFound):
            # A file that became shorter fails in several ways.
            await self._check(path, version)
            raise
        await self._check(path, version)
        if held:
            yield held

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        del size_bytes  # the body is sent in chunks, which need no announcement
        former = await self._replaceable(path, overwrite=overwrite)
        return await self._write(path, body, former, self._new_file(former))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        if not names_of(path):
            raise PathExists("The root exists.")
        wanted = 0o777 & ~self._umask if permissions is None else permissions
        await self._renaming.make_directory(self._tree, path, wanted)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. The bytes go through this server."""
        names_of(source)
        names_of(target)
        status = await self._tree.stat(source)
        if not status.is_file:
            raise NotAFile(f"/{source} is no file.")
        former = await self._replaceable(target, overwrite=overwrite)
        async with aclosing(self.read(source, version=status)) as body:
            return await self._write(target, body, former, self._like(status))

    async def delete(self, path: str, *, recursive: bool) -> None:
        if not names_of(path):
            raise root_not_allowed("The root is not deleted.")
        if not await self._tree.remove(path, recursive=recursive):
            await self._tree.stat(path)
            raise StorageError("The store does not delete this.")

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        """See the Protocol: all of a cluster is near enough."""
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        if not names_of(source):
            raise root_not_allowed("The root has no other name.")
        if not names_of(target):
            raise PathExists("The root exists.")
        await self._renaming.rename(self._tree, source, target, overwrite=overwrite)

    async def trash_root(self, path: str) -> str:
        """See the Protocol. Encryption zones have a trash of their own."""
        names_of(path)
        try:
            told = await self._tree.told("GETTRASHROOT", path, "Path")
        except NotSupported:
            return f"user/{self._tree.user}/.Trash"
        return str(told).strip("/")

    async def set_replication(self, path: str, factor: int) -> None:
        names_of(path)
        status = await self._tree.stat(path)
        if not status.is_file:
            raise NotAFile(f"/{path} is no file.")
        try:
            is_done = await self._tree.set_replication(path, factor)
        except StorageUnavailable:
            raise
        except StorageError as error:
            # The bounds are the cluster's own; only the text tells.
            if "replication" in error.message.lower():
                raise InvalidParameter(error.message) from error
            raise
        if not is_done:
            raise PathNotFound(f"/{path} does not exist.")

    async def content_summary(self, path: str) -> ContentSummary:
        names_of(path)
        return content_summary(await self._tree.told("GETCONTENTSUMMARY", path, "ContentSummary"))

    async def set_permissions(self, path: str, permissions: int) -> None:
        names_of(path)
        await self._tree.set_permissions(path, permissions)

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        names_of(path)
        await self._tree.set_owner(path, owner, group)

    async def begin_parts(self, plan: PartPlan) -> str:
        names_of(plan.path)
        return await part_files.begin(self._tree, plan)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        names_of(plan.path)
        return await part_files.write_part(self._tree, plan, staging, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        former = await self._replaceable(plan.path, overwrite=overwrite)
        joined = await part_files.join(self._tree, plan, staging, parts, self._new_file(former))
        if former is not None:
            await keep_owner(self._tree, joined, await self._tree.stat(joined), former)
        status = await self._renaming.give_name(self._tree, joined, plan.path, former)
        await finished(part_files.discard(self._tree, plan, staging))
        return status

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        names_of(plan.path)
        async with aclosing(part_files.read(self._tree, plan, staging, parts)) as pieces:
            async for piece in pieces:
                yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        names_of(plan.path)
        await part_files.discard(self._tree, plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """See the Protocol. What stepped aside for a new file is brought back if that never came."""
        names_of(path)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        count = 0
        async with aclosing(self._tree.all_entries(path)) as entries:
            async for entry in entries:
                if entry.name.startswith(RESERVED_PREFIX) and entry.modified_at and entry.modified_at < before:
                    if entry.name.startswith(OLD_PREFIX) and entry.is_directory:
                        await restore(self._tree, path, entry.path)
                    else:
                        await self._tree.remove(entry.path, recursive=True)
                    count += 1
        return count

    async def _write(
        self, path: str, body: AsyncIterator[bytes], former: FileStatus | None, new: NewFile
    ) -> FileStatus:
        async with written(self._tree, path, body, new) as status:
            if former is not None:
                await keep_owner(self._tree, status.path, status, former)
            return await self._renaming.give_name(self._tree, status.path, path, former)

    async def _replaceable(self, path: str, *, overwrite: bool) -> FileStatus | None:
        """The file that a new one is to replace; None: there is none. Raises PathExists."""
        if not names_of(path):
            raise PathExists("The root exists.")
        former = await self._tree.find(path)
        if former is not None and (not overwrite or not former.is_file):
            raise PathExists(f"/{path} exists.")
        return former

    def _new_file(self, former: FileStatus | None) -> NewFile:
        """With what a file is made that may replace another one."""
        if former is None or not self._tree.has_attributes:
            return NewFile(0o666 & ~self._umask)
        return NewFile(former.permissions, former.replication)

    def _like(self, status: FileStatus) -> NewFile:
        """With what a copy is made."""
        if not self._tree.has_attributes:
            return self._new_file(None)
        return NewFile(status.permissions, status.replication, status.block_size)

    async def _check(self, path: str, version: FileStatus | None) -> None:
        """Raises ChangedMeanwhile."""
        if version is None:
            return
        with suppress(PathNotFound, NotADirectory):
            if (await self._tree.stat(path)).is_same_content(version):
                return
        raise ChangedMeanwhile(f"/{path} was changed meanwhile.")


def _exact(remaining: int | None, last: str) -> int | None:
    """How many entries follow; None where names of our own may be among them, which begin with an ASCII dot."""
    is_behind_ours = last[:1].isascii() and last > f"{RESERVED_PREFIX}\U0010ffff"
    return remaining if remaining == 0 or is_behind_ours else None


_FACTS_S = 2.0


class WebHdfsCluster:
    """Connections to one cluster or gateway, and what was learned of it. To be closed by its owner."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        login: httpx.Auth | None = None,
        error_of: ErrorOf = RemoteFailure.error,
        has_attributes: bool = True,
        listing: ListingOperation | None = None,
    ) -> None:
        """`login` is how the service logs in where there are tokens; None: by its Kerberos ticket.

        Raises ConfigurationError: the package for that is missing.
        """
        self._named = NamedIdentity(address.service_user)
        if address.uses_tokens:
            if login is None and not spnego.is_installed():
                raise ConfigurationError(["Kerberos of a file store needs the extra queryserver[kerberos]."])
            self._login = Gateway(address, self._named, auth=login or spnego.Negotiate(), error_of=error_of)
            identity: Identity = TokenIdentity(self._obtain, self._renew)
            self.gateway = Gateway(address, identity, error_of=error_of)
        else:
            self._login = self.gateway = Gateway(address, self._named, error_of=error_of)
        self._service_user = address.service_user
        self._umask = address.umask
        self._has_attributes = has_attributes
        self._listing = listing or ListingOperation()
        self._renaming = Renaming()

    def tree(self, user: StorageUser) -> Tree:
        """Raises PermissionDenied: a name that the store would read as another one's."""
        return Tree(self.gateway, acting_name(user.name), self._listing, has_attributes=self._has_attributes)

    def storage(self, user: StorageUser) -> WebHdfsStorage:
        """As `tree`."""
        return WebHdfsStorage(self.tree(user), self._renaming, umask=self._umask)

    async def close(self) -> None:
        """End all connections. Idempotent."""
        await self.gateway.close()
        await self._login.close()

    async def _obtain(self, user: str) -> str:
        call = Call("GET", "GETDELEGATIONTOKEN", parameters={"renewer": self._service_user}, is_repeatable=True)
        token = await self._login.told(user, call, "Token")
        if not isinstance(token, Mapping) or not isinstance(text := token.get("urlString"), str):
            raise StorageError("The store gives no delegation tokens.")
        return text

    async def _renew(self, token: str) -> None:
        call = Call("PUT", "RENEWDELEGATIONTOKEN", parameters={"token": token}, is_repeatable=True)
        await self._login.answer(self._service_user, call)


class WebHdfsFileSystem:
    """See the Protocols FileSystem and ClusterFileSystem."""

    def __init__(
        self,
        address: WebHdfsAddress,
        *,
        superuser: str = "hdfs",
        supergroup: str = "supergroup",
        trash_interval_min: int = 0,
        login: httpx.Auth | None = None,
    ) -> None:
        """Connects to nothing. `trash_interval_min` 0: the cluster is asked. Raises ConfigurationError."""
        self._cluster = WebHdfsCluster(address, login=login)
        self._superuser = superuser
        self._supergroup = supergroup
        self._trash_interval_min = trash_interval_min

    @property
    def scheme(self) -> Scheme:
        return Scheme.HDFS

    @property
    def traits(self) -> StorageTraits:
        return StorageTraits(
            lists_in_order=True,
            acts_as_user=True,
            deletes_to_trash=True,
            changes_modes_of_trees=True,
            home_parent="user",
        )

    def as_user(self, user: StorageUser) -> WebHdfsStorage:
        """See the Protocol. Raises PermissionDenied."""
        return self._cluster.storage(user)

    async def facts(self, user: StorageUser) -> ClusterFacts:
        """See the Protocol. The superuser is the owner of the root."""
        tree = self._cluster.tree(user)
        try:
            async with asyncio.timeout(_FACTS_S):
                superuser = (await tree.stat("")).owner or self._superuser
                minutes = self._trash_interval_min or await self._interval(tree)
        except TimeoutError as error:
            raise StorageUnavailable("The store does not answer in time.") from error
        return ClusterFacts(
            is_trash_enabled=minutes > 0,
            is_superuser=user.name == superuser,
            superuser=superuser,
            supergroup=self._supergroup,
        )

    async def close(self) -> None:
        await self._cluster.close()

    async def _interval(self, tree: Tree) -> int:
        told = await tree.told("GETSERVERDEFAULTS", "", "FsServerDefaults", "trashInterval")
        return told if isinstance(told, int) else 0


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
