"""Files to be imported: uploads, and files of stores as their callers may read them (Contract importer 2.7, 2.8)."""

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from queryserver.errors.base import InvalidParameter, PermissionDenied
from queryserver.errors.files import (
    InvalidPath,
    NotADirectory,
    NotAFile,
    PathNotFound,
    StorageNotConfigured,
    SymlinkNotFollowed,
    UnknownAuthority,
    UnknownScheme,
    import_file_denied,
    import_file_not_found,
    import_file_too_large,
)
from queryserver.files.model import EntryKind, FileStatus
from queryserver.files.places import Caller, Place, Stores
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.uploads import ImportUploads


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
