"""The rename, move and copy operations (Contract storage 7.1 to 7.6).

Each of them is claimed by its process. After a crash, another process finishes or rolls it back.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from queryserver import errors
from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import DirectoryNotEmpty, OperationInProgress, StorageError
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import (
    ClaimedTransfer,
    EntryKind,
    ExtensionRules,
    FileStatus,
    LongOperationState,
    Scheme,
    StoragePath,
    Transfer,
    TransferClaim,
    TransferKind,
    TransferState,
    checked_new_name,
    transfer_digest,
)
from queryserver.files.operations import Body, Progress, failure_body
from queryserver.files.protocol import RenamingStorage
from queryserver.files.repository import TRANSFERS, OperationRecords, TransferRecords
from queryserver.files.transfer_steps import TransferResult, TransferSteps
from queryserver.files.upload_repository import OrphanSweep, UnfinishedWrites
from queryserver.platform.ownership import Ownership
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SKIPPED = "Following files were skipped due to file size limitations:"
_VERBS = {TransferKind.RENAME: "Renamed", TransferKind.MOVE: "Moved", TransferKind.COPY: "Copied"}


_SWEEP_EVERY_S = 10.0
_RETRY_AFTER = timedelta(seconds=60)


class Transfers:
    """Runs moves and copies. While `running()` is active, also finishes or rolls back the transfers of crashed
    processes.

    `body` creates the final response body of a call.
    """

    def __init__(
        self,
        records: TransferRecords,
        operations: OperationRecords,
        unfinished: UnfinishedWrites,
        stores: Stores,
        audit: StorageAudit,
        body: Callable[[TransferResult], Body],
        ownership: Ownership,
    ) -> None:
        self._records = records
        self._operations = operations
        self._unfinished = unfinished
        self._stores = stores
        self._audit = audit
        self._body = body
        self._ownership = ownership
        ownership.watch(TRANSFERS)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Periodically take over the transfers of crashed processes until the context exits."""
        async with background(every(_SWEEP_EVERY_S, self.take_over), "storage-transfers-sweep"):
            yield

    async def begin(
        self, transfer: Transfer, locations: tuple[Location, Location], entry: FileStatus, progress: Progress
    ) -> TransferResult:
        """Move or copy `entry`. Raises OperationInProgress if an equal call has not ended yet, and the errors of
        `TransferSteps`.
        """
        await self._ownership.require_current()
        claimed = await self._records.begin(transfer, owner=self._ownership.id)
        if claimed is None:
            raise OperationInProgress("The same operation is already running.")
        steps = TransferSteps(self._records, self._unfinished, claimed, locations, progress)

        async def copy_and_finish() -> TransferResult:
            await steps.copy(entry)
            return await steps.finish()

        return await self._run(claimed.claim, copy_and_finish())

    async def claim_unfinished(
        self, user_id: int, kind: TransferKind, source: StoragePath, targets: Sequence[StoragePath]
    ) -> ClaimedTransfer | None:
        """Claim and return an earlier transfer of the same call if its target is already complete. Otherwise, return
        None.

        If a crashed process left the copy incomplete, roll it back and return None, so that the call starts again.
        Raises OperationInProgress if a process that may be alive owns the transfer, or if the crashed process wrote so
        recently that its files cannot yet be distinguished from those of a live process.
        """
        digests = [transfer_digest(user_id, kind, source, target) for target in targets]
        await self._ownership.require_current()
        exists, claimed = await self._records.claim_same(
            digests, owner=self._ownership.id, may_take_over=self._ownership.may_take_over
        )
        if claimed is None:
            if exists:
                raise OperationInProgress("The same operation is already running.")
            return None
        if claimed.state is TransferState.COPYING:
            try:
                await self._run(claimed.claim, self._steps(claimed, Progress()).roll_back())
            except DirectoryNotEmpty:
                raise OperationInProgress("Partial copies from a stopped server are still being removed.") from None
            return None
        return claimed

    async def resume(self, claimed: ClaimedTransfer, progress: Progress) -> TransferResult:
        return await self._run(claimed.claim, self._steps(claimed, progress).finish())

    async def end_unfinished(self, target: StoragePath) -> None:
        """Finish or roll back all transfers with this target whose processes have died or whose callers have left.

        Otherwise, a later rollback would delete what has been stored there meanwhile. Raises OperationInProgress if a
        live process works on one, or if one cannot be ended now.
        """
        while True:
            await self._ownership.require_current()
            exists, claimed = await self._records.claim_to(
                target, owner=self._ownership.id, may_take_over=self._ownership.may_take_over
            )
            if claimed is None:
                break
            await self._finish_orphan(claimed)
        if exists:
            raise OperationInProgress(f"An earlier move to {target} has not ended yet.")

    async def take_over(self) -> int:
        """Finish or roll back transfers of crashed processes. Return the number of transfers taken over."""
        count = 0
        # One at a time, because a claimed transfer that waits for the previous ones would be released as forgotten.
        while self._ownership.may_take_over and (claimed := await self._records.claim_orphan(owner=self._ownership.id)):
            await self._finish_orphan(claimed)
            count += 1
        return count

    def _steps(self, claimed: ClaimedTransfer, progress: Progress) -> TransferSteps:
        transfer = claimed.transfer
        source = self._stores.authorized_location(transfer.source, transfer.acting)
        target = self._stores.authorized_location(transfer.target, transfer.acting)
        return TransferSteps(self._records, self._unfinished, claimed, (source, target), progress)

    async def _finish_orphan(self, claimed: ClaimedTransfer) -> None:
        """Finish or roll back one transfer and close its operation. If that fails, it is retried a minute later.

        Raises DatabaseUnavailable. The transfer and its operation then stay open.
        """
        log.info("transfer taken over", transfer=str(claimed.claim.transfer_id), state=claimed.state.value)
        try:
            if claimed.state is TransferState.COPYING:
                await self._run(claimed.claim, self._steps(claimed, Progress()).roll_back())
                outcome = failure_body(
                    StorageError(
                        "The server that ran the copy stopped; nothing was changed.", details={"rolled_back": True}
                    )
                )
            else:
                outcome = self._body(await self.resume(claimed, Progress()))
        except DatabaseUnavailable:
            raise  # the claim will expire
        except OperationInProgress:
            log.info("transfer lost to another process", transfer=str(claimed.claim.transfer_id))
            return
        except QueryServerError as error:
            log.warning("transfer recovery failed", transfer=str(claimed.claim.transfer_id), code=error.code)
            outcome = failure_body(error)
            if await self._records.release(claimed.claim, again_after=_RETRY_AFTER):
                return
        code = str(outcome["code"]) if isinstance(outcome, Mapping) and outcome["status"] != 0 else "ok"
        self._audit.record_takeover(claimed.transfer, code)
        if claimed.transfer.operation_id is not None:
            state = LongOperationState.DONE if code == "ok" else LongOperationState.FAILED
            await self._operations.end(claimed.transfer.operation_id, state=state, result=outcome)

    async def _run(self, claim: TransferClaim, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on a claimed transfer. If the work is interrupted, release the transfer immediately.

        Raises OperationInProgress if another process has taken it over, or DatabaseUnavailable if this may have
        happened because the database is unavailable.
        """
        with self._ownership.holding(TRANSFERS, claim.transfer_id, claim.fence):
            try:
                return await self._ownership.run(work, partial(self._records.require, claim))
            except QueryServerError:
                # The steps have already ended or released the transfer, or the claim will expire.
                raise
            except BaseException:  # includes CancelledError: the transfer must be released
                await asyncio.shield(self._release(claim, again_after=timedelta(0)))
                raise

    async def _release(self, claim: TransferClaim, *, again_after: timedelta) -> bool:
        try:
            return await self._records.release(claim, again_after=again_after)
        except DatabaseUnavailable:
            return False


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A rename, move or copy as requested by the caller, with unparsed paths."""

    kind: TransferKind
    source: str
    destination: str
    overwrite: bool = False
    is_one_of_several: bool = False
    """Whether the call has several sources. The destination must then be a directory."""


@dataclass(frozen=True, slots=True)
class ParsedTransfer:
    """A transfer request with parsed paths. No store has been called yet."""

    request: TransferRequest
    source: Location
    requested: Location
    must_be_directory: bool

    @property
    def possible_targets(self) -> Sequence[StoragePath]:
        """The paths that the target may have. If the destination is an existing directory, the source's name is
        appended.
        """
        if self.request.kind is TransferKind.RENAME:
            return [self.requested.path]
        return [self.requested.path, self.requested.path.child(self.source.path.name)]


@dataclass(frozen=True, slots=True)
class PreparedTransfer:
    """A checked transfer. `work` performs it, or resumes an unfinished transfer of the same call."""

    kind: TransferKind
    source: StoragePath
    target: StoragePath
    work: Callable[[Progress], Awaitable[TransferResult]]


class Moves:
    """Renames, moves and copies entries in two steps: `prepare` checks the request, and `perform` changes the entries.
    A client that does not wait for the second step still receives the errors of the first.
    """

    def __init__(
        self,
        stores: Stores,
        extensions: ExtensionRules,
        transfers: Transfers,
        orphans: OrphanSweep,
        audit: StorageAudit,
    ) -> None:
        self._stores = stores
        self._extensions = extensions
        self._transfers = transfers
        self._orphans = orphans
        self._audit = audit

    async def prepare(self, caller: Caller, request: TransferRequest) -> PreparedTransfer:
        """Check the request without changing any entry. Raises the errors of Contract storage 7.1,
        OperationInProgress.
        """
        try:
            destination = self._destination(caller, request)
            source = destination.source.path
            if request.kind is TransferKind.COPY or not can_rename(destination.source, destination.requested):
                targets = destination.possible_targets
                claimed = await self._transfers.claim_unfinished(caller.user.id, request.kind, source, targets)
                if claimed is not None:
                    work = partial(self._transfers.resume, claimed)
                    return PreparedTransfer(request.kind, source, claimed.transfer.target, work)
            entry, target, existing = await self._check_stores(destination)
            transfer = Transfer(
                caller.user.id, caller.acting, request.kind, source, target.path, overwrite=existing is not None
            )
            work = partial(self.move, caller, transfer, (destination.source, target), entry)
            return PreparedTransfer(request.kind, source, target.path, work)
        except errors.QueryServerError as error:
            self._audit.record(caller, f"storage.{request.kind}", request.source, error.code)
            raise

    async def perform(self, caller: Caller, prepared: PreparedTransfer, progress: Progress) -> TransferResult:
        """Perform the transfer. After a failed copy, the target is removed. After a failed move, either the source or
        the target is complete.
        """
        with self._audit.event(caller, f"storage.{prepared.kind}", prepared.source):
            return await prepared.work(progress)

    async def directory(self, caller: Caller, destination: str) -> StoragePath:
        """Return the destination of a call with several sources. Raises NotADirectory, even if the path does not
        exist.
        """
        requested = self._stores.location(caller, self._stores.path(destination, parameter="dest_path"))
        if not requested.path.is_root:
            entry = await requested.find()
            if entry is None:
                raise errors.NotADirectory(
                    f"With several sources, the destination must be an existing directory; {requested.path}"
                    " does not exist."
                )
            requested.check_directory(entry)
        return requested.path

    def _destination(self, caller: Caller, request: TransferRequest) -> ParsedTransfer:
        """Parse the paths and run all checks that need no store call."""
        is_rename = request.kind is TransferKind.RENAME
        source = self._stores.location(caller, self._stores.path(request.source, parameter="src_path"))
        requested = self._stores.location(caller, self._destination_path(request, source.path))
        if len(source.path.names) <= source.file_system.traits.container_levels or source.path.is_root:
            if request.kind is TransferKind.COPY:
                raise errors.NotSupported("Roots, buckets, containers and volumes cannot be copied.")
            raise errors.root_not_allowed("Roots, buckets, containers and volumes cannot be moved or renamed.")
        if is_rename and source.path.scheme is not requested.path.scheme:
            raise errors.NotSupported("A rename cannot change the store; use move instead.")
        if requested.path in ({source.path} if is_rename else {source.path, source.path.parent}):
            raise errors.same_path("Source and target are the same.")
        is_directory = request.is_one_of_several or (not is_rename and request.destination.strip().endswith("/"))
        return ParsedTransfer(request, source, requested, is_directory)

    async def _check_stores(self, destination: ParsedTransfer) -> tuple[FileStatus, Location, FileStatus | None]:
        """Run the checks that need store calls. Return the source's status, the target, and any existing entry
        there.
        """
        source = destination.source
        entry = await source.storage.stat(source.path.path)
        if destination.requested.path.is_inside(source.path):
            raise errors.TargetInsideSource("The target is inside the source.")
        target, existing = await self._target(destination)
        if target.path == source.path:
            # The names may be equal once the new name is stripped of whitespace.
            raise errors.same_path("Source and target are the same.")
        if target.path.name != source.path.name:  # unchanged names are not checked
            checked_new_name(target.path.name, is_directory=entry.is_directory)
        if existing is None:
            if len(target.path.names) <= target.file_system.traits.container_levels:
                # A transfer does not create buckets.
                raise target.missing()
            if not target.path.parent.is_root:
                await target.at(target.path.parent).require_directory()
        elif not (destination.request.overwrite and existing.is_file and entry.is_file):
            raise errors.PathExists(f"{target.path} already exists.")
        if entry.is_file:
            self._extensions.check(target.path.name, former=source.path.name)
        if entry.kind is EntryKind.LINK and destination.request.kind is TransferKind.COPY:
            raise errors.SymlinkNotFollowed("Symbolic links cannot be copied.")
        return entry, target, existing

    def _destination_path(self, request: TransferRequest, source: StoragePath) -> StoragePath:
        """Parse the destination. In a rename, a destination without a slash is a name in the source's directory."""
        if not request.destination or request.destination.isspace():
            raise errors.MissingParameter("dest_path is required.")
        if request.kind is TransferKind.RENAME and "/" not in request.destination:
            return source.parent.child(checked_new_name(request.destination))
        requested = self._stores.path(request.destination, parameter="dest_path")
        if request.kind is TransferKind.RENAME:
            return requested.parent.child(checked_new_name(requested.name))
        return requested

    async def _target(self, destination: ParsedTransfer) -> tuple[Location, FileStatus | None]:
        """Return the target and the entry that exists there, or None. Raises PathNotFound, NotADirectory."""
        requested = destination.requested
        existing = None if requested.path.is_root else await requested.find()
        if destination.request.kind is TransferKind.RENAME:
            return requested, existing
        if requested.path.is_root or (existing is not None and existing.is_directory):
            inside = requested.at(requested.path.child(destination.source.path.name))
            return inside, await inside.find()
        if destination.must_be_directory:
            if existing is None:
                raise requested.missing()
            requested.check_directory(existing)
        if existing is not None:
            return requested, existing
        name = (
            checked_new_name(requested.path.name)
            if requested.path.name != destination.source.path.name
            else requested.path.name
        )
        stripped = requested.at(requested.path.parent.child(name))
        return stripped, None if name == requested.path.name else await stripped.find()

    async def existing(self, target: Location) -> FileStatus | None:
        """Return the entry at a target, after the unfinished transfers to it have ended. Raises OperationInProgress."""
        await self._transfers.end_unfinished(target.path)
        return await target.find()

    async def move(
        self,
        caller: Caller,
        transfer: Transfer,
        locations: tuple[Location, Location],
        entry: FileStatus,
        progress: Progress,
    ) -> TransferResult:
        """Perform a checked transfer of `entry` from the first location to the second."""
        source, target = locations
        storage = source.storage
        is_rename_possible = transfer.kind is not TransferKind.COPY and can_rename(source, target)
        if is_rename_possible and isinstance(storage, RenamingStorage):
            progress.expect(1)
            if transfer.overwrite:
                # In stores that cannot replace files atomically, a crash may leave the old file under a reserved name.
                async with self._orphans.recorded_write(caller, target.path):
                    await storage.rename(source.path.path, target.path.path, overwrite=True)
            else:
                await storage.rename(source.path.path, target.path.path)
            progress.advance()
            return TransferResult(transfer.kind, source.path, target.path)
        transfer = replace(transfer, operation_id=progress.operation_id)
        async with self._orphans.recorded_write(caller, target.path):
            return await self._transfers.begin(transfer, locations, entry, progress)


def can_rename(source: Location, target: Location) -> bool:
    """Return whether one atomic rename moves an entry between these locations."""
    return (
        source.path.scheme is target.path.scheme
        and isinstance(source.storage, RenamingStorage)
        and source.storage.can_rename(source.path.path, target.path.path)
    )


def item_body(result: TransferResult) -> Mapping[str, Any]:
    """Return the response body of a successful call (Contract storage 7.1). Each item of a bulk call has the same
    body.
    """
    body: dict[str, Any] = {
        "status": 0,
        "path": str(result.target),
        "source": str(result.source),
        "message": f"{_VERBS[result.kind]} '{result.source}' to '{result.target}' successfully",
    }
    if result.skipped_links:
        body["details"] = {"skipped_links": list(result.skipped_links)}
    if _is_ozone_copy(result):
        body["skipped_files"] = _skipped_text(result)
    return body


def final_body(result: TransferResult) -> Body:
    """Return the response body of a call with one source. For copies within Ozone, it is a string (Contract storage
    7.3).
    """
    return _skipped_text(result) if _is_ozone_copy(result) else item_body(result)


def _is_ozone_copy(result: TransferResult) -> bool:
    return result.kind is TransferKind.COPY and result.source.scheme is result.target.scheme is Scheme.OFS


def _skipped_text(result: TransferResult) -> str:
    return "\n- ".join((_SKIPPED, *result.skipped_files)) if result.skipped_files else ""
