"""Files that arrive in one request (Contract storage 9.1)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from queryserver.errors.files import (
    PathExists,
    PathNotFound,
    StorageUnavailable,
    VerificationFailed,
    file_too_large,
    root_not_allowed,
    upload_disabled,
)
from queryserver.files.changing import refuse_no_directory
from queryserver.files.model import ExtensionRules, FileStatus, Scheme, StoragePath, new_name
from queryserver.files.places import Caller, Place, StorageAudit, Stores, may_use
from queryserver.files.protocol import CheckedWrites, QuotaStorage, Storage
from queryserver.files.upload_repository import Leftovers
from queryserver.identity.model import User
from queryserver.platform.limits import NO_FLOOR, DiskFloor

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


@dataclass(frozen=True, slots=True)
class ArrivingFile:
    """A file as its client announces it."""

    directory: StoragePath
    name: str
    overwrite: bool = False
    sha256: bytes | None = None
    """What the digest must be."""
    size_bytes: int | None = None
    """About how large it is, never too small; None: unknown."""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file that arrived."""

    path: StoragePath
    entry: FileStatus
    sha256: bytes


class CheckedContent:
    """Bytes on their way to a store: counted, hashed, and held against what was announced.

    What is wrong with them is raised before they end, so that the store keeps nothing.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        threads: Executor,
        *,
        max_bytes: int | None = None,
        sha256: bytes | None = None,
    ) -> None:
        self._content = content
        self._threads = threads
        self._max_bytes = max_bytes
        self._wanted = sha256
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> bytes:
        """The digest of what passed."""
        return self._hash.digest()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The bytes. Raises file_too_large, VerificationFailed, and what the content raises."""
        loop = asyncio.get_running_loop()
        async with aclosing(_one_ahead(self._content)) as content:
            async for piece in content:
                self.size_bytes += len(piece)
                if self._max_bytes is not None and self.size_bytes > self._max_bytes:
                    raise file_too_large(self._max_bytes)
                # Hashed by a thread while the store writes the same piece.
                hashed = loop.run_in_executor(self._threads, self._hash.update, piece)
                yield piece
                await hashed
        if self._wanted is not None and self._wanted != self.sha256:
            raise VerificationFailed("The SHA-256 of the received bytes is not the one that was announced.")


async def _one_ahead(content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same pieces; while one is taken, the next is on its way already."""
    coming = asyncio.create_task(_next(content), name="next piece")
    try:
        while (piece := await coming) is not None:
            coming = asyncio.create_task(_next(content), name="next piece")
            yield piece
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await content.aclose()


async def _next(content: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(content, None)


class Uploads:
    """Takes files in."""

    def __init__(self, rules: UploadRules, leftovers: Leftovers, audit: StorageAudit, threads: Executor) -> None:
        self._rules = rules
        self._leftovers = leftovers
        self._audit = audit
        self._threads = threads

    async def receive(self, caller: Caller, file: ArrivingFile, content: AsyncGenerator[bytes]) -> UploadedFile:
        """Store one file; under its name it is complete, or nothing is there.

        Raises as `UploadRules.target` and `Storage.write`, file_too_large, VerificationFailed, and as `content` does.
        """
        with self._audit.event(caller, "storage.upload", file.directory.child(file.name)) as noted:
            place = await self._rules.target(caller, file.directory, file.name, overwrite=file.overwrite)
            checked = CheckedContent(content, self._threads, max_bytes=self._rules.max_bytes, sha256=file.sha256)
            async with self._leftovers.noted(caller, place.path), aclosing(checked.pieces()) as pieces:
                # The rules have looked at the target just now: an object store need not ask for it all again.
                storage = place.storage
                write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
                entry = await write(place.path.path, pieces, overwrite=file.overwrite, size_bytes=file.size_bytes)
            noted.size_bytes = checked.size_bytes
            return UploadedFile(place.path, entry, checked.sha256)


class Digest:
    """SHA-256 and size of what passes through."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def value(self) -> bytes:
        """Of what passed until now."""
        return self._digest.digest()

    async def through(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The same pieces."""
        async for piece in body:
            self._digest.update(piece)
            self.size_bytes += len(piece)
            yield piece


async def digest_of(storage: Storage, path: str) -> bytes:
    """Of a whole file as the store has it. Raises as `Storage.read`."""
    digest = Digest()
    async with aclosing(storage.read(path)) as content, aclosing(digest.through(content)) as pieces:
        async for _ in pieces:
            pass
    return digest.value
