"""New directories and files, and text that is saved (Contract storage 6)."""

from collections.abc import AsyncIterator

from queryserver.domain.errors.files import (
    InvalidName,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    SymlinkNotFollowed,
)
from queryserver.domain.files import EntryKind, FileStatus, StoragePath
from queryserver.domain.storage_names import ExtensionRules, new_name
from queryserver.interfaces.storage import PIECE_BYTES, Storage
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.stores import Caller, Place, Stores


class Creations:
    """mkdir, touch and save."""

    def __init__(self, stores: Stores, rules: ExtensionRules, leftovers: Leftovers, audit: StorageAudit) -> None:
        self._stores = stores
        self._rules = rules
        self._leftovers = leftovers
        self._audit = audit

    async def mkdir(self, caller: Caller, path: StoragePath) -> StoragePath:
        """Make a directory and its missing parents. Raises InvalidName, PathExists."""
        path = _named(path, is_directory=True)
        place = self._stores.place(caller, path)
        with self._audit.event(caller, "storage.mkdir", path):
            await _check_new_parents(place)
            # Some stores make it under a reserved name first.
            async with self._leftovers.noted(caller, path):
                await place.storage.mkdir(path.path)
        return path

    async def touch(self, caller: Caller, path: StoragePath) -> StoragePath:
        """Make an empty file; of several calls one succeeds.

        Raises InvalidName, extension_not_permitted, extension_restricted, PathNotFound (the parent), NotADirectory,
        PathExists.
        """
        path = _named(path, is_directory=False)
        self._rules.check(path.name)
        place = self._stores.place(caller, path)
        with self._audit.event(caller, "storage.touch", path) as noted:
            await require_directory(place.storage, path.parent)
            async with self._leftovers.noted(caller, path):
                await place.storage.write(path.path, _body(b""), overwrite=False, size_bytes=0)
            noted.size_bytes = 0
        return path

    async def save(self, caller: Caller, path: StoragePath, content: bytes) -> FileStatus:
        """Replace a file's content in one step; a failure leaves the old one. Raises PathNotFound, NotAFile."""
        place = self._stores.place(caller, path)
        with self._audit.event(caller, "storage.save", path) as noted:
            await require_file(place)
            noted.size_bytes = len(content)
            async with self._leftovers.noted(caller, path):
                return await place.storage.write(path.path, _body(content), overwrite=True, size_bytes=len(content))


async def require_directory(storage: Storage, directory: StoragePath) -> None:
    """Raises PathNotFound with the path in `details`, NotADirectory, SymlinkNotFollowed."""
    try:
        found = await storage.stat(directory.path)
    except PathNotFound:
        raise PathNotFound(f"{directory} does not exist.", details={"path": str(directory)}) from None
    refuse_no_directory(directory, found)


def refuse_no_directory(path: StoragePath, found: FileStatus) -> None:
    """Raises NotADirectory; SymlinkNotFollowed where it may be one behind a link."""
    if found.kind is EntryKind.LINK:
        raise SymlinkNotFollowed(f"{path} is a symbolic link, which is not followed.")
    if not found.is_directory:
        raise NotADirectory(f"{path} is not a directory.")


async def require_file(place: Place) -> FileStatus:
    """What is known of the file. Raises PathNotFound, NotAFile, SymlinkNotFollowed."""
    found = await place.storage.stat(place.path.path)
    if found.kind is EntryKind.LINK:
        raise SymlinkNotFollowed(f"{place.path} is a symbolic link, which is not followed.")
    if not found.is_file:
        raise NotAFile(f"{place.path} is not a file.")
    return found


async def _check_new_parents(place: Place) -> None:
    """What is there may be called as it is; what would be made has a name for new directories. Raises InvalidName."""
    parent = place.path.parent
    while not parent.is_root:
        try:
            new_name(parent.name, is_directory=True)
        except InvalidName as error:
            try:
                await place.storage.stat(parent.path)
            except PathNotFound:
                raise error from None
            return
        parent = parent.parent


def _named(path: StoragePath, *, is_directory: bool) -> StoragePath:
    """The path with a name that new entries may have. Raises InvalidName, PathExists (the root)."""
    if path.is_root:
        raise PathExists(f"{path} exists.")
    return path.parent.child(new_name(path.name, is_directory=is_directory))


async def _body(content: bytes) -> AsyncIterator[bytes]:
    """In pieces, as stores want it."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
