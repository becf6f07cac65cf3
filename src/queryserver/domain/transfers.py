"""Moves and copies of several steps, and what is known of them while they run (Contract storage 7.5, 7.6)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from queryserver.domain.files import EntryKind, FileStatus, StoragePath, StorageUser


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
