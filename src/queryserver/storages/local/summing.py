"""What a tree holds. Everything here blocks: it is called in threads."""

import os
import time
from collections.abc import Callable

from queryserver.domain.errors.files import PathNotFound, too_many_entries
from queryserver.domain.files import ContentSummary, EntryKind
from queryserver.domain.storage_names import is_name
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.status import kind_of
from queryserver.storages.local.tree import Tree

_STEP_S = 1.0
_MAX_ENTRIES = 100_000


class Summation:
    """Counts the entries that the caller may see. Links, pipes and devices count towards the limit only."""

    def __init__(self, tree: Tree, path: str, shows: Callable[[str], bool]) -> None:
        self._tree = tree
        self._path = path
        self._shows = shows
        self._waiting: list[str] | None = None
        self._entries = 0
        self._files = 0
        self._directories = 0
        self._bytes = 0

    @property
    def summary(self) -> ContentSummary:
        """What was counted so far."""
        return ContentSummary(self._directories, self._files, self._bytes, self._bytes)

    def step(self) -> bool:
        """Count for about a second; whether all is counted. Raises too_many_entries, SymlinkNotFollowed."""
        if self._waiting is None:
            self._waiting = self._begin()
        until = time.monotonic() + _STEP_S
        while self._waiting and time.monotonic() < until:
            self._count_directory(self._waiting, self._waiting.pop())
        return not self._waiting

    def _begin(self) -> list[str]:
        found = self._tree.stat(self._path)
        if not found.is_file:
            return [self._path]
        self._files, self._bytes = 1, found.size_bytes
        return []

    def _count_directory(self, waiting: list[str], path: str) -> None:
        prefix = f"{path}/" if path else ""
        try:
            with file_errors(path), self._tree.directory(path) as directory, os.scandir(directory) as found:
                self._directories += 1
                for entry in found:
                    if is_name(entry.name) and self._shows(prefix + entry.name):
                        self._count_entry(waiting, directory, prefix, entry.name)
        except PathNotFound:
            if path == self._path:
                raise

    def _count_entry(self, waiting: list[str], directory: int, prefix: str, name: str) -> None:
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise too_many_entries(f"The directory holds more than {_MAX_ENTRIES} entries.")
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        match kind_of(status):
            case EntryKind.DIRECTORY:
                waiting.append(prefix + name)
            case EntryKind.FILE:
                self._files += 1
                self._bytes += status.st_size
            case EntryKind.LINK | EntryKind.UNKNOWN:
                pass
