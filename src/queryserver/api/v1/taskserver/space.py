"""The space for uploads; served with and without a task server (Contract storage 9.3)."""

from fastapi import Response

from queryserver.api.answers import answer
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute

router = PathGroup(StorageRoute)


@router.operation("get_available_space")
async def available_space(call: StorageCall) -> Response:
    """The smallest limit on an upload of this caller; -1: none is known. Contract storage 9.3."""
    space = await call.services.storage.upload_space.available(call.caller.user)
    return answer(wire.AvailableSpaceResponse(status=0, upload_available_space=space))
