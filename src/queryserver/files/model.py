"""Files and directories of any store. Sizes are bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID


class Scheme(StrEnum):
    """The stores, in the order in which they are listed (Contract storage 5.1)."""

    HDFS = "hdfs"
    S3A = "s3a"
    ABFS = "abfs"
    OFS = "ofs"
    FILE = "file"


_OUTPUT_PREFIX = {
    Scheme.HDFS: "/",
    Scheme.S3A: "s3a://",
    Scheme.ABFS: "abfs://",
    Scheme.OFS: "ofs://",
    Scheme.FILE: "file:///",
}


@dataclass(frozen=True, slots=True, order=True)
class StoragePath:
    """A place in a store. `path` is relative to the store's root, `/` between names, empty for the root itself.

    `str()` is the normal form that all answers use (Contract storage 2.2).
    """

    scheme: Scheme
    path: str

    def __str__(self) -> str:
        return _OUTPUT_PREFIX[self.scheme] + self.path

    @property
    def root_label(self) -> str:
        """The normal form of the store's root."""
        return _OUTPUT_PREFIX[self.scheme]

    @property
    def is_root(self) -> bool:
        """Whether it is the root of the store."""
        return not self.path

    @property
    def name(self) -> str:
        """The last name; empty for the root."""
        return self.path.rpartition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, outermost first."""
        return tuple(self.path.split("/")) if self.path else ()

    @property
    def parent(self) -> Self:
        """The directory that holds it; the root is its own."""
        return type(self)(self.scheme, self.path.rpartition("/")[0])

    def child(self, name: str) -> Self:
        """An entry of this directory; `name` may hold several names with `/` between them."""
        return type(self)(self.scheme, f"{self.path}/{name}" if self.path else name)

    def is_inside(self, other: "StoragePath") -> bool:
        """Whether it lies strictly below `other`, name by name: `/a/bc` does not lie below `/a/b`."""
        if self.scheme is not other.scheme or self.path == other.path:
            return False
        return other.is_root or self.path.startswith(f"{other.path}/")


class EntryKind(StrEnum):
    """What an entry is."""

    DIRECTORY = "dir"
    FILE = "file"
    LINK = "link"
    UNKNOWN = "unknown"


_TYPE_BITS = {EntryKind.DIRECTORY: 0o040000, EntryKind.FILE: 0o100000, EntryKind.LINK: 0o120000, EntryKind.UNKNOWN: 0}


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One entry of a store. `path` is relative to the store's root, with `/` between names.

    Directories have size 0. Texts are empty and numbers 0 where the store has none (Contract storage 4).
    """

    path: str
    kind: EntryKind
    size_bytes: int
    modified_at: datetime | None
    """None where the store does not know, as for prefixes of object stores."""
    permissions: int = 0
    """The nine permission bits and the sticky bit, without type bits."""
    accessed_at: datetime | None = None
    owner: str = ""
    group: str = ""
    has_acl: bool = False
    block_size: int = 0
    replication: int = 0
    tag: str = ""
    """The store's own strong tag of the content, without quotes; empty: it gives none."""
    file_id: str = ""
    """What stays when content changes in place and differs when the file is replaced; empty: unknown."""

    @property
    def name(self) -> str:
        """The last name; empty for the root."""
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        """Whether it can be listed."""
        return self.kind is EntryKind.DIRECTORY

    @property
    def is_file(self) -> bool:
        """Whether it can be read."""
        return self.kind is EntryKind.FILE

    @property
    def mode(self) -> int:
        """Permissions with type bits."""
        return _TYPE_BITS[self.kind] | self.permissions

    def is_same_content(self, other: "FileStatus") -> bool:
        """Whether nothing shows that the content differs: file, tag, size, time of change."""
        return (self.kind, self.size_bytes, self.modified_at, self.tag, self.file_id) == (
            other.kind,
            other.size_bytes,
            other.modified_at,
            other.tag,
            other.file_id,
        )


@dataclass(frozen=True, slots=True)
class ContentSummary:
    """What a tree holds (Contract storage 5.6). A quota of -1 is none; `replication` is 0 for directories."""

    directory_count: int
    file_count: int
    length_bytes: int
    space_consumed_bytes: int
    quota: int = -1
    space_quota_bytes: int = -1
    replication: int = 0
    further: Mapping[str, Any] | None = None
    """Keys of the store that have no field here, passed on as they are."""


@dataclass(frozen=True, slots=True)
class StorageUser:
    """For whom a store is used. Stores with identities of their own act as `name`, the local root maps it."""

    name: str
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What an HDFS cluster says about itself and the caller (Contract storage 5.1)."""

    is_trash_enabled: bool
    is_superuser: bool
    superuser: str
    supergroup: str


class TransferKind(StrEnum):
    """Which call it was."""

    RENAME = "rename"
    MOVE = "move"
    COPY = "copy"


class TransferState(StrEnum):
    """How far a transfer is. Source files are deleted in `deleting` only."""

    COPYING = "copying"
    VERIFIED = "verified"
    DELETING = "deleting"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


class KeyState(StrEnum):
    """How far one entry of a transfer is."""

    LISTED = "listed"
    STARTED = "started"
    COPIED = "copied"
    DELETED = "deleted"
    SKIPPED = "skipped"
    """Never copied: a link, or a file above the limit of the store."""


@dataclass(frozen=True, slots=True)
class TransferLease:
    """The right to write about a transfer; a later claim raises `fence` and ends it."""

    transfer_id: UUID
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """What is moved or copied, for whom, and where to."""

    user_id: int
    acting: StorageUser
    kind: TransferKind
    source: StoragePath
    target: StoragePath
    overwrite: bool = False
    """Whether the target is a file that is replaced: what was there before is not taken away by a roll-back."""
    operation_id: UUID | None = None
    """The long operation whose outcome this is."""

    @property
    def keeps_source(self) -> bool:
        """Whether it is a copy."""
        return self.kind is TransferKind.COPY

    @property
    def digest(self) -> bytes:
        """The same for the same call of the same user."""
        return transfer_digest(self.user_id, self.kind, self.source, self.target)


def transfer_digest(user_id: int, kind: TransferKind, source: StoragePath, target: StoragePath) -> bytes:
    """SHA-256 of what makes two calls the same."""
    return hashlib.sha256("\0".join((str(user_id), kind, str(source), str(target))).encode()).digest()


@dataclass(frozen=True, slots=True)
class ClaimedTransfer:
    """A transfer that this process works on."""

    lease: TransferLease
    transfer: Transfer
    state: TransferState
    started_at: datetime


@dataclass(frozen=True, slots=True)
class TransferKey:
    """One entry of the source, as it was when it was listed. `path` is relative to the source; empty: the source."""

    number: int
    """Parents come before what they hold."""
    path: str
    kind: EntryKind
    size_bytes: int
    modified_at: datetime | None
    tag: str
    file_id: str
    permissions: int
    state: KeyState = KeyState.LISTED

    @classmethod
    def of(cls, number: int, path: str, status: FileStatus, state: KeyState = KeyState.LISTED) -> "TransferKey":
        """The key of an entry that a store showed."""
        return cls(
            number,
            path,
            status.kind,
            status.size_bytes,
            status.modified_at,
            status.tag,
            status.file_id,
            status.permissions,
            state,
        )

    def status(self, path: str) -> FileStatus:
        """What the store showed then, under its full path."""
        return FileStatus(
            path=path,
            kind=self.kind,
            size_bytes=self.size_bytes,
            modified_at=self.modified_at,
            permissions=self.permissions,
            tag=self.tag,
            file_id=self.file_id,
        )


class OperationState(StrEnum):
    """How far a long operation is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What a client is told of a long operation. `result` is the final body, None while it runs."""

    operation_id: UUID
    state: OperationState
    done: int
    total: int | None
    result: Mapping[str, Any] | str | None
