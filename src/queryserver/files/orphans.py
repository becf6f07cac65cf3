"""What crashes leave behind in stores, and its end (Contract storage 9.1.4, 9.2.6; platform 12.2).

While something is written a record names it and its directory. A crash leaves the record, and by it the clean-up finds
the temporary files, and what a store keeps under no name. What other programs began is never touched.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

import structlog

from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import DirectoryNotEmpty, StorageError, StorageNotConfigured
from queryserver.files.model import StoragePath
from queryserver.files.places import Caller, Stores
from queryserver.files.protocol import UnseenUploads
from queryserver.files.upload_repository import PartUpload, PartUploads, UnfinishedWrite, UnfinishedWrites, renewed

log = structlog.get_logger(__name__)

_BATCH = 500
_LEASE = timedelta(minutes=10)
_SLACK = timedelta(minutes=15)
"""By how much a file may be younger than the last sign of life of its write."""


class Leftovers:
    """Notes what is being written, and removes what was never finished after `age`."""

    def __init__(
        self,
        stores: Stores,
        writes: UnfinishedWrites,
        uploads: PartUploads,
        *,
        age: timedelta = timedelta(hours=24),
        touch_every: timedelta = timedelta(minutes=5),
    ) -> None:
        self._stores = stores
        self._writes = writes
        self._uploads = uploads
        self._age = age
        self._touch_every_s = touch_every.total_seconds()

    @asynccontextmanager
    async def noted(self, caller: Caller, path: StoragePath) -> AsyncGenerator[None]:
        """Inside, an entry is written, and temporary files may come to be beside it. Raises DatabaseUnavailable."""
        write_id = uuid4()
        await self.begin(write_id, caller, path)
        try:
            async with self.alive(write_id):
                yield
        except (StorageError, DirectoryNotEmpty):
            # The store failed, or something came between: it may have kept what it was told to remove.
            raise
        except QueryServerError:
            await self.end(write_id)
            raise
        await self.end(write_id)

    @asynccontextmanager
    async def alive(self, write_id: UUID) -> AsyncGenerator[None]:
        """Inside, a write goes on: what a crash leaves of it is as old as its record, however long it took."""
        async with renewed(partial(self._writes.touch, write_id), every_s=self._touch_every_s):
            yield

    async def begin(self, write_id: UUID, caller: Caller, path: StoragePath) -> None:
        """Note that an entry is written. Raises DatabaseUnavailable."""
        await self._writes.begin(UnfinishedWrite(write_id, path.parent, path.name, caller.acting))

    async def end(self, write_id: UUID) -> None:
        """Forget it. A record too many costs no more than a look into its directory."""
        try:
            await self._writes.end(write_id)
        except DatabaseUnavailable:
            log.warning("record of a finished write stays")

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Remove expired uploads and what crashes left; kind to number."""
        expired = await self._uploads.expired(limit=_BATCH)
        abandoned = await self._writes.abandoned(older_than=self._age + _SLACK)
        if dry_run:
            return {"expired uploads": len(expired), "interrupted uploads": len(abandoned)}
        removed = [await self._remove(upload) for upload in expired]
        swept = [await self._swept(write) for write in abandoned]
        return {"expired uploads": sum(removed), "interrupted uploads": sum(swept)}

    async def _remove(self, upload: PartUpload) -> bool:
        """Whether the upload is gone. A store that cannot do it now is asked again the next time."""
        claimant = uuid4()
        if not await self._uploads.claim(upload.id, claimant, lease=_LEASE):
            return False
        try:
            if upload.staging is not None and upload.result is None:
                storage = self._stores.as_user(upload.terms.target.scheme, upload.user)
                await storage.discard_parts(upload.terms.plan, upload.staging)
        except StorageError as error:
            log.warning("parts of an upload not removed", upload_id=str(upload.id), code=error.code)
            await self._uploads.release(upload.id, claimant)
            return False
        except QueryServerError as error:
            log.warning("parts of an upload cannot be removed", upload_id=str(upload.id), code=error.code)
        await self._uploads.forget(upload.id)
        return True

    async def _swept(self, write: UnfinishedWrite) -> bool:
        """Whether the directory was looked into. A store that cannot do it now is asked again the next time."""
        try:
            storage, age_s = self._stores.as_user(write.directory.scheme, write.user), self._age.total_seconds()
            removed = await storage.sweep_leftovers(write.directory.path, age_s)
            if write.name and isinstance(storage, UnseenUploads):
                removed += await storage.discard_unseen(write.directory.child(write.name).path, age_s)
            log.info("directory swept", scheme=write.directory.scheme, removed=removed)
        except StorageNotConfigured:
            return False
        except StorageError as error:
            log.warning("directory not swept", scheme=write.directory.scheme, code=error.code)
            return False
        except QueryServerError as error:
            # The directory is gone, or its user may not look into it any more.
            log.info("directory cannot be swept", scheme=write.directory.scheme, code=error.code)
        await self._writes.end(write.id)
        return True
