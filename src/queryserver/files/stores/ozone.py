"""Implements `Storage` for Ozone. A path consists of service, volume, bucket and key."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import httpx

from queryserver import errors
from queryserver.files.model import EntryKind, FileStatus, Scheme, StorageUser, names_of
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart
from queryserver.files.stores.webhdfs.gateway import WebHdfsAddress
from queryserver.files.stores.webhdfs.statuses import RemoteFailure, safe_message
from queryserver.files.stores.webhdfs.storage import GatewayStorage, WebHdfsCluster, cluster_address
from queryserver.files.stores.webhdfs.tree import (
    ListingOperation,
    NewFile,
    WebHdfsTree,
    remove_broken,
    run_to_completion,
    write_verified,
)
from queryserver.platform.settings.tree import Settings

BUCKET_LEVELS = 3
"""A bucket's path has this many names: service, volume, bucket."""
_DIRECTORY_PERMISSIONS = 0o777
_HTML_SPECIAL_CHARACTERS = frozenset("&<>'\"")


async def _write_in_place(tree: WebHdfsTree, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> FileStatus:
    """Write a new file directly under its final name. Ozone shows the file once it is complete.

    After a failed call, a partial file may be visible until it is deleted, so existing files are not replaced this way.
    Raises PathExists, VerificationFailed, and NotSupported if a file would be replaced.
    """
    former = await tree.find(path)
    if former is not None and (not overwrite or not former.is_file):
        raise errors.PathExists(f"/{path} already exists.")
    if former is not None:
        raise errors.NotSupported("The Ozone gateway cannot replace files whose path contains & < > ' or \".")
    try:
        return await write_verified(tree, path, body, NewFile(0o666), overwrite=False)
    except errors.PathExists:
        raise
    except BaseException:  # includes CancelledError: no partial file may remain
        with suppress(errors.QueryServerError):
            await run_to_completion(remove_broken(tree, path))
        raise


class OzoneStorage(GatewayStorage):
    """Accesses Ozone with one user's permissions. There is no trash. Raises NotSupported for operations that the
    gateway does not support.
    """

    def __init__(self, services: Mapping[str, WebHdfsTree]) -> None:
        self._services = services

    def at(self, path: str) -> tuple[WebHdfsTree, str]:
        service, *names = names_of(path) or ("",)
        if not service:
            raise errors.NotSupported("The root of all services does not support this operation.")
        if (tree := self._services.get(service)) is None:
            raise errors.PathNotFound(f"{service} does not exist.")
        return tree, "/".join(names)

    def at_file(self, path: str) -> tuple[WebHdfsTree, str]:
        """Return the tree and the path of a file within it. Raises PathExists, InvalidPath."""
        if len(names_of(path)) <= 1:
            raise errors.PathExists("Services are not files.")
        found = self.at(path)
        if not _is_in_bucket(path):
            raise errors.InvalidPath("Files must be inside a bucket: service/volume/bucket/name.")
        return found

    async def stat(self, path: str) -> FileStatus:
        return _with_service(path, await super().stat(path)) if names_of(path) else _directory("")

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        if not names_of(path):
            yield Batch(tuple(_directory(name) for name in sorted(self._services)), None, 0)
            return
        async with aclosing(super().list_directory(path, cursor=cursor, batch_size=batch_size)) as listing:
            async for batch in listing:
                yield replace(batch, entries=[_with_service(path, entry) for entry in batch.entries])

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        if not names_of(path):
            raise errors.NotAFile("The root is not a file.")
        async with aclosing(super().read(path, offset=offset, length=length, version=version)) as pieces:
            async for piece in pieces:
                yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        tree, inner = self.at_file(path)
        if _can_be_target(path):
            return _with_service(path, await super().write(path, body, overwrite=overwrite, size_bytes=size_bytes))
        return _with_service(path, await _write_in_place(tree, inner, body, overwrite=overwrite))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory or, depending on the path's depth, a volume or bucket."""
        if len(names_of(path)) <= 1:
            await self.stat(path)
            raise errors.PathExists("Services can be created only in the settings.")
        tree, inner = self.at(path)
        # Unlike on HDFS, the directory is not created under a temporary name, because on Ozone a renamed directory
        # belongs to the owner of the bucket.
        if await tree.find(inner) is not None:
            raise errors.PathExists(f"{path} already exists.")
        await tree.make_directory(inner, permissions or _DIRECTORY_PERMISSIONS)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        status = await self.stat(source)
        if not status.is_file:
            raise errors.NotAFile(f"{source} is not a file.")
        async with aclosing(self.read(source, version=status)) as body:
            return await self.write(target, body, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry. Volumes and buckets must be empty."""
        if len(names_of(path)) <= 1:
            raise errors.root_not_allowed("Services cannot be deleted.")
        tree, inner = self.at(path)
        if not _is_in_bucket(path):
            async with aclosing(tree.all_entries(inner)) as entries:
                async for _ in entries:
                    raise errors.DirectoryNotEmpty(f"{path} is not empty.")
            recursive = False
        await super().delete(path, recursive=recursive)

    def can_rename(self, source: str, target: str) -> bool:
        ours, theirs = source.split("/"), target.split("/")
        return min(len(ours), len(theirs)) > BUCKET_LEVELS and ours[:BUCKET_LEVELS] == theirs[:BUCKET_LEVELS]

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename an entry. Raises NotSupported for a rename between buckets."""
        if not names_of(source):
            raise errors.root_not_allowed("The root cannot be renamed.")
        self.at(source)
        self.at_file(target)
        if not self.can_rename(source, target):
            raise errors.NotSupported("Ozone supports renaming only within a bucket.")
        _check_target(target)
        await super().rename(source, target, overwrite=overwrite)

    async def begin_parts(self, plan: PartPlan) -> str:
        self.at_file(plan.path)
        _check_target(plan.path)
        return await super().begin_parts(plan)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """Join the parts. Ozone cannot concatenate files, so all bytes pass through queryserver."""
        return _with_service(plan.path, await super().join_parts(plan, staging, parts, overwrite=overwrite))

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files, which exist only inside buckets."""
        if len(names_of(path)) < BUCKET_LEVELS:
            await self.stat(path)
            return 0
        return await super().sweep_orphans(path, older_than_s)


def _with_service(path: str, status: FileStatus) -> FileStatus:
    """Prefix the path of the status with the service of `path`."""
    service = path.partition("/")[0]
    return replace(status, path=f"{service}/{status.path}" if status.path else service)


def _is_in_bucket(path: str) -> bool:
    return path.count("/") >= BUCKET_LEVELS


def _can_be_target(path: str) -> bool:
    """Return whether a rename can have this target. The gateway HTML-escapes some characters in rename targets."""
    return not _HTML_SPECIAL_CHARACTERS.intersection(path)


def _check_target(path: str) -> None:
    if not _can_be_target(path):
        raise errors.NotSupported("The Ozone gateway cannot rename to a path that contains & < > ' or \".")


def _directory(path: str) -> FileStatus:
    return FileStatus(path, EntryKind.DIRECTORY, 0, None, permissions=_DIRECTORY_PERMISSIONS)


_OZONE = frozenset({"OMException", "IOException"})
_KINDS_BY_MESSAGE: tuple[tuple[tuple[str, ...], type[errors.QueryServerError]], ...] = (
    (("already exists",), errors.PathExists),
    (("permission", "doesn't have", "not authorized", "only admin"), errors.PermissionDenied),
    (("quota",), errors.StoreQuotaExceeded),
    (("bucket name", "volume name", "bucket or volume"), errors.InvalidName),
    (("not found", "doesn't exist", "does not exist"), errors.PathNotFound),
    (("safe mode", "safemode", "not the leader", "not ready"), errors.StorageUnavailable),
)


def translate_error(remote: RemoteFailure, path: str) -> errors.QueryServerError:
    """Convert a failure to a domain error about `path`, which is relative to the root of the service."""
    if remote.name in _OZONE:
        text = remote.message.lower()
        for words, kind in _KINDS_BY_MESSAGE:
            if any(word in text for word in words):
                return kind(safe_message(remote.message))
    return remote.error(path)


class OzoneFileSystem:
    scheme = Scheme.OFS

    def __init__(
        self, services: Mapping[str, WebHdfsAddress], *, max_copy_bytes: int, login: httpx.Auth | None = None
    ) -> None:
        """`services` maps service names to gateway addresses. Does not connect. Raises ConfigurationError."""
        self._services = {
            name: WebHdfsCluster(
                address,
                login=login,
                translate_error=translate_error,
                has_attributes=False,
                listing=ListingOperation(is_signed=False),
            )
            for name, address in services.items()
        }
        self.traits = StorageTraits(
            lists_in_order=True,
            container_levels=BUCKET_LEVELS,
            acts_as_user=True,
            changes_modes_of_trees=True,
            max_copy_bytes=max_copy_bytes,
        )

    def as_user(self, user: StorageUser) -> OzoneStorage:
        return OzoneStorage({name: service.tree(user) for name, service in self._services.items()})

    async def close(self) -> None:
        for service in self._services.values():
            await service.close()


def build(settings: Settings) -> FileSystem | None:
    """Return the Ozone store, or None if it is not configured. The smallest `ofs_chunk_size` applies to all services.
    Raises ConfigurationError.
    """
    services: dict[str, WebHdfsAddress] = {}
    for table, service in settings.desktop.ozone.items():
        name = urlsplit(service.fs_defaultfs).netloc.rpartition("@")[2].lower()
        if not name:
            raise errors.ConfigurationError([f"desktop.ozone.{table}.fs_defaultfs must be ofs://<service>."])
        services[name] = cluster_address(f"desktop.ozone.{table}", service, settings)
    if not services:
        return None
    return OzoneFileSystem(services, max_copy_bytes=min(s.ofs_chunk_size for s in settings.desktop.ozone.values()))
