"""What the statements of a session can read besides their data source: files of the stores and stored results.

The server passes both to a session in its options (`engines/protocol.py`).
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from queryserver.formats.columns import Column


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An entry of a store. `path` is written as in the storage calls, such as `s3a://bucket/x`; sizes are bytes.

    `version` changes with the content, as far as the store reveals it; empty for directories.
    """

    path: str
    size: int
    modified: datetime | None
    is_directory: bool = False
    version: str = ""


class FileSink(Protocol):
    async def send(self, data: bytes) -> None:
        """Append bytes; returns once the store can accept more. Raises what the store raises."""
        ...


class StatementFiles(Protocol):
    """The files of all configured stores, for the statements of one session and with the rights of their caller.

    Paths are as in the storage calls (Contract storage 2.2), with a scheme. Calls may run concurrently, and are refused
    while no statement runs. All raise InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority,
    PathNotFound, PermissionDenied (the message begins with the path), NotADirectory, StorageUnavailable, StorageError.
    """

    schemes: frozenset[str]
    """All spellings of the configured stores' URL schemes, in lower case and without `://`."""

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        """The files (not directories) that match, sorted by path; empty if nothing matches.

        Patterns follow DuckDB: `*`, `?`, `[a-c]` and `[!a]` match within a name, including a leading dot; a path
        segment `**` matches any number of directories; `[*]` is a literal star, and `{a,b}` is not special. A pattern
        without matches yields the file of exactly that name, if there is one. Symbolic links are skipped. Raises
        too_many_entries.
        """
        ...

    async def status(self, path: str) -> StoredFile: ...

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        """The entries of a directory, sorted by path. Raises too_many_entries."""
        ...

    async def require_readable(self, path: str) -> StoredFile:
        """The file, if the caller may read it; reads a few bytes where only the store can decide. Raises NotAFile."""
        ...

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        """Bytes [offset, offset + length), fewer at the end of the file; at most 16 MiB at a time.

        With `version`, taken from an earlier response, reads that version only. Raises NotAFile, EntryChanged.
        """
        ...

    def write(self, path: str, *, overwrite: bool) -> AbstractAsyncContextManager[FileSink]:
        """Write a file, which appears complete when the block is left without an error, and otherwise not at all.

        Raises PathExists, InvalidName, VerificationFailed, StoreQuotaExceeded, file_too_large, upload_disabled, on
        entry or exit; `send` raises as soon as the store has failed.
        """
        ...

    async def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, if it does not exist yet. Raises PathExists for a file."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a file that this statement has written. Raises PermissionDenied for any other."""
        ...


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """Consecutive rows of a stored result as one Arrow IPC stream, whose buffers may be compressed with lz4."""

    rows: int
    size_bytes: int


class OpenResult(Protocol):
    """A stored result that is being read, and meanwhile neither expires nor loses bytes. Pieces are numbered from 0."""

    columns: tuple[Column, ...]
    """Names need not be unique. The Arrow types of two pieces may differ (Contract editor 6.3)."""
    pieces: tuple[ResultPiece, ...]
    """All rows, in order; empty for a result without rows."""
    warning: str
    """A message that a limit of the server truncated the result; empty if it has all rows of its query."""

    async def descriptor(self, number: int) -> int | None:
        """A descriptor, open for reading, of a file that holds exactly this piece; the caller closes it.

        None if the piece is not in a local file. Raises ServiceUnavailable.
        """
        ...

    async def read(self, number: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a piece, fewer at its end. Raises ServiceUnavailable."""
        ...


class StatementResults(Protocol):
    """The stored results that the statements of one session may read: those its user may fetch."""

    def open(self, operation_id: str) -> AbstractAsyncContextManager[OpenResult]:
        """The result of an operation; for a script, that of the last statement with a result.

        Raises ResultRefused with the code operation_not_found, permission_denied, result_expired (or closed), or
        result_not_available (it has not ended or returned no rows), and DatabaseUnavailable.
        """
        ...
