"""The file systems that DuckDB gets: all that it reads and writes of stores goes to the server (ADR 76).

The names and answers of the methods are those of fsspec's AbstractFileSystem, of which DuckDB calls the ones here.
It calls them in any thread, several at a time for one open file.
"""

import io
import itertools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn

import duckdb
from fsspec.spec import AbstractFileSystem

from queryserver import errors
from queryserver.engines.duckdb.copied_files import TARGET_SCHEME, CopiedFile, CopiedFiles
from queryserver.engines.duckdb.file_claims import ClaimedFile, FileClaims, FileStatement
from queryserver.errors.base import QueryServerError

LOCAL_SCHEME, _FILE = "local", "file"
"""DuckDB takes every `file:` path for the disk of its own process, also when another file system is registered for it,
and with `file://` among the allowed directories it would reach all of that disk."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The guard refuses such calls since there are file systems; an older program may have stored one.
_UNNAMED_OPENS = """
    SELECT 1 FROM (
        SELECT sql FROM duckdb_views() WHERE NOT internal
        UNION ALL SELECT sql FROM duckdb_tables() WHERE NOT internal
        UNION ALL SELECT macro_definition FROM duckdb_functions() WHERE NOT internal
    ) WHERE contains(lower(sql), 'read_single_') LIMIT 1
"""

Callback = Callable[[], AbstractContextManager[None]]
"""Entered around what DuckDB calls."""


def shown_schemes(schemes: frozenset[str]) -> Sequence[str]:
    """What the paths of statements begin with; `schemes` are those of `StatementFiles`."""
    return sorted(LOCAL_SCHEME if scheme == _FILE else scheme for scheme in schemes)


def store_path(path: str) -> str:
    """The path of the store for that of a statement."""
    scheme, mark, rest = path.partition("://")
    return f"{_FILE}://{rest}" if mark and scheme.lower() == LOCAL_SCHEME else path


def shown_path(path: str) -> str:
    """The path of a statement for that of the store."""
    return f"{LOCAL_SCHEME}{path[len(_FILE) :]}" if path.startswith(f"{_FILE}://") else path


class FileSystems:
    """The file systems of one database. `register` comes before the database is locked down."""

    def __init__(self, schemes: frozenset[str]) -> None:
        self.schemes = shown_schemes(schemes)
        self.claims = FileClaims()
        self.copies = dict[str, CopiedFiles]()
        """Of the statements that write now, by their marks."""

    def register(self, connection: duckdb.DuckDBPyConnection, *, is_new: bool) -> None:
        """For all connections of the database; one that `is_new` has no definitions of an earlier time."""
        connection.register_filesystem(StoreFileSystem(self.schemes, self.claims))
        connection.register_filesystem(TargetFileSystem(self.copies, self.claims))
        self.claims.is_strict = not is_new and bool(connection.execute(_UNNAMED_OPENS).fetchall())

    @property
    def directories(self) -> Sequence[str]:
        """What DuckDB must be allowed to reach."""
        return [f"{scheme}://" for scheme in (*self.schemes, TARGET_SCHEME)]

    def copy(self, statement: FileStatement, target: str) -> CopiedFiles:
        """The files of one COPY … TO, found by their mark from now on until `copied`."""
        copied = CopiedFiles(statement, target, store_path(target))
        self.copies[copied.place] = copied
        return copied

    def copied(self, copied: CopiedFiles) -> None:
        self.copies.pop(copied.place, None)

    def close(self) -> None:
        self.claims.close()


@cache
def _spellings(scheme: str) -> Sequence[str]:
    """In all cases: DuckDB allows a scheme in any, but finds the file system by the exact one, else its own disk."""
    return ["".join(letters) for letters in itertools.product(*({sign, sign.upper()} for sign in scheme))]


class _CalledFileSystem(AbstractFileSystem):
    cachable = False

    def __init__(self, schemes: Sequence[str], claims: FileClaims) -> None:
        super().__init__()
        self.protocol = list(itertools.chain.from_iterable(map(_spellings, schemes)))  # type: ignore[assignment]
        self._claims = claims

    def unstrip_protocol(self, name: str) -> str:
        return name

    @contextmanager
    def _callback(self) -> Generator[None]:
        """Around what DuckDB calls: its statement finds a domain error again."""
        try:
            yield
        except QueryServerError as error:
            raise self._claims.noted(error) from None


class StoreFileSystem(_CalledFileSystem):
    """Files of all schemes, to read. Only what a statement has named is opened."""

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        with self._callback():
            return [shown_path(file.path) for file in self._claims.naming().glob(store_path(path))]

    def open(self, path: str, mode: str = "rb", **_: Any) -> "ReadFile":  # type: ignore[override]
        name = store_path(path)
        with self._callback():
            if mode != "rb":
                raise errors.PermissionDenied(f"{name}: only COPY … TO with a literal path writes files.")
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
        """Of files that a statement has named; others do not exist for it."""
        return self._claims.is_claimed(store_path(path))

    def isdir(self, path: str) -> bool:  # noqa: ARG002
        return False

    def _refused(self, path: str, **_: Any) -> NoReturn:
        with self._callback():
            raise errors.PermissionDenied(f"{store_path(path)}: only COPY … TO with a literal path writes files.")

    ls = mkdir = rm = mv = touch = _refused  # type: ignore[assignment]


class ReadFile:
    """An open file. DuckDB reads at a place by `seek` and `read`, in several threads at a time: each has a place.

    Or it only reads, from the beginning on.
    """

    def __init__(self, claimed: ClaimedFile, callback: Callback) -> None:
        self._claimed = claimed
        self._callback = callback
        self._reads = claimed.content.open()
        self._places = dict[int, int]()
        """Of the threads that have called `seek`."""
        self._read_to = 0
        """Without any `seek`."""

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (self._claimed.file.size if whence == io.SEEK_END else 0)
        self._places[threading.get_ident()] = at
        return at

    def tell(self) -> int:
        return self._places.get(threading.get_ident(), self._read_to)

    def read(self, size: int = -1) -> bytes:
        with self._callback():
            thread = threading.get_ident()
            if self._places and thread not in self._places:
                # Where DuckDB means to read cannot be known: another thread may have read meanwhile.
                raise errors.StorageError(f"{self._claimed.file.path} was read without a place.")
            at = self._places.get(thread, self._read_to)
            found = self._reads.read(at, size if size >= 0 else self._claimed.file.size)
            if self._places:
                self._places[thread] = at + len(found)
            else:
                self._read_to = at + len(found)
            return found

    def close(self) -> None:
        self._reads.close()

    def __del__(self) -> None:
        self.close()  # DuckDB closes no file that it reads


class TargetFileSystem(_CalledFileSystem):
    """The targets of COPY … TO, to write; found by the mark of their statement."""

    def __init__(self, copies: Mapping[str, CopiedFiles], claims: FileClaims) -> None:
        super().__init__([TARGET_SCHEME], claims)
        self._copies = copies

    @contextmanager
    def _target(self, path: str) -> Generator[tuple[CopiedFiles, str]]:
        """The statement's files, and the path in the store."""
        scheme, _, rest = path.partition("://")
        copied = self._copies.get(f"{scheme}://{rest.partition('/')[0]}/")
        with self._callback():
            if copied is None:
                raise errors.PermissionDenied("No statement has such a target.")
            yield copied, copied.path(path)

    def open(self, path: str, mode: str = "rb", **_: Any) -> "WrittenFile":  # type: ignore[override]
        with self._target(path) as (copied, name):
            if mode != "wb":
                raise errors.PermissionDenied(f"{name}: COPY … TO writes new files.")
            return WrittenFile(copied.open(name), self._callback)

    def glob(self, path: str, **_: Any) -> list[str]:  # type: ignore[override]
        with self._target(path) as (_copied, name):
            raise errors.PermissionDenied(f"{name}: a target is not read.")

    def isfile(self, path: str) -> bool:
        with self._target(path) as (copied, name):
            return copied.is_file(name)

    def isdir(self, path: str) -> bool:
        with self._target(path) as (copied, name):
            return copied.is_directory(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, str]]:  # noqa: ARG002
        with self._target(path) as (copied, name):
            found = copied.entries(name)
            below = path.rstrip("/")
            return [
                {
                    "name": f"{below}/{entry.path.rstrip('/').rpartition('/')[2]}",
                    "type": "directory" if entry.is_directory else "file",
                }
                for entry in found
            ]

    def mkdir(self, path: str, **_: Any) -> None:  # type: ignore[override]
        with self._target(path) as (copied, name):
            copied.make_directory(name)

    def rm(self, path: str, **_: Any) -> None:  # type: ignore[override]
        with self._target(path) as (copied, name):
            copied.remove(name)

    def mv(self, path1: str, path2: str, **_: Any) -> None:  # type: ignore[override]
        """DuckDB's temporary name leads to the same file."""
        with self._target(path1) as (copied, name):
            if copied.path(path2) != name:
                raise errors.PermissionDenied(f"{name}: COPY renames no files.")


class WrittenFile:
    """An open file that is written in order."""

    def __init__(self, copied: CopiedFile, callback: Callback) -> None:
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
                raise errors.StorageError(f"{self._copied.path} is not written in order.")
        return offset

    def flush(self) -> None:
        """Nothing is to be seen of the file before it is complete."""

    def close(self) -> None:
        self._copied.close()
