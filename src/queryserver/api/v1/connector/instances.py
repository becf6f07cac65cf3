"""instances, instance/new, get, update, delete (Contract platform 5.3 to 5.7)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.platform_calls import AdminCall, AdminRoute, PlatformCall, PlatformRoute
from queryserver.api.v1.connector import shapes
from queryserver.domain.errors.statements import connector_not_found
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import ConnectorIdRequest, ConnectorRequest, NewConnectorRequest

router = APIRouter(prefix="/api/v1/connector", tags=["connector"], route_class=PlatformRoute)
admin_router = APIRouter(prefix="/api/v1/connector", tags=["connector"], route_class=AdminRoute)


@router.get(
    "/instances",
    response_model=wire.ConnectorList,
    responses=failures(),
    summary="Connectors",
)
async def instances(call: PlatformCall) -> Response:
    """The instances that the caller may use, by ascending id in six groups."""
    found = await call.services.stored_connectors.instances.visible(call.user)
    return answer(wire.ConnectorList(connectors=shapes.groups(found), status=0))


@router.post(
    "/instance/new/{dialect}/{interface}",
    response_model=wire.ConnectorTemplateResponse,
    responses=failures(400, 404, 413, 415),
    openapi_extra=accepts(NewConnectorRequest),
    summary="Template of a connector",
)
async def new(call: PlatformCall, dialect: str, interface: str) -> Response:
    """A type with its defaults, and what was given laid over them; nothing is stored or connected to."""
    fields = await call.read(NewConnectorRequest)
    found = await call.services.stored_connectors.instances.template(dialect, interface, shapes.given(fields.connector))
    return answer(wire.ConnectorTemplateResponse(connector=shapes.template(found), status=0))


@router.get(
    "/instance/get/{id}",
    response_model=wire.ConnectorResponse,
    responses=failures(404),
    summary="One connector",
)
async def get(call: PlatformCall, id: str) -> Response:  # noqa: A002 the path's own name
    """A connector with its settings; secrets are masked."""
    shown = await call.services.stored_connectors.instances.get(call.user, id)
    return answer(wire.ConnectorResponse(**dict(shapes.connector(shown)), status=0))


@admin_router.post(
    "/instance/update",
    response_model=wire.ConnectorUpdateResponse,
    responses=failures(400, 403, 404, 409, 413, 415),
    openapi_extra=accepts(ConnectorRequest),
    summary="Create or change a connector",
)
async def update(call: AdminCall) -> Response:
    """Create without an id, else change; nothing is connected to."""
    fields = await call.read(ConnectorRequest)
    shown, is_new = await call.services.stored_connectors.instances.save(call.user, shapes.given(fields.connector))
    return answer(wire.ConnectorUpdateResponse(connector=shapes.connector(shown), saved_as=is_new, status=0))


@admin_router.post(
    "/instance/delete",
    response_model=wire.ConnectorDeleteResponse,
    responses=failures(400, 403, 404, 409, 413, 415),
    openapi_extra=accepts(ConnectorRequest),
    summary="Delete a connector",
)
async def delete(call: AdminCall) -> Response:
    """History and results of its statements stay; its id is not used again."""
    fields = await call.read(ConnectorIdRequest)
    if fields.connector.id is None:
        raise connector_not_found("(none)")
    deleted = await call.services.stored_connectors.instances.delete(call.user, fields.connector.id)
    return answer(wire.ConnectorDeleteResponse(id=str(deleted), status=0))
