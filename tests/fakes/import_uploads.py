"""In-memory records of import uploads. A test can make them fail or hang."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from queryserver.errors.base import DatabaseUnavailable
from queryserver.imports.uploads import NewImportUpload, StoredImportUpload, UploadReference, UploadUsage


class MemoryImportUploads:
    """Implements `ImportUploadRecords`."""

    def __init__(self) -> None:
        self.uploads: dict[bytes, tuple[NewImportUpload, datetime]] = {}
        self.is_down = False
        self.hangs = False
        self.asked = asyncio.Event()
        """Set when `add` is called while `hangs` is true."""

    async def usage(self, user_id: int) -> UploadUsage:
        sizes = [new.size_bytes for new, end in self.uploads.values() if new.user_id == user_id and end > _now()]
        return UploadUsage(len(sizes), sum(sizes))

    async def add(self, new: NewImportUpload, *, keep: timedelta, max_usage: UploadUsage) -> datetime | None:
        if self.is_down:
            raise DatabaseUnavailable
        if self.hangs:
            self.asked.set()
            await asyncio.Event().wait()
        used = await self.usage(new.user_id)
        if used.files >= max_usage.files or used.size_bytes + new.size_bytes > max_usage.size_bytes:
            return None
        self.uploads[new.digest] = new, _now() + keep
        return _now() + keep

    async def find(self, user_id: int, digest: bytes) -> StoredImportUpload | None:
        new, end = self.uploads.get(digest, (None, _now()))
        if new is None or new.user_id != user_id or end <= _now():
            return None
        return StoredImportUpload(new.name, new.size_bytes, end - _now())

    async def extend(self, digest: bytes, *, keep: timedelta) -> bool:
        new, end = self.uploads.get(digest, (None, _now()))
        if new is None or end <= _now():
            return False
        self.uploads[digest] = new, _now() + keep
        return True

    async def remove(self, user_id: int, reference: UploadReference) -> bool | None:
        stored = await self.find(user_id, reference.digest)
        if stored is None or stored.name != reference.name:
            return False
        del self.uploads[reference.digest]
        return True

    async def count_expired(self) -> int:
        return sum(end <= _now() for _, end in self.uploads.values())

    async def take_expired(self, *, limit: int) -> Sequence[bytes]:
        expired = [digest for digest, (_, end) in self.uploads.items() if end <= _now()][:limit]
        for digest in expired:
            del self.uploads[digest]
        return expired

    async def existing(self, digests: Collection[bytes]) -> Collection[bytes]:
        return self.uploads.keys() & set(digests)


def _now() -> datetime:
    return datetime.now(UTC)
