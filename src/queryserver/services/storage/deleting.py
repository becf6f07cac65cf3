"""Delete (Contract storage 7.7)."""

from dataclasses import dataclass

from queryserver.domain.errors.files import root_not_allowed, trash_not_supported
from queryserver.domain.files import Scheme, StoragePath
from queryserver.interfaces.storage import TrashStorage
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.stores import Caller, Place, Stores
from queryserver.services.storage.trash import move_to_trash


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of an entry; `trash_path` is None when it is gone for good."""

    path: StoragePath
    trash_path: StoragePath | None


class Deletions:
    """rmtree and its other names."""

    def __init__(self, stores: Stores, audit: StorageAudit) -> None:
        self._stores = stores
        self._audit = audit

    def check(self, caller: Caller, path: StoragePath, *, skip_trash: bool | None) -> Place:
        """What can be refused without asking the store. Raises root_not_allowed, trash_not_supported, access errors."""
        place = self._stores.place(caller, path)
        traits = place.file_system.traits
        # A service of Ozone is the root of a store of its own.
        is_root = path.is_root or (path.scheme is Scheme.OFS and len(path.names) == 1)
        if is_root or path.path == traits.home_parent:
            raise root_not_allowed(f"{path} cannot be deleted.")
        if skip_trash is False and not isinstance(place.storage, TrashStorage):
            raise trash_not_supported(f"The store {path.scheme} has no trash; nothing was deleted.")
        return place

    async def delete(self, caller: Caller, path: StoragePath, *, skip_trash: bool | None) -> Deleted:
        """Delete an entry with its content, for good or to the trash; None: as is usual on its store.

        Raises as `check`; PathNotFound, already_in_trash, contains_trash; DirectoryNotEmpty for buckets with content.
        """
        place = self.check(caller, path, skip_trash=skip_trash)
        traits = place.file_system.traits
        to_trash = traits.deletes_to_trash if skip_trash is None else not skip_trash
        with self._audit.event(caller, "storage.trash" if to_trash else "storage.delete", path):
            if to_trash:
                return Deleted(path, await move_to_trash(place))
            is_container = len(path.names) <= traits.container_levels
            await place.storage.delete(path.path, recursive=not is_container)
            return Deleted(path, None)
