"""The files that can be imported: uploads, with their expiry (Contract importer 3), and files in stores (Contract
importer 2.8).
"""

import hashlib
import re
import secrets
import time
import unicodedata
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import structlog

from queryserver import errors
from queryserver.files.access import Caller, Location, Stores
from queryserver.files.model import EntryKind, FileStatus, extension_of
from queryserver.files.stores.local.storage import LocalUploadArea
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.platform.database import Database
from queryserver.platform.threads import background, now_and_every, renewed

log = structlog.get_logger(__name__)

MAX_NAME_CHARACTERS = 100
"""Maximum length of the file name in an upload reference."""

_SECRET_BYTES = 32
_REFERENCE = re.compile(r"upload/([A-Za-z0-9_-]{43})/([^/]{1,100})", re.DOTALL)
_SEPARATORS = re.compile(r"[/\\]")
_UNSAFE_CHARACTER = re.compile(r"[^\w.-]")
_DEFAULT_NAME = "file"
_MIN_EXTENSION = timedelta(minutes=1)
_BODY_OVERHEAD_BYTES = 1024 * 1024
"""Allowance for the multipart boundaries, headers and other parts of a request body."""
_NAME_BYTES = 32
_AREA_NAME = re.compile(r"[0-9a-f]{64}")
_TOUCH_EVERY_S = 240.0
_ABANDONED_AFTER = timedelta(hours=1)
"""Default age at which a file without a record counts as orphaned. The task `upload_cleanup` accepts 10 minutes or
more, and temporary copies are touched more than twice in that time.
"""
_DEAD_AFTER = timedelta(minutes=10)
"""Age at which the periodic sweep treats a file without a record as that of a crashed process. Live processes touch
their files more than twice in that time.
"""
_SWEEP_EVERY_S = 150.0
_BATCH = 500
_INVALID_FILE_ERRORS = (
    errors.SymlinkNotFollowed,
    errors.InvalidPath,
    errors.UnknownScheme,
    errors.UnknownAuthority,
    errors.StorageNotConfigured,
    errors.NotAFile,
)


@dataclass(frozen=True, slots=True)
class UploadReference:
    secret: str = field(repr=False)
    name: str

    @classmethod
    def new(cls, client_name: str) -> Self:
        """Create an unguessable reference for a file that the client calls `client_name`."""
        return cls(secrets.token_urlsafe(_SECRET_BYTES), safe_name(client_name))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a reference. Return None if `text` is not a valid reference."""
        match = _REFERENCE.fullmatch(text)
        return cls(*match.groups()) if match else None

    def __str__(self) -> str:
        return f"upload/{self.secret}/{self.name}"

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret.encode()).digest()


_INVALID_REFERENCE = UploadReference("", "")


def base_name(client_name: str) -> str:
    return _SEPARATORS.split(client_name)[-1]


def safe_name(client_name: str) -> str:
    """Return the base name, truncated to 100 characters, with every character except letters, digits and `._-`
    replaced with `_`.
    """
    name = _UNSAFE_CHARACTER.sub("_", unicodedata.normalize("NFC", base_name(client_name)))[:MAX_NAME_CHARACTERS]
    return name if name.strip(".") else _DEFAULT_NAME


@dataclass(frozen=True, slots=True)
class NewImportUpload:
    digest: bytes
    """SHA-256 of the reference's secret. In hexadecimal, it is the file's name in the upload area."""
    user_id: int
    name: str
    """The name at the end of the reference."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredImportUpload:
    name: str
    size_bytes: int
    time_left: timedelta
    """Time until the upload expires."""


@dataclass(frozen=True, slots=True)
class UploadUsage:
    files: int
    size_bytes: int


_LOCK = 0x71736975  # "qsiu"
_USAGE = """
select count(*) as files, coalesce(sum(size_bytes), 0)::bigint as size_bytes from import_uploads
where user_id = $1 and expires_at > now()
"""

# A separate statement takes the lock first, so that the count includes concurrent uploads of the same user. Both are
# sent as one script, which is one transaction and one round trip, but cannot have parameters. The inserted values are
# safe: numbers, hexadecimal digits and a timestamp.
_ADD = """
select pg_advisory_xact_lock({lock}, {user_id}::bigint::integer);
insert into import_uploads (digest, user_id, name, size_bytes, expires_at)
select decode('{digest}', 'hex'), {user_id}, convert_from(decode('{name}', 'hex'), 'UTF8'), {size_bytes},
    timestamptz '{expires_at}'
from import_uploads where user_id = {user_id} and expires_at > now()
having count(*) < {most_files} and coalesce(sum(size_bytes), 0)::bigint + {size_bytes} <= {most_bytes}
"""

_REMOVE = """
with known as (
    select digest from import_uploads where digest = $1 and user_id = $2 and name = $3 and expires_at > now()
), removed as (
    delete from import_uploads where digest in (select digest from known) and not exists (
        select from statements
        where user_id = $2 and state in ('waiting', 'running') and strpos(import_plan->>'plan', $4) > 0
    ) returning digest
)
select exists (select from known) as is_known, exists (select from removed) as is_removed
"""


class ImportUploadRecords:
    """Records of the uploads of all users and instances.

    Each method runs one transaction and may raise DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, user_id: int) -> UploadUsage:
        row = await self._database.row(_USAGE, user_id)
        return UploadUsage(0, 0) if row is None else UploadUsage(row["files"], row["size_bytes"])

    async def add(self, new: NewImportUpload, *, keep: timedelta, max_usage: UploadUsage) -> datetime | None:
        """Record an upload and return when it expires. Return None if the user would exceed `max_usage`."""
        expires_at: datetime = await self._database.value("select now() + $1::interval", keep)
        script = _ADD.format(
            lock=_LOCK,
            user_id=int(new.user_id),
            digest=new.digest.hex(),
            name=new.name.encode().hex(),
            size_bytes=int(new.size_bytes),
            expires_at=expires_at.isoformat(),
            most_files=int(max_usage.files),
            most_bytes=int(max_usage.size_bytes),
        )
        return expires_at if await self._database.execute(script) else None

    async def find(self, user_id: int, digest: bytes) -> StoredImportUpload | None:
        row = await self._database.row(
            """select name, size_bytes, expires_at - now() as left from import_uploads
            where digest = $1 and user_id = $2 and expires_at > now()""",
            digest,
            user_id,
        )
        return None if row is None else StoredImportUpload(row["name"], row["size_bytes"], row["left"])

    async def extend(self, digest: bytes, *, keep: timedelta) -> bool:
        """Set the expiry to `keep` from now. Return False if the upload was deleted or has expired."""
        changed = await self._database.execute(
            "update import_uploads set expires_at = now() + $2::interval where digest = $1 and expires_at > now()",
            digest,
            keep,
        )
        return changed == 1

    async def remove(self, user_id: int, reference: UploadReference) -> bool | None:
        """Delete the record. Return False if the user has no such upload, and None if an unfinished import uses it."""
        # Only the plans of imports of this upload contain its secret, which JSON does not escape.
        row = await self._database.row(_REMOVE, reference.digest, user_id, reference.name, reference.secret)
        if row is None or not row["is_known"]:
            return False
        return True if row["is_removed"] else None

    async def count_expired(self) -> int:
        return await self._database.value("select count(*) from import_uploads where expires_at <= now()")

    async def take_expired(self, *, limit: int) -> Sequence[bytes]:
        """Delete up to `limit` expired records and return their digests. Concurrent callers receive different
        records.
        """
        rows = await self._database.fetch(
            """delete from import_uploads where digest in (
                select digest from import_uploads where expires_at <= now() limit $1 for update skip locked
            ) returning digest""",
            limit,
        )
        return [row["digest"] for row in rows]

    async def existing(self, digests: Collection[bytes]) -> Collection[bytes]:
        rows = await self._database.fetch(
            "select digest from import_uploads where digest = any($1::bytea[])", list(digests)
        )
        return {row["digest"] for row in rows}


class ImportFile(Protocol):
    """A file to import, read with the caller's permissions. Offsets and sizes are in bytes.

    Reading may raise import_file_not_found, import_file_denied, StorageUnavailable, EntryChanged.
    """

    @property
    def display_name(self) -> str:
        """The name shown in messages and the history: the file name from the client, or the path in the store."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def fixed_identity(self) -> str | None:
        """An id that always denotes the same content; None if the content of the file may change."""
        ...

    def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length) of the version that was found, in chunks of at most 1 MiB."""
        ...

    def on_disk(self) -> AbstractAsyncContextManager[Path]:
        """Yield the local path of the file or of a temporary copy of it. Raises import_file_too_large."""
        ...


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits on uploads, and how long an upload is kept after its last use."""

    max_file_bytes: int
    max_usage: UploadUsage
    """The limit for each user."""
    restricted_extensions: Collection[str] = ()
    """In lower case, with a leading dot."""
    keep: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReceivedUpload:
    reference: UploadReference
    size_bytes: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UploadedImportFile:
    """Implements `ImportFile` for an upload, whose content never changes."""

    area: LocalUploadArea
    fixed_identity: str
    """The file's name in the upload area: the digest of the reference in hexadecimal, which does not reveal the
    reference.
    """
    display_name: str
    """The name at the end of the reference."""
    size_bytes: int

    async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Yield the content. Raises import_file_not_found if the upload has expired and been removed, StorageError."""
        available = max(self.size_bytes - offset, 0)
        # With an exact length, the area need not read once more to detect the end of the file.
        pieces = self.area.read(
            self.fixed_identity, offset=offset, length=available if length is None else min(length, available)
        )
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except errors.PathNotFound:
            raise errors.import_file_not_found() from None

    @asynccontextmanager
    async def on_disk(self) -> AsyncGenerator[Path]:
        yield self.area.path_of(self.fixed_identity)


class ImportUploads:
    """Receives uploads, and finds them for the users who own them."""

    def __init__(self, records: ImportUploadRecords, area: LocalUploadArea, limits: UploadLimits) -> None:
        self._records = records
        self._area = area
        self._limits = limits

    async def admit(self, user: User, body_bytes: int | None) -> int:
        """Return how many bytes the user may still upload. Call this before the body is read.

        `body_bytes` is the announced length of the body, if any. Raises import_file_too_large, upload_quota_exceeded.
        """
        if body_bytes is not None and body_bytes > self._limits.max_file_bytes + _BODY_OVERHEAD_BYTES:
            raise errors.import_file_too_large(self._limits.max_file_bytes)
        used, max_usage = await self._records.usage(user.id), self._limits.max_usage
        if used.files >= max_usage.files or used.size_bytes >= max_usage.size_bytes:
            raise self._quota_error()
        return max_usage.size_bytes - used.size_bytes

    async def receive(
        self, user: User, client_name: str, content: AsyncGenerator[bytes], *, room_bytes: int
    ) -> ReceivedUpload:
        """Store and record an upload. An incomplete upload is discarded. `room_bytes` is the result of `admit`.

        Raises extension_not_allowed, file_empty, import_file_too_large, upload_quota_exceeded, StorageError, and the
        errors of `content`.
        """
        extension = extension_of(base_name(client_name).rstrip(". "))
        if extension in self._limits.restricted_extensions:
            raise errors.extension_not_allowed(f'Uploading files with type "{extension}" is not allowed.')
        reference = UploadReference.new(client_name)
        async with aclosing(self._check_content(content, room_bytes)) as checked:
            entry = await self._area.write(reference.digest.hex(), checked, overwrite=False)
        new = NewImportUpload(reference.digest, user.id, reference.name, entry.size_bytes)
        try:
            expires_at = await self._records.add(new, keep=self._limits.keep, max_usage=self._limits.max_usage)
            if expires_at is None:
                raise self._quota_error()  # noqa: TRY301 the file must also be removed
        except BaseException:  # includes CancelledError: no file may stay without a record
            # If this fails, the clean-up deletes the file, because it has no record.
            with suppress(errors.QueryServerError):
                await self._area.delete(reference.digest.hex(), recursive=False)
            raise
        return ReceivedUpload(reference, entry.size_bytes, expires_at)

    async def find(self, user: User, file_path: str) -> UploadedImportFile:
        """Return the file that a reference denotes, and extend its expiry. Raises import_file_not_found.

        All invalid references take the same time and raise the same error, so that responses do not reveal which files
        exist.
        """
        reference = UploadReference.read(file_path) or _INVALID_REFERENCE
        digest = reference.digest
        stored = await self._records.find(user.id, digest)
        if stored is None or stored.name != reference.name:
            raise errors.import_file_not_found()
        keep = self._limits.keep
        # The expiry is not extended on every call, so that frequent reads do not cause as many writes.
        if keep - stored.time_left > min(_MIN_EXTENSION, keep / 100) and not await self._records.extend(
            digest, keep=keep
        ):
            raise errors.import_file_not_found()
        return UploadedImportFile(self._area, digest.hex(), stored.name, stored.size_bytes)

    async def discard(self, user: User, file_path: str) -> bool:
        """Remove an upload of the user before it expires. Return False if the user has no such upload.

        Raises import_file_in_use.
        """
        reference = UploadReference.read(file_path) or _INVALID_REFERENCE
        removed = await self._records.remove(user.id, reference)
        if removed is None:
            raise errors.import_file_in_use()
        if removed:
            # If this fails, the clean-up deletes the file, because it has no record.
            with suppress(errors.QueryServerError):
                await self._area.delete(reference.digest.hex(), recursive=False)
        return removed

    @asynccontextmanager
    async def temporary_copy(self, content: AsyncGenerator[bytes]) -> AsyncGenerator[Path]:
        """Write the content to a temporary file, which does not count toward the user's quota.

        Raises StorageError, and the errors of `content`.
        """
        name = secrets.token_hex(_NAME_BYTES)
        async with aclosing(content):
            await self._area.write(name, content, overwrite=False)
        try:
            async with renewed(partial(self._area.touch, name), every_s=_TOUCH_EVERY_S):
                yield self._area.path_of(name)
        finally:
            # If this fails, the clean-up deletes the file.
            with suppress(errors.QueryServerError):
                await self._area.delete(name, recursive=False)

    async def _check_content(self, content: AsyncGenerator[bytes], room_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the content. Errors are raised before the content ends, so that the file is not stored.

        Raises import_file_too_large, upload_quota_exceeded, file_empty.
        """
        size = 0
        async with aclosing(content):
            async for piece in content:
                size += len(piece)
                if size > self._limits.max_file_bytes:
                    raise errors.import_file_too_large(self._limits.max_file_bytes)
                if size > room_bytes:
                    raise self._quota_error()
                yield piece
        if not size:
            raise errors.file_empty("The submitted file is empty.")

    def _quota_error(self) -> errors.InvalidRequest:
        max_usage = self._limits.max_usage
        mib = round(max_usage.size_bytes / 1024**2)
        return errors.upload_quota_exceeded(
            f"You can store at most {max_usage.files} import files (`importer.max_files_per_user`) and {mib} MiB"
            " (`importer.max_bytes_per_user`) until the files expire."
        )


class UploadAreaSweep:
    """Removes expired uploads and orphaned files from the upload area."""

    def __init__(
        self, records: ImportUploadRecords, area: LocalUploadArea, *, abandoned_after: timedelta = _ABANDONED_AFTER
    ) -> None:
        self._records = records
        self._area = area
        self._abandoned_after = abandoned_after

    async def clean_up(self, *, dry_run: bool = False, older_than: timedelta | None = None) -> Mapping[str, int]:
        """Remove expired uploads and orphaned files, and return their numbers. If `dry_run` is set, only count them.

        `older_than` overrides the minimum age of orphaned files.
        """
        age = self._abandoned_after if older_than is None else older_than
        abandoned = await self._area.sweep_all_directories(age, dry_run=dry_run)
        expired = await self._records.count_expired() if dry_run else 0
        # Records are deleted before their files. If a file remains, it can no longer be read, and the next clean-up
        # finds it.
        while not dry_run and (digests := await self._records.take_expired(limit=_BATCH)):
            for digest in digests:
                await self._remove(digest.hex())
            expired += len(digests)
        before = datetime.now(UTC) - age
        async with aclosing(self._area.list_directory("")) as batches:
            async for batch in batches:
                old = {bytes.fromhex(entry.name) for entry in batch.entries if _is_old_file(entry, before)}
                for digest in old.difference(await self._records.existing(old)) if old else ():
                    abandoned += dry_run or await self._remove(digest.hex())
        return {"expired import files": expired, "abandoned import files": abandoned}

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncGenerator[None]:
        """Remove files of crashed processes, at startup and then periodically, until the context exits.

        If `alone` is set, no other process uses the area, so the first sweep treats all earlier files without a record
        as orphaned.
        """
        started_at = time.monotonic()

        async def touched_before() -> Mapping[str, int]:
            return await self.clean_up(older_than=timedelta(seconds=time.monotonic() - started_at))

        first = touched_before if alone else self.sweep_dead
        async with background(now_and_every(_SWEEP_EVERY_S, self.sweep_dead, first=first), "import-files-sweep"):
            yield

    async def sweep_dead(self) -> Mapping[str, int]:
        return await self.clean_up(older_than=_DEAD_AFTER)

    async def _remove(self, name: str) -> bool:
        """Remove a file. Return False if this fails, so that the remaining files are still removed."""
        try:
            await self._area.delete(name, recursive=False)
        except errors.PathNotFound:
            return False
        except errors.QueryServerError as error:
            log.warning("import file not removed", code=error.code)
            return False
        return True


def _is_old_file(entry: FileStatus, before: datetime) -> bool:
    """Return whether the entry is a file with a generated name that was last touched before `before`."""
    return (
        entry.is_file
        and _AREA_NAME.fullmatch(entry.name) is not None
        and entry.modified_at is not None
        and entry.modified_at < before
    )


class ImportSources:
    """Finds files to import. Files in stores are not copied to the upload area if they are larger than
    `max_copy_bytes`.
    """

    def __init__(self, uploads: ImportUploads, stores: Stores, *, max_copy_bytes: int) -> None:
        self._uploads = uploads
        self._stores = stores
        self._max_copy_bytes = max_copy_bytes

    async def find(self, user: User, origin: Origin, file_path: str) -> ImportFile:
        """Return a file that the user may read. For an upload, also extend its expiry.

        Raises import_file_not_found, import_file_denied, InvalidParameter (no path, a directory, a link),
        StorageUnavailable.
        """
        if origin is Origin.LOCAL:
            return await self._uploads.find(user, file_path)
        caller = Caller.of(user)
        with _import_errors():
            try:
                location = self._stores.location(caller, self._stores.path(file_path, parameter="file_path"))
            except (errors.UnknownScheme, errors.StorageNotConfigured) as error:
                raise self._stores.with_available_stores(error, caller) from None
            status = await location.storage.stat(location.path.path)
        if status.kind is EntryKind.LINK:
            raise errors.InvalidParameter(f"{location.path} is a symbolic link; symbolic links are not followed.")
        if not status.is_file:
            raise errors.InvalidParameter(f"{location.path} is not a file.")
        return StoredImportFile(location, status, self._uploads, self._max_copy_bytes)


@dataclass(frozen=True, slots=True)
class StoredImportFile:
    """Implements `ImportFile` for a file in a store. Only the version in `status` is read."""

    location: Location
    status: FileStatus
    uploads: ImportUploads
    max_copy_bytes: int

    @property
    def display_name(self) -> str:
        return str(self.location.path)

    @property
    def size_bytes(self) -> int:
        return self.status.size_bytes

    @property
    def fixed_identity(self) -> None:
        """Always None, because the file at this path may be replaced."""
        return

    async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        available = max(self.size_bytes - offset, 0)
        size = available if length is None else min(length, available)
        if not size:
            # Stores respond differently to offsets past the end, so this range is not requested.
            return
        pieces = self.location.storage.read(self.location.path.path, offset=offset, length=size, version=self.status)
        with _import_errors():
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    @asynccontextmanager
    async def on_disk(self) -> AsyncGenerator[Path]:
        """Yield the path of a copy in the upload area. Raises import_file_too_large before anything is read."""
        if self.size_bytes > self.max_copy_bytes:
            raise errors.import_file_too_large(self.max_copy_bytes)
        async with self.uploads.temporary_copy(self.read()) as path:
            yield path


@contextmanager
def _import_errors() -> Generator[None]:
    """Convert the errors of stores to those of the importer (Contract importer 2.8)."""
    try:
        yield
    except (errors.PathNotFound, errors.NotADirectory):
        raise errors.import_file_not_found() from None
    except _INVALID_FILE_ERRORS as error:
        raise errors.InvalidParameter(f"file_path: {error.message}") from None
    except errors.PermissionDenied:
        raise errors.import_file_denied("You do not have permission to read this file.") from None
