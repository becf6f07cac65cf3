"""Parts become a file (Contract storage 9.2.5)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from uuid import UUID, uuid4

from queryserver.db.storage_uploads import PartUploads
from queryserver.domain.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.domain.errors.files import (
    OperationInProgress,
    PathNotFound,
    StorageError,
    UploadNotFound,
    VerificationFailed,
    part_conflict,
    upload_incomplete,
)
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import ReadableParts, Storage
from queryserver.interfaces.storage_uploads import PartUpload
from queryserver.services.storage.claims import LEASE, attempts, renewed
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.part_terms import missing_parts
from queryserver.services.storage.stores import Caller, Stores

_CLAIM_WAIT_S = 30.0
_ANOTHER_FILE = "The SHA-256 of the joined file is not the one that was announced."


class Joining:
    """Uploads in parts as a whole: looking at them, working on them alone, joining them."""

    def __init__(self, stores: Stores, records: PartUploads, leftovers: Leftovers, threads: Executor) -> None:
        self._stores = stores
        self._records = records
        self._leftovers = leftovers
        self._threads = threads

    async def own(self, caller: Caller, client_uuid: UUID) -> PartUpload:
        """An upload of the caller. Raises UploadNotFound, storage_access_denied."""
        upload = await self._records.read(caller.user.id, client_uuid)
        if upload is None:
            raise UploadNotFound("There is no such upload.")
        self._stores.place(caller, upload.terms.target)
        return upload

    @asynccontextmanager
    async def alone(self, caller: Caller, client_uuid: UUID) -> AsyncGenerator[tuple[PartUpload, UUID]]:
        """The upload, and the claim that keeps all others away from it while inside. Raises OperationInProgress."""
        claimant = uuid4()
        async for _ in attempts(_CLAIM_WAIT_S):
            upload = await self.own(caller, client_uuid)
            if await self._records.claim(upload.id, claimant, lease=LEASE):
                break
        else:
            raise OperationInProgress("Another call works on this upload.")
        try:
            claim = renewed(partial(self._records.claim, upload.id, claimant, lease=LEASE))
            async with claim, self._leftovers.alive(upload.id):
                # What is known from before the claim may have changed with the last claim's work.
                yield await self.own(caller, client_uuid), claimant
        finally:
            with suppress(DatabaseUnavailable):
                await self._records.release(upload.id, claimant)

    async def finish(self, caller: Caller, client_uuid: UUID, *, sha256: bytes | None = None) -> PartUpload:
        """Join the parts; once it is done, the same answer again.

        Raises upload_incomplete, VerificationFailed (size, or `sha256`, the digest of the whole file), as
        `Storage.join_parts`, OperationInProgress.
        """
        _require_all(await self.own(caller, client_uuid))
        async with self.alone(caller, client_uuid) as (upload, claimant):
            if upload.result is not None:
                return upload
            _require_all(upload)
            _require_digest(upload, sha256)
            storage = self._stores.place(caller, upload.terms.target).storage
            entry = await self._joined(storage, upload, sha256)
            await self.keep(upload, claimant, entry)
        return await self.own(caller, client_uuid)

    async def keep(self, upload: PartUpload, claimant: UUID, entry: FileStatus) -> None:
        """Keep what an upload became. Raises part_conflict when the claim on it was lost.

        Tries again while the database is out of reach: the parts are gone, and nobody else knows of the file.
        """
        if not await self._finished(upload.id, claimant, entry):
            raise part_conflict("Another call took over this upload.")
        await self._leftovers.end(upload.id)

    async def _finished(self, upload_id: UUID, claimant: UUID, entry: FileStatus) -> bool:
        async for _ in attempts(_CLAIM_WAIT_S):
            with suppress(DatabaseUnavailable):
                return await self._records.finished(upload_id, claimant, entry)
        raise DatabaseUnavailable

    async def give_up(self, upload: PartUpload, error: QueryServerError) -> None:
        """Forget an upload that was to be done at once and failed: its client begins anew."""
        with suppress(DatabaseUnavailable):
            await self._records.forget(upload.id)
        if not isinstance(error, StorageError):
            await self._leftovers.end(upload.id)

    async def _joined(self, storage: Storage, upload: PartUpload, sha256: bytes | None) -> FileStatus:
        terms, plan = upload.terms, upload.terms.plan
        if upload.staging is None:
            return await storage.write(plan.path, _nothing(), overwrite=terms.overwrite, size_bytes=0)
        parts = [upload.arrived[index].stored for index in range(plan.parts)]
        is_known = sha256 is None or plan.parts == 1
        if not is_known and isinstance(storage, ReadableParts):
            async with aclosing(storage.read_parts(plan, upload.staging, parts)) as pieces:
                if await self._digest(pieces) != sha256:
                    await storage.discard_parts(plan, upload.staging)
                    await self._records.forget(upload.id)
                    raise VerificationFailed(_ANOTHER_FILE)
            is_known = True
        replaces = not is_known and await _exists(storage, plan.path)
        entry = await storage.join_parts(plan, upload.staging, parts, overwrite=terms.overwrite)
        if not is_known:
            await self._check_joined(storage, upload, entry, sha256, replaces=replaces)
        return entry

    async def _check_joined(
        self, storage: Storage, upload: PartUpload, entry: FileStatus, sha256: bytes | None, *, replaces: bool
    ) -> None:
        """For a store that shows nothing of its parts before it has joined them (S3)."""
        async with aclosing(storage.read(entry.path, version=entry)) as pieces:
            if await self._digest(pieces) == sha256:
                return
        await self._records.forget(upload.id)
        if replaces:
            # The former content is gone: to delete this one, too, would leave nothing at all.
            raise VerificationFailed("The parts arrived as sent, but make another file than announced.")
        await storage.delete(upload.terms.plan.path, recursive=False)
        raise VerificationFailed(_ANOTHER_FILE)

    async def _digest(self, pieces: AsyncIterator[bytes]) -> bytes:
        digest = hashlib.sha256()
        loop = asyncio.get_running_loop()
        async for piece in pieces:
            await loop.run_in_executor(self._threads, digest.update, piece)
        return digest.digest()


def _require_all(upload: PartUpload) -> None:
    missing = missing_parts(upload)
    if upload.result is None and missing:
        raise upload_incomplete(f"{len(missing)} parts are missing.", details={"missing_parts": list(missing)})


def _require_digest(upload: PartUpload, sha256: bytes | None) -> None:
    """A file of one part is known before it is joined."""
    if sha256 is not None and upload.terms.plan.parts == 1 and upload.arrived[0].sha256 != sha256:
        raise VerificationFailed("The SHA-256 of the received bytes is not the one that was announced.")


async def _exists(storage: Storage, path: str) -> bool:
    try:
        await storage.stat(path)
    except PathNotFound:
        return False
    return True


async def _nothing() -> AsyncGenerator[bytes]:
    for piece in ():
        yield piece
