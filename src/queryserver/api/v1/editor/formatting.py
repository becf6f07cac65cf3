"""format: a script laid out for people."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.presence import while_connected
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import FormatRequest

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)


@router.post(
    "/editor/format",
    response_model=wire.FormatResponse,
    responses=failures(400, 413, 415),
    openapi_extra=accepts(FormatRequest),
    summary="The same statements, laid out",
)
async def format_statements(call: AuthenticatedCall) -> Response:
    """Keywords in upper case, clauses on lines of their own; nothing else changes. Contract editor 8.4."""
    asked = await call.read(FormatRequest)
    formatting = call.services.formatting.format_script(call.user.id, asked.script, asked.dialect)
    laid_out = await while_connected(call.request, formatting)
    return answer(wire.FormatResponse(status=0, formatted_statements=laid_out))
