"""chmod, chown, set_replication (Contract storage 6)."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.v1.storage.bulk import answer_each
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.formats.files import mode_text
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_changing import ChmodRequest, ChownRequest, ReplicationRequest

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_FAILURES = failures(400, 403, 404, 409, 413, 415, 501, 502)

_Each = Callable[[str], Awaitable[dict[str, Any]]]


def _chmod(call: StorageCall, asked: ChmodRequest) -> _Each:
    permissions = asked.permissions()

    async def change(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        changed = await call.services.storage.attributes.chmod(
            call.caller, path, permissions, recursive=asked.recursive
        )
        return wire.ChmodResponse(status=0, path=str(path), mode=mode_text(changed.mode)).model_dump()

    return change


def _chown(call: StorageCall, asked: ChownRequest) -> _Each:
    owner, group = asked.chosen()

    async def change(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        await call.services.storage.attributes.chown(call.caller, path, owner, group, recursive=asked.recursive)
        return wire.ChownResponse(status=0, path=str(path), user=owner, group=group).model_dump()

    return change


async def _replication(call: StorageCall) -> Response:
    asked = call.read(ReplicationRequest)
    path = call.services.storage.stores.path(asked.path)
    await call.services.storage.attributes.set_replication(call.caller, path, asked.replication_factor)
    return answer(wire.ReplicationResponse(status=0, path=str(path), replication=asked.replication_factor))


@router.post(
    "/chmod",
    response_model=wire.ChmodResponse | wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ChmodRequest),
    summary="Set permissions",
)
async def chmod(call: StorageCall) -> Response:
    """Set the permissions of an entry, or of a tree. Contract storage 6."""
    asked = call.read(ChmodRequest)
    return await answer_each(asked.path, _chmod(call, asked))


@router.post(
    "/chmod/bulk",
    response_model=wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ChmodRequest),
    summary="Set permissions of many",
)
async def chmod_bulk(call: StorageCall) -> Response:
    """Set the permissions of each entry. Contract storage 6, 7.8."""
    asked = call.read(ChmodRequest)
    return await answer_each(asked.path, _chmod(call, asked), always_bulk=True)


@router.post(
    "/chown",
    response_model=wire.ChownResponse | wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ChownRequest),
    summary="Set owner and group",
)
async def chown(call: StorageCall) -> Response:
    """Set owner, group, or both, of an entry or of a tree. Contract storage 6."""
    asked = call.read(ChownRequest)
    return await answer_each(asked.path, _chown(call, asked))


@router.post(
    "/chown/bulk",
    response_model=wire.BulkResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ChownRequest),
    summary="Set owner and group of many",
)
async def chown_bulk(call: StorageCall) -> Response:
    """Set owner, group, or both, of each entry. Contract storage 6, 7.8."""
    asked = call.read(ChownRequest)
    return await answer_each(asked.path, _chown(call, asked), always_bulk=True)


@router.post(
    "/set_replication",
    response_model=wire.ReplicationResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ReplicationRequest),
    summary="Set the replication factor",
)
async def set_replication(call: StorageCall) -> Response:
    """Set how many copies of a file the store keeps. Spec §4, Contract storage 6."""
    return await _replication(call)


@router.post(
    "/replication",
    response_model=wire.ReplicationResponse,
    responses=_FAILURES,
    openapi_extra=accepts(ReplicationRequest),
    summary="Set the replication factor",
)
async def replication(call: StorageCall) -> Response:
    """Set the replication factor of a file, as `set_replication`. Contract storage 1, 6."""
    return await _replication(call)
