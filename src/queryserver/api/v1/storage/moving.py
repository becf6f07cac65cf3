"""rename, move, copy, and their bulk forms (Contract storage 7)."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, failures
from queryserver.api.v1.storage.bulk import answer_each
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.operations import Final, LongCall
from queryserver.domain.transfers import TransferKind
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_moving import MoveRequest, RenameRequest
from queryserver.services.storage.moving import final_body, moved_body
from queryserver.services.storage.operations import Progress
from queryserver.services.storage.targets import Asked

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_RESPONSES = failures(400, 403, 404, 409, 413, 415, 422, 501, 502, 507)


async def _one(call: StorageCall, asked: Asked, wait_s: int | None) -> Response:
    moving = call.services.storage.moving
    prepared = await moving.prepare(call.caller, asked)

    async def run(progress: Progress) -> Final:
        return Final(final_body(await moving.carry_out(call.caller, prepared, progress)))

    return await LongCall(call, f"storage.{asked.kind}", str(prepared.target), wait_s).answer(run)


async def _many(call: StorageCall, kind: TransferKind, asked: MoveRequest) -> Response:
    moving, several = call.services.storage.moving, len(set(asked.src_path)) > 1
    if several:
        shown = await moving.directory(call.caller, asked.dest_path)
    else:
        shown = call.services.storage.stores.path(asked.dest_path, parameter="dest_path")

    async def each(source: str) -> Mapping[str, Any]:
        item = Asked(kind, source, asked.dest_path, overwrite=asked.overwrite, several=several)
        prepared = await moving.prepare(call.caller, item)
        return moved_body(await moving.carry_out(call.caller, prepared, Progress()))

    long = LongCall(call, f"storage.{kind}", str(shown), asked.wait)
    return await answer_each(asked.src_path, each, always_bulk=True, long=long)


async def _one_or_many(call: StorageCall, kind: TransferKind) -> Response:
    asked = call.read(MoveRequest)
    first, *more = asked.src_path
    if more:
        return await _many(call, kind, asked)
    return await _one(call, Asked(kind, first, asked.dest_path, overwrite=asked.overwrite), asked.wait)


@router.post(
    "/rename",
    response_model=wire.TransferResponse | wire.RunningOperation,
    responses=_RESPONSES,
    openapi_extra=accepts(RenameRequest),
    summary="Give an entry another name",
)
async def rename(call: StorageCall) -> Response:
    """Rename an entry beside itself, or to a full path of the same store. Spec §4, Contract storage 7.2."""
    asked = call.read(RenameRequest)
    item = Asked(TransferKind.RENAME, asked.src_path, asked.dest_path, overwrite=asked.overwrite)
    return await _one(call, item, asked.wait)


@router.post(
    "/move",
    response_model=wire.TransferResponse | wire.BulkResponse | wire.RunningOperation,
    responses=_RESPONSES,
    openapi_extra=accepts(MoveRequest),
    summary="Move an entry",
)
async def move(call: StorageCall) -> Response:
    """Move entries into a directory, or one to a new path; also to another store. Spec §4, Contract storage 7.3."""
    return await _one_or_many(call, TransferKind.MOVE)


@router.post(
    "/copy",
    response_model=wire.TransferResponse | wire.SkippedFiles | wire.BulkResponse | wire.RunningOperation,
    responses=_RESPONSES,
    openapi_extra=accepts(MoveRequest),
    summary="Copy an entry",
)
async def copy(call: StorageCall) -> Response:
    """Copy entries with all they hold; on Ozone the answer names what was skipped. Spec §4, Contract storage 7.3."""
    return await _one_or_many(call, TransferKind.COPY)


@router.post(
    "/move/bulk",
    response_model=wire.BulkResponse | wire.RunningOperation,
    responses=_RESPONSES,
    openapi_extra=accepts(MoveRequest),
    summary="Move many entries",
)
async def move_bulk(call: StorageCall) -> Response:
    """Move each entry; a failure does not stop the rest. Contract storage 7.8."""
    return await _many(call, TransferKind.MOVE, call.read(MoveRequest))


@router.post(
    "/copy/bulk",
    response_model=wire.BulkResponse | wire.RunningOperation,
    responses=_RESPONSES,
    openapi_extra=accepts(MoveRequest),
    summary="Copy many entries",
)
async def copy_bulk(call: StorageCall) -> Response:
    """Copy each entry; a failure does not stop the rest. Contract storage 7.8."""
    return await _many(call, TransferKind.COPY, call.read(MoveRequest))
