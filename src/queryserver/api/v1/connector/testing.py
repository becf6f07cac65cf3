"""instance/test (Contract platform 5.8)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.api.v1.connector import shapes
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import ConnectorRequest

router = APIRouter(prefix="/api/v1/connector/instance", tags=["connector"], route_class=AdminRoute)


@router.post(
    "/test",
    response_model=wire.ConnectorTestResponse,
    responses=failures(400, 403, 404, 413, 415, 429, 501),
    openapi_extra=accepts(ConnectorRequest),
    summary="Test a connection",
)
async def test(call: AdminCall) -> Response:
    """Makes a real connection with these settings, or those stored under the id, and stores nothing."""
    fields = await call.read(ConnectorRequest)
    outcome = await call.services.connection_tests.test(call.user, shapes.given(fields.connector))
    return answer(
        wire.ConnectorTestResponse(
            status=0,
            ok=not outcome.reason,
            warnings=outcome.warnings,
            hasWarnings=bool(outcome.warnings),
            reason=outcome.reason,
            checks=[wire.ConnectionCheck(name=one.name, ok=one.ok, ms=one.ms) for one in outcome.checks],
            duration_ms=outcome.duration_ms,
            server_version=outcome.server_version,
        )
    )
