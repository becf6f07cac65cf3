"""Examples that Hue clients offer to install (Contract platform 7.7)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.domain.errors.base import InvalidParameter, MissingParameter, NotSupported
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import InstallExamplesRequest

router = APIRouter(prefix="/api/v1", tags=["admin"], route_class=AdminRoute)

_CONNECTORS = "connectors"
# Applications of Hue that this service does not have.
_NOT_SERVED = frozenset({"hive", "impala", "hbase", "pig", "oozie", "notebook", "search", "spark", "jobsub"})
_SHOWN = 100


@router.get(
    "/available_app_examples",
    response_model=wire.AppExamplesResponse,
    responses=failures(403),
    summary="Examples that can be installed",
)
async def available_app_examples(call: AdminCall) -> Response:
    """Name for install_app_examples, name for people."""
    del call
    return answer(wire.AppExamplesResponse(apps={_CONNECTORS: "Connectors"}, status=0))


@router.post(
    "/install_app_examples",
    response_model=wire.InstallAppExamplesResponse,
    responses=failures(400, 403, 413, 415, 501),
    openapi_extra=accepts(InstallExamplesRequest),
    summary="Install examples",
)
async def install_app_examples(call: AdminCall) -> Response:
    """`connectors` does what connector/examples/install does."""
    name = (await call.read(InstallExamplesRequest)).app_name
    if name is None:
        raise MissingParameter("Missing parameter: app_name is required.")
    if name in _NOT_SERVED:
        raise NotSupported(f"There are no examples for {name} here.")
    if name != _CONNECTORS:
        raise InvalidParameter(f"Unsupported app name: {name[:_SHOWN]}")
    await call.services.stored_connectors.examples.install(call.user)
    message = f"Successfully installed examples for {name}."
    return answer(wire.InstallAppExamplesResponse(message=message, status=0))
