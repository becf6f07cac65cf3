"""Leftovers of processes that died. Everything here blocks: it is called in threads."""

import os
import shutil
import stat
import time
from contextlib import suppress

from queryserver.domain.storage_names import RESERVED_PREFIX, is_name
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.tree import Tree


def sweep(tree: Tree, path: str, older_than_s: float, dry_run: bool = False) -> int:
    """Delete, or count only, what was left directly in a directory and last written before that time; how many."""
    before, removed = time.time() - older_than_s, 0
    with file_errors(path), tree.directory(path) as directory, os.scandir(directory) as found:
        for name in [entry.name for entry in found if entry.name.startswith(RESERVED_PREFIX)]:
            removed += _is_older(directory, name, before, dry_run=dry_run)
    return removed


def directories_in(tree: Tree, path: str) -> list[str]:
    """The directories directly in a directory."""
    prefix = f"{path}/" if path else ""
    with file_errors(path), tree.directory(path) as directory, os.scandir(directory) as found:
        return [prefix + e.name for e in found if is_name(e.name) and e.is_dir(follow_symlinks=False)]


def _is_older(directory: int, name: str, before: float, *, dry_run: bool) -> bool:
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_mtime < before:
            if not dry_run:
                _remove(directory, name, is_tree=stat.S_ISDIR(found.st_mode))
            return True
    return False


def _remove(directory: int, name: str, *, is_tree: bool) -> None:
    if is_tree:
        shutil.rmtree(name, dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)
