"""The optimizer calls of Hue, none of which this server carries out (Contract platform 7.8)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import failures
from queryserver.api.platform_calls import PlatformCall, PlatformRoute
from queryserver.domain.errors.base import NotSupported
from queryserver.schemas import generated as wire

router = APIRouter(prefix="/api/v1/optimizer", tags=["optimizer"], route_class=PlatformRoute)


@router.post(
    "/{name:optimizer}",
    status_code=501,
    response_model=wire.ErrorBody,
    responses=failures(400, 404, 413, 415),
    summary="Not served: advice on queries",
)
async def optimizer(call: PlatformCall, name: str) -> Response:
    """Always refused: there is no optimizer, as `get_config` says."""
    del call
    raise NotSupported(f"The optimizer call {name} is not served.")
