"""Changes entries in stores: creates directories and files, sets attributes, moves entries to the trash, restores them,
and empties the trash (Contract storage 6, 8).

The `trash_root` method of a store returns the path of the trash (see `stores/webhdfs/storage.py` for HDFS and
`stores/local/storage.py` for the local root). Trashed entries are moved to `Current/<original path>` below this path.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from queryserver import errors
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import (
    MAX_NAME_BYTES,
    ContentSummary,
    EntryKind,
    ExtensionRules,
    FileStatus,
    Scheme,
    StoragePath,
    checked_new_name,
    escaped_name,
    is_escaped,
    raw_name,
)
from queryserver.files.protocol import (
    PIECE_BYTES,
    ModeStorage,
    OwnedStorage,
    RenamingStorage,
    ReplicatedStorage,
    Storage,
    SummarizedStorage,
    TrashStorage,
)
from queryserver.files.upload_repository import OrphanSweep

MAX_TREE_ENTRIES = 10_000

_CHECKPOINT = re.compile(r"Current|[0-9]+")
_PRIVATE = 0o700
_TRIES = 5


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
    are collected, and the first one is raised at the end.
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


@dataclass(frozen=True, slots=True)
class TrashDirectory:
    """The trash that applies to one path. On HDFS, for example, `root` is `/user/<name>/.Trash`."""

    root: StoragePath
    storage: Storage
    renaming: RenamingStorage

    @property
    def current(self) -> StoragePath:
        return self.root.child("Current")


async def _trash_of(location: Location) -> TrashDirectory:
    """Return the trash that applies to the location. Raises trash_not_supported, NotSupported."""
    storage = location.storage
    if not isinstance(storage, TrashStorage):
        raise errors.trash_not_supported(f"The store {location.path.scheme} has no trash.")
    if not isinstance(storage, RenamingStorage):
        raise errors.NotSupported(f"The store {location.path.scheme} does not support renaming.")
    root = StoragePath(location.path.scheme, await storage.trash_root(location.path.path))
    return TrashDirectory(root, location.storage, storage)


async def _move_to_trash(location: Location) -> StoragePath:
    """Move an entry to the trash and return its path there. Raises PathNotFound, already_in_trash, contains_trash."""
    trash = await _trash_of(location)
    path = location.path
    if path.is_inside(trash.root):
        raise errors.already_in_trash(f"{path} is already in the trash; use skip_trash to delete it permanently.")
    if path == trash.root or trash.root.is_inside(path):
        raise errors.contains_trash(f"{path} contains the trash; use skip_trash to delete it permanently.")
    await location.storage.stat(path.path)
    with suppress(errors.PathExists):
        await location.storage.mkdir(trash.root.path, permissions=_PRIVATE)
    parent = await _create_in_trash(trash, trash.current.child(path.parent.path) if path.parent.path else trash.current)
    target = parent.child(path.name)
    for _ in range(_TRIES):
        try:
            await trash.renaming.rename(path.path, target.path)
        except errors.PathExists:
            target = parent.child(_unique_name(path.name))
            continue
        return target
    raise errors.PathExists(f"{target} already exists.")


async def _create_in_trash(trash: TrashDirectory, directory_path: StoragePath) -> StoragePath:
    """Create a directory in the trash unless it exists, and return its path. If a file already has the name of one of
    the directories to create, a timestamp is appended to that directory's name.
    """
    try:
        return await _create(trash, directory_path)
    except (errors.PathExists, errors.NotADirectory):
        if await _is_directory(trash.storage, directory_path):
            return directory_path
    directory = trash.current
    for name in directory_path.path.removeprefix(directory.path).strip("/").split("/"):
        inner = directory.child(name)
        with suppress(errors.PathExists):
            await _create(trash, inner)
        if not await _is_directory(trash.storage, inner):
            inner = await _create(trash, directory.child(_unique_name(name)))
        directory = inner
    return directory


async def _create(trash: TrashDirectory, directory: StoragePath) -> StoragePath:
    await trash.storage.mkdir(directory.path, permissions=_PRIVATE)
    return directory


def _unique_name(name: str) -> str:
    """Append a timestamp to the name, truncating the name so that the result is not too long."""
    number = str(time.time_ns() // 1_000_000)
    if is_escaped(name):
        return escaped_name(raw_name(name)[: MAX_NAME_BYTES - len(number)] + number.encode())
    return name.encode()[: MAX_NAME_BYTES - len(number)].decode(errors="ignore") + number


class Trash:
    """Implements the endpoints trash/path, trash/restore and trash/purge."""

    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    async def find(self, caller: Caller, path: StoragePath) -> StoragePath | None:
        """Return the path of the caller's home directory in the trash. If it does not exist, return the path of the
        trash itself, or None if that does not exist either. Raises trash_not_supported.
        """
        trash = await _trash_of(self._stores.location(caller, path))
        home = self._stores.home(caller, path.scheme)
        for candidate in (trash.current.child(home.path), trash.root):
            if await _is_directory(trash.storage, candidate):
                return candidate
        return None

    async def restore(self, caller: Caller, path: StoragePath) -> StoragePath:
        """Restore an entry to its original path. Raises trash_not_supported, not_in_trash, PathNotFound, PathExists."""
        location = self._stores.location(caller, path)
        trash = await _trash_of(location)
        original = _original(trash.root, path)
        with self._audit.event(caller, "storage.trash.restore", path):
            await location.storage.stat(path.path)
            with suppress(errors.PathExists):
                await location.storage.mkdir(original.parent.path)
            await trash.renaming.rename(path.path, original.path)
        return original

    async def purge(self, caller: Caller, path: StoragePath) -> tuple[StoragePath, int]:
        """Empty the caller's trash. Return its path and the number of deleted top-level entries. Raises
        trash_not_supported.
        """
        trash = await _trash_of(self._stores.location(caller, path))
        with self._audit.event(caller, "storage.trash.purge", trash.root):
            purged, checkpoints = 0, list[str]()
            with suppress(errors.PathNotFound):  # the trash does not exist yet
                batches = trash.storage.list_directory(trash.root.path)
                checkpoints = [entry.path async for batch in batches for entry in batch.entries]
            for checkpoint in checkpoints:
                with suppress(errors.PathNotFound):
                    await trash.storage.delete(checkpoint, recursive=True)
                    purged += 1
        return trash.root, purged


def _original(root: StoragePath, path: StoragePath) -> StoragePath:
    """Return the original path of a trashed entry. Raises not_in_trash for paths outside the trash, the trash itself,
    and its checkpoints (`Current` and timestamps).
    """
    below = path.names[len(root.names) :] if path.is_inside(root) else ()
    if len(below) < 2 or not _CHECKPOINT.fullmatch(below[0]):
        raise errors.not_in_trash(f"{path} is not an entry in your trash.")
    return StoragePath(path.scheme, "/".join(below[1:]))


async def _is_directory(storage: Storage, path: StoragePath) -> bool:
    try:
        return (await storage.stat(path.path)).is_directory
    except (errors.PathNotFound, errors.NotADirectory):
        return False


@dataclass(frozen=True, slots=True)
class DeletedEntry:
    """A deleted entry; `trash_path` is None if it was deleted permanently."""

    path: StoragePath
    trash_path: StoragePath | None


class Deletions:
    """Deletes entries, for rmtree and its aliases."""

    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    def check(self, caller: Caller, path: StoragePath, *, skip_trash: bool | None) -> Location:
        """Run the checks that need no store call. Raises root_not_allowed, trash_not_supported, and access errors."""
        location = self._stores.location(caller, path)
        traits = location.file_system.traits
        # In Ozone, the services themselves are also roots.
        is_root = path.is_root or (path.scheme is Scheme.OFS and len(path.names) == 1)
        if is_root or path.path == traits.home_parent:
            raise errors.root_not_allowed(f"{path} cannot be deleted.")
        if skip_trash is False and not isinstance(location.storage, TrashStorage):
            raise errors.trash_not_supported(f"The store {path.scheme} has no trash; nothing was deleted.")
        return location

    async def delete(self, caller: Caller, path: StoragePath, *, skip_trash: bool | None) -> DeletedEntry:
        """Delete an entry and everything below it, or move it to the trash. If `skip_trash` is None, the store's
        default applies.

        Raises the errors of `check`, PathNotFound, already_in_trash, contains_trash, and DirectoryNotEmpty for
        non-empty buckets.
        """
        location = self.check(caller, path, skip_trash=skip_trash)
        traits = location.file_system.traits
        to_trash = traits.deletes_to_trash if skip_trash is None else not skip_trash
        with self._audit.event(caller, "storage.trash" if to_trash else "storage.delete", path):
            if to_trash:
                return DeletedEntry(path, await _move_to_trash(location))
            is_container = len(path.names) <= traits.container_levels
            await location.storage.delete(path.path, recursive=not is_container)
            return DeletedEntry(path, None)
