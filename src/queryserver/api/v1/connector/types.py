"""types: what kinds of connectors there are (Contract platform 5.2)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.platform_calls import PlatformCall, PlatformRoute
from queryserver.api.v1.connector import shapes
from queryserver.schemas import generated as wire

router = APIRouter(prefix="/api/v1", tags=["connector"], route_class=PlatformRoute)

_FAILURES = failures()


@router.get(
    "/connector/types",
    response_model=wire.ConnectorTypeList,
    responses=_FAILURES,
    summary="Types of connectors",
)
async def types(call: PlatformCall) -> Response:
    """The types that a connector may have, in six groups."""
    return await _types(call)


@router.get(
    "/connectors/types",
    response_model=wire.ConnectorTypeList,
    responses=_FAILURES,
    summary="Types of connectors",
)
async def types_of_connectors(call: PlatformCall) -> Response:
    """The types that a connector may have, in six groups."""
    return await _types(call)


@router.post(
    "/connectors/types",
    response_model=wire.ConnectorTypeList,
    responses=failures(400, 413, 415),
    summary="Types of connectors",
)
async def ask_types(call: PlatformCall) -> Response:
    """The types that a connector may have, in six groups."""
    return await _types(call)


async def _types(call: PlatformCall) -> Response:
    found = await call.services.stored_connectors.instances.types()
    return answer(
        wire.ConnectorTypeList(connectors=shapes.type_groups(found), categories=shapes.categories(), status=0)
    )
