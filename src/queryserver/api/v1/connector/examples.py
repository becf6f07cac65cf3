"""examples/install (Contract platform 5.9)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.schemas import generated as wire

router = APIRouter(prefix="/api/v1/connector/examples", tags=["connector"], route_class=AdminRoute)


@router.post(
    "/install",
    response_model=wire.ConnectorExamplesResponse,
    responses=failures(400, 403, 413, 415),
    summary="Install the connectors of the settings",
)
async def install(call: AdminCall) -> Response:
    """Adds missing ones, and updates those that this call added and that were not edited since."""
    done = await call.services.stored_connectors.examples.install(call.user)
    return answer(
        wire.ConnectorExamplesResponse(
            status=0,
            message=done.message,
            added=[str(one.id) for one in done.added],
            updated=[str(one.id) for one in done.updated],
            unchanged=[str(one.id) for one in done.unchanged],
        )
    )
