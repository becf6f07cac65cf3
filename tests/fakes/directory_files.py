"""A StatementFiles implementation over a local directory, and a channel through which threads use the files of several
sessions.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa

from queryserver import errors
from queryserver.engines.external_data import FileSink, StoredFile
from queryserver.engines.process.channel import Content, Frame
from queryserver.engines.process.requests import FileRequests


class DirectoryFiles:
    """One user's StatementFiles, stored below a local directory.

    `may_read` and `may_list` receive a path without its scheme and return whether access is allowed. `reads`, `proofs`
    and `patterns` record the calls of `read`, `require_readable` and `glob`.
    """

    def __init__(
        self,
        root: Path,
        *,
        may_read: Callable[[str], bool] = lambda _: True,
        may_list: Callable[[str], bool] = lambda _: True,
        may_write: bool = True,
        scheme: str = "s3a",
    ) -> None:
        self.schemes = frozenset({scheme})
        self.reads = list[tuple[str, int, int]]()
        self.proofs = list[str]()
        self.patterns = list[str]()
        self.before_read: Callable[[str], Any] = lambda _: None
        self._root = root
        self._scheme = scheme
        self.may_read = may_read
        self._may_list = may_list
        self.may_write = may_write
        self._written = set[str]()

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        self.patterns.append(pattern)
        names = self._name(pattern).split("/")
        found = list[StoredFile]()
        for file in sorted(self._root.rglob("*")):
            name = str(file.relative_to(self._root))
            if file.is_file() and _matches(name.split("/"), names):
                if not self._may_list(name):
                    raise errors.PermissionDenied(f"{self._shown(name)}: access is denied.")
                found.append(self._stored(name))
        return found

    async def status(self, path: str) -> StoredFile:
        return self._stored(self._name(path))

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        name = self._name(path)
        if not (self._root / name).is_dir():
            raise errors.PathNotFound(f"{path} does not exist.")
        return [self._stored(str(one.relative_to(self._root))) for one in sorted((self._root / name).iterdir())]

    async def require_readable(self, path: str) -> StoredFile:
        self.proofs.append(path)
        await asyncio.sleep(0)
        self._require_readable(path)
        return self._stored(self._name(path))

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        self._require_readable(path)
        self.reads.append((path, offset, length))
        if (waiting := self.before_read(path)) is not None:
            await waiting
        stored = self._stored(self._name(path))
        if version and stored.version != version:
            raise errors.EntryChanged(f"{path} was modified concurrently.")
        with (self._root / self._name(path)).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    @asynccontextmanager
    async def write(self, path: str, *, overwrite: bool) -> AsyncGenerator[FileSink]:
        file = self._root / self._name(path)
        if not self.may_write:
            raise errors.PermissionDenied(f"{path}: access is denied.")
        if not overwrite and file.exists():
            raise errors.PathExists(f"{path} already exists.")
        if file.is_dir() or any(one.is_file() for one in file.parents):
            raise errors.PathExists(f"{path} is a directory, or below a file.")
        sink = _Sink()
        yield sink
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(sink.content)
        self._written.add(path)

    async def make_directory(self, path: str) -> None:
        directory = self._root / self._name(path)
        if directory.is_file():
            raise errors.PathExists(f"{path} is a file.")
        directory.mkdir(parents=True, exist_ok=True)

    async def remove(self, path: str) -> None:
        if path not in self._written:
            raise errors.PermissionDenied(f"{path}: not written by this statement.")
        (self._root / self._name(path)).unlink()

    def _require_readable(self, path: str) -> None:
        if not self.may_read(self._name(path)):
            raise errors.PermissionDenied(f"{path}: access is denied.")

    def _name(self, path: str) -> str:
        scheme, mark, name = path.partition("://")
        if not mark or scheme.lower() != self._scheme or ".." in name.split("/"):
            raise errors.InvalidPath(f"{path} is no path.")
        return name.strip("/")

    def _shown(self, name: str) -> str:
        return f"{self._scheme}:///{name}" if self._scheme == "file" else f"{self._scheme}://{name}"

    def _stored(self, name: str) -> StoredFile:
        file = self._root / name
        if not file.exists():
            raise errors.PathNotFound(f"{self._shown(name)} does not exist.")
        status = file.stat()
        at = datetime.fromtimestamp(status.st_mtime, UTC)
        if file.is_dir():
            return StoredFile(self._shown(name), 0, at, is_directory=True)
        version = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
        return StoredFile(self._shown(name), status.st_size, at, version=version)


class _Sink:
    def __init__(self) -> None:
        self.content = bytearray()

    async def send(self, data: bytes) -> None:
        self.content += data


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return _matches(names, pattern[1:]) or (bool(names) and _matches(names[1:], pattern))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


class FileChannel:
    """Runs the file calls of threads on a separate event loop, and records the session number and method in `calls`.
    Must be closed.
    """

    def __init__(self, sessions: Mapping[int, DirectoryFiles]) -> None:
        self.calls = list[tuple[int, str]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.requests = {number: FileRequests(files) for number, files in sessions.items()}

    def call(self, session: int, method: str, arguments: Mapping[str, Any], content: Content = b"") -> Frame:
        self.calls.append((session, method))
        answer = self.requests[session].answer(method, arguments, content)
        reply = asyncio.run_coroutine_threadsafe(answer, self._loop).result(60)
        return Frame(reply.message, pa.py_buffer(reply.content))

    def interrupt(self, session: int) -> None:
        self._loop.call_soon_threadsafe(self.requests[session].interrupt)

    def close(self) -> None:
        for requests in self.requests.values():
            asyncio.run_coroutine_threadsafe(requests.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
