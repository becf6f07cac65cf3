"""The trash (Contract storage 8)."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.v1.storage.bulk import answer_each
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.domain.storage_paths import repaired
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_changing import OptionalPathRequest, PathRequest, PathsRequest

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_FAILURES = failures(400, 403, 404, 409, 415, 501, 502)


@router.get(
    "/trash/path",
    response_model=wire.TrashPathResponse,
    responses=_FAILURES,
    openapi_extra={"parameters": query_parameters(PathRequest)},
    summary="Where the trash is",
)
async def trash_path(call: StorageCall) -> Response:
    """The trash folder for a path; null when there is none yet. Contract storage 8."""
    storage = call.services.storage
    path = storage.stores.path(repaired(call.read(PathRequest).path))
    found = await storage.trash.where(call.caller, path)
    return answer(wire.TrashPathResponse(status=0, path=str(path), trash_path=None if found is None else str(found)))


async def _restore(call: StorageCall, text: str) -> dict[str, Any]:
    path = call.services.storage.stores.path(text)
    restored = await call.services.storage.trash.restore(call.caller, path)
    return wire.RestoreResponse(status=0, path=str(restored), source=str(path)).model_dump()


@router.post(
    "/trash/restore",
    response_model=wire.RestoreResponse | wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(PathsRequest),
    summary="Bring entries back from the trash",
)
async def restore(call: StorageCall) -> Response:
    """Bring an entry back to where it was. Spec §4, Contract storage 8."""
    return await answer_each(call.read(PathsRequest).path, lambda text: _restore(call, text))


@router.post(
    "/trash/restore/bulk",
    response_model=wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(PathsRequest),
    summary="Bring many entries back from the trash",
)
async def restore_bulk(call: StorageCall) -> Response:
    """Bring each entry back to where it was. Contract storage 7.8, 8."""
    return await answer_each(call.read(PathsRequest).path, lambda text: _restore(call, text), always_bulk=True)


@router.post(
    "/trash/purge",
    response_model=wire.PurgeResponse,
    responses=_FAILURES,
    openapi_extra=accepts(OptionalPathRequest),
    summary="Empty the trash",
)
async def purge(call: StorageCall) -> Response:
    """Delete every entry of the caller's trash for good. Spec §4, Contract storage 8."""
    storage = call.services.storage
    text = call.read(OptionalPathRequest).path
    path = storage.stores.path(text) if text else storage.stores.default_home(call.caller)
    root, purged = await storage.trash.purge(call.caller, path)
    return answer(wire.PurgeResponse(status=0, path=str(root), purged=purged))
