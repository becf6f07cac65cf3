"""File systems registered with DuckDB, through which it reads and writes the server's stores (ADR 76).

They implement the methods of fsspec's AbstractFileSystem that DuckDB calls. DuckDB calls them in any thread, and calls
several methods concurrently for one open file.
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
from queryserver.engines.duckdb.copy_targets import TARGET_SCHEME, CopyTarget, CopyTargetFile
from queryserver.engines.duckdb.file_claims import ClaimedFile, FileClaims, FileStatement
from queryserver.errors.base import QueryServerError

LOCAL_SCHEME, _FILE = "local", "file"
"""The scheme shown in place of `file`.

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
    """Return all upper- and lower-case spellings.

    DuckDB allows any spelling, but looks up file systems by the exact spelling and otherwise uses its own disk.
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
        """Wrap code that DuckDB calls, so that the statement can recover a domain error."""
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
        """Whether a statement has named this file; other files are reported as missing."""
        return self._claims.is_claimed(store_path(path))

    def isdir(self, path: str) -> bool:  # noqa: ARG002
        return False

    def _refused(self, path: str, **_: Any) -> NoReturn:
        with self._callback():
            raise errors.PermissionDenied(f"{store_path(path)}: only COPY … TO with a literal path writes files.")

    ls = mkdir = rm = mv = touch = _refused  # type: ignore[assignment]


class ReadFile:
    """An open file. DuckDB calls `seek` and `read` in several threads concurrently, and each thread has its own offset.

    Without any `seek`, DuckDB reads sequentially from the start.
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
                raise errors.StorageError(f"{self._claimed.file.path} was read without a place.")
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
    """Writes the targets of COPY … TO, which are looked up by their statement's prefix."""

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
                raise errors.PermissionDenied(f"{name}: COPY renames no files.")


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
                raise errors.StorageError(f"{self._copied.path} is not written in order.")
        return offset

    def flush(self) -> None:
        """Do nothing, because the file is not visible before it is complete."""

    def close(self) -> None:
        self._copied.close()
