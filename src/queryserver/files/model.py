"""Store-independent types: paths, entries, names, escaped names and transfers. Sizes are in bytes."""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import unquote_to_bytes
from uuid import UUID

from queryserver import errors
from queryserver.engines.external_data import STORE_SCHEMES


class Scheme(StrEnum):
    """Store schemes, in the order in which stores are listed (Contract storage 5.1)."""

    HDFS = "hdfs"
    S3A = "s3a"
    ABFS = "abfs"
    OFS = "ofs"
    FILE = "file"


ROOTS: Mapping[Scheme, str] = {
    Scheme.HDFS: "/",
    Scheme.S3A: "s3a://",
    Scheme.ABFS: "abfs://",
    Scheme.OFS: "ofs://",
    Scheme.FILE: "file:///",
}
"""The prefix of each scheme's paths in responses."""


@dataclass(frozen=True, slots=True, order=True)
class StoragePath:
    """A path relative to a store's root, with `/` between names; empty for the root itself.

    `str()` returns the normal form that all responses use (Contract storage 2.2).
    """

    scheme: Scheme
    path: str

    def __str__(self) -> str:
        return ROOTS[self.scheme] + self.path

    @property
    def is_root(self) -> bool:
        return not self.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")) if self.path else ()

    @property
    def parent(self) -> Self:
        """The parent directory. The root is its own parent."""
        return type(self)(self.scheme, self.path.rpartition("/")[0])

    def child(self, name: str) -> Self:
        """Return the path of an entry in this directory. `name` may also be a relative path of several names."""
        return type(self)(self.scheme, f"{self.path}/{name}" if self.path else name)

    def is_inside(self, other: "StoragePath") -> bool:
        """Return whether this path is strictly below `other`, compared name by name: `/a/bc` is not below `/a/b`."""
        if self.scheme is not other.scheme or self.path == other.path:
            return False
        return other.is_root or self.path.startswith(f"{other.path}/")


class EntryKind(StrEnum):
    DIRECTORY = "dir"
    FILE = "file"
    LINK = "link"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The attributes of one store entry. `path` is relative to the store's root, with `/` between names.

    Directories have size 0. Strings are empty and numbers are 0 if the store does not provide them (Contract storage
    4).
    """

    path: str
    kind: EntryKind
    size_bytes: int
    modified_at: datetime | None
    """None if the store does not record the time, for example for key prefixes in object stores."""
    permissions: int = 0
    """The nine permission bits and the sticky bit, without type bits."""
    accessed_at: datetime | None = None
    owner: str = ""
    group: str = ""
    has_acl: bool = False
    block_size: int = 0
    replication: int = 0
    tag: str = ""
    """The store's strong entity tag for the content, without quotes; empty if it has none."""
    file_id: str = ""
    """An id that stays the same if the file is modified in place and changes if it is replaced; empty if unknown."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        return self.kind is EntryKind.DIRECTORY

    @property
    def is_file(self) -> bool:
        return self.kind is EntryKind.FILE

    def is_same_content(self, other: "FileStatus") -> bool:
        """Return whether kind, size, modification time, tag and file id are all equal."""
        fields = (self.kind, self.size_bytes, self.modified_at, self.tag, self.file_id)
        return fields == (other.kind, other.size_bytes, other.modified_at, other.tag, other.file_id)


@dataclass(frozen=True, slots=True)
class ContentSummary:
    """Entry counts and sizes of a tree (Contract storage 5.6). A quota of -1 means no quota; `replication` is 0 for
    directories.
    """

    directory_count: int
    file_count: int
    length_bytes: int
    space_consumed_bytes: int
    quota: int = -1
    space_quota_bytes: int = -1
    replication: int = 0
    extra_fields: Mapping[str, Any] | None = None
    """Additional JSON keys from the store, passed on unchanged."""


@dataclass(frozen=True, slots=True)
class StorageUser:
    """The user whose permissions apply in a store. Stores with their own users run calls as `name`; the local root
    applies its access rules to `name`.
    """

    name: str
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What an HDFS cluster reports about itself and the caller (Contract storage 5.1)."""

    is_trash_enabled: bool
    is_superuser: bool
    superuser: str
    supergroup: str


class TransferKind(StrEnum):
    RENAME = "rename"
    MOVE = "move"
    COPY = "copy"


class TransferState(StrEnum):
    """The state of a transfer. Source files are deleted only in state `deleting`."""

    COPYING = "copying"
    VERIFIED = "verified"
    DELETING = "deleting"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


class KeyState(StrEnum):
    LISTED = "listed"
    STARTED = "started"
    COPIED = "copied"
    DELETED = "deleted"
    SKIPPED = "skipped"
    """Not copied: a link, a file above the store's size limit, or an entry whose target already existed."""


class TransferClaim(NamedTuple):
    """The exclusive right to update a transfer. A later claim increments `fence` and thereby invalidates this one."""

    transfer_id: UUID
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """A move or copy, identified by user, kind, source and target."""

    user_id: int
    acting: StorageUser
    kind: TransferKind
    source: StoragePath
    target: StoragePath
    overwrite: bool = False
    """Whether the target is an existing file to be replaced. A rollback then does not remove the target."""
    operation_id: UUID | None = None
    """The long operation that reports the transfer's outcome."""

    @property
    def keeps_source(self) -> bool:
        return self.kind is TransferKind.COPY

    @property
    def digest(self) -> bytes:
        return transfer_digest(self.user_id, self.kind, self.source, self.target)


def transfer_digest(user_id: int, kind: TransferKind, source: StoragePath, target: StoragePath) -> bytes:
    """Return the SHA-256 digest that identifies a transfer. Requests with equal digests denote the same transfer."""
    return hashlib.sha256("\0".join((str(user_id), kind, str(source), str(target))).encode()).digest()


@dataclass(frozen=True, slots=True)
class ClaimedTransfer:
    claim: TransferClaim
    transfer: Transfer
    state: TransferState
    started_at: datetime


@dataclass(frozen=True, slots=True)
class TransferKey:
    """One source entry of a transfer, as listed. The path of `entry` is relative to the source; it is empty for the
    source itself.

    Only the entry's kind, size, modification time, permissions, tag and file id are stored.
    """

    number: int
    """Parents have lower numbers than their children."""
    entry: FileStatus
    state: KeyState = KeyState.LISTED
    copy_version: str = ""
    """Identifies the content of the copy; empty if it is unknown."""


class LongOperationState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LongOperationStatus:
    """The status of a long operation. `result` is the final response body; None while the operation is running."""

    operation_id: UUID
    state: LongOperationState
    done: int
    total: int | None
    result: Mapping[str, Any] | str | None


RESERVED_PREFIX = "._qs_"
"""Name prefix of internal files such as unfinished uploads, which clients cannot use and listings omit."""

# Escaped names stand for entries whose real names cannot occur in a path (Contract storage 2.2.8): `._qs_name_`
# followed by the name's bytes in hexadecimal, or `._qs_file_` followed by these bytes for an object in a flat-key store
# whose path is also a directory. No client can create such an entry, because the prefix is reserved.
_NAME, _FILE = f"{RESERVED_PREFIX}name_", f"{RESERVED_PREFIX}file_"
_ESCAPED = re.compile(rf"(?:{re.escape(_NAME)}|{re.escape(_FILE)})(?:[0-9a-f]{{2}})*")


_STAGED_FOLDER = re.compile(re.escape(RESERVED_PREFIX) + "folder_[0-9a-f]{32}")


def staged_folder_name() -> str:
    """Return a new reserved name, under which a folder is filled before it gets its final name."""
    return f"{RESERVED_PREFIX}folder_{secrets.token_hex(16)}"


def is_staged_folder(name: str) -> bool:
    return _STAGED_FOLDER.fullmatch(name) is not None


class Escapes(StrEnum):
    """Which names of a store must be escaped in paths."""

    NONE = "none"
    KEYS = "keys"
    """Flat keys: segments that are empty, `.`, `..`, too long or contain U+0000, and files next to a directory of the
    same name.
    """
    DOTLESS_KEYS = "dotless_keys"
    """Like KEYS, but entries named `.` or `..` are only listed and cannot be accessed."""
    BYTES = "bytes"
    """Names that are not UTF-8."""


def escaped_name(raw: bytes) -> str:
    """Return the escaped name that denotes an entry called `raw` in paths."""
    return _NAME + raw.hex()


def escaped_file_name(raw: bytes) -> str:
    """Return the escaped name that denotes the object `raw` in paths if a directory has the same name."""
    return _FILE + raw.hex()


def is_escaped(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and _ESCAPED.fullmatch(name) is not None


def is_escaped_file(name: str) -> bool:
    return name.startswith(_FILE) and is_escaped(name)


def raw_name(name: str) -> bytes:
    """Return the real name, as bytes, that an escaped name stands for."""
    return bytes.fromhex(name.removeprefix(_NAME).removeprefix(_FILE))


def ambiguous_name_error(path: str) -> errors.AmbiguousName:
    """Return the error for a change to a path that is both a file and a directory. `path` is in normal form."""
    parent, _, name = path.rpartition("/")
    alone = escaped_file_name(raw_name(name) if is_escaped(name) else name.encode())
    return errors.AmbiguousName(f"{path} is both a file and a directory; the path of the file is {parent}/{alone}.")


def has_escapes(path: str) -> bool:
    return any(map(is_escaped, path.split("/")))


MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096
_DECODINGS = 3


@lru_cache(maxsize=512)
def names_of(path: str, *, escapes: bool = False) -> tuple[str, ...]:
    """Split a path relative to a store's root into names, outermost first. The root is the empty path and has no names.

    Nothing is normalized: the store receives exactly the names checked here. Every adapter calls this function, so that
    unchecked paths never reach a store. Names of staged folders are accepted, but clients cannot send them. If
    `escapes` is set, escaped names are accepted, and the adapter must check the names they stand for. Raises
    InvalidPath.
    """
    if not path:
        return ()
    names = tuple(path.split("/"))
    if not all(is_name(name) or is_staged_folder(name) or (escapes and is_escaped(name)) for name in names):
        raise _invalid_name()
    if len(path.encode()) > MAX_PATH_BYTES:
        raise errors.InvalidPath(f"The path is longer than {MAX_PATH_BYTES} bytes.")
    return names


def _invalid_name() -> errors.InvalidPath:
    return errors.InvalidPath(
        "The path contains an empty, relative, reserved or overlong name, or a character that is not allowed."
    )


def is_name(name: str) -> bool:
    """Return whether clients may use this name. It must have 1 to 255 bytes in UTF-8, contain neither `/` nor U+0000,
    and not be `.`, `..` or reserved.
    """
    if not name or name in {".", ".."} or "/" in name or "\0" in name or name.startswith(RESERVED_PREFIX):
        return False
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def decodes_to_dots(name: str) -> bool:
    """Return whether one to three more rounds of percent-decoding, for example by a proxy or store, would turn the name
    into `.` or `..`.
    """
    raw = name.encode("utf-8", "surrogatepass")
    for _ in range(_DECODINGS):
        if b"%" not in raw:
            return False
        raw = unquote_to_bytes(raw)
        if raw in {b".", b".."}:
            return True
    return False


def checked_new_name(text: str, *, is_directory: bool = False) -> str:
    """Check the name of a new entry, and return it without surrounding whitespace (Contract storage 2.3). Raises
    InvalidName.
    """
    name = text.strip()
    if not is_name(name) or decodes_to_dots(name):
        raise errors.InvalidName("The name is empty, relative, reserved, too long, or contains / or U+0000.")
    # Checked before stripping, because a line break at the start or end is a control character (Contract storage S6).
    if "\\" in name or any(character < " " or character == "\x7f" for character in text):
        raise errors.InvalidName("A new name must not contain backslashes or control characters.")
    if is_directory and "#" in name:
        raise errors.InvalidName("The name of a new directory must not contain #.")
    return name


def extension_of(name: str) -> str:
    """Return the extension in lower case, including its dot. It is empty if the name has no dot other than a leading
    one.
    """
    stem, dot, extension = name.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""


class ExtensionRules:
    """The extensions that new files may have (Contract storage 2.4). Case and leading dots in the settings are
    ignored.
    """

    def __init__(self, *, allowed: Sequence[str] = (), restricted: Sequence[str] = ()) -> None:
        self._allowed = frozenset(f".{text.strip().lstrip('.').lower()}" for text in allowed)
        self._restricted = frozenset(f".{text.strip().lstrip('.').lower()}" for text in restricted)

    def check(self, name: str, *, former: str | None = None) -> None:
        """Check the extension of a new or renamed file. A file renamed from `former` may keep its extension. Raises
        extension_not_permitted, extension_restricted.
        """
        extension = extension_of(name)
        if former is not None and extension_of(former) == extension:
            return
        if self._allowed and extension not in self._allowed:
            raise errors.extension_not_permitted(
                f'File type "{extension}" is not permitted. Modify file extension settings to allow this type.'
            )
        if extension and extension in self._restricted:
            raise errors.extension_restricted(
                f'File type "{extension}" is restricted. Update file extension restrictions to allow this type.'
            )


_SCHEMES: Mapping[str, Scheme] = {word: Scheme(scheme) for word, scheme in STORE_SCHEMES.items()}
_WITH_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/+)(.*)", re.DOTALL)
_ENCODED_START = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?%2F", re.IGNORECASE)
_ENCODED_SLASH = re.compile(r"%2F", re.IGNORECASE)
_MAX_KEY_BYTES = 1024


def decoded_path(raw: str) -> str:
    """Percent-decode a raw query parameter value once and repair it (Contract storage 2.2 points 1 and 2).

    Raises InvalidPath if the value is not UTF-8.
    """
    try:
        return repaired_path(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise errors.InvalidPath("The path is not valid UTF-8.") from None


def repaired_path(path: str) -> str:
    """Repair a path that the client encoded twice: if it starts with `%2F`, optionally after a scheme, replace every
    `%2F` with a slash. Other escapes are kept.
    """
    return _ENCODED_SLASH.sub("/", path) if _ENCODED_START.match(path) else path


def _key_bytes(names: Sequence[str]) -> int:
    """Return the size in bytes of the object key for these names."""
    sizes = [len(raw_name(name) if is_escaped(name) else name.encode()) for name in names]
    return sum(sizes) + max(len(names) - 1, 0)


@dataclass(frozen=True, slots=True)
class PathReader:
    """Parses the paths that clients send, and checks that they denote a configured store."""

    configured: Sequence[Scheme]
    """The configured stores. The first one is the default store, which paths without a scheme denote."""
    name_nodes: frozenset[str] = frozenset()
    """`host:port` and `host` of the configured HDFS name nodes."""
    azure_account: str = ""
    """Host name of the storage account: `<account>.dfs.core.windows.net`."""
    ozone_services: Sequence[str] = field(default_factory=tuple[str, ...])
    """Ozone service names, starting with the default service."""

    def read(self, text: str, *, parameter: str = "path") -> StoragePath:
        """Parse a path.

        Raises MissingParameter (empty value), InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority.
        """
        if not text:
            raise errors.MissingParameter(f"The parameter {parameter} is required.")
        scheme, rest = self._split_scheme(text)
        if scheme is None:
            if not self.configured:
                raise errors.StorageNotConfigured("No file store is configured on this server.")
            scheme = self.configured[0]
        names = [name for name in rest.split("/") if name not in {"", "."}]
        if scheme is Scheme.OFS and names and names[0] not in self.ozone_services:
            raise errors.UnknownAuthority("The path names an Ozone service that is not configured.")
        if any(map(is_staged_folder, names)):
            raise _invalid_name()
        names_of("/".join(names), escapes=True)
        if any(map(decodes_to_dots, names)):
            raise errors.InvalidPath("The path contains encoded dots.")
        if scheme is Scheme.S3A and _key_bytes(names[1:]) > _MAX_KEY_BYTES:
            raise errors.InvalidPath(f"The object key is longer than {_MAX_KEY_BYTES} bytes.")
        if scheme is Scheme.HDFS and names and names[0] == ".reserved":
            raise errors.InvalidPath("Access to /.reserved is not allowed.")
        return StoragePath(scheme, "/".join(names))

    @property
    def spellings(self) -> frozenset[str]:
        """All accepted scheme names of the configured stores, in lower case."""
        return frozenset(word for word, scheme in _SCHEMES.items() if scheme in self.configured)

    def _split_scheme(self, text: str) -> tuple[Scheme | None, str]:
        if not (match := _WITH_SCHEME.fullmatch(text)):
            return None, text
        word, slashes, rest = match.groups()
        scheme = _SCHEMES.get(word.lower())
        if scheme is None:
            raise errors.UnknownScheme(f"No store has the scheme {word[:20]}.")
        if scheme not in self.configured:
            raise errors.StorageNotConfigured(f"The store {scheme} is not configured.")
        # Proxies may collapse two slashes into one, so one slash also introduces an authority. Three slashes mean that
        # the authority is empty.
        has_authority = len(slashes) <= 2
        match scheme:
            case Scheme.HDFS:
                return scheme, self._without_authority(rest, slashes) if has_authority else rest
            case Scheme.FILE if len(slashes) == 2 and rest:
                raise errors.UnknownAuthority("Paths in the local root must not have a host; use file:///<path>.")
            case Scheme.ABFS:
                return scheme, self._below_account(rest)
            case Scheme.OFS if not has_authority and rest and self.ozone_services:
                return scheme, f"{self.ozone_services[0]}/{rest}"
            case _:
                return scheme, rest

    def _without_authority(self, rest: str, slashes: str) -> str:
        first, _, path = rest.partition("/")
        if first.lower() in self.name_nodes:
            return path
        if len(slashes) == 2 and first:
            raise errors.UnknownAuthority("The path names a name node that is not configured.")
        return rest

    def _below_account(self, rest: str) -> str:
        first, slash, path = rest.partition("/")
        container, at, account = first.partition("@")
        if not at:
            return rest
        if account.lower() != self.azure_account.lower():
            raise errors.UnknownAuthority("The path names an account that is not configured.")
        return f"{container}{slash}{path}"


@dataclass(frozen=True, slots=True)
class PathSpelling:
    """The form in which a caller writes a store's paths: scheme name and authority."""

    root: str
    account: str = ""
    """The storage account after the container name, including `@`; empty if the caller omits it."""

    @classmethod
    def read(cls, text: str, path: StoragePath) -> Self:
        """Return the form used in `text`, which a `PathReader` has parsed as `path`."""
        match = _WITH_SCHEME.fullmatch(text)
        word, slashes, rest = match.groups() if match else (path.scheme.value, "///", "")
        first = rest.partition("/")[0]
        match path.scheme:
            case Scheme.HDFS:
                return cls(f"{word}://{first if len(slashes) == 2 else ''}/")
            case Scheme.FILE:
                return cls(f"{word}:///")
            case Scheme.ABFS:
                return cls(f"{word}://", "".join(first.partition("@")[1:]))
            case _:
                return cls(f"{word}://")

    def of(self, path: StoragePath) -> str:
        """Write another path of the same store in this form."""
        first, slash, rest = path.path.partition("/")
        return f"{self.root}{first}{self.account if first else ''}{slash}{rest}"
