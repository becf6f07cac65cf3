"""Deletion of entries and whole trees, some at a time. Everything here blocks: it is called in threads."""

import os
import secrets
import stat
import time
from contextlib import suppress

from queryserver.domain.storage_names import RESERVED_PREFIX
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.tree import Tree, enter

_STEP_S = 1.0
# Each level holds a descriptor; deeper directories are hung up at the top first.
_MAX_DEPTH = 64


class Deletion:
    """Deletes an entry; a link itself, never what it points to. `step` is repeated until it is true."""

    def __init__(self, tree: Tree, path: str, *, recursive: bool) -> None:
        self._tree = tree
        self._path = path
        self._recursive = recursive
        self._has_begun = False
        self._until = 0.0

    def step(self) -> bool:
        """Delete for about a second; whether the entry is gone. Raises DirectoryNotEmpty, PathNotFound."""
        self._until = time.monotonic() + _STEP_S
        with file_errors(self._path), self._tree.parent(self._path) as (parent, name):
            is_gone = self._is_gone(parent, name)
            os.fsync(parent)
            return is_gone

    def _is_gone(self, parent: int, name: str) -> bool:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            if self._has_begun:
                return True  # Another deletion of the same tree has helped.
            raise
        self._has_begun = True
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
        elif not self._recursive:
            os.rmdir(name, dir_fd=parent)
        else:
            return self._tree_is_gone(parent, name)
        return True

    def _tree_is_gone(self, parent: int, name: str) -> bool:
        top = enter(parent, name)
        try:
            if not self._emptied(top, top, depth=1):
                return False
        finally:
            os.close(top)
        return _is_removed(parent, name)

    def _emptied(self, top: int, directory: int, *, depth: int) -> bool:
        """Whether all that was seen in it is gone before the time is over."""
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
                if not self._emptied(top, inner, depth=depth + 1):
                    return False
            finally:
                os.close(inner)
            return _is_removed(directory, entry.name)
        return True


def _is_removed(parent: int, name: str) -> bool:
    """False when something came into it meanwhile."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        if _is_empty(parent, name):
            raise
        return False
    return True


def _is_empty(parent: int, name: str) -> bool:
    inner = enter(parent, name)
    try:
        with os.scandir(inner) as found:
            return next(found, None) is None
    finally:
        os.close(inner)
