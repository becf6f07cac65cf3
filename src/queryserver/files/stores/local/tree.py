"""A directory tree that no path and no link leads out of.

Everything here blocks, and raises OSError beside domain errors: it is called in threads, which make `file_error` of it.
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
from queryserver.files.escapes import escaped, is_escaped, is_escaped_file, raw_name
from queryserver.files.model import MAX_NAME_BYTES, RESERVED_PREFIX, EntryKind, FileStatus, names_of
from queryserver.files.protocol import Batch
from queryserver.platform.disk_floor import NO_FLOOR, DiskFloor

_KINDS: dict[int, tuple[type[errors.QueryServerError], str]] = {
    errno.ENOENT: (errors.PathNotFound, "{path} does not exist."),
    errno.ENOTDIR: (errors.NotADirectory, "{path} is not a directory, or leads through a file."),
    errno.EEXIST: (errors.PathExists, "{path} exists."),
    errno.EISDIR: (errors.PathExists, "{path} is a directory."),
    errno.ENOTEMPTY: (errors.DirectoryNotEmpty, "{path} is not empty."),
    errno.ELOOP: (errors.SymlinkNotFollowed, "{path} leads through a symbolic link, which is not followed."),
    errno.EINVAL: (errors.InvalidPath, "{path} cannot be used for this."),
    errno.ENAMETOOLONG: (errors.InvalidPath, "{path} is too long."),
    errno.EILSEQ: (errors.InvalidPath, "The store cannot hold a name like {path}."),
    errno.ENOSPC: (errors.StorageError, "The store has no room left."),
    errno.EDQUOT: (errors.StoreQuotaExceeded, "The quota of the store is used up."),
    errno.EFBIG: (errors.StorageError, "The file is larger than the store allows."),
    errno.EIO: (errors.StorageUnavailable, "The device of the store fails."),
    errno.ENODEV: (errors.StorageUnavailable, "The device of the store is gone."),
    errno.ENXIO: (errors.StorageUnavailable, "The device of the store is gone."),
    errno.ESTALE: (errors.StorageUnavailable, "The file server has lost the file."),
    errno.ETIMEDOUT: (errors.StorageUnavailable, "The file server does not answer."),
    errno.EMFILE: (errors.StorageUnavailable, "Too many files are open."),
    errno.ENFILE: (errors.StorageUnavailable, "Too many files are open."),
    errno.EROFS: (errors.StorageUnavailable, "The store is read-only."),
    errno.EACCES: (errors.PermissionDenied, "The store refuses access to {path}."),
    errno.EPERM: (errors.PermissionDenied, "The store refuses access to {path}."),
    errno.EXDEV: (errors.StorageError, "{path} lies on another device, so that it cannot be renamed to there."),
}


def file_error(path: str, error: OSError) -> errors.QueryServerError:
    """The domain error about `path`, which is relative to the root."""
    kind, text = _KINDS.get(error.errno or 0, (errors.StorageError, "The store failed with {path}."))
    return kind(text.format(path=path or "The root of the store"))


_STATUS_KINDS = {stat.S_IFREG: EntryKind.FILE, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.LINK}


def shown_name(name: str) -> str | None:
    """The name by which paths hold an entry of the file system: escaped when it is not UTF-8. None: one of our own."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return escaped(os.fsencode(name))
    return None if name.startswith(RESERVED_PREFIX) else name


def file_name(name: str) -> str:
    """The name in the file system. Raises InvalidPath: an escape of what is UTF-8, or is no name."""
    if not is_escaped(name):
        return name
    raw = raw_name(name)
    try:
        raw.decode()
    except UnicodeDecodeError:
        if not is_escaped_file(name) and b"/" not in raw and b"\0" not in raw and len(raw) <= MAX_NAME_BYTES:
            return os.fsdecode(raw)
    raise errors.InvalidPath(f"{name} stands for no name of this store.")


def file_names(path: str) -> tuple[str, ...]:
    """The names of a path in the file system. Raises InvalidPath."""
    return tuple(map(file_name, names_of(path, escapes=True)))


def status_of(path: str, found: os.stat_result) -> FileStatus:
    """The entry at `path`. Blocks: the names of owners may come from a directory service."""
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
    """Devices, pipes and sockets are unknown: they are never opened."""
    return _STATUS_KINDS.get(stat.S_IFMT(found.st_mode), EntryKind.UNKNOWN)


def _moment(since_epoch_ns: int) -> datetime | None:
    """None for a time that no calendar reaches: some file systems keep any number."""
    try:
        # A float of seconds would round differently than the microseconds that are kept.
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
# Errors without the call (libc below 2.28, another system), and from file systems without the flag.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def _rename_exclusively(old_parent: int, old: str, new_parent: int, new: str) -> None:
    """Rename an entry; FileExistsError when there is anything of the new name."""
    if _renamed_at_once(old_parent, old, new_parent, new):
        return
    if not stat.S_ISDIR(os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode):
        # rename(2) would replace a file that appears meanwhile; link(2) cannot.
        os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)
        os.unlink(old, dir_fd=old_parent)
        return
    if _is_there(new_parent, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    # The target may appear meanwhile: an empty directory is then replaced, anything else refused.
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


def _is_there(parent: int, name: str) -> bool:
    """Whether there is anything of that name, also a dangling link."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Where the system has it, a handle that touches nothing: opening a device can have effects, opening a pipe can hang.
_HANDLE = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW
_HAS_HANDLES = hasattr(os, "O_PATH")
_PRIVATE = 0o700


class LocalTree:
    """The tree below `root`. `directory_mode` gives the mode of a new directory: 0700 without it.

    A path is walked name by name, each opened relative to its open parent and never through a link. So a directory
    that turns into a link between the check and the use leads nowhere (Contract security T1, storage 10.5).
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
        """Raises InsufficientStorage when the disk would fall below its floor with so many bytes more."""

    def stat(self, path: str) -> FileStatus:
        names = file_names(path)
        with self._walk(names[:-1], make=False) as directory:
            found = os.stat(names[-1], dir_fd=directory, follow_symlinks=False) if names else os.fstat(directory)
            return status_of(path, found)

    def open_file(self, path: str) -> int:
        """A descriptor for reading a plain file. Raises NotAFile, SymlinkNotFollowed."""
        with self._handle(path) as (handle, kind):
            must_be_file(path, kind)
            return os.open(_behind(handle), os.O_RDONLY) if _HAS_HANDLES else os.dup(handle)

    def open_parent(self, path: str, *, make: bool = True) -> tuple[int, str]:
        """A descriptor of the directory of `path`, which is made when missing, and the last name."""
        with self.parent(path, make=make) as (parent, name):
            return os.dup(parent), name

    def make_directory(self, path: str, permissions: int | None) -> None:
        """Make one new directory and its missing parents, durably; all with `permissions` if given."""
        names = file_names(path)
        if not names:
            raise errors.PathExists("The root of the store exists.")
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
            # fchmod(2) refuses such handles, and fchmodat(2) follows links.
            os.chmod(_behind(handle) if _HAS_HANDLES else handle, permissions)  # noqa: PTH101 or a descriptor

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename durably. Only a file replaces a file, only with `overwrite`, and in one step."""
        if target.startswith(f"{source}/"):
            raise errors.TargetInsideSource(f"{target} lies inside {source}.")
        with self.parent(source) as (old_parent, old):
            mode = os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode
            try:
                with self.parent(target) as (new_parent, new):
                    if overwrite and stat.S_ISREG(mode):
                        _refuse_all_but_file(target, new_parent, new)
                        os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)
                    else:
                        _rename_exclusively(old_parent, old, new_parent, new)
                    os.fsync(new_parent)
                    os.fsync(old_parent)
            except OSError as error:
                raise file_error(target, error) from error

    @contextmanager
    def parent(self, path: str, *, make: bool = False, permissions: int | None = None) -> Generator[tuple[int, str]]:
        """The open directory that holds `path`, and the last name. The root has none: InvalidPath."""
        names = file_names(path)
        if not names:
            raise errors.InvalidPath("The root of the store cannot be used for this.")
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
            raise errors.StorageUnavailable("The root of the store is gone.") from error
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
        """A handle that stays the same entry, whatever becomes of its name, and the kind of the entry."""
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
    """A descriptor of a directory in an open one. Raises SymlinkNotFollowed."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise errors.SymlinkNotFollowed(
                    f"{shown_name(name)} is a symbolic link, which is not followed."
                ) from error
        raise


def take_name(path: str, directory: int, old: str, name: str, *, overwrite: bool) -> None:
    """Give a finished file its name, durably and in one step."""
    if overwrite:
        _refuse_all_but_file(path, directory, name)
        os.rename(old, name, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        _rename_exclusively(directory, old, directory, name)
    os.fsync(directory)


def refuse_taken(path: str, directory: int, name: str, *, overwrite: bool) -> None:
    """Raises as `take_name` would now."""
    if overwrite:
        _refuse_all_but_file(path, directory, name)
    elif _is_there(directory, name):
        raise errors.PathExists(f"{path} exists.")


def _refuse_all_but_file(path: str, parent: int, name: str) -> None:
    """Raises PathExists for what a file must not replace, SymlinkNotFollowed for a link."""
    with suppress(FileNotFoundError):
        kind = kind_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
        if kind is EntryKind.LINK:
            raise errors.SymlinkNotFollowed(f"{path} is a symbolic link, which is not followed.")
        if kind is not EntryKind.FILE:
            raise errors.PathExists(f"{path} exists and is not a file.")


def _make(parent: int, name: str, mode: int) -> None:
    os.mkdir(name, _PRIVATE, dir_fd=parent)
    if mode != _PRIVATE:
        # mkdir(2) would take the umask of the process from it.
        made = enter(parent, name)
        try:
            os.fchmod(made, mode)
        finally:
            os.close(made)
    os.fsync(parent)


def must_be_file(path: str, kind: EntryKind) -> None:
    if kind is EntryKind.LINK:
        raise errors.SymlinkNotFollowed(f"{path} is a symbolic link, which is not followed.")
    if kind is not EntryKind.FILE:
        raise errors.NotAFile(f"{path} is not a file.")


def _behind(handle: int) -> str:
    """A path to exactly the entry of a handle."""
    return f"/proc/self/fd/{handle}"


def listing(
    tree: LocalTree, path: str, shows: Callable[[str], bool], cursor: str | None, size: int
) -> Generator[Batch]:
    """The entries of a directory, at most `size` in a batch, in the order that the file system gives them.

    Left out are our own names, and paths that `shows` is false for. A cursor is the number of
    names before it and the last of them: a listing from a cursor starts again and skips these. Most file systems keep
    their order when other entries come and go; if the named one is gone, the number counts.
    """
    prefix = f"{path}/" if path else ""
    with tree.directory(path) as directory:

        @contextmanager
        def opened() -> Generator[Iterator[str]]:
            with os.scandir(directory) as found:
                shown = (shown_name(entry.name) for entry in found)
                yield (name for name in shown if name is not None and shows(prefix + name))

        count = 0
        if cursor:
            passed, _, last = cursor.partition("/")
            with opened() as names:
                places = (place for place, name in enumerate(names, start=1) if name == last)
                count = next(places, int(passed) - 1)
        with opened() as names:
            ahead = next(islice(names, count, None), None)
            while True:
                batch = [] if ahead is None else [ahead, *islice(names, max(size, 1) - 1)]
                count += len(batch)
                ahead = next(names, None)
                entries: list[FileStatus] = []
                for name in batch:
                    with suppress(FileNotFoundError):  # it is gone meanwhile
                        found = os.stat(file_name(name), dir_fd=directory, follow_symlinks=False)
                        entries.append(status_of(prefix + name, found))
                yield Batch(tuple(entries), None if ahead is None else f"{count}/{batch[-1]}")
                if ahead is None:
                    return
