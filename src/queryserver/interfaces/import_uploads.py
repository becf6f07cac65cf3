"""Files that wait in the upload area of the importer, and what is known of them (Contract importer 3)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from queryserver.interfaces.storage import Storage


@dataclass(frozen=True, slots=True)
class NewImportUpload:
    """A file that arrived."""

    digest: bytes
    """SHA-256 of the secret part of its reference; names it in the area, too."""
    user_id: int
    name: str
    """The last part of its reference."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredImportUpload:
    """A file that has not expired."""

    name: str
    size_bytes: int
    left: timedelta
    """Until it expires."""


@dataclass(frozen=True, slots=True)
class UploadUsage:
    """What one user has in the area."""

    files: int
    size_bytes: int


class ImportUploadRecords(Protocol):
    """Records of all users, on all instances. Each method is one transaction; all raise DatabaseUnavailable."""

    async def usage(self, user_id: int) -> UploadUsage:
        """The files of a user that have not expired."""
        ...

    async def add(self, new: NewImportUpload, *, keep: timedelta, most: UploadUsage) -> datetime | None:
        """Keep a file; when it expires. None: the user would have more than `most`."""
        ...

    async def find(self, user_id: int, digest: bytes) -> StoredImportUpload | None:
        """A file of that user that has not expired."""
        ...

    async def prolong(self, digest: bytes, *, keep: timedelta) -> bool:
        """Let a file expire `keep` from now; False: it is gone, or has expired."""
        ...

    async def count_expired(self) -> int:
        """How many files have expired."""
        ...

    async def take_expired(self, *, limit: int) -> Sequence[bytes]:
        """Forget files that have expired; their digests, each given to one caller only."""
        ...

    async def known(self, digests: Collection[bytes]) -> Collection[bytes]:
        """Those of them that have a record."""
        ...


class UploadArea(Storage, Protocol):
    """One directory of this service itself, which all instances share. Files lie directly in it, with mode 0600."""

    def place(self, name: str) -> Path:
        """Where a file is on this machine; asks nobody."""
        ...

    async def touch(self, name: str) -> bool:
        """Note that a file is in use; False: it is gone."""
        ...

    async def sweep_everywhere(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """Delete, or count only, files that were on their way in and got nothing for so long; how many."""
        ...
