"""What the statements of a session reach beside their data source: files of the stores, and stored results.

The server gives both to a session with its options (`engines/protocol.py`).
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from queryserver.formats.columns import Column


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An entry of a store. `path` as the storage calls write it, such as `s3a://bucket/x`; sizes are bytes.

    `version` differs when the content differs, as far as the store shows it; empty for directories.
    """

    path: str
    size: int
    modified: datetime | None
    is_directory: bool = False
    version: str = ""


class FileSink(Protocol):
    async def send(self, data: bytes) -> None:
        """Append bytes; returns when the store can take more. Raises what the store raises."""
        ...


class StatementFiles(Protocol):
    """The files of all configured stores for the statements of one session, with the rights of their caller.

    Paths are as in the storage calls (Contract storage 2.2), with a scheme. Calls may run side by side. Outside of a
    statement each is refused. All raise InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority,
    PathNotFound, PermissionDenied (the message begins with the path), NotADirectory, StorageUnavailable, StorageError.
    """

    schemes: frozenset[str]
    """What paths of files may begin with, in lower case and without `://`: the configured stores, in all spellings."""

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        """The files, and no directories, that match, sorted by path; none where nothing matches.

        As DuckDB reads patterns: `*`, `?`, `[a-c]` and `[!a]` match within a name, also a leading dot; a name `**`
        stands for any number of directories; `[*]` is a star, and `{a,b}` is no pattern. One that matches nothing
        gives the file of exactly that name, if there is one. Links are left out. Raises too_many_entries.
        """
        ...

    async def status(self, path: str) -> StoredFile: ...

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        """The entries of a directory, sorted by path. Raises too_many_entries."""
        ...

    async def require_readable(self, path: str) -> StoredFile:
        """The file, when the caller may read its bytes: where the store decides, some are read. Raises NotAFile."""
        ...

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        """Bytes [offset, offset + length), fewer at the end of the file; at most 16 MiB at a time.

        With `version`, that of an earlier answer, the bytes are of that version. Raises NotAFile, ChangedMeanwhile.
        """
        ...

    def write(self, path: str, *, overwrite: bool) -> AbstractAsyncContextManager[FileSink]:
        """Write a file: it is there, complete, when the block is left without an error; else nothing is.

        Raises PathExists, InvalidName, VerificationFailed, StoreQuotaExceeded, file_too_large, upload_disabled, at
        the entry or the exit; while bytes are sent as soon as the store has failed.
        """
        ...

    async def make_directory(self, path: str) -> None:
        """Make a directory and its missing parents; one that is there stays. Raises PathExists for a file."""
        ...

    async def remove(self, path: str) -> None:
        """Delete a file that this statement has written. Raises PermissionDenied for all others."""
        ...


@dataclass(frozen=True, slots=True)
class ResultPiece:
    """Consecutive rows of a stored result, as one Arrow IPC stream; its buffers may be packed with lz4."""

    rows: int
    size_bytes: int


class OpenResult(Protocol):
    """A stored result that is being read: it neither expires nor are its bytes deleted. Pieces count from 0."""

    columns: tuple[Column, ...]
    """Names need not be unique. The Arrow types of two pieces may differ (Contract editor 6.3)."""
    pieces: tuple[ResultPiece, ...]
    """All rows, in order; none of a result without rows."""
    warning: str
    """That a limit of the server has cut the result; empty: it has all rows of its query."""

    async def descriptor(self, number: int) -> int | None:
        """A descriptor of the file of a piece, which has nothing else, open for reading; the caller closes it.

        None: the piece is in no file of this machine. Raises ServiceUnavailable.
        """
        ...

    async def read(self, number: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a piece, fewer where it is shorter. Raises ServiceUnavailable."""
        ...


class StatementResults(Protocol):
    """The stored results that the statements of one session may read: those that the user may fetch."""

    def open(self, operation_id: str) -> AbstractAsyncContextManager[OpenResult]:
        """The result of an operation; of a script that of its last statement that has one.

        Raises ResultRefused with the code operation_not_found, permission_denied, result_expired (or closed), or
        result_not_available (it has not ended, or has no rows to give), and DatabaseUnavailable.
        """
        ...
