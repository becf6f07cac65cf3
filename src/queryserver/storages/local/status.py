"""What the operating system says about a file, as a FileStatus."""

import grp
import os
import pwd
import stat
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from queryserver.domain.files import EntryKind, FileStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PERMISSIONS = 0o1777
_KINDS = {stat.S_IFREG: EntryKind.FILE, stat.S_IFDIR: EntryKind.DIRECTORY, stat.S_IFLNK: EntryKind.LINK}


def status_of(path: str, found: os.stat_result) -> FileStatus:
    """The entry at `path`. Blocks: the names of owners may come from a directory service."""
    kind = kind_of(found)
    return FileStatus(
        path,
        kind,
        found.st_size if kind is EntryKind.FILE else 0,
        _moment(found.st_mtime_ns),
        permissions=found.st_mode & _PERMISSIONS,
        accessed_at=_moment(found.st_atime_ns),
        owner=_user_name(found.st_uid),
        group=_group_name(found.st_gid),
        file_id=f"{found.st_dev:x}-{found.st_ino:x}",
    )


def kind_of(found: os.stat_result) -> EntryKind:
    """Devices, pipes and sockets are unknown: they are never opened."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), EntryKind.UNKNOWN)


def _moment(since_epoch_ns: int) -> datetime | None:
    """None for a time that no calendar reaches: some file systems keep any number."""
    try:
        # A float of seconds would round differently than the microseconds that are kept.
        return _EPOCH + timedelta(microseconds=since_epoch_ns // 1000)
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
