"""rmtree, its other names, and archives (Contract storage 1, 7.7)."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, failures
from queryserver.api.v1.storage.bulk import answer_each
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.operations import LongCall
from queryserver.domain.errors.base import NotSupported, QueryServerError
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_changing import DeleteRequest

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_FAILURES = failures(400, 403, 404, 409, 413, 415, 501, 502)


async def _delete(call: StorageCall, *, always_bulk: bool = False) -> Response:
    asked = call.read(DeleteRequest)

    async def delete(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        deleted = await call.services.storage.deletions.delete(call.caller, path, skip_trash=asked.skip_trash)
        trash_path = None if deleted.trash_path is None else str(deleted.trash_path)
        return wire.DeleteResponse(
            status=0, path=str(path), trashed=trash_path is not None, trash_path=trash_path
        ).model_dump()

    long = LongCall(call, "storage.delete", _shown(call, asked.path[0]), asked.wait)
    return await answer_each(asked.path, delete, always_bulk=always_bulk, long=long)


def _shown(call: StorageCall, text: str) -> str:
    """What the answer 202 names; a path that is none is an item that fails, and does not stop the others."""
    try:
        return str(call.services.storage.stores.path(text))
    except QueryServerError:
        return text


@router.post(
    "/rmtree",
    response_model=wire.DeleteResponse | wire.BulkResponse | wire.RunningOperation,
    responses=_FAILURES,
    openapi_extra=accepts(DeleteRequest),
    summary="Delete an entry with its content",
)
async def rmtree(call: StorageCall) -> Response:
    """Delete entries, to the trash where the store has one. Spec §4, Contract storage 7.7."""
    return await _delete(call)


@router.post(
    "/delete",
    response_model=wire.DeleteResponse | wire.BulkResponse | wire.RunningOperation,
    responses=_FAILURES,
    openapi_extra=accepts(DeleteRequest),
    summary="Delete an entry with its content",
)
async def delete(call: StorageCall) -> Response:
    """Delete an entry with its content, as `rmtree`. Contract storage 1, 7.7."""
    return await _delete(call)


@router.post(
    "/delete/bulk",
    response_model=wire.BulkResponse | wire.RunningOperation,
    responses=_FAILURES,
    openapi_extra=accepts(DeleteRequest),
    summary="Delete many entries",
)
async def delete_bulk(call: StorageCall) -> Response:
    """Delete each entry; a failure does not stop the rest. Contract storage 7.7, 7.8."""
    return await _delete(call, always_bulk=True)


@router.post("/extract_archive", response_class=Response, responses=failures(501), summary="Not supported")
async def extract_archive(call: StorageCall) -> Response:
    """Always 501. Contract storage 1."""
    del call
    raise NotSupported("Archives are not unpacked by this server.")


@router.post("/compress", response_class=Response, responses=failures(501), summary="Not supported")
async def compress(call: StorageCall) -> Response:
    """Always 501. Contract storage 1."""
    del call
    raise NotSupported("Archives are not made by this server.")
