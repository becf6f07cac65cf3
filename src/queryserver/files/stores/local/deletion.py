"""Deletes, summarizes and sweeps trees. Long work is divided into steps of about 1 s. All calls block, so they run in
threads.
"""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Generator
from contextlib import suppress

from queryserver.errors.files import too_many_entries
from queryserver.files.model import RESERVED_PREFIX, ContentSummary, EntryKind
from queryserver.files.stores.local.tree import LocalTree, enter, file_error, file_name, kind_of, path_name

_STEP_S = 1.0
# Each level holds an open file descriptor. Directories below this depth are first moved up to the top directory.
_MAX_DEPTH = 64
_MAX_ENTRIES = 100_000


class Deletion:
    """Deletes an entry without following links. Call `step` until it returns True."""

    def __init__(self, tree: LocalTree, path: str, *, recursive: bool) -> None:
        self._tree = tree
        self._path = path
        self._recursive = recursive
        self._has_begun = False
        self._until = 0.0

    def step(self) -> bool:
        """Delete for about a second. Return True once the entry is deleted. Raises DirectoryNotEmpty, PathNotFound."""
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
                return True  # a concurrent call has deleted it
            raise
        self._has_begun = True
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not self._recursive:
            os.rmdir(name, dir_fd=parent)
        else:
            top = enter(parent, name)
            try:
                is_empty = self._delete_entries(top, top, depth=1)
            finally:
                os.close(top)
            return is_empty and _remove_directory(parent, name)
        return True

    def _delete_entries(self, top: int, directory: int, *, depth: int) -> bool:
        """Delete the entries of a directory. Return False if the time limit of this step is reached first."""
        with os.scandir(directory) as found:
            for entry in found:
                if time.monotonic() > self._until or not self._delete_inner_entry(top, directory, entry, depth=depth):
                    return False
        return True

    def _delete_inner_entry(self, top: int, directory: int, entry: os.DirEntry[str], *, depth: int) -> bool:
        with suppress(FileNotFoundError):  # a concurrent call may have deleted it
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=directory)
                return True
            if depth == _MAX_DEPTH:
                shallow = f"{RESERVED_PREFIX}deep_{secrets.token_hex(16)}"
                os.rename(entry.name, shallow, src_dir_fd=directory, dst_dir_fd=top)
                return True
            inner = enter(directory, entry.name)
            try:
                is_empty = self._delete_entries(top, inner, depth=depth + 1)
            finally:
                os.close(inner)
            return is_empty and _remove_directory(directory, entry.name)
        return True


def _remove_directory(parent: int, name: str) -> bool:
    """Remove a directory. Return False if new entries have been created in it."""
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


def summation(tree: LocalTree, path: str, shows: Callable[[str], bool]) -> Generator[ContentSummary | None]:
    """Summarize the entries that the user may see. Yield None about every second, and finally the summary.

    Links, pipes and devices are not summarized, but count toward the limit. Raises too_many_entries,
    SymlinkNotFollowed.
    """
    top = tree.stat(path)
    files, directories, size_bytes = (1, 0, top.size_bytes) if top.is_file else (0, 0, 0)
    waiting, entries, until = [] if top.is_file else [path], 0, time.monotonic() + _STEP_S
    while waiting:
        directory = waiting.pop()
        try:
            for name, status in _visible_entries(tree, directory, shows):
                entries += 1
                if entries > _MAX_ENTRIES:
                    raise too_many_entries(f"The directory contains more than {_MAX_ENTRIES} entries.")
                kind = EntryKind.UNKNOWN if status is None else kind_of(status)
                if kind is EntryKind.DIRECTORY:
                    waiting.append(name)
                elif status is not None and kind is EntryKind.FILE:
                    files, size_bytes = files + 1, size_bytes + status.st_size
            directories += 1
        except FileNotFoundError:
            if directory == path:
                raise
        except OSError as error:
            raise file_error(directory, error) from error
        if time.monotonic() > until:
            yield None
            until = time.monotonic() + _STEP_S
    yield ContentSummary(directories, files, size_bytes, size_bytes)


def _visible_entries(
    tree: LocalTree, path: str, shows: Callable[[str], bool]
) -> Generator[tuple[str, os.stat_result | None]]:
    """Yield the path and status of each visible entry. The status is None if the entry has been deleted meanwhile."""
    prefix = f"{path}/" if path else ""
    with tree.directory(path) as directory, os.scandir(directory) as found:
        names = (path_name(entry.name) for entry in found)
        for name in (name for name in names if name is not None and shows(prefix + name)):
            status = None
            with suppress(FileNotFoundError):
                status = os.stat(file_name(name), dir_fd=directory, follow_symlinks=False)
            yield prefix + name, status


def sweep(tree: LocalTree, path: str, older_than_s: float, dry_run: bool = False) -> int:
    """Delete the orphaned files directly in a directory that are older than `older_than_s`, and return their number.

    If `dry_run` is set, only count them.
    """
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
        inner = [path_name(entry.name) for entry in found if entry.is_dir(follow_symlinks=False)]
    return [prefix + name for name in inner if name is not None]
