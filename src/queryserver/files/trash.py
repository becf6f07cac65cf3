"""The users' trash: moves entries to the trash, restores them, and empties the trash (Contract storage 8).

The `trash_root` method of a store returns the trash's path (see `stores/webhdfs/storage.py` for HDFS, `stores/ozone.py`
and `stores/local/storage.py`). Trashed entries are moved to `Current/<original path>` below it.
"""

import re
import time
from contextlib import suppress
from dataclasses import dataclass

from queryserver import errors
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import MAX_NAME_BYTES, Scheme, StoragePath, escaped_name, is_escaped, raw_name
from queryserver.files.protocol import RenamingStorage, Storage, TrashStorage

_CHECKPOINT = re.compile(r"Current|[0-9]+")
_PRIVATE = 0o700
_TRIES = 5


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
    """Create a directory in the trash unless it exists, and return its path. If a file is in the way, the directory
    that needs its name gets a timestamp appended.
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
    """Implements trash/path, trash/restore and trash/purge."""

    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    async def find(self, caller: Caller, path: StoragePath) -> StoragePath | None:
        """Return the path of the trashed home directory if it exists, otherwise of the trash itself if it exists,
        otherwise None. Raises trash_not_supported.
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
        # In Ozone, the services themselves are roots, too.
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
