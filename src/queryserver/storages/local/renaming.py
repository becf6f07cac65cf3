"""Renames that never replace anything. Everything here blocks: it is called in threads."""

import ctypes
import errno
import os
import stat

_NO_REPLACE = 1  # linux/fs.h: RENAME_NOREPLACE
# Without the call (libc below 2.28, another system), and from file systems without the flag.
_NOT_THERE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def rename_exclusively(old_parent: int, old: str, new_parent: int, new: str) -> None:
    """Rename an entry; FileExistsError when there is anything of the new name."""
    if not _renamed_at_once(old_parent, old, new_parent, new):
        _rename_in_steps(old_parent, old, new_parent, new)


def _renamed_at_once(old_parent: int, old: str, new_parent: int, new: str) -> bool:
    """Whether the system has such a call, and it went well."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(old_parent, os.fsencode(old), new_parent, os.fsencode(new), ctypes.c_uint(_NO_REPLACE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number))


def _rename_in_steps(old_parent: int, old: str, new_parent: int, new: str) -> None:
    if not stat.S_ISDIR(os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode):
        # rename(2) would replace a file that appears meanwhile; link(2) cannot.
        os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)
        os.unlink(old, dir_fd=old_parent)
        return
    if is_there(new_parent, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    # Somebody may make the target meanwhile: an empty directory is then replaced, anything else refused.
    os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)


def is_there(parent: int, name: str) -> bool:
    """Whether there is anything of that name, be it a link to nothing."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
