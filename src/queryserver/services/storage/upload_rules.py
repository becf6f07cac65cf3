"""What an upload must keep to before a byte of it is written (Contract storage 9.1), and how large it may be (9.3)."""

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from queryserver.domain.disk_floor import NO_FLOOR, DiskFloor
from queryserver.domain.errors.files import (
    PathExists,
    PathNotFound,
    StorageUnavailable,
    file_too_large,
    root_not_allowed,
    upload_disabled,
)
from queryserver.domain.files import FileStatus, Scheme, StoragePath
from queryserver.domain.storage_names import ExtensionRules, new_name
from queryserver.domain.user import User
from queryserver.interfaces.storage import QuotaStorage
from queryserver.services.storage.creating import refuse_no_directory
from queryserver.services.storage.stores import Caller, Place, Stores, may_use

OBJECT_STORES = frozenset({Scheme.S3A})
"""A directory of these stores is there as soon as a file in it is."""

# What boundaries, headers and fields add to the bytes of the file.
_FRAME_BYTES = 8 * 1024
_DISK_ANSWERS_WITHIN_S = 10.0


class UploadRules:
    """The checks. `max_bytes` None: files of any size."""

    def __init__(
        self, stores: Stores, extensions: ExtensionRules, *, is_enabled: bool = True, max_bytes: int | None = None
    ) -> None:
        self._stores = stores
        self._extensions = extensions
        self._is_enabled = is_enabled
        self.max_bytes = max_bytes

    def admit(self, *, body_bytes: int | None = None, file_bytes: int | None = None) -> None:
        """Raises upload_disabled, file_too_large. The sizes are those that the client announces, where it does."""
        if not self._is_enabled:
            raise upload_disabled("Uploads are switched off.")
        if self.max_bytes is None:
            return
        file_bytes = (body_bytes or 0) - _FRAME_BYTES if file_bytes is None else file_bytes
        if file_bytes > self.max_bytes:
            raise file_too_large(self.max_bytes)

    async def target(self, caller: Caller, directory: StoragePath, file_name: str, *, overwrite: bool) -> Place:
        """Where the file goes.

        Raises storage_access_denied; PathNotFound, NotADirectory and SymlinkNotFollowed (the directory);
        root_not_allowed (above buckets), InvalidName, extension_not_permitted, extension_restricted, PathExists.
        """
        parent = self._stores.place(caller, directory)
        await _require_directory(parent)
        name = new_name(file_name)
        self._extensions.check(name)
        place = Place(directory.child(name), parent.file_system, parent.storage)
        there = await _found(place)
        if there is not None and not (overwrite and there.is_file):
            raise PathExists(f"{place.path} exists.")
        return place


async def _require_directory(place: Place) -> None:
    """Raises PathNotFound with the path in `details`, NotADirectory, SymlinkNotFollowed, root_not_allowed."""
    levels = place.file_system.traits.container_levels
    if len(place.path.names) < levels:
        raise root_not_allowed("Files lie in buckets, containers and volumes, not beside them.")
    found = await _found(place)
    if found is None and place.path.scheme in OBJECT_STORES and len(place.path.names) > levels:
        bucket = StoragePath(place.path.scheme, "/".join(place.path.names[:levels]))
        found = await _found(Place(bucket, place.file_system, place.storage))
    if found is None:
        raise PathNotFound(f"{place.path} does not exist.", details={"path": str(place.path)})
    refuse_no_directory(place.path, found)


async def _found(place: Place) -> FileStatus | None:
    try:
        return await place.storage.stat(place.path.path)
    except PathNotFound:
        return None


class UploadSpace:
    """How many bytes a caller may still upload."""

    def __init__(
        self,
        rules: UploadRules,
        stores: Stores,
        staging_area: Path | None,
        threads: Executor,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        self._rules = rules
        self._stores = stores
        self._staging_area = staging_area
        self._threads = threads
        self._floor = floor

    async def available(self, user: User) -> int:
        """The smallest limit that is known; -1: none is. Parts for the local root are staged on this machine.

        Raises StorageUnavailable: the local root is gone, or does not answer.
        """
        limits = [] if self._rules.max_bytes is None else [self._rules.max_bytes]
        if self._staging_area is not None and may_use(user, Scheme.FILE):
            limits.append(await self._free_bytes(self._staging_area))
            storage = self._stores.as_user(Scheme.FILE, Caller.of(user).acting)
            if isinstance(storage, QuotaStorage) and (room := await storage.room_bytes()) is not None:
                limits.append(room)
        return min(limits, default=-1)

    async def _free_bytes(self, directory: Path) -> int:
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._floor.room, directory)
        try:
            async with asyncio.timeout(_DISK_ANSWERS_WITHIN_S):
                return max(await asked, 0)
        except OSError as error:  # TimeoutError is one
            raise StorageUnavailable("The local root does not answer.") from error
