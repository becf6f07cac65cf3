"""What Azure's answers say about entries. Times are RFC 1123, entity tags are quoted or not."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from queryserver.domain.files import EntryKind, FileStatus

ALL_MAY_ENTER = 0o777
ALL_MAY_WRITE = 0o666
"""Modes where the account has no permissions of its own (Contract storage 4)."""

_STICKY = 0o1000
_BITS = (0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001)


def directory(path: str, modified_at: datetime | None = None) -> FileStatus:
    """A container, or a folder of a flat account."""
    return FileStatus(path, EntryKind.DIRECTORY, 0, modified_at, permissions=ALL_MAY_ENTER)


def blob(path: str, size_bytes: int, modified_at: datetime | None, etag: str) -> FileStatus:
    """A file of a flat account."""
    return FileStatus(path, EntryKind.FILE, size_bytes, modified_at, permissions=ALL_MAY_WRITE, tag=tag(etag))


def hierarchical(path: str, *, is_directory: bool, size_bytes: int, facts: Mapping[str, str]) -> FileStatus:
    """An entry of a hierarchical account; `facts`: last-modified, etag, owner, group, permissions."""
    permissions, has_acl = permission_bits(facts.get("permissions", ""))
    return FileStatus(
        path,
        EntryKind.DIRECTORY if is_directory else EntryKind.FILE,
        0 if is_directory else size_bytes,
        time(facts.get("last-modified", "")),
        permissions=permissions,
        owner=facts.get("owner", ""),
        group=facts.get("group", ""),
        has_acl=has_acl,
        tag="" if is_directory else tag(facts.get("etag", "")),
    )


def permission_bits(text: str) -> tuple[int, bool]:
    """`rwxr-x--t+` as bits, and whether there is an access control list; other texts are no rights."""
    if len(text) < len(_BITS):
        return 0, False
    bits = sum(bit for bit, letter in zip(_BITS, text, strict=False) if letter in "rwxt")
    return bits | (_STICKY if text[8] in "tT" else 0), text.endswith("+")


def time(text: str) -> datetime | None:
    """In UTC; None when it is no time."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except ValueError:
        return None


def tag(etag: str) -> str:
    """Without quotes."""
    return etag.removeprefix("W/").strip('"')
