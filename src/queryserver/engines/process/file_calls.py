"""Access to a session's files from the engine process. All calls block; callable from any thread."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from queryserver.engines.process.channel import Content, Frame
from queryserver.engines.reach import StoredFile

PIECE_BYTES = 4 * 1024 * 1024
"""Largest piece written by one call."""


class FileMethod(StrEnum):
    """The calls handled by `FileRequests`."""

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
    """`ServerCalls`, or a fake."""

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame: ...


class CalledFiles:
    """`StatementFiles` of the session with number `session`; raises the same domain errors, and SessionLost."""

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
        """Begin to write a file; returns the number of the write for `send`, `commit_write` and `abort_write`."""
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
        return [file_of(one) for one in self._caller.call(self.session, method, arguments).message["files"]]


def file_message(file: StoredFile) -> list[Any]:
    """A file as JSON."""
    modified = file.modified.timestamp() if file.modified is not None else None
    return [file.path, file.size, modified, file.is_directory, file.version]


def file_of(message: Sequence[Any]) -> StoredFile:
    path, size, modified, is_directory, version = message
    at = datetime.fromtimestamp(modified, UTC) if modified is not None else None
    return StoredFile(path, size, at, is_directory=is_directory, version=version)
