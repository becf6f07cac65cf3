"""Moves and copies under leases. After a crash, another process finishes or rolls them back (Contract storage 7.5)."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import DirectoryNotEmpty, OperationInProgress, StorageError
from queryserver.files.access import Location, StorageAudit, Stores
from queryserver.files.model import (
    ClaimedTransfer,
    FileStatus,
    LongOperationState,
    StoragePath,
    Transfer,
    TransferKind,
    TransferLease,
    TransferState,
    transfer_digest,
)
from queryserver.files.operations import Body, Progress, failure_body
from queryserver.files.repository import OperationRecords, TransferRecords
from queryserver.files.transfer_steps import TransferResult, TransferSteps
from queryserver.files.upload_repository import UnfinishedWrites
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The leases of one process: its name in them, their duration, and the intervals of renewal and takeover."""

    owner: str = field(default_factory=lambda: uuid4().hex)
    duration: timedelta = timedelta(seconds=60)
    renew_every: timedelta = timedelta(seconds=15)
    sweep_every: timedelta = timedelta(seconds=10)


class Transfers:
    """Runs moves and copies. While `running()`, also finishes or rolls back the transfers of crashed processes.

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
        leases: LeaseSettings | None = None,
    ) -> None:
        self._records = records
        self._operations = operations
        self._unfinished = unfinished
        self._stores = stores
        self._audit = audit
        self._body = body
        self._leases = leases or LeaseSettings()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Periodically take over the transfers of crashed processes until the context exits."""
        async with background(
            every(self._leases.sweep_every.total_seconds(), self.take_over), "storage-transfers-sweep"
        ):
            yield

    async def begin(
        self, transfer: Transfer, locations: tuple[Location, Location], entry: FileStatus, progress: Progress
    ) -> TransferResult:
        """Move or copy `entry`. Raises OperationInProgress if an equal call has not ended yet, and the errors of
        `TransferSteps`.
        """
        claimed = await self._records.begin(transfer, owner=self._leases.owner, lease=self._leases.duration)
        if claimed is None:
            raise OperationInProgress("The same operation is already running.")
        steps = TransferSteps(self._records, self._unfinished, claimed, locations, progress)

        async def copy_and_finish() -> TransferResult:
            await steps.copy(entry)
            return await steps.finish()

        return await self._with_lease(claimed.lease, copy_and_finish())

    async def claim_unfinished(
        self, user_id: int, kind: TransferKind, source: StoragePath, targets: Sequence[StoragePath]
    ) -> ClaimedTransfer | None:
        """Claim and return an earlier transfer of the same call that has only its source left to delete, or return
        None.

        If a crashed process left the copy incomplete, rolls it back and returns None, so that the call starts again.
        Raises OperationInProgress if a live process owns the transfer, or if the crashed process wrote so recently that
        its files cannot yet be distinguished from those of a live process.
        """
        digests = [transfer_digest(user_id, kind, source, target) for target in targets]
        exists, claimed = await self._records.claim_same(digests, owner=self._leases.owner, lease=self._leases.duration)
        if claimed is None:
            if exists:
                raise OperationInProgress("The same operation is already running.")
            return None
        if claimed.state is TransferState.COPYING:
            try:
                await self._with_lease(claimed.lease, self._steps(claimed, Progress()).roll_back())
            except DirectoryNotEmpty:
                raise OperationInProgress("Partial copies from a stopped server are still being removed.") from None
            return None
        return claimed

    async def resume(self, claimed: ClaimedTransfer, progress: Progress) -> TransferResult:
        return await self._with_lease(claimed.lease, self._steps(claimed, progress).finish())

    async def take_over(self) -> int:
        """Finish or roll back transfers of crashed processes; return how many were taken over."""
        orphans = await self._records.claim_orphans(owner=self._leases.owner, lease=self._leases.duration)
        for claimed in orphans:
            await self._finish_orphan(claimed)
        return len(orphans)

    def _steps(self, claimed: ClaimedTransfer, progress: Progress) -> TransferSteps:
        transfer = claimed.transfer
        source = self._stores.authorized_location(transfer.source, transfer.acting)
        target = self._stores.authorized_location(transfer.target, transfer.acting)
        return TransferSteps(self._records, self._unfinished, claimed, (source, target), progress)

    async def _finish_orphan(self, claimed: ClaimedTransfer) -> None:
        """Finish or roll back one transfer and close its operation. If that fails, it is retried after the lease
        expires.
        """
        log.info("transfer taken over", transfer=str(claimed.lease.transfer_id), state=claimed.state.value)
        try:
            if claimed.state is TransferState.COPYING:
                await self._with_lease(claimed.lease, self._steps(claimed, Progress()).roll_back())
                outcome = failure_body(
                    StorageError(
                        "The server that ran the copy stopped; nothing was changed.", details={"rolled_back": True}
                    )
                )
            else:
                outcome = self._body(await self.resume(claimed, Progress()))
        except QueryServerError as error:
            log.warning("transfer recovery failed", transfer=str(claimed.lease.transfer_id), code=error.code)
            outcome = failure_body(error)
            if await self._release(claimed.lease, again_after=self._leases.duration):
                return
        code = str(outcome["code"]) if isinstance(outcome, Mapping) and outcome["status"] != 0 else "ok"
        self._audit.record_takeover(claimed.transfer, code)
        if claimed.transfer.operation_id is not None:
            state = LongOperationState.DONE if code == "ok" else LongOperationState.FAILED
            await self._operations.end(claimed.transfer.operation_id, state=state, result=outcome)

    async def _with_lease(self, lease: TransferLease, work: Coroutine[Any, Any, T]) -> T:
        """Run the work while renewing its lease. If the work is interrupted, release the lease immediately."""
        task = asyncio.create_task(work, name=f"transfer-{lease.transfer_id}")
        try:
            await self._renew_until_done(lease, task)
            return task.result()
        except QueryServerError:
            # The steps have already ended or released the transfer, or its lease will expire.
            raise
        except BaseException:  # includes CancelledError: the lease must be released
            await _cancel_and_wait(task)
            await asyncio.shield(self._release(lease, again_after=timedelta(0)))
            raise
        finally:
            await _cancel_and_wait(task)

    async def _renew_until_done(self, lease: TransferLease, task: "asyncio.Task[Any]") -> None:
        """Renew the lease until the task ends. Raises OperationInProgress if another process has taken it over, or
        DatabaseUnavailable if it could not be renewed before it expires.
        """
        lasting_s, every_s = self._leases.duration.total_seconds(), self._leases.renew_every.total_seconds()
        last_renewed = time.monotonic()
        while not (await asyncio.wait({task}, timeout=every_s))[0]:
            try:
                if not await self._records.renew(lease, lasting=self._leases.duration):
                    raise OperationInProgress("Another server has taken over this operation.")
                last_renewed = time.monotonic()
            except DatabaseUnavailable:
                if time.monotonic() > last_renewed + lasting_s - every_s:
                    raise

    async def _release(self, lease: TransferLease, *, again_after: timedelta) -> bool:
        try:
            return await self._records.release(lease, again_after=again_after)
        except DatabaseUnavailable:
            return False


async def _cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel the task if it is still running, and wait until it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
