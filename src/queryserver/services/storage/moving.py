"""rename, move and copy (Contract storage 7.1 to 7.6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.files import Scheme, StoragePath
from queryserver.domain.transfers import ClaimedTransfer, Transfer, TransferKind
from queryserver.interfaces.storage import RenamingStorage
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.operations import Body, Progress
from queryserver.services.storage.stores import Caller, Place
from queryserver.services.storage.targets import Asked, Checked, Targets
from queryserver.services.storage.transfer_steps import Moved
from queryserver.services.storage.transfers import Transfers

_SKIPPED = "Following files were skipped due to file size limitations:"
_DONE = {TransferKind.RENAME: "Renamed", TransferKind.MOVE: "Moved", TransferKind.COPY: "Copied"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What may begin, or what is to be finished."""

    asked: Asked
    source: StoragePath
    target: StoragePath
    work: Checked | ClaimedTransfer


class Moving:
    """Each call is two steps, so that whoever does not wait for the second hears of the errors of the first."""

    def __init__(self, targets: Targets, transfers: Transfers, leftovers: Leftovers, audit: StorageAudit) -> None:
        self._targets = targets
        self._transfers = transfers
        self._leftovers = leftovers
        self._audit = audit

    async def directory(self, caller: Caller, destination: str) -> StoragePath:
        """The destination of several sources. Raises NotADirectory."""
        return await self._targets.require_directory(caller, destination)

    async def prepare(self, caller: Caller, asked: Asked) -> Prepared:
        """Check everything; nothing is changed. Raises the errors of Contract storage 7.1, OperationInProgress."""
        try:
            return await self._prepared(caller, asked)
        except QueryServerError as error:
            self._audit.record(caller, f"storage.{asked.kind}", asked.source, error.code)
            raise

    async def carry_out(self, caller: Caller, prepared: Prepared, progress: Progress) -> Moved:
        """Do it. A failed copy leaves nothing behind; of a failed move the source is complete, or the target is."""
        with self._audit.event(caller, f"storage.{prepared.asked.kind}", prepared.source):
            if isinstance(prepared.work, ClaimedTransfer):
                return await self._transfers.resume(prepared.work, progress)
            return await self._begin(caller, prepared.work, progress)

    async def take_over(self) -> int:
        """Finish or take back now what processes that are gone left; how many."""
        return await self._transfers.take_over()

    async def _prepared(self, caller: Caller, asked: Asked) -> Prepared:
        destination = self._targets.destination(caller, asked)
        source = destination.source.path
        if asked.kind is TransferKind.COPY or not _is_one_step(destination.source, destination.given):
            targets = destination.possible_targets
            claimed = await self._transfers.unfinished(caller.user.id, asked.kind, source, targets)
            if claimed is not None:
                return Prepared(asked, source, claimed.transfer.target, claimed)
        checked = await self._targets.check(destination)
        return Prepared(asked, source, checked.target.path, checked)

    async def _begin(self, caller: Caller, checked: Checked, progress: Progress) -> Moved:
        source, target = checked.source, checked.target
        storage = source.storage
        is_one_step = checked.kind is not TransferKind.COPY and _is_one_step(source, target)
        if is_one_step and isinstance(storage, RenamingStorage):
            progress.expect(1)
            await self._rename(caller, storage, checked)
            progress.advance()
            return Moved(checked.kind, source.path, target.path)
        transfer = Transfer(
            user_id=caller.user.id,
            acting=caller.acting,
            kind=checked.kind,
            source=source.path,
            target=target.path,
            overwrite=checked.overwrite,
            operation_id=progress.operation_id,
        )
        async with self._leftovers.noted(caller, target.path):
            return await self._transfers.begin(transfer, (source, target), checked.entry, progress)

    async def _rename(self, caller: Caller, storage: RenamingStorage, checked: Checked) -> None:
        source, target = checked.source.path, checked.target.path
        if not checked.overwrite:
            await storage.rename(source.path, target.path)
            return
        # Where a store cannot replace in one step the old file steps aside, and a crash may leave it there.
        async with self._leftovers.noted(caller, target):
            await storage.rename(source.path, target.path, overwrite=True)


def _is_one_step(source: Place, target: Place) -> bool:
    return (
        source.path.scheme is target.path.scheme
        and isinstance(source.storage, RenamingStorage)
        and source.storage.can_rename(source.path.path, target.path.path)
    )


def moved_body(moved: Moved) -> Mapping[str, Any]:
    """The success body (Contract storage 7.1), in the form of the items of bulk calls."""
    body: dict[str, Any] = {
        "status": 0,
        "path": str(moved.target),
        "source": str(moved.source),
        "message": f"{_DONE[moved.kind]} '{moved.source}' to '{moved.target}' successfully",
    }
    if moved.skipped_links:
        body["details"] = {"skipped_links": list(moved.skipped_links)}
    if _is_ozone_copy(moved):
        body["skipped_files"] = _skipped_text(moved)
    return body


def final_body(moved: Moved) -> Body:
    """The success body of a call with one source: a text for copies on Ozone (Contract storage 7.3)."""
    return _skipped_text(moved) if _is_ozone_copy(moved) else moved_body(moved)


def _is_ozone_copy(moved: Moved) -> bool:
    return moved.kind is TransferKind.COPY and moved.source.scheme is moved.target.scheme is Scheme.OFS


def _skipped_text(moved: Moved) -> str:
    if not moved.skipped_files:
        return ""
    return "\n- ".join((_SKIPPED, *moved.skipped_files))
