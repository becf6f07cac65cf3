"""A directory tree that no path and no link leads out of. Everything here blocks: it is called in threads."""

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from queryserver.domain.errors import InvalidPath, PathExists, StorageUnavailable
from queryserver.interfaces.storage import FileStatus
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.paths import RESERVED_PREFIX, is_name, names_of

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Without O_NONBLOCK opening a named pipe would hang the thread until somebody writes to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_MODE = 0o700


class Tree:
    """The tree below `root`.

    A path is walked name by name, each opened relative to its open parent and never through a link. So a directory
    that turns into a link between the check and the use leads nowhere (Contract security T1).
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def stat(self, path: str) -> FileStatus:
        """The entry at `path`."""
        with file_errors(path):
            names = names_of(path)
            if not names:
                with self._directory(()) as root:
                    return _status(path, os.fstat(root))
            with self._directory(names[:-1]) as parent:
                found = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise InvalidPath(f"{path} is a link; links are not followed.")
        return _status(path, found)

    def entries(self, path: str, start_after: str | None) -> list[FileStatus]:
        """Files and directories in a directory, in order of their names. Links, pipes and devices are left out."""
        prefix = f"{path}/" if path else ""
        with file_errors(path), self._directory(names_of(path)) as directory, os.scandir(directory) as found:
            names = sorted(e.name for e in found if is_name(e.name) and (start_after is None or e.name > start_after))
            return [status for name in names if (status := _entry(directory, name, prefix + name))]

    def open_file(self, path: str) -> int:
        """A descriptor for reading a plain file."""
        with file_errors(path), self.parent(path) as (parent, name):
            descriptor = os.open(name, _FILE, dir_fd=parent)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        raise InvalidPath(f"{path} is not a file.")

    def open_parent(self, path: str) -> tuple[int, str]:
        """A descriptor of the directory of `path`, which is made when missing, and the last name."""
        with self.parent(path, make=True) as (parent, name):
            return os.dup(parent), name

    def make_directories(self, path: str) -> None:
        """Make a directory and its parents, durably."""
        with file_errors(path), self._directory(names_of(path), make=True):
            pass

    def rename(self, source: str, target: str) -> None:
        """Rename durably without ever replacing a file."""
        with (
            file_errors(source),
            self.parent(source) as (old_parent, old_name),
            file_errors(target),
            self.parent(target) as (new_parent, new_name),
        ):
            self._rename(old_parent, old_name, new_parent, new_name, source, target)
            os.fsync(new_parent)
            os.fsync(old_parent)

    def _rename(self, old_parent: int, old: str, new_parent: int, new: str, source: str, target: str) -> None:
        with file_errors(source):
            mode = os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            # rename(2) would replace a file that appears meanwhile; link(2) cannot.
            os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)
            os.unlink(old, dir_fd=old_parent)
            return
        if _exists(new_parent, new):
            raise PathExists(f"{target} exists.")
        # Somebody may make the target meanwhile: an empty directory is then replaced, anything else refused.
        os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)

    def delete(self, path: str, recursive: bool) -> None:
        """Delete an entry durably; a link is deleted itself."""
        with file_errors(path), self.parent(path) as (parent, name):
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
            elif recursive:
                shutil.rmtree(name, dir_fd=parent, onerror=_already_gone)
            else:
                os.rmdir(name, dir_fd=parent)
            os.fsync(parent)

    def sweep(self, path: str, before: datetime, dry_run: bool) -> tuple[list[str], int]:
        """The directories in a directory, and how many leftovers last changed before `before` go, or would go."""
        removed = 0
        with file_errors(path), self._directory(names_of(path)) as directory, os.scandir(directory) as found:
            for name in [entry.name for entry in found if entry.name.startswith(RESERVED_PREFIX)]:
                removed += _delete_older(directory, name, before, dry_run=dry_run)
        return [entry.path for entry in self.entries(path, None) if entry.is_directory], removed

    @contextmanager
    def parent(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """The open directory that holds `path`, and the last name. The root has none: InvalidPath."""
        names = names_of(path)
        if not names:
            raise InvalidPath("The root of the store cannot be used for this.")
        with self._directory(names[:-1], make=make) as directory:
            yield directory, names[-1]

    @contextmanager
    def _directory(self, names: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        try:
            directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageUnavailable("The root of the store is gone.") from error
        try:
            for name in names:
                inner = _enter_or_make(directory, name) if make else _enter(directory, name)
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)


def _enter(parent: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise InvalidPath(f"{name} is a link; links are not followed.") from error
        raise


def _enter_or_make(parent: int, name: str) -> int:
    try:
        return _enter(parent, name)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, _DIRECTORY_MODE, dir_fd=parent)
        os.fsync(parent)
        return _enter(parent, name)
    except NotADirectoryError as error:
        raise PathExists(f"{name} is a file.") from error


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _entry(directory: int, name: str, path: str) -> FileStatus | None:
    """None when it is gone meanwhile, or neither a file nor a directory."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _status(path, found) if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else None


def _status(path: str, found: os.stat_result) -> FileStatus:
    is_directory = stat.S_ISDIR(found.st_mode)
    modified_at = datetime.fromtimestamp(found.st_mtime, UTC)
    return FileStatus(path, is_directory, 0 if is_directory else found.st_size, modified_at)


def _delete_older(directory: int, name: str, before: datetime, *, dry_run: bool) -> bool:
    with suppress(FileNotFoundError):
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < before.timestamp():
            if not dry_run:
                os.unlink(name, dir_fd=directory)
            return True
    return False


def _already_gone(_function: Any, _path: str, error: tuple[type[BaseException], BaseException, Any]) -> None:
    # Two deletes of one tree at a time help each other.
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
