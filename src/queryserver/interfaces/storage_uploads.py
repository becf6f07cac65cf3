"""Records of uploads that are under way (Contract storage 9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
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


class UnfinishedWrites(Protocol):
    """Each method is one statement. All raise DatabaseUnavailable."""

    async def begin(self, write: UnfinishedWrite) -> None:
        """Store it."""
        ...

    async def touch(self, write_id: UUID) -> bool:
        """Note that it still goes on; False: it is gone."""
        ...

    async def end(self, write_id: UUID) -> None:
        """Forget it, for nothing is left in its directory. Nothing happens when it is gone."""
        ...

    async def abandoned(self, *, older_than: timedelta) -> Sequence[UnfinishedWrite]:
        """What gave no sign of life for so long, but not where an upload in parts is still open in the directory."""
        ...


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


class PartUploads(Protocol):
    """Uploads in parts of all users, on all instances. Each method is one transaction; all raise DatabaseUnavailable.

    Who works on an upload or a part as a whole claims it: nobody else can for as long as the claim is renewed.
    """

    async def open(self, new: NewUpload, *, keep: timedelta, max_open: int) -> PartUpload | None:
        """The upload of that user and `client_uuid`: the one that is there, else `new`.

        None when the user has `max_open` unfinished ones already.
        """
        ...

    async def read(self, user_id: int, client_uuid: UUID) -> PartUpload | None:
        """An upload that has not expired."""
        ...

    async def claim(self, upload_id: UUID, claimant: UUID, *, lease: timedelta) -> bool:
        """Claim an upload, or renew the claim; False: another has it, or the upload is gone."""
        ...

    async def release(self, upload_id: UUID, claimant: UUID) -> None:
        """Give a claim up."""
        ...

    async def prepared(self, upload_id: UUID, claimant: UUID, staging: str) -> bool:
        """Keep where the parts lie, and give the claim up; False: the claim was lost."""
        ...

    async def finished(self, upload_id: UUID, claimant: UUID, result: FileStatus) -> bool:
        """Keep what the parts became, and give the claim up; False: the claim was lost."""
        ...

    async def claim_part(self, upload_id: UUID, index: int, claimant: UUID, *, lease: timedelta) -> bool:
        """Claim a part that has not arrived, or renew the claim.

        False: another has it, the part arrived, or the upload is gone.
        """
        ...

    async def release_part(self, upload_id: UUID, index: int, claimant: UUID) -> None:
        """Give up a claim on a part that did not arrive."""
        ...

    async def arrived(self, upload_id: UUID, claimant: UUID, part: ArrivedPart, *, keep: timedelta) -> bool:
        """Keep that a part lies in the store; the upload expires `keep` from now. False: the claim was lost."""
        ...

    async def forget(self, upload_id: UUID) -> None:
        """Remove an upload. Nothing happens when it is gone."""
        ...

    async def expired(self, *, limit: int) -> Sequence[PartUpload]:
        """Uploads past their time and those whose user is gone, without their parts, oldest first."""
        ...
