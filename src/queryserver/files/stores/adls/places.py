"""Paths as containers and what lies in them."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from queryserver.errors.files import InvalidPath, PathNotFound
from queryserver.files.model import EntryKind, FileStatus
from queryserver.files.paths import RESERVED_PREFIX, names_of

_CONTAINER = re.compile(r"\$root|\$web|\$logs|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_STAGING = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """A container (`names` has one name) or something inside one. Never the root."""

    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """Relative to the root of the store."""
        return "/".join(self.names)

    @property
    def container(self) -> str:
        return self.names[0]

    @property
    def key(self) -> str:
        """Within the container; empty for the container itself."""
        return "/".join(self.names[1:])

    @property
    def is_container(self) -> bool:
        return len(self.names) == 1

    @property
    def parent(self) -> "AzurePlace":
        """What holds it; a container has none that is a place."""
        return AzurePlace(self.names[:-1])

    def child(self, name: str) -> "AzurePlace":
        """An entry of it; names of our own are allowed."""
        return AzurePlace((*self.names, name))

    def beside(self, name: str) -> "AzurePlace":
        """Another entry of the same directory."""
        return self.parent.child(name)


def place_of(path: str) -> AzurePlace | None:
    """None for the root. Raises InvalidPath, PathNotFound: no container has such a name."""
    names = names_of(path)
    if not names:
        return None
    if not _CONTAINER.fullmatch(names[0]):
        raise PathNotFound(f"abfs://{path} does not exist.")
    return AzurePlace(names)


def file_place(path: str) -> AzurePlace:
    """Where a file may lie. Raises InvalidPath, PathNotFound: it is the root or directly below it."""
    place = place_of(path)
    if place is None or place.is_container:
        raise InvalidPath("Files lie in containers.")
    return place


def is_container_name(name: str) -> bool:
    """Whether the account takes it for a new container; those with `$` are its own."""
    return _CONTAINER.fullmatch(name) is not None and not name.startswith("$")


def unfinished(place: AzurePlace, token: str | None = None) -> AzurePlace:
    """Where the bytes of a file gather until it is complete. Raises InvalidPath: the token is none of ours."""
    token = secrets.token_hex(16) if token is None else token
    if not _STAGING.fullmatch(token):
        raise InvalidPath("There is no such staging place.")
    return place.beside(f"{RESERVED_PREFIX}upload_{token}")


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
