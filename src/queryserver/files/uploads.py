"""Uploads of whole files in a single request (Contract storage 9.1)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from queryserver.errors.files import PathExists, StorageUnavailable, VerificationFailed, file_too_large, upload_disabled
from queryserver.files.access import Caller, Location, StorageAudit, Stores, may_use
from queryserver.files.model import ExtensionRules, FileStatus, Scheme, StoragePath, checked_new_name
from queryserver.files.protocol import CheckedWrites, QuotaStorage
from queryserver.files.upload_repository import OrphanSweep
from queryserver.identity.model import User
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor

# Below this size, neither reading ahead nor hashing in a thread is worthwhile.
_LARGE_CHUNK_BYTES = 64 * 1024
# Allowance for the multipart boundaries, headers and form fields in a request body.
_BODY_OVERHEAD_BYTES = 8 * 1024
_DISK_TIMEOUT_S = 10.0


class UploadRules:
    """Checks that every upload must pass first. `max_bytes` is None if file sizes are unlimited."""

    def __init__(
        self, stores: Stores, extensions: ExtensionRules, *, is_enabled: bool = True, max_bytes: int | None = None
    ) -> None:
        self._stores = stores
        self._extensions = extensions
        self._is_enabled = is_enabled
        self.max_bytes = max_bytes

    def admit(self, *, body_bytes: int | None = None, file_bytes: int | None = None) -> None:
        """Check that uploads are enabled and that the announced size, if any, is allowed. Raises upload_disabled,
        file_too_large.
        """
        if not self._is_enabled:
            raise upload_disabled("Uploads are disabled.")
        if self.max_bytes is None:
            return
        file_bytes = (body_bytes or 0) - _BODY_OVERHEAD_BYTES if file_bytes is None else file_bytes
        if file_bytes > self.max_bytes:
            raise file_too_large(self.max_bytes)

    async def target(self, caller: Caller, directory: StoragePath, file_name: str, *, overwrite: bool) -> Location:
        """Check the target of an upload and return its location.

        Raises storage_access_denied, root_not_allowed (above the bucket level), InvalidName, extension_not_permitted,
        extension_restricted, PathExists. If the directory is unsuitable, raises PathNotFound with the path in
        `details`, NotADirectory or SymlinkNotFollowed.
        """
        parent = self._stores.location(caller, directory)
        await parent.require_directory_of_files()
        name = checked_new_name(file_name)
        self._extensions.check(name)
        location = parent.at(directory.child(name))
        existing = await location.find()
        if existing is not None and not (overwrite and existing.is_file):
            raise PathExists(f"{location.path} already exists.")
        return location

    async def folder(self, caller: Caller, path: StoragePath, *, file_name: str) -> Location:
        """Check the target of a new folder whose files have names such as `file_name`, and return its location. An
        existing entry is not checked.

        Raises the errors of `target`, except PathExists.
        """
        parent = self._stores.location(caller, path.parent)
        await parent.require_directory_of_files()
        self._extensions.check(file_name)
        return parent.at(parent.path.child(checked_new_name(path.name, is_directory=True)))


class UploadSpace:
    """Determines how many bytes a user may upload. `staging_area` is the local root, or None if not configured."""

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
        """Return the smallest limit that applies, in bytes, or -1 if there is none. The limits are the maximum file
        size and, for the local root, the free disk space and the user's quota.

        Raises StorageUnavailable if the local root does not respond.
        """
        limits = [] if self._rules.max_bytes is None else [self._rules.max_bytes]
        if self._staging_area is not None and may_use(user, Scheme.FILE):
            room = asyncio.get_running_loop().run_in_executor(self._threads, self._floor.room, self._staging_area)
            try:
                async with asyncio.timeout(_DISK_TIMEOUT_S):
                    limits.append(max(await room, 0))
            except OSError as error:  # TimeoutError is an OSError
                raise StorageUnavailable("The local root is not responding.") from error
            storage = self._stores.as_user(Scheme.FILE, Caller.of(user).acting)
            if isinstance(storage, QuotaStorage) and (left := await storage.room_bytes()) is not None:
                limits.append(left)
        return min(limits, default=-1)


@dataclass(frozen=True, slots=True)
class FileUpload:
    """A file as declared in the client request."""

    directory: StoragePath
    name: str
    overwrite: bool = False
    sha256: bytes | None = None
    size_bytes: int | None = None
    """Announced size, an upper bound of the actual size; None if unknown."""


class CheckedContent:
    """Counts and hashes content on its way to a store, and checks it against the size limit and the announced
    digest.

    Errors are raised while the store is still reading, so that the store discards the file.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        threads: Executor | None = None,
        *,
        max_bytes: int | None = None,
        sha256: bytes | None = None,
    ) -> None:
        self._content = content
        self._threads = threads
        self._max_bytes = max_bytes
        self._expected_sha256 = sha256
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> bytes:
        return self._hash.digest()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the chunks. Raises file_too_large, VerificationFailed, and the errors of the content.

        While the store processes a large chunk, a thread hashes it, and the next chunk is read.
        """
        next_piece: asyncio.Task[bytes | None] | None = None
        try:
            while (piece := await (next_piece or self._next())) is not None:
                is_large = len(piece) >= _LARGE_CHUNK_BYTES
                next_piece = asyncio.create_task(self._next(), name="next piece") if is_large else None
                self.size_bytes += len(piece)
                if self._max_bytes is not None and self.size_bytes > self._max_bytes:
                    raise file_too_large(self._max_bytes)
                if is_large:
                    loop = asyncio.get_running_loop()
                    hashed = loop.run_in_executor(self._threads, self._hash.update, piece)
                    yield piece
                    await hashed
                else:
                    self._hash.update(piece)
                    yield piece
        finally:
            if next_piece is not None:
                next_piece.cancel()
                await asyncio.gather(next_piece, return_exceptions=True)
            await self._content.aclose()
        if self._expected_sha256 is not None and self._expected_sha256 != self.sha256:
            raise VerificationFailed("The SHA-256 of the received bytes does not match the SHA-256 in the request.")

    async def _next(self) -> bytes | None:
        return await anext(self._content, None)


async def sha256_of(content: AsyncGenerator[bytes], threads: Executor | None = None) -> bytes:
    """Return the SHA-256 of the whole content."""
    checked = CheckedContent(content, threads)
    async with aclosing(checked.pieces()) as pieces:
        async for _ in pieces:
            pass
    return checked.sha256


class Uploads:
    """Stores files that are uploaded in one request."""

    def __init__(self, rules: UploadRules, orphans: OrphanSweep, audit: StorageAudit, threads: Executor) -> None:
        self._rules = rules
        self._orphans = orphans
        self._audit = audit
        self._threads = threads

    async def receive(
        self, caller: Caller, file: FileUpload, content: AsyncGenerator[bytes]
    ) -> tuple[FileStatus, bytes]:
        """Store one file atomically. Return its entry and its SHA-256.

        Raises the errors of `UploadRules.target`, `Storage.write` and `content`, and file_too_large,
        VerificationFailed.
        """
        with self._audit.event(caller, "storage.upload", file.directory.child(file.name)) as details:
            location = await self._rules.target(caller, file.directory, file.name, overwrite=file.overwrite)
            checked = CheckedContent(content, self._threads, max_bytes=self._rules.max_bytes, sha256=file.sha256)
            async with self._orphans.recorded_write(caller, location.path), aclosing(checked.pieces()) as pieces:
                # The upload rules have just checked the target, so the store need not check it again.
                storage = location.storage
                write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
                entry = await write(location.path.path, pieces, overwrite=file.overwrite, size_bytes=file.size_bytes)
            details.size_bytes = checked.size_bytes
            return entry, checked.sha256
