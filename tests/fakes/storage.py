"""A Storage in memory, and one that fails when told to."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from queryserver.domain.errors import DirectoryNotEmpty, InvalidPath, PathExists, PathNotFound, QueryServerError
from queryserver.interfaces.storage import FileStatus, Storage
from queryserver.storages.local.paths import names_of

_EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
_PIECE_BYTES = 1024 * 1024


class MemoryStorage:
    """Files in a dictionary: path to bytes, None for a directory."""

    def __init__(self) -> None:
        self._entries: dict[str, bytes | None] = {"": None}

    async def stat(self, path: str) -> FileStatus:
        return self._status(self._existing(path))

    async def list_directory(self, path: str, *, start_after: str | None = None) -> AsyncIterator[FileStatus]:
        self._directory(path)
        prefix = f"{path}/" if path else ""
        for entry in sorted(self._entries):
            name = entry.removeprefix(prefix)
            if entry.startswith(prefix) and name and "/" not in name and (start_after is None or name > start_after):
                yield self._status(entry)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        content = self._entries[self._existing(path)]
        if content is None:
            raise InvalidPath(f"{path} is not a file.")
        wanted = content[offset:] if length is None else content[offset : offset + length]
        for start in range(0, len(wanted), _PIECE_BYTES):
            yield wanted[start : start + _PIECE_BYTES]

    async def write(self, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> int:
        self._free_for_file(path, overwrite=overwrite)
        content = b"".join([piece async for piece in body])
        self._free_for_file(path, overwrite=overwrite)
        self._make_directories(names_of(path)[:-1])
        self._entries[path] = content
        return len(content)

    async def mkdir(self, path: str) -> None:
        self._make_directories(names_of(path))

    async def rename(self, source: str, target: str) -> None:
        self._below_root(source)
        self._below_root(target)
        self._existing(source)
        self._directory("/".join(names_of(target)[:-1]))
        if target.startswith(f"{source}/"):
            raise InvalidPath(f"{target} is inside {source}.")
        if target in self._entries:
            raise PathExists(f"{target} exists.")
        for entry in [entry for entry in self._entries if entry == source or entry.startswith(f"{source}/")]:
            self._entries[target + entry.removeprefix(source)] = self._entries.pop(entry)

    async def copy(self, source: str, target: str) -> None:
        await self.write(target, self.read(source), overwrite=False)

    async def delete(self, path: str, *, recursive: bool) -> None:
        self._below_root(path)
        self._existing(path)
        inner = [entry for entry in self._entries if entry.startswith(f"{path}/")]
        if inner and not recursive:
            raise DirectoryNotEmpty(f"{path} is not empty.")
        for entry in [path, *inner]:
            del self._entries[entry]

    def _existing(self, path: str) -> str:
        names_of(path)
        if path not in self._entries:
            raise PathNotFound(f"{path} does not exist.")
        return path

    def _directory(self, path: str) -> None:
        if self._entries[self._existing(path)] is not None:
            raise PathNotFound(f"{path} is not a directory.")

    def _below_root(self, path: str) -> None:
        if not names_of(path):
            raise InvalidPath("The root of the store cannot be used for this.")

    def _free_for_file(self, path: str, *, overwrite: bool) -> None:
        self._below_root(path)
        if path in self._entries and (not overwrite or self._entries[path] is None):
            raise PathExists(f"{path} exists.")

    def _make_directories(self, names: tuple[str, ...]) -> None:
        for end in range(1, len(names) + 1):
            if self._entries.setdefault("/".join(names[:end]), None) is not None:
                raise PathExists(f"{names[end - 1]} is a file.")

    def _status(self, path: str) -> FileStatus:
        content = self._entries[path]
        return FileStatus(path, content is None, len(content or b""), _EPOCH)


@dataclass
class FaultyStorage:
    """Another store, whose calls raise what `failures` holds for their name; `calls` counts them.

    A failing `write` takes `after_pieces` pieces of its body first, as a disk that fills up does.
    """

    inner: Storage
    failures: dict[str, QueryServerError] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    after_pieces: int = 1

    async def stat(self, path: str) -> FileStatus:
        self._enter("stat")
        return await self.inner.stat(path)

    async def list_directory(self, path: str, *, start_after: str | None = None) -> AsyncIterator[FileStatus]:
        self._enter("list_directory")
        async for entry in self.inner.list_directory(path, start_after=start_after):
            yield entry

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self._enter("read")
        async for piece in self.inner.read(path, offset=offset, length=length):
            yield piece

    async def write(self, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> int:
        self.calls["write"] = self.calls.get("write", 0) + 1
        return await self.inner.write(path, self._until_failure(body), overwrite=overwrite)

    async def mkdir(self, path: str) -> None:
        self._enter("mkdir")
        await self.inner.mkdir(path)

    async def rename(self, source: str, target: str) -> None:
        self._enter("rename")
        await self.inner.rename(source, target)

    async def copy(self, source: str, target: str) -> None:
        self._enter("copy")
        await self.inner.copy(source, target)

    async def delete(self, path: str, *, recursive: bool) -> None:
        self._enter("delete")
        await self.inner.delete(path, recursive=recursive)

    def _enter(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if name in self.failures:
            raise self.failures[name]

    async def _until_failure(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        pieces = 0
        async for piece in body:
            yield piece
            pieces += 1
            if "write" in self.failures and pieces >= self.after_pieces:
                raise self.failures["write"]
