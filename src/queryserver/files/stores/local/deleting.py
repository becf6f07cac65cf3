"""Deletion, sums and sweeps of trees, a second at a time. Called in threads, as `tree`."""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from queryserver.errors.files import too_many_entries
from queryserver.files.model import RESERVED_PREFIX, ContentSummary, EntryKind, is_name
from queryserver.files.stores.local.tree import LocalTree, enter, file_error, kind_of

_STEP_S = 1.0
# Each level holds a descriptor; deeper directories are moved to the top first.
_MAX_DEPTH = 64
_MAX_ENTRIES = 100_000


class Deletion:
    """Deletes an entry; a link itself, never its target. `step` is repeated until it is true."""

    def __init__(self, tree: LocalTree, path: str, *, recursive: bool) -> None:
        self._tree = tree
        self._path = path
        self._recursive = recursive
        self._has_begun = False
        self._until = 0.0

    def step(self) -> bool:
        """Delete for about a second; whether the entry is gone. Raises DirectoryNotEmpty, PathNotFound."""
        self._until = time.monotonic() + _STEP_S
        with self._tree.parent(self._path) as (parent, name):
            is_gone = self._is_gone(parent, name)
            os.fsync(parent)
            return is_gone

    def _is_gone(self, parent: int, name: str) -> bool:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            if self._has_begun:
                return True  # another deletion of the same tree has helped
            raise
        self._has_begun = True
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not self._recursive:
            os.rmdir(name, dir_fd=parent)
        else:
            top = enter(parent, name)
            try:
                is_empty = self._emptied(top, top, depth=1)
            finally:
                os.close(top)
            return is_empty and _is_removed(parent, name)
        return True

    def _emptied(self, top: int, directory: int, *, depth: int) -> bool:
        """Whether all that was found in it is gone before the time is over."""
        with os.scandir(directory) as found:
            for entry in found:
                if time.monotonic() > self._until or not self._entry_is_gone(top, directory, entry, depth=depth):
                    return False
        return True

    def _entry_is_gone(self, top: int, directory: int, entry: os.DirEntry[str], *, depth: int) -> bool:
        with suppress(FileNotFoundError):  # Two deletions of one tree at a time help each other.
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=directory)
                return True
            if depth == _MAX_DEPTH:
                shallow = f"{RESERVED_PREFIX}deep_{secrets.token_hex(16)}"
                os.rename(entry.name, shallow, src_dir_fd=directory, dst_dir_fd=top)
                return True
            inner = enter(directory, entry.name)
            try:
                is_empty = self._emptied(top, inner, depth=depth + 1)
            finally:
                os.close(inner)
            return is_empty and _is_removed(directory, entry.name)
        return True


def _is_removed(parent: int, name: str) -> bool:
    """False when a new entry came into it meanwhile."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        inner = enter(parent, name)
        try:
            with os.scandir(inner) as found:
                if next(found, None) is None:
                    raise
        finally:
            os.close(inner)
        return False
    return True


class Summation:
    """Counts the entries that the caller may see. Links, pipes and devices count towards the limit only."""

    def __init__(self, tree: LocalTree, path: str, shows: Callable[[str], bool]) -> None:
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
        return ContentSummary(self._directories, self._files, self._bytes, self._bytes)

    def step(self) -> bool:
        """Count for about a second; whether all is counted. Raises too_many_entries, SymlinkNotFollowed."""
        if self._waiting is None:
            found = self._tree.stat(self._path)
            self._waiting = [] if found.is_file else [self._path]
            if found.is_file:
                self._files, self._bytes = 1, found.size_bytes
        until = time.monotonic() + _STEP_S
        while self._waiting and time.monotonic() < until:
            self._count_directory(self._waiting, self._waiting.pop())
        return not self._waiting

    def _count_directory(self, waiting: list[str], path: str) -> None:
        prefix = f"{path}/" if path else ""
        try:
            with self._tree.directory(path) as directory, os.scandir(directory) as found:
                self._directories += 1
                for entry in found:
                    if is_name(entry.name) and self._shows(prefix + entry.name):
                        self._count_entry(waiting, directory, prefix, entry.name)
        except FileNotFoundError:
            if path == self._path:
                raise
        except OSError as error:
            raise file_error(path, error) from error

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


def sweep(tree: LocalTree, path: str, older_than_s: float, dry_run: bool = False) -> int:
    """Delete, or only count, orphaned files directly in a directory, last written before that time; how many."""
    before, removed = time.time() - older_than_s, 0
    with tree.directory(path) as directory, os.scandir(directory) as found:
        for name in [entry.name for entry in found if entry.name.startswith(RESERVED_PREFIX)]:
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if status.st_mtime >= before:
                    continue
                if not dry_run and stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(name, dir_fd=directory)
                elif not dry_run:
                    os.unlink(name, dir_fd=directory)
                removed += 1
    return removed


def directories_in(tree: LocalTree, path: str) -> list[str]:
    prefix = f"{path}/" if path else ""
    with tree.directory(path) as directory, os.scandir(directory) as found:
        return [prefix + e.name for e in found if is_name(e.name) and e.is_dir(follow_symlinks=False)]
