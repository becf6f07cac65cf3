"""Protocols through which a session's statements read stored files and results outside the session's data source.

The server passes their implementations to a session in its options (`engines/protocol.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from queryserver.formats.arrow import Column

STORE_SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "hdfs": "hdfs",
        "s3a": "s3a",
        "s3": "s3a",
        "s3n": "s3a",
        "abfs": "abfs",
        "abfss": "abfs",
        "adls": "abfs",
        "adl": "abfs",
        "ofs": "ofs",
        "file": "file",
    }
)
"""Maps each accepted URL scheme, in lower case, to its canonical scheme. Includes stores that are not configured."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file or directory in a store.

    `path` has the form used by the storage API, such as `s3a://bucket/x`. `size` is in bytes. `version` changes when
    the content changes, as far as the store reports changes. It is empty for directories.
    """

    path: str
    size: int
    modified: datetime | None
    is_directory: bool = False
    version: str = ""


class FileSink(Protocol):
    """Receives the content of a file that is being written."""

    async def send(self, data: bytes) -> None:
        """Append bytes and return once the store can accept more. Raises the store's errors."""
        ...


class StatementFiles(Protocol):
    """Gives one session's statements access to the files of all configured stores, with the caller's rights.

    Paths are written as in the storage API (Contract storage 2.2), with a scheme. Calls may run concurrently and are
    refused unless a statement is running. All methods raise InvalidPath, UnknownScheme, StorageNotConfigured,
    UnknownAuthority, PathNotFound, PermissionDenied (whose message begins with the path), NotADirectory,
    StorageUnavailable, StorageError.
    """

    schemes: frozenset[str]
    """All spellings of the configured stores' URL schemes, in lower case and without `://`."""

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        """Return the matching files (not directories), sorted by path; empty if nothing matches.

        Patterns follow DuckDB's syntax: `*`, `?`, `[a-c]` and `[!a]` match within a name, including a leading dot. A
        path segment `**` matches any number of directories. `[*]` is a literal star, and `{a,b}` is not special. If
        nothing matches but a file with exactly the pattern's name exists, that file is returned. Symbolic links are
        skipped. Raises too_many_entries.
        """
        ...

    async def status(self, path: str) -> StoredFile: ...

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        """Return the directory's entries, sorted by path. Raises too_many_entries."""
        ...

    async def require_readable(self, path: str) -> StoredFile:
        """Check that the caller may read a file, if necessary by reading a few bytes, and return the file.

        Raises NotAFile.
        """
        ...

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        """Return the bytes [offset, offset + length), or fewer at the end of the file. `length` is at most 16 MiB.

        If `version` is set (taken from an earlier `StoredFile`), only that version is read. Raises NotAFile,
        EntryChanged.
        """
        ...

    def write(self, path: str, *, overwrite: bool) -> AbstractAsyncContextManager[FileSink]:
        """Write a file. The complete file becomes visible only if the block is left without an error.

        Entering or leaving the context raises PathExists, InvalidName, VerificationFailed, StoreQuotaExceeded,
        file_too_large or upload_disabled. `send` raises as soon as the store has failed.
        """
        ...

    async def make_directory(self, path: str) -> None:
        """Create a directory and any missing parents, unless the directory already exists.

        Raises PathExists if the path is a file.
        """
        ...

    async def remove(self, path: str) -> None:
        """Delete a file that the current statement has written. Raises PermissionDenied for other files."""
        ...


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """Consecutive rows of a stored result as an Arrow IPC stream, whose buffers may be LZ4-compressed."""

    rows: int
    size_bytes: int


class OpenResult(Protocol):
    """A stored result that neither expires nor loses bytes while it is open. Pieces are numbered from 0."""

    columns: tuple[Column, ...]
    """The result columns. Names need not be unique, and a column's Arrow type may differ between pieces (Contract
    editor 6.3).
    """
    pieces: tuple[ResultPiece, ...]
    """The pieces that contain all rows, in order; empty if the result has no rows."""
    warning: str
    """A message if a server limit truncated the result; empty if the result is complete."""

    async def descriptor(self, number: int) -> int | None:
        """Open a file that contains exactly this piece and return its descriptor, which the caller closes.

        Returns None if the piece is not in a local file. Raises ServiceUnavailable.
        """
        ...

    async def read(self, number: int, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a piece, or fewer at its end. Raises ServiceUnavailable."""
        ...


class StatementResults(Protocol):
    """Gives one session's statements access to the stored results that the session's user may fetch."""

    def open(self, operation_id: str) -> AbstractAsyncContextManager[OpenResult]:
        """Open an operation's result. For a script, this is the result of the last statement that produced one.

        Raises DatabaseUnavailable, and ResultRefused with code operation_not_found, permission_denied, result_expired
        (also if the operation was closed) or result_not_available (the operation has not ended or returned no rows).
        """
        ...
