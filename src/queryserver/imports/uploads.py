"""Files that users upload to import them (Contract importer 3)."""

import re
import secrets
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from queryserver.errors.base import InvalidParameter, InvalidRequest, PermissionDenied, QueryServerError
from queryserver.errors.files import (
    InvalidPath,
    NotADirectory,
    NotAFile,
    PathNotFound,
    StorageNotConfigured,
    SymlinkNotFollowed,
    UnknownAuthority,
    UnknownScheme,
    extension_not_allowed,
    file_empty,
    import_file_denied,
    import_file_not_found,
    import_file_too_large,
    upload_quota_exceeded,
)
from queryserver.files.model import EntryKind, FileStatus, extension_of
from queryserver.files.places import Caller, Place, Stores
from queryserver.files.protocol import Storage
from queryserver.files.upload_repository import renewed
from queryserver.identity.model import User
from queryserver.imports.model import Origin, UploadReference, base_name


@dataclass(frozen=True, slots=True)
class NewImportUpload:
    """A file that arrived."""

    digest: bytes
    """SHA-256 of the secret part of its reference; names it in the area, too."""
    user_id: int
    name: str
    """The last part of its reference."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredImportUpload:
    """A file that has not expired."""

    name: str
    size_bytes: int
    left: timedelta
    """Until it expires."""


@dataclass(frozen=True, slots=True)
class UploadUsage:
    """What one user has in the area."""

    files: int
    size_bytes: int


class ImportUploadRecords(Protocol):
    """Records of all users, on all instances. Each method is one transaction; all raise DatabaseUnavailable."""

    async def usage(self, user_id: int) -> UploadUsage:
        """The files of a user that have not expired."""
        ...

    async def add(self, new: NewImportUpload, *, keep: timedelta, most: UploadUsage) -> datetime | None:
        """Keep a file; when it expires. None: the user would have more than `most`."""
        ...

    async def find(self, user_id: int, digest: bytes) -> StoredImportUpload | None:
        """A file of that user that has not expired."""
        ...

    async def prolong(self, digest: bytes, *, keep: timedelta) -> bool:
        """Let a file expire `keep` from now; False: it is gone, or has expired."""
        ...

    async def count_expired(self) -> int:
        """How many files have expired."""
        ...

    async def take_expired(self, *, limit: int) -> Sequence[bytes]:
        """Forget files that have expired; their digests, each given to one caller only."""
        ...

    async def known(self, digests: Collection[bytes]) -> Collection[bytes]:
        """Those of them that have a record."""
        ...


class UploadArea(Storage, Protocol):
    """One directory of this service itself, which all instances share. Files lie directly in it, with mode 0600."""

    def place(self, name: str) -> Path:
        """Where a file is on this machine; asks nobody."""
        ...

    async def touch(self, name: str) -> bool:
        """Note that a file is in use; False: it is gone."""
        ...

    async def sweep_everywhere(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """Delete, or count only, files that were on their way in and got nothing for so long; how many."""
        ...


_NO_REFERENCE = UploadReference("", "")
_LONGEST_UNPROLONGED = timedelta(minutes=1)
# What boundaries, headers and other parts of a body may add to the bytes of the file.
_FRAME_BYTES = 1024 * 1024

_NAME_BYTES = 32
# Much less than the age at which the clean-up takes a file without a record for one that a crash left.
_TOUCH_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """What may be uploaded, and for how long it is kept after its last use."""

    max_file_bytes: int
    most: UploadUsage
    """Of one user."""
    restricted_extensions: Collection[str] = ()
    """In lower case, with the leading dot."""
    keep: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReceivedUpload:
    """A file that arrived."""

    reference: UploadReference
    size_bytes: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file of the caller, in the upload area: an ImportFile whose content never changes."""

    area: UploadArea
    digest: bytes
    """Names the file for ever; the reference cannot be told from it."""
    name: str
    """The last part of its reference."""
    size_bytes: int

    @property
    def shown(self) -> str:
        return self.name

    @property
    def fixed_identity(self) -> str | None:
        return self.digest.hex()

    @property
    def place(self) -> Path:
        """Where it is on this machine."""
        return self.area.place(self.digest.hex())

    async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """See ImportFile. Raises import_file_not_found when it was removed meanwhile, StorageError."""
        try:
            async with aclosing(self.area.read(self.digest.hex(), offset=offset, length=length)) as pieces:
                async for piece in pieces:
                    yield piece
        except PathNotFound:
            raise import_file_not_found() from None

    @asynccontextmanager
    async def on_disk(self) -> AsyncGenerator[Path]:
        """See ImportFile: itself."""
        yield self.place


class ImportUploads:
    """Takes files in, and finds them again for their owners."""

    def __init__(self, records: ImportUploadRecords, area: UploadArea, limits: UploadLimits) -> None:
        self._records = records
        self._area = area
        self._limits = limits

    async def admit(self, user: User, body_bytes: int | None) -> int:
        """How many bytes the caller may upload now, told before a byte of the body is read.

        `body_bytes` is what the client announces, if it does. Raises import_file_too_large, upload_quota_exceeded.
        """
        if body_bytes is not None and body_bytes > self._limits.max_file_bytes + _FRAME_BYTES:
            raise import_file_too_large(self._limits.max_file_bytes)
        used, most = await self._records.usage(user.id), self._limits.most
        if used.files >= most.files or used.size_bytes >= most.size_bytes:
            raise self._no_room()
        return most.size_bytes - used.size_bytes

    async def receive(
        self, user: User, client_name: str, content: AsyncGenerator[bytes], *, room_bytes: int
    ) -> ReceivedUpload:
        """Keep a file; of one that does not arrive nothing stays. `room_bytes` is what `admit` told.

        Raises extension_not_allowed, file_empty, import_file_too_large, upload_quota_exceeded, StorageError, and what
        `content` raises.
        """
        self._check_extension(client_name)
        reference = UploadReference.new(client_name)
        async with aclosing(self._checked(content, room_bytes)) as checked:
            entry = await self._area.write(reference.digest.hex(), checked, overwrite=False)
        new = NewImportUpload(reference.digest, user.id, reference.name, entry.size_bytes)
        try:
            expires_at = await self._recorded(new)
        except BaseException:  # a cancel too: no file may stay without a record
            # What fails here, too, is a file without a record: the clean-up removes it.
            with suppress(QueryServerError):
                await self._area.delete(reference.digest.hex(), recursive=False)
            raise
        return ReceivedUpload(reference, entry.size_bytes, expires_at)

    async def find(self, user: User, file_path: str) -> UploadedFile:
        """The file of a reference; it expires later for having been asked for. Raises import_file_not_found.

        Whatever is wrong with the reference, the same is done and told.
        """
        reference = UploadReference.read(file_path) or _NO_REFERENCE
        stored = await self._records.find(user.id, reference.digest)
        if stored is None or stored.name != reference.name:
            raise import_file_not_found()
        keep = self._limits.keep
        # Not for each call: looking at a file again and again would write as often.
        if keep - stored.left > min(_LONGEST_UNPROLONGED, keep / 100):
            await self.keep_alive(reference.digest)
        return UploadedFile(self._area, reference.digest, stored.name, stored.size_bytes)

    async def keep_alive(self, digest: bytes) -> None:
        """Let a file that is in use expire later. Raises import_file_not_found when it has expired."""
        if not await self._records.prolong(digest, keep=self._limits.keep):
            raise import_file_not_found()

    @asynccontextmanager
    async def passing_copy(self, content: AsyncGenerator[bytes]) -> AsyncGenerator[Path]:
        """A file of these bytes in the upload area, for as long as the block. Nobody's quota counts it.

        Raises StorageError, and what `content` raises.
        """
        name = secrets.token_hex(_NAME_BYTES)
        async with aclosing(content):
            await self._area.write(name, content, overwrite=False)
        try:
            async with renewed(partial(self._area.touch, name), every_s=_TOUCH_EVERY_S):
                yield self._area.place(name)
        finally:
            # One that stays is removed by the clean-up.
            with suppress(QueryServerError):
                await self._area.delete(name, recursive=False)

    async def _recorded(self, new: NewImportUpload) -> datetime:
        expires_at = await self._records.add(new, keep=self._limits.keep, most=self._limits.most)
        if expires_at is None:
            raise self._no_room()
        return expires_at

    def _check_extension(self, client_name: str) -> None:
        extension = extension_of(base_name(client_name).rstrip(". "))
        if extension in self._limits.restricted_extensions:
            raise extension_not_allowed(f'Uploading files with type "{extension}" is not allowed.')

    async def _checked(self, content: AsyncGenerator[bytes], room_bytes: int) -> AsyncGenerator[bytes]:
        """The same bytes. What is wrong with them is raised before they end, so that nothing is kept."""
        size = 0
        async with aclosing(content):
            async for piece in content:
                size += len(piece)
                if size > self._limits.max_file_bytes:
                    raise import_file_too_large(self._limits.max_file_bytes)
                if size > room_bytes:
                    raise self._no_room()
                yield piece
        if not size:
            raise file_empty("The submitted file is empty.")

    def _no_room(self) -> InvalidRequest:
        most = self._limits.most
        mib = round(most.size_bytes / 1024**2)
        return upload_quota_exceeded(
            f"{most.files} files, or {mib} MiB, are as much as you may have until they expire."
        )


log = structlog.get_logger(__name__)

_BATCH = 500
_OURS = re.compile(r"[0-9a-f]{64}")
# No record is inserted that long after its file came, and files that are used without one are touched all the time.
_ABANDONED_AFTER = timedelta(hours=1)


class UploadAreaKeeping:
    """Removes what nobody can use any more."""

    def __init__(
        self, records: ImportUploadRecords, area: UploadArea, *, abandoned_after: timedelta = _ABANDONED_AFTER
    ) -> None:
        self._records = records
        self._area = area
        self._abandoned_after = abandoned_after

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Remove expired uploads, and files that belong to none; kind to number."""
        abandoned = await self._area.sweep_everywhere(self._abandoned_after, dry_run=dry_run)
        expired = await self._records.count_expired() if dry_run else await self._remove_expired()
        abandoned += await self._remove_unknown(dry_run=dry_run)
        return {"expired import files": expired, "abandoned import files": abandoned}

    async def _remove_expired(self) -> int:
        """Records go first: a file without a record cannot be read, and the next clean-up finds it."""
        removed = 0
        while digests := await self._records.take_expired(limit=_BATCH):
            for digest in digests:
                await self._removed(digest.hex())
            removed += len(digests)
        return removed

    async def _remove_unknown(self, *, dry_run: bool) -> int:
        before, removed = datetime.now(UTC) - self._abandoned_after, 0
        async with aclosing(self._area.list_directory("")) as batches:
            async for batch in batches:
                old = {bytes.fromhex(entry.name) for entry in batch.entries if _is_old_file(entry, before)}
                for digest in old.difference(await self._records.known(old)) if old else ():
                    removed += dry_run or await self._removed(digest.hex())
        return removed

    async def _removed(self, name: str) -> bool:
        """Whether it was removed. One file that cannot be must not keep all others."""
        try:
            await self._area.delete(name, recursive=False)
        except PathNotFound:
            return False
        except QueryServerError as error:
            log.warning("import file not removed", code=error.code)
            return False
        return True


def _is_old_file(entry: FileStatus, before: datetime) -> bool:
    """Whether it is a plain file with a name such as we give, untouched since that time."""
    return (
        entry.is_file
        and _OURS.fullmatch(entry.name) is not None
        and entry.modified_at is not None
        and entry.modified_at < before
    )


class ImportFile(Protocol):
    """One file, read with the caller's rights. Offsets and sizes are bytes.

    Reading may raise import_file_not_found, import_file_denied, StorageUnavailable, ChangedMeanwhile.
    """

    @property
    def shown(self) -> str:
        """What people call it, for messages and history: the name that its client gave it, or its storage path."""
        ...

    @property
    def size_bytes(self) -> int:
        """How large it was when it was opened."""
        ...

    @property
    def fixed_identity(self) -> str | None:
        """Names its content among all files for ever; None where the content under the same name may change."""
        ...

    def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length) in pieces of at most 1 MiB, of the version that was opened."""
        ...

    def on_disk(self) -> AbstractAsyncContextManager[Path]:
        """The file on the local disk: itself, or a copy that is removed afterwards. Raises import_file_too_large."""
        ...


_UNREADABLE = (SymlinkNotFollowed, InvalidPath, UnknownScheme, UnknownAuthority, StorageNotConfigured, NotAFile)


class ImportSources:
    """Finds files. `max_copy_bytes`: larger remote files are never copied to the upload area."""

    def __init__(self, uploads: ImportUploads, stores: Stores, *, max_copy_bytes: int) -> None:
        self._uploads = uploads
        self._stores = stores
        self._max_copy_bytes = max_copy_bytes

    @asynccontextmanager
    async def opened(self, user: User, origin: Origin, file_path: str) -> AsyncGenerator[ImportFile]:
        """A file that the caller may read. An upload expires later for having been asked for.

        Raises import_file_not_found, import_file_denied, InvalidParameter (no path, a directory, a link),
        StorageUnavailable.
        """
        if origin is Origin.LOCAL:
            yield await self._uploads.find(user, file_path)
        else:
            yield await self._stored(user, file_path)

    async def _stored(self, user: User, file_path: str) -> "StoredFile":
        with _import_errors():
            place = self._place(Caller.of(user), file_path)
            path = place.path
            status = await place.storage.stat(path.path)
        if status.kind is EntryKind.LINK:
            raise InvalidParameter(f"{path} is a link; links are not followed.")
        if not status.is_file:
            raise InvalidParameter(f"{path} is not a file.")
        return StoredFile(place, status, self._uploads, self._max_copy_bytes)

    def _place(self, caller: Caller, file_path: str) -> Place:
        try:
            return self._stores.place(caller, self._stores.path(file_path, parameter="file_path"))
        except (UnknownScheme, StorageNotConfigured) as error:
            raise self._stores.with_configured(error, caller) from None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store, in the version that was found. See ImportFile."""

    place: Place
    status: FileStatus
    uploads: ImportUploads
    max_copy_bytes: int

    @property
    def shown(self) -> str:
        """Its storage path."""
        return str(self.place.path)

    @property
    def size_bytes(self) -> int:
        """Its size when it was found."""
        return self.status.size_bytes

    @property
    def fixed_identity(self) -> None:
        """None: others may write another file under the same name."""
        return

    async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        left = max(self.size_bytes - offset, 0)
        wanted = left if length is None else min(length, left)
        if not wanted:
            # Not asked for: stores differ in what they say to numbers behind the end.
            return
        pieces = self.place.storage.read(self.place.path.path, offset=offset, length=wanted, version=self.status)
        with _import_errors():
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    @asynccontextmanager
    async def on_disk(self) -> AsyncGenerator[Path]:
        """A copy in the upload area. Raises import_file_too_large before anything is read."""
        if self.size_bytes > self.max_copy_bytes:
            raise import_file_too_large(self.max_copy_bytes)
        async with self.uploads.passing_copy(self.read()) as path:
            yield path


@contextmanager
def _import_errors() -> Generator[None]:
    """What stores say, as the importer answers it (Contract importer 2.8)."""
    try:
        yield
    except (PathNotFound, NotADirectory):
        raise import_file_not_found() from None
    except _UNREADABLE as error:
        raise InvalidParameter(f"file_path: {error.message}") from None
    except PermissionDenied:
        raise import_file_denied("You may not read this file.") from None
