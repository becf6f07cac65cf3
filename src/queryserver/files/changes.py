"""Creates and saves entries, changes their attributes, and summarizes trees (Contract storage 5.6, 6, 7)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from queryserver import errors
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import ContentSummary, EntryKind, ExtensionRules, FileStatus, StoragePath, checked_new_name
from queryserver.files.protocol import PIECE_BYTES, ModeStorage, OwnedStorage, ReplicatedStorage, SummarizedStorage
from queryserver.files.upload_repository import OrphanSweep

MAX_TREE_ENTRIES = 10_000


class Creations:
    def __init__(self, stores: Stores, rules: ExtensionRules, orphans: OrphanSweep, audit: StorageAudit) -> None:
        self._stores = stores
        self._rules = rules
        self._orphans = orphans
        self._audit = audit

    async def mkdir(self, caller: Caller, path: StoragePath) -> StoragePath:
        """Create a directory and its missing parents. Raises InvalidName, PathExists."""
        path = _path_of_new_entry(path, is_directory=True)
        location = self._stores.location(caller, path)
        with self._audit.event(caller, "storage.mkdir", path):
            await check_new_parents(location)
            # Some stores create the directory under a reserved name first, which a crash would orphan.
            async with self._orphans.recorded_write(caller, path):
                await location.storage.mkdir(path.path)
        return path

    async def touch(self, caller: Caller, path: StoragePath) -> StoragePath:
        """Create an empty file. If several calls create the same file concurrently, only one succeeds.

        Raises InvalidName, extension_not_permitted, extension_restricted, PathNotFound (the parent), NotADirectory,
        PathExists.
        """
        path = _path_of_new_entry(path, is_directory=False)
        self._rules.check(path.name)
        location = self._stores.location(caller, path)
        with self._audit.event(caller, "storage.touch", path) as details:
            await location.at(path.parent).require_directory()
            async with self._orphans.recorded_write(caller, path):
                await location.storage.write(path.path, _body(b""), overwrite=False, size_bytes=0)
            details.size_bytes = 0
        return path

    async def save(self, caller: Caller, path: StoragePath, content: bytes) -> FileStatus:
        """Replace a file's content atomically. Raises PathNotFound, NotAFile, SymlinkNotFollowed."""
        location = self._stores.location(caller, path)
        with self._audit.event(caller, "storage.save", path) as details:
            await _require_file(location)
            details.size_bytes = len(content)
            async with self._orphans.recorded_write(caller, path):
                return await location.storage.write(path.path, _body(content), overwrite=True, size_bytes=len(content))


async def _require_file(location: Location) -> None:
    found = await location.storage.stat(location.path.path)
    if found.kind is EntryKind.LINK:
        raise errors.SymlinkNotFollowed(f"{location.path} is a symbolic link; symbolic links are not followed.")
    if not found.is_file:
        raise errors.NotAFile(f"{location.path} is not a file.")


async def check_new_parents(location: Location) -> None:
    """Check the names of the parent directories that a mkdir would create. Existing parents may have any name."""
    parent = location.path.parent
    while not parent.is_root:
        try:
            checked_new_name(parent.name, is_directory=True)
        except errors.InvalidName as error:
            try:
                await location.storage.stat(parent.path)
            except errors.PathNotFound:
                raise error from None
            return
        parent = parent.parent


def _path_of_new_entry(path: StoragePath, *, is_directory: bool) -> StoragePath:
    """Return the path with its last name checked and stripped. Raises InvalidName, or PathExists for the root."""
    if path.is_root:
        raise errors.PathExists(f"{path} already exists.")
    return path.parent.child(checked_new_name(path.name, is_directory=is_directory))


async def _body(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


class Attributes:
    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    async def chmod(
        self, caller: Caller, path: StoragePath, permissions: int, *, recursive: bool = False
    ) -> FileStatus:
        """Set permissions and return the updated entry.

        Raises NotSupported, or too_many_entries before any change. If the store rejects some entries, the others are
        still changed; then raises the first error, with the numbers of changed and failed entries in `details`.
        """
        location = self._stores.location(caller, path)
        storage = location.storage
        if not isinstance(storage, ModeStorage):
            raise errors.NotSupported(f"The store {path.scheme} does not support permissions.")
        with self._audit.event(caller, "storage.chmod", path):
            entries = await _select_entries(location, recursive=recursive)
            await _for_each(entries, lambda entry: storage.set_permissions(entry, permissions))
            return await location.storage.stat(path.path)

    async def chown(
        self, caller: Caller, path: StoragePath, owner: str | None, group: str | None, *, recursive: bool = False
    ) -> None:
        """Set the owner, the group, or both. Raises the same errors as `chmod`."""
        location = self._stores.location(caller, path)
        storage = location.storage
        if not isinstance(storage, OwnedStorage):
            raise errors.NotSupported(f"The store {path.scheme} does not support changing owners.")
        with self._audit.event(caller, "storage.chown", path):
            entries = await _select_entries(location, recursive=recursive)
            await _for_each(entries, lambda entry: storage.set_owner(entry, owner=owner, group=group))

    async def set_replication(self, caller: Caller, path: StoragePath, factor: int) -> None:
        """Set a file's replication factor. Raises NotSupported, PathNotFound, NotAFile, InvalidParameter."""
        location = self._stores.location(caller, path)
        storage = location.storage
        if not isinstance(storage, ReplicatedStorage):
            raise errors.NotSupported(f"The store {path.scheme} does not support replication factors.")
        with self._audit.event(caller, "storage.set_replication", path):
            await _require_file(location)
            await storage.set_replication(path.path, factor)


async def _select_entries(location: Location, *, recursive: bool) -> Sequence[str]:
    """Return the paths to change: the entry itself and, if `recursive`, everything below it except links."""
    top = await location.storage.stat(location.path.path)
    if top.kind is EntryKind.LINK:
        raise errors.NotAFile(
            f"{location.path} is a symbolic link; the permissions and owner of a link cannot be changed."
        )
    if not recursive or not top.is_directory:
        return [top.path]
    if not location.file_system.traits.changes_modes_of_trees:
        raise errors.NotSupported(f"The store {location.path.scheme} does not support recursive changes.")
    paths, directories = [top.path], [top.path]
    while directories:
        async with aclosing(location.storage.list_directory(directories.pop())) as batches:
            async for batch in batches:
                entries = [entry for entry in batch.entries if entry.kind in {EntryKind.FILE, EntryKind.DIRECTORY}]
                paths += [entry.path for entry in entries]
                directories += [entry.path for entry in entries if entry.is_directory]
                if len(paths) > MAX_TREE_ENTRIES:
                    raise errors.too_many_entries(
                        f"The directory tree has more than {MAX_TREE_ENTRIES} entries; nothing was changed."
                    )
    return paths


async def _for_each(entries: Sequence[str], change: Callable[[str], Awaitable[None]]) -> None:
    """Apply the change to every entry, children before parents, because it may make a directory inaccessible. Errors
    are collected; the first one is raised at the end.
    """
    failures: list[errors.QueryServerError] = []
    for entry in reversed(entries):
        try:
            await change(entry)
        except errors.QueryServerError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        if len(entries) > 1:
            first.details = {"changed": len(entries) - len(failures), "failed": len(failures)}
        raise first


async def content_summary(location: Location) -> ContentSummary:
    """Return the entry counts and sizes of a tree or a single file.

    Raises NotSupported, PathNotFound, PermissionDenied, too_many_entries, StorageError.
    """
    if not isinstance(location.storage, SummarizedStorage):
        raise errors.NotSupported(f"The store {location.path.scheme} does not support content summaries.")
    return await location.storage.content_summary(location.path.path)
