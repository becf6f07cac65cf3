"""A directory tree that neither paths nor links can leave.

All calls block, so they run in threads. They raise domain errors or OSError, which callers convert with `file_error`.
"""

import ctypes
import errno
import grp
import os
import pwd
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

from queryserver import errors
from queryserver.files.model import (
    MAX_NAME_BYTES,
    RESERVED_PREFIX,
    EntryKind,
    FileStatus,
    escaped_name,
    is_escaped,
    is_escaped_file,
    names_of,
    raw_name,
)
from queryserver.files.protocol import Batch
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor

_KINDS: dict[int, tuple[type[errors.QueryServerError], str]] = {
    errno.ENOENT: (errors.PathNotFound, "{path} does not exist."),
    errno.ENOTDIR: (errors.NotADirectory, "{path} is not a directory, or one of its parents is a file."),
    errno.EEXIST: (errors.PathExists, "{path} already exists."),
    errno.EISDIR: (errors.PathExists, "{path} is a directory."),
    errno.ENOTEMPTY: (errors.DirectoryNotEmpty, "{path} is not empty."),
    errno.ELOOP: (errors.SymlinkNotFollowed, "{path} contains a symbolic link; symbolic links are not followed."),
    errno.EINVAL: (errors.InvalidPath, "{path} is not valid for this operation."),
    errno.ENAMETOOLONG: (errors.InvalidPath, "{path} is too long."),
    errno.EILSEQ: (errors.InvalidPath, "The store does not support the name {path}."),
    errno.ENOSPC: (errors.StorageError, "The store has no space left."),
    errno.EDQUOT: (errors.StoreQuotaExceeded, "The quota of the store is exhausted."),
    errno.EFBIG: (errors.StorageError, "The file is larger than the store allows."),
    errno.EIO: (errors.StorageUnavailable, "The storage device of the store failed."),
    errno.ENODEV: (errors.StorageUnavailable, "The storage device of the store is missing."),
    errno.ENXIO: (errors.StorageUnavailable, "The storage device of the store is missing."),
    errno.ESTALE: (errors.StorageUnavailable, "The file is no longer available on the file server."),
    errno.ETIMEDOUT: (errors.StorageUnavailable, "The file server is not responding."),
    errno.EMFILE: (errors.StorageUnavailable, "Too many files are open."),
    errno.ENFILE: (errors.StorageUnavailable, "Too many files are open."),
    errno.EROFS: (errors.StorageUnavailable, "The store is read-only."),
    errno.EACCES: (errors.PermissionDenied, "The store denied access to {path}."),
    errno.EPERM: (errors.PermissionDenied, "The store denied access to {path}."),
    errno.EXDEV: (errors.StorageError, "{path} is on another device; files cannot be renamed across devices."),
}


def file_error(path: str, error: OSError) -> errors.QueryServerError:
    """Convert an OSError to a domain error about `path`, which is relative to the root."""
    kind, text = _KINDS.get(error.errno or 0, (errors.StorageError, "The store could not access {path}."))
    return kind(text.format(path=path or "The root of the store"))


_STATUS_KINDS = {stat.S_IFREG: EntryKind.FILE, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.LINK}


def path_name(name: str) -> str | None:
    """Return the name that denotes a file name in paths, or None if it is reserved. A name that is not UTF-8 is
    escaped.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return escaped_name(os.fsencode(name))
    return None if name.startswith(RESERVED_PREFIX) else name


def file_name(name: str) -> str:
    """Return the file name that a name in a path denotes. Raises InvalidPath for an invalid or unnecessary escape."""
    if not is_escaped(name):
        return name
    raw = raw_name(name)
    try:
        raw.decode()
    except UnicodeDecodeError:
        if not is_escaped_file(name) and b"/" not in raw and b"\0" not in raw and len(raw) <= MAX_NAME_BYTES:
            return os.fsdecode(raw)
    raise errors.InvalidPath(f"{name} is not an escaped name of this store.")


def file_names(path: str) -> tuple[str, ...]:
    """Return the file names that a path consists of. Raises InvalidPath."""
    return tuple(map(file_name, names_of(path, escapes=True)))


def status_of(path: str, found: os.stat_result) -> FileStatus:
    """Convert the result of `stat`. May block, because owner names may come from a directory service."""
    kind = kind_of(found)
    return FileStatus(
        path,
        kind,
        found.st_size if kind is EntryKind.FILE else 0,
        _moment(found.st_mtime_ns),
        permissions=found.st_mode & 0o1777,
        accessed_at=_moment(found.st_atime_ns),
        owner=_user_name(found.st_uid),
        group=_group_name(found.st_gid),
        file_id=f"{found.st_dev:x}-{found.st_ino:x}",
    )


def kind_of(found: os.stat_result) -> EntryKind:
    """Return the kind of an entry. Devices, pipes and sockets are UNKNOWN and must not be opened."""
    return _STATUS_KINDS.get(stat.S_IFMT(found.st_mode), EntryKind.UNKNOWN)


def _moment(since_epoch_ns: int) -> datetime | None:
    """Return the timestamp, or None if it is out of range: some file systems store arbitrary numbers."""
    try:
        # The time is computed with integers, because seconds as a float would be rounded.
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since_epoch_ns // 1000)
    except OverflowError:
        return None


@lru_cache(maxsize=4096)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(maxsize=4096)
def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


_NO_REPLACE = 1  # linux/fs.h: RENAME_NOREPLACE
# Errors if the system call is missing (libc before 2.28, other systems) or the file system does not support the flag.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def _rename_exclusively(old_parent: int, old: str, new_parent: int, new: str) -> None:
    """Rename an entry. Raises FileExistsError if the new name is taken."""
    if _renamed_at_once(old_parent, old, new_parent, new):
        return
    if not stat.S_ISDIR(os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode):
        # Unlike rename(2), link(2) does not replace a file that has been created meanwhile.
        os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)
        os.unlink(old, dir_fd=old_parent)
        return
    if _exists(new_parent, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    # If the target has been created meanwhile, rename(2) replaces an empty directory and rejects anything else.
    os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)


def _renamed_at_once(old_parent: int, old: str, new_parent: int, new: str) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(old_parent, os.fsencode(old), new_parent, os.fsencode(new), ctypes.c_uint(_NO_REPLACE)) == 0:
        return True
    if (number := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def _exists(parent: int, name: str) -> bool:
    """Return whether an entry of this name exists, even a dangling link."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# O_PATH if available: a normal open can have side effects on a device and can block on a pipe.
_HANDLE = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW
_HAS_HANDLES = hasattr(os, "O_PATH")
_PRIVATE = 0o700


class LocalTree:
    """The tree below `root`. `directory_mode` returns the mode for a new directory, given the names in its path; the
    default is 0700.

    Paths are resolved name by name. Each directory is opened relative to its parent's descriptor and never through a
    link, so that a link that replaces a directory between check and use is not followed (Contract security T1, storage
    10.5).
    """

    def __init__(
        self,
        root: Path,
        *,
        file_mode: int = 0o600,
        directory_mode: Callable[[tuple[str, ...]], int] = lambda _: _PRIVATE,
        floor: DiskFloor = NO_FLOOR,
    ) -> None:
        self._root = root
        self._directory_mode = directory_mode
        self.file_mode = file_mode
        self.require_room = partial(floor.require, root)
        """Raises InsufficientStorage if the given number of additional bytes would leave less than the minimum free
        space.
        """

    def stat(self, path: str) -> FileStatus:
        names = file_names(path)
        with self._walk(names[:-1], make=False) as directory:
            found = os.stat(names[-1], dir_fd=directory, follow_symlinks=False) if names else os.fstat(directory)
            return status_of(path, found)

    def open_file(self, path: str) -> int:
        """Open a regular file for reading. Raises NotAFile, SymlinkNotFollowed."""
        with self._handle(path) as (handle, kind):
            must_be_file(path, kind)
            return os.open(_handle_path(handle), os.O_RDONLY) if _HAS_HANDLES else os.dup(handle)

    def open_parent(self, path: str, *, make: bool = True) -> tuple[int, str]:
        """Return a descriptor of the parent directory, which the caller must close, and the last name in the path.

        If `make` is set, missing parents are created.
        """
        with self.parent(path, make=make) as (parent, name):
            return os.dup(parent), name

    def make_directory(self, path: str, permissions: int | None) -> None:
        """Create a directory and its missing parents, and flush them to disk.

        All of them have `permissions`, or the default mode if it is None.
        """
        names = file_names(path)
        if not names:
            raise errors.PathExists("The root of the store already exists.")
        with self.parent(path, make=True, permissions=permissions) as (parent, name):
            _make(parent, name, self._directory_mode(names) if permissions is None else permissions)

    def ensure_directory(self, path: str) -> None:
        with self.directory(path, make=True):
            pass

    def set_permissions(self, path: str, permissions: int) -> None:
        """Set the mode of a file or directory. Raises NotAFile, SymlinkNotFollowed."""
        if not path:
            with self.directory(path) as root:
                os.fchmod(root, permissions)
            return
        with self._handle(path) as (handle, kind):
            if kind is not EntryKind.DIRECTORY:
                must_be_file(path, kind)
            # fchmod(2) rejects O_PATH handles, and fchmodat(2) follows links.
            os.chmod(_handle_path(handle) if _HAS_HANDLES else handle, permissions)  # noqa: PTH101 or a descriptor

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename an entry and flush the change to disk.

        If `overwrite` is set, a file replaces an existing file atomically. Nothing else is ever replaced.
        """
        if target.startswith(f"{source}/"):
            raise errors.TargetInsideSource(f"{target} is inside {source}.")
        with self.parent(source) as (old_parent, old):
            mode = os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode
            try:
                with self.parent(target) as (new_parent, new):
                    if overwrite and stat.S_ISREG(mode):
                        _require_file_or_nothing(target, new_parent, new)
                        os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)
                    else:
                        _rename_exclusively(old_parent, old, new_parent, new)
                    os.fsync(new_parent)
                    os.fsync(old_parent)
            except OSError as error:
                raise file_error(target, error) from error

    @contextmanager
    def parent(self, path: str, *, make: bool = False, permissions: int | None = None) -> Generator[tuple[int, str]]:
        """Yield a descriptor of the parent directory of `path`, and the last name. Raises InvalidPath for the root."""
        names = file_names(path)
        if not names:
            raise errors.InvalidPath("The root of the store is not valid for this operation.")
        with self._walk(names[:-1], make=make, permissions=permissions) as directory:
            yield directory, names[-1]

    @contextmanager
    def directory(self, path: str, *, make: bool = False) -> Generator[int]:
        with self._walk(file_names(path), make=make) as directory:
            yield directory

    @contextmanager
    def _walk(self, names: tuple[str, ...], *, make: bool, permissions: int | None = None) -> Generator[int]:
        try:
            directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise errors.StorageUnavailable("The root of the store does not exist.") from error
        try:
            for depth, name in enumerate(names, start=1):
                try:
                    inner = enter(directory, name)
                except FileNotFoundError:
                    if not make:
                        raise
                    mode = self._directory_mode(names[:depth]) if permissions is None else permissions
                    with suppress(FileExistsError):
                        _make(directory, name, mode)
                    inner = enter(directory, name)
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def _handle(self, path: str) -> Generator[tuple[int, EntryKind]]:
        """Yield a handle, which keeps referring to the same entry even if it is renamed, and the kind of the entry."""
        with self.parent(path) as (parent, name):
            if not _HAS_HANDLES:
                kind = kind_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
                if kind is not EntryKind.DIRECTORY:
                    must_be_file(path, kind)
            handle = os.open(name, _HANDLE, dir_fd=parent)
        try:
            yield handle, kind_of(os.fstat(handle))
        finally:
            os.close(handle)


def enter(parent: int, name: str) -> int:
    """Open a directory relative to the open directory `parent`. Raises SymlinkNotFollowed."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise errors.SymlinkNotFollowed(
                    f"{path_name(name)} is a symbolic link; symbolic links are not followed."
                ) from error
        raise


def publish_file(path: str, directory: int, old: str, name: str, *, overwrite: bool) -> None:
    """Rename a finished file to its final name atomically, and flush the directory. Raises PathExists,
    SymlinkNotFollowed.
    """
    if overwrite:
        _require_file_or_nothing(path, directory, name)
        os.rename(old, name, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        _rename_exclusively(directory, old, directory, name)
    os.fsync(directory)


def require_replaceable(path: str, directory: int, name: str, *, overwrite: bool) -> None:
    """Raise the error that `publish_file` would raise for the current target, if any."""
    if overwrite:
        _require_file_or_nothing(path, directory, name)
    elif _exists(directory, name):
        raise errors.PathExists(f"{path} already exists.")


def _require_file_or_nothing(path: str, parent: int, name: str) -> None:
    """Raise an error if the entry exists and is not a file: SymlinkNotFollowed for a link, otherwise PathExists."""
    with suppress(FileNotFoundError):
        kind = kind_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
        if kind is EntryKind.LINK:
            raise errors.SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
        if kind is not EntryKind.FILE:
            raise errors.PathExists(f"{path} exists and is not a file.")


def _make(parent: int, name: str, mode: int) -> None:
    os.mkdir(name, _PRIVATE, dir_fd=parent)
    if mode != _PRIVATE:
        # Set the mode explicitly, because mkdir(2) applies the umask of the process.
        made = enter(parent, name)
        try:
            os.fchmod(made, mode)
        finally:
            os.close(made)
    os.fsync(parent)


def must_be_file(path: str, kind: EntryKind) -> None:
    if kind is EntryKind.LINK:
        raise errors.SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
    if kind is not EntryKind.FILE:
        raise errors.NotAFile(f"{path} is not a file.")


def _handle_path(handle: int) -> str:
    """Return a path by which the operating system reaches the entry of this handle."""
    return f"/proc/self/fd/{handle}"


def listing(
    tree: LocalTree, path: str, shows: Callable[[str], bool], cursor: str | None, size: int
) -> Generator[Batch]:
    """Yield the entries of a directory in the order of the file system, at most `size` per batch.

    Omits reserved names and paths for which `shows` returns False. A cursor consists of the last name returned and the
    number of names up to it. To resume, the directory is listed again and the names up to that name are skipped. If the
    entry no longer exists, that number of names is skipped. This relies on the fact that most file systems keep the
    order of entries when others are created or deleted.
    """
    prefix = f"{path}/" if path else ""
    with tree.directory(path) as directory:

        @contextmanager
        def opened() -> Generator[Iterator[str]]:
            with os.scandir(directory) as found:
                names = (path_name(entry.name) for entry in found)
                yield (name for name in names if name is not None and shows(prefix + name))

        count = 0
        if cursor:
            passed, _, last = cursor.partition("/")
            with opened() as names:
                positions = (position for position, name in enumerate(names, start=1) if name == last)
                count = next(positions, int(passed) - 1)
        with opened() as names:
            ahead = next(islice(names, count, None), None)
            while True:
                batch = [] if ahead is None else [ahead, *islice(names, max(size, 1) - 1)]
                count += len(batch)
                ahead = next(names, None)
                entries: list[FileStatus] = []
                for name in batch:
                    with suppress(FileNotFoundError):  # deleted in the meantime
                        found = os.stat(file_name(name), dir_fd=directory, follow_symlinks=False)
                        entries.append(status_of(prefix + name, found))
                yield Batch(tuple(entries), None if ahead is None else f"{count}/{batch[-1]}")
                if ahead is None:
                    return
