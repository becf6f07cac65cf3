"""Attributes of files as people read them (Contract storage 4)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from urllib.parse import quote

from queryserver.domain.files import StoragePath

STICKY = 0o1000

# What stays as it is in links, beside letters, digits and `_.-~`.
_PLAIN = "@$&()*!+=;,'"
_TYPE_LETTERS = {0o040000: "d", 0o100000: "-", 0o120000: "l"}
_UNITS = ("KB", "MB", "GB", "TB", "PB")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def mode_text(mode: int) -> str:
    """A mode with type bits in octal digits, such as `40777`."""
    return f"{mode:o}"


def rwx(mode: int, *, has_acl: bool = False) -> str:
    """A mode with type bits as `drwxr-xr-x`; a tenth letter `t` when sticky, then `+` when there is an ACL."""
    letters = "".join(letter if mode & (0o400 >> bit) else "-" for bit, letter in enumerate("rwx" * 3))
    kind = _TYPE_LETTERS.get(mode & 0o170000, "?")
    return f"{kind}{letters}{'t' if mode & STICKY else ''}{'+' if has_acl else ''}"


def human_size(size_bytes: int) -> str:
    """A size to base 1024 with one decimal, such as `5.9 MB` with a no-break space; below 1024 as `12 bytes`."""
    if size_bytes < 1024:
        return f"{size_bytes}\u00a0{'byte' if size_bytes == 1 else 'bytes'}"
    size = size_bytes / 1024
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.1f}\u00a0{unit}"
        size /= 1024
    return f"{size:.1f}\u00a0{_UNITS[-1]}"


def epoch_seconds(time: datetime | None) -> int | None:
    """Whole seconds since 1970, rounded down."""
    return None if time is None else (time - _EPOCH) // timedelta(seconds=1)


def time_text(seconds: int | None, zone: tzinfo) -> str:
    """A time of `epoch_seconds` as `October 31, 2016 03:34 PM`, in English whatever the locale; empty for None and 0.

    Empty also for a time that no calendar reaches.
    """
    if not seconds:
        return ""
    try:
        time = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    except OverflowError:
        return ""
    date = f"{_MONTHS[time.month - 1]} {time.day:02}, {time.year:04}"
    return f"{date} {time.hour % 12 or 12:02}:{time.minute:02} {'AM' if time.hour < 12 else 'PM'}"


def url_part(path: str) -> str:
    """A path as it stands in links: `/`, `:`, `?`, `#`, `%` and blanks are encoded too."""
    return quote(path, safe=_PLAIN)


def breadcrumbs(path: StoragePath) -> Iterator[tuple[str, str]]:
    """Path and label of each step of the way: the root first."""
    root = StoragePath(path.scheme, "")
    yield str(root), path.root_label
    step = root
    for name in path.names:
        step = step.child(name)
        yield str(step), name
