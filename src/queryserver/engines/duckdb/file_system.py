"""File systems registered with DuckDB, through which it reads and writes the server's stores (ADR 76).

They implement the methods of fsspec's AbstractFileSystem that DuckDB calls. DuckDB calls them in any thread, and calls
several methods concurrently for one open file.

Each file of a COPY … TO appears only once it is complete, and no file remains if the statement fails or is canceled.
The statement's target is replaced with a `target://` URL. Its random marker identifies the statement and the real
target, and cannot be guessed by other statements.
"""

import io
import itertools
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache
from secrets import token_hex
from typing import Any, NoReturn

import duckdb
from fsspec.spec import AbstractFileSystem

from queryserver import errors
from queryserver.engines.catalog_queries import literal
from queryserver.engines.duckdb.file_claims import ClaimedFile, FileClaims, FileStatement
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

LOCAL_SCHEME, _FILE = "local", "file"
"""The scheme that statements use in place of `file`.

DuckDB resolves every `file:` path on its own process's disk, even if another file system is registered for `file`. If
`file://` were an allowed directory, DuckDB could read that whole disk.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The guard refuses such calls now, but a view or macro stored by an older version may still contain one.
_UNNAMED_OPENS = """
    SELECT 1 FROM (
        SELECT sql FROM duckdb_views() WHERE NOT internal
        UNION ALL SELECT sql FROM duckdb_tables() WHERE NOT internal
        UNION ALL SELECT macro_definition FROM duckdb_functions() WHERE NOT internal
    ) WHERE contains(lower(sql), 'read_single_') LIMIT 1
"""

Callback = Callable[[], AbstractContextManager[None]]
"""Creates a context manager that wraps code called by DuckDB."""


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
        """`named` is the path as written in the statement, and `target` is the store's spelling of this path."""
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
        """Return the statement with its target token replaced with `marked`."""
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
            raise errors.PermissionDenied(f"{self._target}: COPY can write only to its target and below it.")
        return self._target + below.rstrip("/")

    def open(self, path: str) -> "CopyTargetFile":
        """Open a new file, after committing complete files if necessary to stay within the limits."""
        with self._lock:
            if path in self._writes or path in self._committed:
                raise StatementRejected(f"IO Error: COPY would write {path} twice.")
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
                    f"Permission Error: COPY cannot delete existing files such as {path}. Write to an empty directory,"
                    " or use OVERWRITE_OR_IGNORE or APPEND."
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
    """One file of a COPY … TO statement, written sequentially.

    `close` does not commit the file, because DuckDB also closes the files of failed statements.
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


def statement_schemes(schemes: frozenset[str]) -> Sequence[str]:
    """Return the schemes that paths in statements use. `schemes` are the schemes of `StatementFiles`."""
    return sorted(LOCAL_SCHEME if scheme == _FILE else scheme for scheme in schemes)


def store_path(path: str) -> str:
    """Translate a path in a statement to the store's path."""
    scheme, mark, rest = path.partition("://")
    return f"{_FILE}://{rest}" if mark and scheme.lower() == LOCAL_SCHEME else path


def statement_path(path: str) -> str:
    """Translate a store's path to the path used in statements."""
    return f"{LOCAL_SCHEME}{path[len(_FILE) :]}" if path.startswith(f"{_FILE}://") else path


class FileSystems:
    """The file systems of one database. Call `register` before the database is locked down."""

    def __init__(self, schemes: frozenset[str]) -> None:
        self.schemes = statement_schemes(schemes)
        self.claims = FileClaims()
        self.copies = dict[str, CopyTarget]()
        """The files of running COPY … TO statements, by path prefix."""

    def register(self, connection: duckdb.DuckDBPyConnection, *, is_new: bool) -> None:
        """Register the file systems for all connections of the database.

        `is_new` means that the database cannot contain stored definitions.
        """
        connection.register_filesystem(StoreFileSystem(self.schemes, self.claims))
        connection.register_filesystem(TargetFileSystem(self.copies, self.claims))
        self.claims.is_strict = not is_new and bool(connection.execute(_UNNAMED_OPENS).fetchall())

    @property
    def directories(self) -> Sequence[str]:
        """The directories that DuckDB must be allowed to access."""
        return [f"{scheme}://" for scheme in (*self.schemes, TARGET_SCHEME)]

    def copy(self, statement: FileStatement, target: str) -> CopyTarget:
        """Register the files of one COPY … TO statement. They stay registered until `copied` is called."""
        copied = CopyTarget(statement, target, store_path(target))
        self.copies[copied.prefix] = copied
        return copied

    def copied(self, copied: CopyTarget) -> None:
        self.copies.pop(copied.prefix, None)

    def close(self) -> None:
        self.claims.close()


@cache
def _case_variants(scheme: str) -> Sequence[str]:
    """Return all upper- and lower-case spellings of a scheme.

    DuckDB allows any spelling, but looks up file systems by the exact spelling. If none matches, it uses the local
    disk.
    """
    return ["".join(letters) for letters in itertools.product(*({sign, sign.upper()} for sign in scheme))]


class _CallbackFileSystem(AbstractFileSystem):
    cachable = False

    def __init__(self, schemes: Sequence[str], claims: FileClaims) -> None:
        super().__init__()
        self.protocol = list(itertools.chain.from_iterable(map(_case_variants, schemes)))  # type: ignore[assignment]
        self._claims = claims

    def unstrip_protocol(self, name: str) -> str:
        return name

    @contextmanager
    def _callback(self) -> Generator[None]:
        """Wrap code that DuckDB calls, and record a domain error so that the statement can report it."""
        try:
            yield
        except QueryServerError as error:
            raise self._claims.record_error(error) from None


class StoreFileSystem(_CallbackFileSystem):
    """Reads files of all schemes. Only files that a statement has named can be opened."""

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        with self._callback():
            return [statement_path(file.path) for file in self._claims.listing_statement().glob(store_path(path))]

    def open(self, path: str, mode: str = "rb", **_: Any) -> "ReadFile":  # type: ignore[override]
        name = store_path(path)
        with self._callback():
            if mode != "rb":
                raise errors.PermissionDenied(f"{name}: files can be written only by COPY … TO with a literal path.")
            return ReadFile(self._claims.opened(name), self._callback)

    def size(self, path: str) -> int:
        name = store_path(path)
        with self._callback():
            return self._claims.opened(name).file.size

    def modified(self, path: str) -> datetime:
        name = store_path(path)
        with self._callback():
            return self._claims.opened(name).file.modified or _EPOCH

    def isfile(self, path: str) -> bool:
        """Return whether a statement has named this file; other files are reported as missing."""
        return self._claims.is_claimed(store_path(path))

    def isdir(self, path: str) -> bool:  # noqa: ARG002
        return False

    def _refused(self, path: str, **_: Any) -> NoReturn:
        with self._callback():
            raise errors.PermissionDenied(
                f"{store_path(path)}: files can be written only by COPY … TO with a literal path."
            )

    ls = mkdir = rm = mv = touch = _refused  # type: ignore[assignment]


class ReadFile:
    """An open file. DuckDB calls `seek` and `read` in several threads concurrently, and each thread has its own offset.

    If no thread calls `seek`, DuckDB reads sequentially from the start.
    """

    def __init__(self, claimed: ClaimedFile, callback: Callback) -> None:
        self._claimed = claimed
        self._callback = callback
        self._reads = claimed.content.open()
        self._offsets = dict[int, int]()
        """The offset of each thread that has called `seek`."""
        self._read_to = 0
        """The offset of sequential reads, used until the first `seek`."""

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (self._claimed.file.size if whence == io.SEEK_END else 0)
        self._offsets[threading.get_ident()] = at
        return at

    def tell(self) -> int:
        return self._offsets.get(threading.get_ident(), self._read_to)

    def read(self, size: int = -1) -> bytes:
        with self._callback():
            thread = threading.get_ident()
            if self._offsets and thread not in self._offsets:
                # The intended offset is unknown, because another thread may have read since.
                raise errors.StorageError(f"{self._claimed.file.path} was read at an unknown offset.")
            at = self._offsets.get(thread, self._read_to)
            content = self._reads.read(at, size if size >= 0 else self._claimed.file.size)
            if self._offsets:
                self._offsets[thread] = at + len(content)
            else:
                self._read_to = at + len(content)
            return content

    def close(self) -> None:
        self._reads.close()

    def __del__(self) -> None:
        self.close()  # DuckDB does not close files that it reads


class TargetFileSystem(_CallbackFileSystem):
    """Writes the files of COPY … TO statements. The prefix of a path identifies the statement."""

    def __init__(self, copies: Mapping[str, CopyTarget], claims: FileClaims) -> None:
        super().__init__([TARGET_SCHEME], claims)
        self._copies = copies

    @contextmanager
    def _target(self, path: str) -> Generator[tuple[CopyTarget, str]]:
        """Yield the statement's `CopyTarget` and the path in the store.

        Raises PermissionDenied for an unknown target.
        """
        scheme, _, rest = path.partition("://")
        copied = self._copies.get(f"{scheme}://{rest.partition('/')[0]}/")
        with self._callback():
            if copied is None:
                raise errors.PermissionDenied("No running statement has this COPY target.")
            yield copied, copied.path(path)

    def open(self, path: str, mode: str = "rb", **_: Any) -> "WrittenFile":  # type: ignore[override]
        with self._target(path) as (copied, name):
            if mode != "wb":
                raise errors.PermissionDenied(f"{name}: COPY … TO can only create new files.")
            return WrittenFile(copied.open(name), self._callback)

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        with self._target(path) as (_copied, name):
            raise errors.PermissionDenied(f"{name}: a COPY target cannot be read.")

    def isfile(self, path: str) -> bool:
        with self._target(path) as (copied, name):
            return copied.is_file(name)

    def isdir(self, path: str) -> bool:
        with self._target(path) as (copied, name):
            return copied.is_directory(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, str]]:  # noqa: ARG002
        with self._target(path) as (copied, name):
            entries = copied.entries(name)
            below = path.rstrip("/")
            return [
                {
                    "name": f"{below}/{entry.path.rstrip('/').rpartition('/')[2]}",
                    "type": "directory" if entry.is_directory else "file",
                }
                for entry in entries
            ]

    def mkdir(self, path: str, **_: Any) -> None:  # type: ignore[override]
        with self._target(path) as (copied, name):
            copied.make_directory(name)

    def rm(self, path: str, **_: Any) -> None:  # type: ignore[override]
        with self._target(path) as (copied, name):
            copied.remove(name)

    def mv(self, path1: str, path2: str, **_: Any) -> None:  # type: ignore[override]
        """Accept renaming DuckDB's temporary file to its target, because both names denote the same file here."""
        with self._target(path1) as (copied, name):
            if copied.path(path2) != name:
                raise errors.PermissionDenied(f"{name}: COPY cannot rename files.")


class WrittenFile:
    """An open file that is written sequentially."""

    def __init__(self, copied: CopyTargetFile, callback: Callback) -> None:
        self._copied = copied
        self._callback = callback

    def write(self, content: bytes) -> int:
        with self._callback():
            return self._copied.write(content)

    def tell(self) -> int:
        return self._copied.size_bytes

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._callback():
            if whence or offset != self._copied.size_bytes:
                raise errors.StorageError(f"{self._copied.path} must be written sequentially.")
        return offset

    def flush(self) -> None:
        """Do nothing, because the file is not visible before it is complete."""

    def close(self) -> None:
        self._copied.close()
