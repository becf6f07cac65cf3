"""The calls rename, move and copy (Contract storage 7)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Response

from queryserver.api.routes import failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.service_dependencies import LongOperationsDep, MovesDep, StoresDep
from queryserver.api.v1.storage.dependencies import FilesWriter, IsBulk, storage_fields, storage_group
from queryserver.api.v1.storage.operations import CONTINUES, Final, LongCall, answer_each
from queryserver.files.access import Caller, Stores
from queryserver.files.model import TransferKind
from queryserver.files.moves import Moves, TransferRequest, final_body, moved_body
from queryserver.files.operations import LongOperations, Progress

router = storage_group()

_MoveRequest = Annotated[requests.MoveRequest, storage_fields(requests.MoveRequest)]
_RESPONSES = CONTINUES | failures(403, 404, 409, 422, 501, 502, 507)


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Renames, moves and copies; the work may continue after a 202 response."""

    moves: Moves
    stores: Stores
    operations: LongOperations

    async def one(self, caller: Caller, transfer: TransferRequest, wait_s: int | None) -> Response:
        prepared = await self.moves.prepare(caller, transfer)

        async def run(progress: Progress) -> Final:
            return Final(final_body(await self.moves.perform(caller, prepared, progress)))

        return await self._long(caller, transfer.kind, str(prepared.target), wait_s).json_response(run)

    async def one_or_many(
        self, caller: Caller, kind: TransferKind, request: requests.MoveRequest, *, is_bulk: bool
    ) -> Response:
        sources, overwrite = request.src_path, request.overwrite
        if len(sources) == 1 and not is_bulk:
            transfer = TransferRequest(kind, sources[0], request.dest_path, overwrite=overwrite)
            return await self.one(caller, transfer, request.wait)
        several = len(set(sources)) > 1
        if several:
            shown = await self.moves.directory(caller, request.dest_path)
        else:
            shown = self.stores.path(request.dest_path, parameter="dest_path")

        async def each(source: str) -> Mapping[str, Any]:
            transfer = TransferRequest(kind, source, request.dest_path, overwrite=overwrite, several=several)
            prepared = await self.moves.prepare(caller, transfer)
            return moved_body(await self.moves.perform(caller, prepared, Progress()))

        long = self._long(caller, kind, str(shown), request.wait)
        return await answer_each(sources, each, always_bulk=True, long=long)

    def _long(self, caller: Caller, kind: TransferKind, path: str, wait_s: int | None) -> LongCall:
        return LongCall(self.operations, caller, f"storage.{kind}", path, wait_s)


async def _transfers(moves: MovesDep, stores: StoresDep, operations: LongOperationsDep) -> _Transfers:
    return _Transfers(moves, stores, operations)


TransfersDep = Annotated[_Transfers, Depends(_transfers)]


@router.post("/rename", response_model=wire.TransferResponse, responses=_RESPONSES)
async def rename(
    caller: FilesWriter,
    request: Annotated[requests.RenameRequest, storage_fields(requests.RenameRequest)],
    transfers: TransfersDep,
) -> Response:
    """Rename an entry beside itself, or to a full path of the same store. Spec §4, Contract storage 7.2."""
    transfer = TransferRequest(TransferKind.RENAME, request.src_path, request.dest_path, overwrite=request.overwrite)
    return await transfers.one(caller, transfer, request.wait)


@router.post("/move", response_model=wire.TransferResponse | wire.BulkResponse, responses=_RESPONSES)
@router.post("/move/bulk", name="move_bulk", response_model=wire.BulkResponse, responses=_RESPONSES)
async def move(caller: FilesWriter, request: _MoveRequest, is_bulk: IsBulk, transfers: TransfersDep) -> Response:
    """Move entries into a directory, or one to a new path; also to another store. Spec §4, Contract storage 7.3."""
    return await transfers.one_or_many(caller, TransferKind.MOVE, request, is_bulk=is_bulk)


@router.post(
    "/copy", response_model=wire.TransferResponse | wire.SkippedFiles | wire.BulkResponse, responses=_RESPONSES
)
@router.post("/copy/bulk", name="copy_bulk", response_model=wire.BulkResponse, responses=_RESPONSES)
async def copy(caller: FilesWriter, request: _MoveRequest, is_bulk: IsBulk, transfers: TransfersDep) -> Response:
    """Copy entries with all they hold; on Ozone the answer names what was skipped. Spec §4, Contract storage 7.3."""
    return await transfers.one_or_many(caller, TransferKind.COPY, request, is_bulk=is_bulk)
