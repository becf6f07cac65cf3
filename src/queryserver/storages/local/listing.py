"""The entries of a directory, some at a time. Everything here blocks: it is called in threads."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from threading import Lock

from queryserver.domain.errors.files import StorageError
from queryserver.domain.files import FileStatus
from queryserver.domain.storage_names import is_name
from queryserver.interfaces.storage import Batch
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.status import status_of
from queryserver.storages.local.tree import Tree


class Listing:
    """A directory that is opened by the first batch. Entries come in the order that the file system gives them.

    Left out are our own names, names that are no text, and paths that `shows` is false for. A cursor is how many names
    came before, and the last of them: a listing that goes on from it starts again and passes over these. Most file
    systems keep their order when other entries come and go; should the named one be gone, the number counts.
    """

    def __init__(self, tree: Tree, path: str, cursor: str | None, shows: Callable[[str], bool]) -> None:
        self._tree = tree
        self._path = path
        self._prefix = f"{path}/" if path else ""
        self._passed, _, self._last = (cursor or "0/").partition("/")
        self._shows = shows
        self._lock = Lock()
        self._open = ExitStack()
        self._ended = False
        self._directory = -1
        self._names: Iterator[str] = iter(())
        self._ahead: str | None = None
        self._count = 0

    def batch(self, size: int) -> Batch:
        """The next entries, at most `size` of them. Raises NotADirectory, SymlinkNotFollowed."""
        with self._lock, file_errors(self._path):
            if self._ended:
                raise StorageError(f"The listing of {self._path} was ended.")
            if self._directory < 0:
                self._begin()
            ahead = () if self._ahead is None else (self._ahead,)
            names = list(islice(chain(ahead, self._names), max(size, 1)))
            self._count += len(names)
            self._ahead = next(self._names, None)
            entries = (self._entry(name) for name in names)
            cursor = f"{self._count}/{names[-1]}" if names and self._ahead is not None else None
            return Batch(tuple(filter(None, entries)), cursor)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._ended = True
            self._open.close()

    def _begin(self) -> None:
        self._start()
        if not self._last:
            return
        for name in self._names:
            self._count += 1
            if name == self._last:
                return
        self._start()
        self._count = sum(1 for _ in islice(self._names, int(self._passed) - 1))

    def _start(self) -> None:
        self._open.close()
        self._count = 0
        with ExitStack() as opened:
            self._directory = opened.enter_context(self._tree.directory(self._path))
            found = opened.enter_context(os.scandir(self._directory))
            self._names = (e.name for e in found if is_name(e.name) and self._shows(self._prefix + e.name))
            self._open = opened.pop_all()

    def _entry(self, name: str) -> FileStatus | None:
        """None when it is gone meanwhile."""
        try:
            return status_of(self._prefix + name, os.stat(name, dir_fd=self._directory, follow_symlinks=False))
        except FileNotFoundError:
            return None
