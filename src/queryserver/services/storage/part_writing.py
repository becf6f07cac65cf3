"""One part on its way into the store (Contract storage 9.2.3)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from queryserver.db.storage_uploads import PartUploads
from queryserver.domain.errors.base import DatabaseUnavailable, InvalidParameter, QueryServerError
from queryserver.domain.errors.files import OperationInProgress, UploadNotFound, part_conflict
from queryserver.interfaces.storage import StoredPart
from queryserver.interfaces.storage_uploads import ArrivedPart, PartUpload
from queryserver.services.storage.claims import LEASE, attempts, renewed
from queryserver.services.storage.joining import Joining
from queryserver.services.storage.part_terms import GivenPart, size_of_part
from queryserver.services.storage.stores import Caller, Place
from queryserver.services.storage.uploading import CheckedContent

# The same part twice at a time comes of a client that gave up waiting: its first call ends soon.
_CLAIM_WAIT_S = 10.0

Written = TypeVar("Written")


@dataclass(frozen=True, slots=True)
class _Writing:
    """One part that this call alone writes."""

    place: Place
    upload: PartUpload
    given: GivenPart
    claimant: UUID


class PartWriting:
    """Writes parts, each once."""

    def __init__(self, records: PartUploads, joining: Joining, threads: Executor, *, keep: timedelta) -> None:
        self._records = records
        self._joining = joining
        self._threads = threads
        self._keep = keep

    async def receive(
        self, caller: Caller, place: Place, upload: PartUpload, given: GivenPart, content: AsyncGenerator[bytes]
    ) -> None:
        """Store a part, or compare it with the one that arrived before.

        Raises InvalidParameter (another size), part_conflict (other bytes), VerificationFailed, OperationInProgress,
        UploadNotFound (discarded meanwhile), as the store, and what `content` raises.
        """
        checked = CheckedContent(content, self._threads, sha256=given.sha256)
        size = size_of_part(upload.terms.plan, given.index)
        writing = _Writing(place, upload, given, uuid4())
        async with aclosing(_exactly(size, checked)) as pieces:
            if not await self._claimed(caller, writing):
                await self._compare(caller, given, checked, pieces)
            elif given.is_whole and upload.staging is None:
                await self._write_whole(caller, writing, checked, pieces)
            else:
                stored = await self._written(writing, partial(_write_part, writing, pieces))
                await self._keep_part(caller, writing, ArrivedPart(stored, checked.sha256))

    async def _claimed(self, caller: Caller, writing: _Writing) -> bool:
        """Whether the part is to be written; False: it has arrived."""
        upload, index = writing.upload, writing.given.index
        async for _ in attempts(_CLAIM_WAIT_S):
            if index in upload.arrived or upload.result is not None:
                return False
            if await self._records.claim_part(upload.id, index, writing.claimant, lease=LEASE):
                return True
            upload = await self._joining.own(caller, upload.client_uuid)
        raise OperationInProgress(f"Part {index} is arriving over another connection.")

    async def _compare(
        self, caller: Caller, given: GivenPart, checked: CheckedContent, pieces: AsyncGenerator[bytes]
    ) -> None:
        async for _ in pieces:
            pass
        upload = await self._joining.own(caller, given.client_uuid)
        arrived = upload.arrived.get(given.index)
        if arrived is not None and arrived.sha256 != checked.sha256:
            raise part_conflict(f"Part {given.index} arrived before with other bytes.")

    async def _write_whole(
        self, caller: Caller, writing: _Writing, checked: CheckedContent, pieces: AsyncGenerator[bytes]
    ) -> None:
        """A part that is the whole file needs no staging."""
        upload, plan = writing.upload, writing.upload.terms.plan
        write = partial(
            writing.place.storage.write,
            plan.path,
            pieces,
            overwrite=upload.terms.overwrite,
            size_bytes=plan.size_bytes,
        )
        async with self._joining.alone(caller, upload.client_uuid) as (_, claimant):
            try:
                entry = await self._written(writing, write)
            except QueryServerError as error:
                await self._joining.give_up(upload, error)
                raise
            await self._joining.keep(upload, claimant, entry)
        stored = StoredPart(writing.given.index, checked.size_bytes, "")
        await self._keep_part(caller, writing, ArrivedPart(stored, checked.sha256))

    async def _written(self, writing: _Writing, write: Callable[[], Awaitable[Written]]) -> Written:
        """What `write` gives; when it fails, another call may write the part."""
        upload, index, claimant = writing.upload, writing.given.index, writing.claimant
        try:
            async with renewed(partial(self._records.claim_part, upload.id, index, claimant, lease=LEASE)):
                return await write()
        except BaseException:  # a cancel too: the part must not stay claimed
            with suppress(DatabaseUnavailable):
                await self._records.release_part(upload.id, index, claimant)
            raise

    async def _keep_part(self, caller: Caller, writing: _Writing, part: ArrivedPart) -> None:
        upload = writing.upload
        if await self._records.arrived(upload.id, writing.claimant, part, keep=self._keep):
            return
        try:
            await self._joining.own(caller, upload.client_uuid)
        except UploadNotFound:
            # It was discarded while this part was on its way, so the part came too late to be discarded with it.
            if upload.staging is not None:
                await writing.place.storage.discard_parts(upload.terms.plan, upload.staging)
            raise
        raise part_conflict(f"Another call took part {part.stored.index} over.")


async def _write_part(writing: _Writing, pieces: AsyncGenerator[bytes]) -> StoredPart:
    plan, index = writing.upload.terms.plan, writing.given.index
    if writing.upload.staging is not None:
        return await writing.place.storage.write_part(plan, writing.upload.staging, index, pieces)
    # An empty file has no staging place.
    async for _ in pieces:
        pass
    return StoredPart(index, 0, "")


async def _exactly(size_bytes: int, checked: CheckedContent) -> AsyncGenerator[bytes]:
    """The pieces. Raises InvalidParameter, before they end, when they are more or fewer bytes."""
    async with aclosing(checked.pieces()) as pieces:
        async for piece in pieces:
            if checked.size_bytes > size_bytes:
                break
            yield piece
        else:
            if checked.size_bytes == size_bytes:
                return
    raise InvalidParameter(f"The part has not the {size_bytes} bytes that its numbers say.")
