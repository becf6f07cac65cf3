"""Permissions, owners and replication (Contract storage 6)."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from queryserver.domain.errors.base import NotSupported, QueryServerError
from queryserver.domain.errors.files import NotAFile, too_many_entries
from queryserver.domain.files import EntryKind, FileStatus, StoragePath
from queryserver.interfaces.storage import ModeStorage, OwnedStorage, ReplicatedStorage, Storage
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.creating import require_file
from queryserver.services.storage.stores import Caller, Place, Stores

MAX_TREE_ENTRIES = 10_000


class Attributes:
    """chmod, chown and set_replication."""

    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    async def chmod(
        self, caller: Caller, path: StoragePath, permissions: int, *, recursive: bool = False
    ) -> FileStatus:
        """Set permissions; the entry as it is then.

        Raises NotSupported; too_many_entries with nothing changed; the first refusal of the store, with `details` on
        how many entries were changed and how many were not.
        """
        place = self._stores.place(caller, path)
        storage = place.storage
        if not isinstance(storage, ModeStorage):
            raise NotSupported(f"The store {path.scheme} has no permissions.")
        with self._audit.event(caller, "storage.chmod", path):
            entries = await _chosen(place, recursive=recursive)
            await _for_each(entries, lambda entry: storage.set_permissions(entry, permissions))
            return await place.storage.stat(path.path)

    async def chown(
        self, caller: Caller, path: StoragePath, owner: str | None, group: str | None, *, recursive: bool = False
    ) -> None:
        """Set owner, group, or both. Raises as `chmod`."""
        place = self._stores.place(caller, path)
        storage = place.storage
        if not isinstance(storage, OwnedStorage):
            raise NotSupported(f"The store {path.scheme} has no owners that can be changed.")
        with self._audit.event(caller, "storage.chown", path):
            entries = await _chosen(place, recursive=recursive)
            await _for_each(entries, lambda entry: storage.set_owner(entry, owner=owner, group=group))

    async def set_replication(self, caller: Caller, path: StoragePath, factor: int) -> None:
        """Set the replication factor of a file. Raises NotSupported, PathNotFound, NotAFile, InvalidParameter."""
        place = self._stores.place(caller, path)
        storage = place.storage
        if not isinstance(storage, ReplicatedStorage):
            raise NotSupported(f"The store {path.scheme} has no replication factor.")
        with self._audit.event(caller, "storage.set_replication", path):
            await require_file(place)
            await storage.set_replication(path.path, factor)


async def _chosen(place: Place, *, recursive: bool) -> Sequence[str]:
    """The paths that are to be changed, the entry itself first; links below it are left out."""
    top = await place.storage.stat(place.path.path)
    if top.kind is EntryKind.LINK:
        raise NotAFile(f"{place.path} is a link; links have no permissions and owners of their own here.")
    if not recursive or not top.is_directory:
        return [top.path]
    if not place.file_system.traits.changes_modes_of_trees:
        raise NotSupported(f"The store {place.path.scheme} changes no whole trees.")
    return await _tree(place.storage, top.path)


async def _tree(storage: Storage, top: str) -> Sequence[str]:
    found, directories = [top], [top]
    while directories:
        async with aclosing(storage.list_directory(directories.pop())) as batches:
            async for batch in batches:
                kept = [entry for entry in batch.entries if entry.kind in {EntryKind.FILE, EntryKind.DIRECTORY}]
                found += [entry.path for entry in kept]
                directories += [entry.path for entry in kept if entry.is_directory]
                if len(found) > MAX_TREE_ENTRIES:
                    raise too_many_entries(
                        f"A tree of more than {MAX_TREE_ENTRIES} entries is not changed; nothing was."
                    )
    return found


async def _for_each(entries: Sequence[str], change: Callable[[str], Awaitable[None]]) -> None:
    """Change the deepest first: a directory that is closed by the change still lets its entries be changed."""
    failures: list[QueryServerError] = []
    for entry in reversed(entries):
        try:
            await change(entry)
        except QueryServerError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        if len(entries) > 1:
            first.details = {"changed": len(entries) - len(failures), "failed": len(failures)}
        raise first
