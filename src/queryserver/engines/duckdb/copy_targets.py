"""Writes the files of COPY … TO.

Each file appears only once it is complete, and no file remains if the statement fails or is canceled. DuckDB opens the
files in any thread. The statement's target is therefore replaced with a `target://` URL with a random marker, which
identifies the statement and its real target, and which other statements cannot guess (ADR 76).
"""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex

from queryserver import errors
from queryserver.engines.catalog_queries import literal
from queryserver.engines.duckdb.file_claims import FileStatement
from queryserver.engines.duckdb.guard import Token
from queryserver.engines.external_data import StoredFile
from queryserver.engines.process.calls import RemoteFiles
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import StatementRejected

TARGET_SCHEME = "target"
_NAME = "file"
_SUFFIX = re.compile(r"(?:\.[A-Za-z0-9]{1,20}){1,2}$")
"""The suffixes from which DuckDB infers the format and compression of a file."""

SMALL_BYTES = 1024 * 1024
"""Files up to this size are buffered in this process until they are complete."""
MAX_OPEN_WRITES = 24
"""Maximum number of larger files open on the server, which itself permits a few more."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
_MAX_THREADS = 8


def copy_clause(tokens: Sequence[Token]) -> tuple[str, Token | None] | None:
    """Return the keyword `to` or `from` of a COPY statement, and the literal that follows it.

    Returns None for COPY FROM DATABASE and other statements. The literal is None if the path is computed or is not a
    plain string.
    """
    if not tokens or tokens[0].kind != "keyword" or tokens[0].name != "copy":
        return None
    depth = 0
    for number, token in enumerate(tokens[1:], start=1):
        if token.kind == "operator":
            depth += sum((sign in "([{") - (sign in ")]}") for sign in token.text)
        elif not depth and token.kind == "keyword" and token.name in {"to", "from"}:
            following = tokens[number + 1] if number + 1 < len(tokens) else None
            if following is not None and following.kind == "keyword" and following.name == "database":
                return None
            return token.name, following if following is not None and following.string is not None else None
    return None


class CopyTarget:
    """The files of one COPY … TO statement.

    Callable from any thread, except that `finish` and `discard` may be called only once DuckDB is done.
    """

    def __init__(self, statement: FileStatement, named: str, target: str) -> None:
        """`named` is the path in the statement, `target` the same path as spelled by the store."""
        self.statement = statement
        self._files = statement.files
        self.named = named.rstrip("/")
        self._target = target.rstrip("/")
        suffix = _SUFFIX.search(self._target.rpartition("/")[2])
        self._url = f"{TARGET_SCHEME}://{token_hex(16)}"
        self._name = _NAME + (suffix[0] if suffix else "")
        self._lock = threading.RLock()
        self._writes = dict[str, CopyTargetFile]()
        self._committed = list[str]()
        self._directories = dict[str, None]()

    @property
    def marked(self) -> str:
        """The URL that replaces the target in the statement."""
        return f"{self._url}/{self._name}"

    @property
    def prefix(self) -> str:
        """The prefix of all paths that DuckDB writes for this statement."""
        return f"{self._url}/"

    def text(self, statement: str, token: Token) -> str:
        """Return the statement with its target token replaced by `marked`."""
        encoded = statement.encode()
        return (encoded[: token.start] + literal(self.marked).encode() + encoded[token.end :]).decode(errors="replace")

    def shown(self, text: str) -> str:
        """Replace the `target://` URL in a DuckDB message with the target named in the statement."""
        return text.replace(self.marked, self.named)

    def path(self, marked: str) -> str:
        """Return the store path for a `target://` path. Raises PermissionDenied if it lies outside the target."""
        rest = marked.removeprefix(f"{self._url}/")
        # DuckDB replaces an existing file by writing a temporary file and renaming it.
        rest = rest.removeprefix("tmp_") if rest == f"tmp_{self._name}" else rest
        below = rest.removeprefix(self._name)
        if not rest.startswith(self._name) or (below and not below.startswith("/")):
            raise errors.PermissionDenied(f"{self._target}: COPY writes the target that it names, and below it.")
        return self._target + below.rstrip("/")

    def open(self, path: str) -> "CopyTargetFile":
        """Open a new file, after committing complete files if necessary to stay within the limits."""
        with self._lock:
            if path in self._writes or path in self._committed:
                raise StatementRejected(f"IO Error: COPY writes {path} a second time.")
            while (done := self._next_to_commit()) is not None:
                self._commit(done)
            write = self._writes[path] = CopyTargetFile(self._files, path, self._create_parent)
            return write

    def is_file(self, path: str) -> bool:
        with self._lock:
            if path in self._writes or path in self._committed:
                return True
        entry = self._status(path)
        return entry is not None and not entry.is_directory

    def is_directory(self, path: str) -> bool:
        with self._lock:
            if path in self._directories:
                return True
        entry = self._status(path)
        return entry is not None and entry.is_directory

    def entries(self, path: str) -> Sequence[StoredFile]:
        try:
            return self._files.list_directory(path)
        except errors.PathNotFound:
            return ()

    def make_directory(self, path: str) -> None:
        """Record a directory.

        It is created together with its first file, or in `finish`, so that a failed statement leaves no directory.
        """
        with self._lock:
            self._directories[path] = None

    def remove(self, path: str) -> None:
        """Remove a file written by this statement. Raises StatementRejected for any other file."""
        with self._lock:
            if (write := self._writes.pop(path, None)) is not None:
                write.discard()
                return
            if path not in self._committed:
                raise StatementRejected(
                    f"Permission Error: COPY deletes no files, such as {path}; write to a directory that is empty, or"
                    " with OVERWRITE_OR_IGNORE or APPEND."
                )
            self._committed.remove(path)
        self._files.remove(path)

    def finish(self) -> None:
        """Commit all files and create the empty directories. Removes all files if the store raises an error."""
        try:
            with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="copy") as threads:
                list(threads.map(self._commit, list(self._writes.values())))
            for path in self._directories:
                self._files.make_directory(path)
        except BaseException:
            self.discard()
            raise
        self._committed.clear()

    def discard(self) -> None:
        """Remove all written files. Idempotent. Never raises, because the statement has already failed."""
        writes, committed = list(self._writes.values()), list(self._committed)
        self._writes.clear()
        self._committed.clear()
        for write in writes:
            write.discard()
        for path in committed:
            try:
                self._files.remove(path)
            except QueryServerError:
                continue

    def _next_to_commit(self) -> "CopyTargetFile | None":
        """Return a complete file that must be committed before another file is opened.

        Returns None if the limits allow another open file, or if no open file is complete.
        """
        open_writes = sum(write.is_at_server for write in self._writes.values())
        waiting = sum(write.waiting_bytes for write in self._writes.values())
        if open_writes < MAX_OPEN_WRITES and waiting < MAX_WAITING_BYTES:
            return None
        return next((write for write in self._writes.values() if write.is_closed), None)

    def _commit(self, write: "CopyTargetFile") -> None:
        write.commit()
        with self._lock:
            self._writes.pop(write.path, None)
            self._committed.append(write.path)

    def _create_parent(self, path: str) -> None:
        with self._lock:
            parents = [one for one in self._directories if path.startswith(f"{one}/")]
        if parents:
            self._files.make_directory(max(parents, key=len))

    def _status(self, path: str) -> StoredFile | None:
        try:
            return self._files.status(path)
        except (errors.PathNotFound, errors.NotADirectory):
            return None


class CopyTargetFile:
    """One file, written sequentially.

    `close` does not commit it, because DuckDB also closes the files of failed statements.
    """

    def __init__(self, files: RemoteFiles, path: str, create_parent: Callable[[str], None]) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_closed = False
        self._files = files
        self._create_parent = create_parent
        self._waiting = bytearray()
        self._write: int | None = None

    @property
    def is_at_server(self) -> bool:
        return self._write is not None

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def write(self, content: bytes) -> int:
        self.size_bytes += len(content)
        if self._write is None and len(self._waiting) + len(content) <= SMALL_BYTES:
            self._waiting += content
        else:
            self._send(content)
        return len(content)

    def close(self) -> None:
        self.is_closed = True

    def commit(self) -> None:
        """Publish the file in the store. Raises the store's errors."""
        self._send(b"")
        assert self._write is not None  # noqa: S101 `_send` has opened the write
        self._files.commit_write(self._write)
        self._write = None

    def discard(self) -> None:
        write, self._write = self._write, None
        self._waiting = bytearray()
        if write is not None:
            try:
                self._files.abort_write(write)
            except QueryServerError:
                return  # the server discards a statement's unfinished files

    def _send(self, content: bytes) -> None:
        if self._write is None:
            self._create_parent(self.path)
            self._write = self._files.begin_write(self.path, overwrite=True)
        waiting, self._waiting = self._waiting, bytearray()
        for part in (waiting, content):
            if part:
                self._files.send(self._write, part)
