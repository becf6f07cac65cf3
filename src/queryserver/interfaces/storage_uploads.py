"""Records of uploads that are under way (Contract storage 9)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from queryserver.domain.files import FileStatus, StoragePath, StorageUser
from queryserver.interfaces.storage import PartPlan, StoredPart


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """A directory in which somebody writes: after a crash temporary files may be left in it."""

    id: UUID
    directory: StoragePath
    name: str
    """Of the entry that is written; empty: not known, as in records of former versions."""
    user: StorageUser


@dataclass(frozen=True, slots=True)
class UploadTerms:
    """What the first part of an upload fixes."""

    target: StoragePath
    plan: PartPlan
    overwrite: bool


@dataclass(frozen=True, slots=True)
class ArrivedPart:
    """A part that lies in the store."""

    stored: StoredPart
    sha256: bytes


@dataclass(frozen=True, slots=True)
class PartUpload:
    """An upload in parts."""

    id: UUID
    client_uuid: UUID
    user: StorageUser
    """As whom the store is used."""
    terms: UploadTerms
    staging: str | None
    """Where its parts lie, in the store's own words; None while that is not prepared."""
    result: FileStatus | None
    """The entry that the parts became; None before."""
    expires_at: datetime
    arrived: Mapping[int, ArrivedPart] = field(default_factory=dict[int, ArrivedPart])
    """By index."""


@dataclass(frozen=True, slots=True)
class NewUpload:
    """An upload that begins now."""

    id: UUID
    user_id: int
    client_uuid: UUID
    user: StorageUser
    terms: UploadTerms
