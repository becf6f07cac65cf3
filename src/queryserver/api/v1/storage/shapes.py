"""Formats store entries for responses: modes, sizes, times, links (Contract storage 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self
from urllib.parse import quote, urlsplit
from zoneinfo import ZoneInfo

from queryserver.api.schemas import generated as wire
from queryserver.files.model import ROOTS, EntryKind, FileStatus, Scheme, StoragePath
from queryserver.platform.settings.tree import Settings

_STICKY = 0o1000

# Characters that are not percent-encoded in links, in addition to letters, digits and `_.-~`.
_PLAIN = "@$&()*!+=;,'"
_TYPES = {
    EntryKind.DIRECTORY: (0o040000, "d"),
    EntryKind.FILE: (0o100000, "-"),
    EntryKind.LINK: (0o120000, "l"),
    EntryKind.UNKNOWN: (0, "?"),
}
_UNITS = ("KB", "MB", "GB", "TB", "PB")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EntryShapes:
    """Formats the entries of one store. `managed` are HDFS directories that another service manages."""

    root: str
    """Prefix of all paths in the store."""
    zone: tzinfo
    url_prefix: str
    managed: Sequence[StoragePath]

    @classmethod
    def of(cls, settings: Settings, scheme: Scheme) -> Self:
        """Create the formatter from the settings. Managed prefixes may be URLs that include the file system name."""
        browser = settings.filebrowser
        prefixes = browser.managed_prefixes if scheme is Scheme.HDFS else ()
        managed = [StoragePath(Scheme.HDFS, urlsplit(prefix).path.strip("/")) for prefix in prefixes]
        return cls(ROOTS[scheme], ZoneInfo(settings.desktop.time_zone), browser.browser_url_prefix, managed)

    def url(self, path: str) -> str:
        """Return the link to a normalized path. Even `/` and `:` are percent-encoded."""
        return self.url_prefix + quote(path, safe=_PLAIN)

    def is_managed(self, path: StoragePath) -> bool:
        return any(map(path.is_inside, self.managed))

    def entry(self, status: FileStatus, *, name: str | None = None) -> dict[str, object]:
        """Return the content of a `FileEntry` as a dict, because validating many entries would be slow."""
        stats = self._stats(status, name)
        path = f"{self.root}{status.path}"
        return {
            "path": path,
            "name": stats["name"],
            "stats": stats,
            "mtime": time_text(epoch_seconds(status.modified_at), self.zone),
            "humansize": human_size(0 if status.kind is EntryKind.DIRECTORY else status.size_bytes),
            "type": status.kind.value,
            "rwx": rwx(status),
            "mode": f"{mode_of(status):o}",
            "url": self.url(path),
            "is_sentry_managed": bool(self.managed) and self.is_managed(StoragePath(Scheme.HDFS, status.path)),
        }

    def flat(self, status: FileStatus) -> dict[str, object]:
        """Return the content of a `FlatFileEntry` as a dict."""
        return {**self._stats(status, None), "type": status.kind.value, "rwx": rwx(status)}

    def _stats(self, status: FileStatus, name: str | None) -> dict[str, object]:
        return {
            "path": f"{self.root}{status.path}",
            "name": status.path.rpartition("/")[2] if name is None else name,
            "size": 0 if status.kind is EntryKind.DIRECTORY else status.size_bytes,
            "atime": epoch_seconds(status.accessed_at),
            "mtime": epoch_seconds(status.modified_at),
            "mode": mode_of(status),
            "user": status.owner,
            "group": status.group,
            "aclBit": status.has_acl,
            "blockSize": status.block_size,
            "replication": status.replication,
        }


def mode_of(status: FileStatus) -> int:
    """Return the permissions including the file type bits."""
    return _TYPES[status.kind][0] | status.permissions


def rwx(status: FileStatus) -> str:
    """Return the mode as `drwxr-xr-x`, followed by `t` if the sticky bit is set and by `+` if there is an ACL."""
    bits = status.permissions
    letters = "".join([letter if bits & (0o400 >> bit) else "-" for bit, letter in enumerate("rwx" * 3)])
    return f"{_TYPES[status.kind][1]}{letters}{'t' if bits & _STICKY else ''}{'+' if status.has_acl else ''}"


def human_size(size_bytes: int) -> str:
    """Format a size in multiples of 1024, such as `12 bytes` or `5.9 MB`, with a no-break space."""
    if size_bytes < 1024:
        return f"{size_bytes}\u00a0{'byte' if size_bytes == 1 else 'bytes'}"
    size = size_bytes / 1024
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.1f}\u00a0{unit}"
        size /= 1024
    return f"{size:.1f}\u00a0{_UNITS[-1]}"


def epoch_seconds(time: datetime | None) -> int | None:
    """Return Unix time in seconds, rounded down."""
    return None if time is None else (time - _EPOCH) // timedelta(seconds=1)


def time_text(seconds: int | None, zone: tzinfo) -> str:
    """Format a Unix time as `October 31, 2016 03:34 PM`, in English; empty for None, 0 and times out of range."""
    if not seconds:
        return ""
    try:
        time = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    except OverflowError:
        return ""
    date = f"{_MONTHS[time.month - 1]} {time.day:02}, {time.year:04}"
    return f"{date} {time.hour % 12 or 12:02}:{time.minute:02} {'AM' if time.hour < 12 else 'PM'}"


def breadcrumbs(path: StoragePath) -> list[wire.Breadcrumb]:
    """Return the path and label of the root and of each component down to `path`."""
    root, names = ROOTS[path.scheme], path.names
    steps = [(root + "/".join(names[:number]), name) for number, name in enumerate(names, start=1)]
    return [wire.Breadcrumb(url=url, label=label) for url, label in [(root, root), *steps]]
