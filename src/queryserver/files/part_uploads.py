"""Multipart uploads. Parts may arrive in any order and on any server instance (Contract storage 9.2)."""

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.files.access import OBJECT_STORES, Caller, Location, StorageAudit, Stores
from queryserver.files.model import FileStatus, StoragePath, checked_new_name
from queryserver.files.protocol import PartPlan, ReadableParts, Storage, StoredPart, empty_body
from queryserver.files.upload_repository import (
    NewUpload,
    OrphanSweep,
    PartUpload,
    PartUploads,
    ReceivedPart,
    UploadTerms,
    attempts,
)
from queryserver.files.uploads import CheckedContent, UploadRules, sha256_of

MAX_PARTS = 10_000
MAX_PART_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartRequest:
    """One part of an upload, as declared in the client request."""

    client_uuid: UUID
    directory: StoragePath
    file_name: str
    index: int
    offset: int
    total_bytes: int
    parts: int
    """Total number of parts; 0 if this request contains the whole file and therefore completes the upload."""
    part_bytes: int | None = None
    overwrite: bool = False
    sha256: bytes | None = None

    @property
    def is_whole(self) -> bool:
        return self.parts == 0


def plan_of(part_request: PartRequest, path: str) -> PartPlan:
    """Return how the file is divided into parts. Raises InvalidParameter if the request's numbers are inconsistent or
    exceed a limit.
    """
    parts = max(part_request.parts, 1)
    if part_request.index >= parts:
        raise errors.InvalidParameter("qqpartindex must be less than qqtotalparts.")
    if parts > MAX_PARTS:
        raise errors.InvalidParameter(f"An upload can have at most {MAX_PARTS} parts.")
    part_bytes = part_request.total_bytes
    if parts > 1:
        if part_request.part_bytes is None:
            raise errors.InvalidParameter("qqchunksize is required.")
        part_bytes = part_request.part_bytes
        if part_request.index == parts - 1 and part_bytes == part_request.total_bytes - part_request.offset:
            # For the last part, clients may send its actual size as qqchunksize.
            part_bytes = part_request.offset // part_request.index
    if parts > 1 and not (parts - 1) * part_bytes < part_request.total_bytes <= parts * part_bytes:
        raise errors.InvalidParameter("qqtotalparts, qqchunksize and qqtotalfilesize do not match.")
    if part_request.offset != part_request.index * part_bytes:
        raise errors.InvalidParameter("qqpartbyteoffset must be qqpartindex times qqchunksize.")
    if not part_request.is_whole and part_bytes > MAX_PART_BYTES:
        raise errors.InvalidParameter(f"A part can have at most {MAX_PART_BYTES} bytes.")
    return PartPlan(path, part_request.total_bytes, part_bytes, parts)


def missing_parts(upload: PartUpload) -> Sequence[int]:
    return [index for index in range(upload.terms.plan.parts) if index not in upload.received_parts]


def received_ranges(upload: PartUpload) -> list[list[int]]:
    """Return the received byte ranges as sorted [start, end) pairs. Adjacent ranges are merged."""
    plan = upload.terms.plan
    ranges: list[list[int]] = []
    for index in sorted(upload.received_parts):
        start = index * plan.part_bytes
        end = start + plan.size_of(index)
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] = end
        elif end > start:
            ranges.append([start, end])
    return ranges


def contiguous_bytes(upload: PartUpload) -> int:
    """Return how many bytes from the start of the file have been received without a gap."""
    ranges = received_ranges(upload)
    return ranges[0][1] if ranges and ranges[0][0] == 0 else 0


_CLAIM_WAIT_S = 30.0
_DIGEST_DIFFERS = "The SHA-256 of the joined file does not match the SHA-256 in the request."


@dataclass(frozen=True, slots=True)
class ClaimedUpload:
    upload: PartUpload
    fence: int
    lapses: int
    """The value of `Ownership.lapses` before the claim."""


class UploadJoiner:
    """Looks up and claims uploads, and joins their parts into the target file."""

    def __init__(self, stores: Stores, records: PartUploads, orphans: OrphanSweep, threads: Executor) -> None:
        self._stores = stores
        self._records = records
        self._orphans = orphans
        self._threads = threads

    async def find(self, caller: Caller, client_uuid: UUID) -> PartUpload:
        """Return the caller's upload. Raises UploadNotFound (also for other users' uploads), storage_access_denied."""
        upload = await self._records.read(caller.user.id, client_uuid)
        if upload is None:
            raise errors.UploadNotFound("The upload does not exist.")
        self._stores.location(caller, upload.terms.target)
        return upload

    @asynccontextmanager
    async def claimed(self, caller: Caller, client_uuid: UUID) -> AsyncGenerator[ClaimedUpload]:
        """Yield the upload with an exclusive claim on it, which is released on exit. Raises OperationInProgress."""
        async for _ in attempts(_CLAIM_WAIT_S):
            upload, lapses = await self.find(caller, client_uuid), self._records.ownership.lapses
            fence = await self._records.claim(upload.id)
            if fence is not None:
                async with self._records.holding(upload.id, fence):
                    # The previous claimant may have changed the upload, so read it again.
                    yield ClaimedUpload(await self.find(caller, client_uuid), fence, lapses)
                return
        raise errors.OperationInProgress("Another request is processing this upload.")

    async def finish(self, caller: Caller, client_uuid: UUID, *, sha256: bytes | None = None) -> PartUpload:
        """Join the parts into the target file. If they are already joined, return the recorded result.

        Raises upload_incomplete, VerificationFailed (wrong size, or the file's digest is not `sha256`),
        OperationInProgress, and the errors of `Storage.join_parts`.
        """
        _require_all(await self.find(caller, client_uuid))
        async with self.claimed(caller, client_uuid) as claimed:
            upload = claimed.upload
            if upload.result is not None:
                return upload
            _require_all(upload)
            if sha256 is not None and upload.terms.plan.parts == 1 and upload.received_parts[0].sha256 != sha256:
                # A single part has the same digest as the file, so the digest is compared before joining.
                raise errors.VerificationFailed(
                    "The SHA-256 of the received bytes does not match the SHA-256 in the request."
                )
            entry = await self._join(self._stores.location(caller, upload.terms.target), claimed, sha256)
            await self.record_file(upload, claimed.fence, entry)
        return await self.find(caller, client_uuid)

    async def record_file(self, upload: PartUpload, fence: int, entry: FileStatus) -> None:
        """Record the file that an upload created. Raises part_conflict if the claim was lost.

        The parts no longer exist, so this record is the only link between upload and file: if the database is
        unavailable, retry for 30 s, then raise DatabaseUnavailable.
        """
        async for _ in attempts(_CLAIM_WAIT_S):
            with suppress(errors.DatabaseUnavailable):
                if not await self._records.record_result(upload.id, fence, entry):
                    raise errors.part_conflict("Another request took over this upload.")
                return await self._orphans.end(upload.id)
        raise errors.DatabaseUnavailable

    async def forget_failed(self, upload: PartUpload, error: errors.QueryServerError) -> None:
        """Delete the record of a failed single-request upload. The client must start the upload again."""
        may_leave_files = isinstance(error, errors.StorageError)
        if may_leave_files:
            # The record of the write must not be older than the files, because the sweep that finds it deletes it.
            await self._orphans.release(upload.id)
        with suppress(errors.DatabaseUnavailable):
            await self._records.forget(upload.id)
        if not may_leave_files:
            await self._orphans.end(upload.id)

    async def require(self, claimed: ClaimedUpload) -> None:
        """Raise part_conflict if another process has claimed the upload."""
        await self._records.require(claimed.upload.id, claimed.fence, since=claimed.lapses)

    async def _join(self, location: Location, claimed: ClaimedUpload, sha256: bytes | None) -> FileStatus:
        upload = claimed.upload
        storage, terms, plan = location.storage, upload.terms, upload.terms.plan
        if upload.staging is None:
            return await storage.write(plan.path, empty_body(), overwrite=terms.overwrite, size_bytes=0)
        parts = [upload.received_parts[index].stored for index in range(plan.parts)]
        is_known = sha256 is None or plan.parts == 1
        if not is_known and isinstance(storage, ReadableParts):
            if await sha256_of(storage.read_parts(plan, upload.staging, parts), self._threads) != sha256:
                await self.require(claimed)
                await storage.discard_parts(plan, upload.staging)
                await self._records.forget(upload.id)
                raise errors.VerificationFailed(_DIGEST_DIFFERS)
            is_known = True
        replaces = not is_known and await location.find() is not None
        await self.require(claimed)
        entry = await storage.join_parts(plan, upload.staging, parts, overwrite=terms.overwrite)
        if not is_known:
            await self._check_joined(storage, upload, entry, sha256, replaces=replaces)
        return entry

    async def _check_joined(
        self, storage: Storage, upload: PartUpload, entry: FileStatus, sha256: bytes | None, *, replaces: bool
    ) -> None:
        """Compare the joined file with `sha256` on a store whose parts cannot be read before joining (S3).

        On a mismatch, delete the file unless it replaced another one (`replaces`). Raises VerificationFailed.
        """
        if await sha256_of(storage.read(entry.path, version=entry), self._threads) == sha256:
            return
        await self._records.forget(upload.id)
        if replaces:
            # The previous content is already lost, so deleting the new content would leave nothing.
            raise errors.VerificationFailed(
                "The parts were received intact, but the SHA-256 of the joined file does not match the SHA-256"
                " in the request."
            )
        await storage.delete(upload.terms.plan.path, recursive=False)
        raise errors.VerificationFailed(_DIGEST_DIFFERS)


def _require_all(upload: PartUpload) -> None:
    missing = missing_parts(upload)
    if upload.result is None and missing:
        raise errors.upload_incomplete(f"{len(missing)} parts are missing.", details={"missing_parts": list(missing)})


# A second call for the same part usually means that the client gave up on the first one, which will then end soon.
_PART_CLAIM_WAIT_S = 10.0
KEEP_FOR = timedelta(hours=24)
"""How long an unfinished upload is kept after the most recently received part."""

Written = TypeVar("Written")


class PartWriter:
    """Receives one part. Only one of several concurrent calls writes it."""

    def __init__(
        self,
        records: PartUploads,
        joiner: UploadJoiner,
        caller: Caller,
        location: Location,
        upload: PartUpload,
        part_request: PartRequest,
    ) -> None:
        self._records = records
        self._joiner = joiner
        self._caller = caller
        self._location = location
        self._upload = upload
        self._request = part_request
        self._lapses = 0

    async def receive(self, content: AsyncGenerator[bytes], threads: Executor) -> None:
        """Store the part. If it has already been received, only compare the digests.

        Raises InvalidParameter (wrong size), part_conflict (different bytes), VerificationFailed, OperationInProgress,
        UploadNotFound (the upload was discarded meanwhile), and the errors of the store and of `content`.
        """
        part_request, staging, plan = self._request, self._upload.staging, self._upload.terms.plan
        checked = CheckedContent(content, threads, sha256=part_request.sha256)
        async with aclosing(_check_part_size(plan.size_of(part_request.index), checked)) as pieces:
            fence = await self._claim()
            if fence is None:
                async for _ in pieces:
                    pass
                arrived = (await self._joiner.find(self._caller, part_request.client_uuid)).received_parts.get(
                    part_request.index
                )
                if arrived is not None and arrived.sha256 != checked.sha256:
                    raise errors.part_conflict(
                        f"Part {part_request.index} was already received with different contents."
                    )
                return
            async with (
                self._records.holding_part(self._upload.id, part_request.index, fence),
                aclosing(self._while_owned(fence, pieces)) as owned_pieces,
            ):
                if staging is not None:
                    stored = await self._location.storage.write_part(plan, staging, part_request.index, owned_pieces)
                elif part_request.is_whole:
                    await self._write_whole(fence, owned_pieces)
                    stored = StoredPart(part_request.index, checked.size_bytes, "")
                else:
                    # An empty file has no staging area, even if it is uploaded in parts, so there is nothing to store.
                    stored = await _consume(pieces, part_request.index)
                await self._record_part(fence, ReceivedPart(stored, checked.sha256))

    async def _claim(self) -> int | None:
        """Claim the part for writing and return the fence. Return None if it has already been received.

        Raises OperationInProgress.
        """
        upload, index = self._upload, self._request.index
        async for _ in attempts(_PART_CLAIM_WAIT_S):
            if index in upload.received_parts or upload.result is not None:
                return None
            self._lapses = self._records.ownership.lapses
            fence = await self._records.claim_part(upload.id, index)
            if fence is not None:
                return fence
            upload = await self._joiner.find(self._caller, upload.client_uuid)
        raise errors.OperationInProgress(f"Part {index} is being received over another connection.")

    async def _while_owned(self, fence: int, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the pieces. Raises part_conflict as soon as another process has claimed the part.

        Otherwise, a process that continues after a pause would overwrite what the other one has stored. The store
        completes a whole file after the last piece, so this also checks at the end.
        """
        async for piece in pieces:
            await self._require(fence)
            yield piece
        await self._require(fence)

    async def _require(self, fence: int) -> None:
        """Raise part_conflict if another process has claimed the part."""
        upload_id, index = self._upload.id, self._request.index
        self._lapses = await self._records.require(upload_id, fence, index=index, since=self._lapses)

    async def _write_whole(self, fence: int, pieces: AsyncGenerator[bytes]) -> None:
        """Write a part that contains the whole file directly to the target, without a staging area."""
        upload, plan = self._upload, self._upload.terms.plan
        async with self._joiner.claimed(self._caller, upload.client_uuid) as claimed:
            try:
                entry = await self._location.storage.write(
                    plan.path, pieces, overwrite=upload.terms.overwrite, size_bytes=plan.size_bytes
                )
            except errors.QueryServerError as error:
                await self._require(fence)  # otherwise, the upload is left to the process that has claimed it
                await self._joiner.forget_failed(upload, error)
                raise
            await self._joiner.record_file(upload, claimed.fence, entry)

    async def _record_part(self, fence: int, part: ReceivedPart) -> None:
        upload = self._upload
        if await self._records.record_part(upload.id, fence, part, keep=KEEP_FOR):
            return
        try:
            await self._joiner.find(self._caller, upload.client_uuid)
        except errors.UploadNotFound:
            # The upload was discarded while the part was being written, so discard the part as well.
            if upload.staging is not None:
                await self._location.storage.discard_parts(upload.terms.plan, upload.staging)
            raise
        raise errors.part_conflict(f"Another request took over part {part.stored.index}.")


async def _consume(pieces: AsyncGenerator[bytes], index: int) -> StoredPart:
    async for _ in pieces:
        pass
    return StoredPart(index, 0, "")


async def _check_part_size(size_bytes: int, checked: CheckedContent) -> AsyncGenerator[bytes]:
    """Yield the chunks. Raises InvalidParameter if the part does not have exactly `size_bytes` bytes."""
    async with aclosing(checked.pieces()) as pieces:
        async for piece in pieces:
            if checked.size_bytes > size_bytes:
                break
            yield piece
        else:
            if checked.size_bytes == size_bytes:
                return
    raise errors.InvalidParameter(f"The part does not have the declared size of {size_bytes} bytes.")


MAX_OPEN_UPLOADS = 20
_PREPARE_WAIT_S = 30.0
_TERMS_DIFFER = "The upload was started with a different name, destination, size or overwrite option."


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Upload properties that a client may repeat in the completion request; None if absent."""

    directory: StoragePath | None = None
    file_name: str | None = None
    total_bytes: int | None = None
    parts: int | None = None
    overwrite: bool | None = None


class PartUploading:
    """Receives parts, and reports, completes and discards uploads. Raises UploadNotFound for other users' uploads."""

    def __init__(
        self,
        stores: Stores,
        records: PartUploads,
        rules: UploadRules,
        orphans: OrphanSweep,
        audit: StorageAudit,
        threads: Executor,
    ) -> None:
        self._stores = stores
        self._records = records
        self._rules = rules
        self._orphans = orphans
        self._audit = audit
        self._joiner = UploadJoiner(stores, records, orphans, threads)
        self._threads = threads

    async def receive(self, caller: Caller, part_request: PartRequest, content: AsyncGenerator[bytes]) -> PartUpload:
        """Store a part. If it is the whole file, also complete the upload.

        Raises InvalidParameter, part_conflict, file_too_large, TooManyRequests, OperationInProgress, and the errors of
        `UploadRules.target` and `PartWriter.receive`.
        """
        self._rules.admit(file_bytes=part_request.total_bytes)
        target = part_request.directory.child(checked_new_name(part_request.file_name))
        terms = UploadTerms(target, plan_of(part_request, target.path), part_request.overwrite)
        operation = "storage.upload" if part_request.is_whole else "storage.upload.part"
        with self._audit.event(caller, operation, target) as details:
            details.size_bytes = terms.plan.size_of(part_request.index)
            location = self._stores.location(caller, target)
            upload = await self._records.read(caller.user.id, part_request.client_uuid)
            if upload is None:
                upload = await self._begin(caller, part_request, terms)
            if upload.terms != terms:
                raise errors.part_conflict(_TERMS_DIFFER)
            # Neither an empty file nor a whole file in one request needs a staging area.
            is_staged = terms.plan.size_bytes > 0 and not (part_request.is_whole and not upload.received_parts)
            if is_staged and upload.staging is None and upload.result is None:
                upload = await self._with_staging_area(caller, upload, location)
            part = PartWriter(self._records, self._joiner, caller, location, upload, part_request)
            await part.receive(content, self._threads)
            if part_request.is_whole:
                return await self._joiner.finish(caller, part_request.client_uuid)
            return await self._joiner.find(caller, part_request.client_uuid)

    async def state(self, caller: Caller, client_uuid: UUID) -> PartUpload:
        return await self._joiner.find(caller, client_uuid)

    async def complete(
        self, caller: Caller, client_uuid: UUID, completion: CompletionRequest, *, sha256: bytes | None = None
    ) -> PartUpload:
        """Join the parts. If they are already joined, return the recorded result.

        Raises part_conflict if `completion` contradicts what the first part declared, and the errors of
        `UploadJoiner.finish`.
        """
        self._rules.admit()
        terms = (await self._joiner.find(caller, client_uuid)).terms
        recorded_terms = (
            terms.target.parent,
            terms.target.name,
            terms.plan.size_bytes,
            terms.plan.parts,
            terms.overwrite,
        )
        name = None if completion.file_name is None else checked_new_name(completion.file_name)
        repeated_terms = (
            completion.directory,
            name,
            completion.total_bytes,
            completion.parts or None,
            completion.overwrite,
        )
        if any(
            value is not None and value != recorded
            for value, recorded in zip(repeated_terms, recorded_terms, strict=True)
        ):
            raise errors.part_conflict(_TERMS_DIFFER)
        with self._audit.event(caller, "storage.upload", terms.target) as details:
            details.size_bytes = terms.plan.size_bytes
            return await self._joiner.finish(caller, client_uuid, sha256=sha256)

    async def discard(self, caller: Caller, client_uuid: UUID) -> StoragePath:
        """Delete an upload and its staged parts, but not a file that was already joined. Raises OperationInProgress."""
        target = (await self._joiner.find(caller, client_uuid)).terms.target
        location = self._stores.location(caller, target)
        with self._audit.event(caller, "storage.upload.discard", target):
            async with self._joiner.claimed(caller, client_uuid) as claimed:
                upload = claimed.upload
                await self._joiner.require(claimed)
                if upload.staging is not None and upload.result is None:
                    await location.storage.discard_parts(upload.terms.plan, upload.staging)
                await self._records.forget(upload.id)
                await self._orphans.end(upload.id)
        return target

    async def _begin(self, caller: Caller, part_request: PartRequest, terms: UploadTerms) -> PartUpload:
        """Check the destination and open the upload. Raises TooManyRequests if the user has too many open uploads."""
        location = await self._rules.target(
            caller, part_request.directory, part_request.file_name, overwrite=part_request.overwrite
        )
        min_part_bytes = location.file_system.traits.min_part_bytes
        if terms.plan.parts > 1 and terms.plan.part_bytes < min_part_bytes:
            raise errors.InvalidParameter(f"Parts on this store must have at least {min_part_bytes} bytes.")
        new = NewUpload(uuid4(), caller.user.id, part_request.client_uuid, caller.acting, terms)
        upload = await self._records.open(new, keep=KEEP_FOR, max_open=MAX_OPEN_UPLOADS)
        if upload is None:
            raise errors.TooManyRequests(
                f"You already have {MAX_OPEN_UPLOADS} open uploads.", retry_after=timedelta(seconds=30)
            )
        if upload.id == new.id:
            await self._orphans.begin(new.id, caller, terms.target)
        return upload

    async def _with_staging_area(self, caller: Caller, upload: PartUpload, location: Location) -> PartUpload:
        """Return the upload once it has a staging area, which one of the concurrent calls creates. Raises
        OperationInProgress.
        """
        async for _ in attempts(_PREPARE_WAIT_S):
            if upload.staging is not None or upload.result is not None:
                return upload
            fence = await self._records.claim(upload.id)
            if fence is not None:
                async with self._records.holding(upload.id, fence):
                    await self._prepare(caller, upload.client_uuid, location, fence)
            upload = await self._joiner.find(caller, upload.client_uuid)
        raise errors.OperationInProgress("Another request is preparing this upload.")

    async def _prepare(self, caller: Caller, client_uuid: UUID, location: Location, fence: int) -> None:
        upload = await self._joiner.find(caller, client_uuid)
        if upload.staging is not None:
            return
        try:
            staging = await _begin_parts(location, upload.terms.plan)
        except errors.QueryServerError:
            # No part has been stored yet, so the next part can open the upload again.
            await self._records.forget(upload.id)
            raise
        if not await self._records.record_staging(upload.id, fence, staging):
            await location.storage.discard_parts(upload.terms.plan, staging)


async def _begin_parts(location: Location, plan: PartPlan) -> str:
    """Create the staging area. In an object store, first create the directory if it does not exist."""
    try:
        return await location.storage.begin_parts(plan)
    except errors.PathNotFound:
        if location.path.scheme not in OBJECT_STORES:
            raise
    with suppress(errors.PathExists):
        await location.storage.mkdir(location.path.parent.path)
    return await location.storage.begin_parts(plan)
