"""Files that arrive in parts, in any order and at any instance (Contract storage 9.2)."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from queryserver.errors.base import InvalidParameter, QueryServerError, TooManyRequests
from queryserver.errors.files import OperationInProgress, PathExists, PathNotFound, part_conflict
from queryserver.files.model import StoragePath
from queryserver.files.orphans import Leftovers
from queryserver.files.part_writing import GivenPart, Joining, PartWriting, plan_of, size_of_part
from queryserver.files.paths import new_name
from queryserver.files.places import Caller, Place, StorageAudit, Stores
from queryserver.files.protocol import PartPlan
from queryserver.files.upload_repository import LEASE, NewUpload, PartUpload, PartUploads, UploadTerms, attempts
from queryserver.files.uploading import OBJECT_STORES, UploadRules

MAX_OPEN_UPLOADS = 20
KEEP = timedelta(hours=24)
"""How long after its last part an upload is kept."""

_PREPARE_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class SaidOfUpload:
    """What a client may repeat when it completes an upload; None: not said."""

    directory: StoragePath | None = None
    file_name: str | None = None
    total_bytes: int | None = None
    parts: int | None = None
    overwrite: bool | None = None


@dataclass(frozen=True, slots=True)
class PartUploadTools:
    """What PartUploading works with."""

    stores: Stores
    records: PartUploads
    rules: UploadRules
    leftovers: Leftovers
    joining: Joining
    writing: PartWriting
    audit: StorageAudit


class PartUploading:
    """Takes parts in, and tells of them. An upload of another user is unknown: UploadNotFound."""

    def __init__(self, tools: PartUploadTools) -> None:
        self._tools = tools
        self._records = tools.records

    async def receive(self, caller: Caller, given: GivenPart, content: AsyncGenerator[bytes]) -> PartUpload:
        """Store a part, and complete the upload where the part is the whole file.

        Raises InvalidParameter, part_conflict, file_too_large, TooManyRequests, OperationInProgress, as
        `UploadRules.target` and `PartWriting.receive`.
        """
        self._tools.rules.admit(file_bytes=given.total_bytes)
        target = given.directory.child(new_name(given.file_name))
        terms = UploadTerms(target, plan_of(given, target.path), given.overwrite)
        operation = "storage.upload" if given.is_whole else "storage.upload.part"
        with self._tools.audit.event(caller, operation, target) as noted:
            noted.size_bytes = size_of_part(terms.plan, given.index)
            place = self._tools.stores.place(caller, target)
            upload = await self._records.read(caller.user.id, given.client_uuid)
            if upload is None:
                upload = await self._begun(caller, given, terms)
            if upload.terms != terms:
                raise part_conflict("The upload began with another name, destination, size or overwrite.")
            if _needs_staging(upload, given):
                upload = await self._prepared(caller, upload, place)
            await self._tools.writing.receive(caller, place, upload, given, content)
            if given.is_whole:
                return await self._tools.joining.finish(caller, given.client_uuid)
            return await self.state(caller, given.client_uuid)

    async def state(self, caller: Caller, client_uuid: UUID) -> PartUpload:
        """How much has arrived."""
        return await self._tools.joining.own(caller, client_uuid)

    async def complete(
        self, caller: Caller, client_uuid: UUID, said: SaidOfUpload, *, sha256: bytes | None = None
    ) -> PartUpload:
        """Make the parts a file; once it is done, the same answer again.

        Raises part_conflict (`said` is not what the first part said), as `Joining.finish`.
        """
        self._tools.rules.admit()
        upload = await self.state(caller, client_uuid)
        _require_same(upload.terms, said)
        with self._tools.audit.event(caller, "storage.upload", upload.terms.target) as noted:
            noted.size_bytes = upload.terms.plan.size_bytes
            return await self._tools.joining.finish(caller, client_uuid, sha256=sha256)

    async def discard(self, caller: Caller, client_uuid: UUID) -> StoragePath:
        """Remove an upload and its parts, not the file that they became. Raises OperationInProgress."""
        target = (await self.state(caller, client_uuid)).terms.target
        place = self._tools.stores.place(caller, target)
        with self._tools.audit.event(caller, "storage.upload.discard", target):
            async with self._tools.joining.alone(caller, client_uuid) as (upload, _):
                if upload.staging is not None and upload.result is None:
                    await place.storage.discard_parts(upload.terms.plan, upload.staging)
                await self._records.forget(upload.id)
                await self._tools.leftovers.end(upload.id)
        return target

    async def _begun(self, caller: Caller, given: GivenPart, terms: UploadTerms) -> PartUpload:
        """The upload, when all is well with its destination."""
        place = await self._tools.rules.target(caller, given.directory, given.file_name, overwrite=given.overwrite)
        smallest = place.file_system.traits.min_part_bytes
        if terms.plan.parts > 1 and terms.plan.part_bytes < smallest:
            raise InvalidParameter(f"On this store a part has at least {smallest} bytes.")
        new = NewUpload(uuid4(), caller.user.id, given.client_uuid, caller.acting, terms)
        upload = await self._records.open(new, keep=KEEP, max_open=MAX_OPEN_UPLOADS)
        if upload is None:
            raise TooManyRequests(f"{MAX_OPEN_UPLOADS} uploads of yours are open.", retry_after=timedelta(seconds=30))
        if upload.id == new.id:
            await self._tools.leftovers.begin(new.id, caller, terms.target)
        return upload

    async def _prepared(self, caller: Caller, upload: PartUpload, place: Place) -> PartUpload:
        """The upload with a place for its parts; one call of many makes it."""
        claimant = uuid4()
        async for _ in attempts(_PREPARE_WAIT_S):
            if upload.staging is not None or upload.result is not None:
                return upload
            if await self._records.claim(upload.id, claimant, lease=LEASE):
                await self._prepare(caller, upload.client_uuid, place, claimant)
            upload = await self.state(caller, upload.client_uuid)
        raise OperationInProgress("Another call prepares this upload.")

    async def _prepare(self, caller: Caller, client_uuid: UUID, place: Place, claimant: UUID) -> None:
        upload = await self.state(caller, client_uuid)
        if upload.staging is not None:
            await self._records.release(upload.id, claimant)
            return
        try:
            staging = await _begin_parts(place, upload.terms.plan)
        except QueryServerError:
            # Nothing has arrived yet: the next part begins anew.
            await self._records.forget(upload.id)
            raise
        if not await self._records.prepared(upload.id, claimant, staging):
            await place.storage.discard_parts(upload.terms.plan, staging)


async def _begin_parts(place: Place, plan: PartPlan) -> str:
    """The staging place. In an object store the directory comes with its first file; parts want it before."""
    try:
        return await place.storage.begin_parts(plan)
    except PathNotFound:
        if place.path.scheme not in OBJECT_STORES:
            raise
    with suppress(PathExists):
        await place.storage.mkdir(place.path.parent.path)
    return await place.storage.begin_parts(plan)


def _needs_staging(upload: PartUpload, given: GivenPart) -> bool:
    """A file that comes whole goes straight to its place, and an empty one has no bytes to be staged."""
    is_direct = given.is_whole and not upload.arrived
    return upload.staging is None and upload.result is None and upload.terms.plan.size_bytes > 0 and not is_direct


def _require_same(terms: UploadTerms, said: SaidOfUpload) -> None:
    kept = SaidOfUpload(
        terms.target.parent, terms.target.name, terms.plan.size_bytes, terms.plan.parts, terms.overwrite
    )
    name = None if said.file_name is None else new_name(said.file_name)
    pairs = [
        (said.directory, kept.directory),
        (name, kept.file_name),
        (said.total_bytes, kept.total_bytes),
        (said.parts or None, kept.parts),
        (said.overwrite, kept.overwrite),
    ]
    if any(given is not None and given != known for given, known in pairs):
        raise part_conflict("The upload began with another name, destination, size or overwrite.")
