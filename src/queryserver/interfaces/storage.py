"""What a file store is to this service. Sizes and offsets are bytes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One entry of a store. `path` is relative to the store's root, with `/` between names."""

    path: str
    is_directory: bool
    size_bytes: int
    modified_at: datetime


class Storage(Protocol):
    """A tree of files. Paths are relative to the root that the adapter is confined to.

    Raises InvalidPath, PathNotFound, PathExists, DirectoryNotEmpty, StorageFull, StorageUnavailable, StorageError.
    """

    async def stat(self, path: str) -> FileStatus:
        """The entry at `path`."""
        ...

    def list_directory(self, path: str, *, start_after: str | None = None) -> AsyncIterator[FileStatus]:
        """Entries of a directory in order of their names, after `start_after`."""
        ...

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Bytes [offset, offset + length) in pieces of at most 1 MiB; past the end: nothing."""
        ...

    async def write(self, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> int:
        """Store a file and return its size. It appears under its name complete and durable, or not at all.

        Missing parents are made. Raises PathExists: a directory of that name, or any entry without `overwrite`.
        """
        ...

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; nothing happens when it is there."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Give an entry another name within the store; the target's parent must be there. Raises PathExists."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy one file. Raises PathExists."""
        ...

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry. Raises PathNotFound, DirectoryNotEmpty."""
        ...
