"""Gives code in an engine process access to a session's files and stored results.

All calls block and may be made from any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from queryserver.engines.external_data import ResultPiece, StoredFile
from queryserver.engines.process.channel import Content, Frame
from queryserver.engines.process.messages import decode_columns
from queryserver.formats.arrow import Column

PIECE_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes written by one call."""


class FileMethod(StrEnum):
    """The calls that `FileRequests` handles."""

    GLOB = "glob"
    STATUS = "status"
    LIST = "list"
    REQUIRE_READABLE = "require_readable"
    READ = "read"
    BEGIN = "begin_write"
    SEND = "send"
    COMMIT = "commit_write"
    ABORT = "abort_write"
    MAKE_DIRECTORY = "make_directory"
    REMOVE = "remove"


class Caller(Protocol):
    """Sends calls to the server. Implemented by `ServerCalls`, and by fakes in tests."""

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame: ...


class RemoteFiles:
    """Calls the `StatementFiles` of session number `session`. Raises the same domain errors, and SessionLost."""

    def __init__(self, caller: Caller, session: int) -> None:
        self._caller = caller
        self.session = session

    def glob(self, pattern: str) -> Sequence[StoredFile]:
        return self._files(FileMethod.GLOB, pattern=pattern)

    def status(self, path: str) -> StoredFile:
        return self._files(FileMethod.STATUS, path=path)[0]

    def list_directory(self, path: str) -> Sequence[StoredFile]:
        return self._files(FileMethod.LIST, path=path)

    def require_readable(self, path: str) -> StoredFile:
        return self._files(FileMethod.REQUIRE_READABLE, path=path)[0]

    def read(self, path: str, *, offset: int, length: int, version: str) -> bytes:
        arguments = {"path": path, "offset": offset, "length": length, "version": version}
        return self._caller.call(self.session, FileMethod.READ, arguments).content.to_pybytes()

    def begin_write(self, path: str, *, overwrite: bool) -> int:
        """Start writing a file. Return the number to pass to `send`, `commit_write` and `abort_write`."""
        arguments = {"path": path, "overwrite": overwrite}
        return self._caller.call(self.session, FileMethod.BEGIN, arguments).message["write"]

    def send(self, write: int, content: Content) -> None:
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), PIECE_BYTES):
            self._caller.call(self.session, FileMethod.SEND, {"write": write}, whole[start : start + PIECE_BYTES])

    def commit_write(self, write: int) -> None:
        self._caller.call(self.session, FileMethod.COMMIT, {"write": write})

    def abort_write(self, write: int) -> None:
        self._caller.call(self.session, FileMethod.ABORT, {"write": write})

    def make_directory(self, path: str) -> None:
        self._caller.call(self.session, FileMethod.MAKE_DIRECTORY, {"path": path})

    def remove(self, path: str) -> None:
        self._caller.call(self.session, FileMethod.REMOVE, {"path": path})

    def _files(self, method: FileMethod, **arguments: str) -> Sequence[StoredFile]:
        return [decode_file(one) for one in self._caller.call(self.session, method, arguments).message["files"]]


def encode_file(file: StoredFile) -> list[Any]:
    """Encode a file as a JSON array."""
    modified = file.modified.timestamp() if file.modified is not None else None
    return [file.path, file.size, modified, file.is_directory, file.version]


def decode_file(message: Sequence[Any]) -> StoredFile:
    path, size, modified, is_directory, version = message
    at = datetime.fromtimestamp(modified, UTC) if modified is not None else None
    return StoredFile(path, size, at, is_directory=is_directory, version=version)


FILES_AT_ONCE = 32
"""Maximum number of descriptors in one reply."""


class ResultMethod(StrEnum):
    """The calls that `ResultRequests` handles."""

    OPEN = "open_result"
    FILES = "result_files"
    READ = "read_result"
    CLOSE = "close_result"


@dataclass(frozen=True, slots=True)
class RemoteResults:
    """Calls the `StatementResults` of session number `session`. Raises the same domain errors, and SessionLost."""

    caller: Caller
    session: int

    def open(self, operation_id: str) -> "RemoteResult":
        """Open a result. The caller must close it."""
        message = self.caller.call(self.session, ResultMethod.OPEN, {"operation_id": operation_id}).message
        pieces = tuple(ResultPiece(rows, size_bytes) for rows, size_bytes in message["pieces"])
        return RemoteResult(self, message["result"], decode_columns(message["columns"]), pieces)


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """An open result; the counterpart of `OpenResult` in the server."""

    results: RemoteResults
    number: int
    columns: tuple[Column, ...]
    pieces: tuple[ResultPiece, ...]

    def files(self, first: int) -> Sequence[int]:
        """Return descriptors of at most `FILES_AT_ONCE` pieces, from piece `first` on. The caller must close them.

        Returns no descriptors if the pieces are not in local files.
        """
        return self._call(ResultMethod.FILES, first=first, count=FILES_AT_ONCE).descriptors

    def read(self, piece: int, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a piece, or fewer at its end."""
        return self._call(ResultMethod.READ, piece=piece, start=start, stop=stop).content.to_pybytes()

    def close(self) -> None:
        self._call(ResultMethod.CLOSE)

    def _call(self, method: ResultMethod, **arguments: int) -> Frame:
        return self.results.caller.call(self.results.session, method, {"result": self.number, **arguments})
