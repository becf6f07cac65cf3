"""logs and logs/download (Contract platform 7.6)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures, gives
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import ServerLogsParameters, query_parameters

router = APIRouter(prefix="/api/v1", tags=["admin"], route_class=AdminRoute)

_FAILURES = failures(400, 403, 404)


@router.get(
    "/logs",
    response_model=wire.ServerLogsResponse,
    responses=_FAILURES,
    openapi_extra={"parameters": query_parameters(ServerLogsParameters)},
    summary="Last lines of the server's log",
)
async def logs(call: AdminCall) -> Response:
    """Whole lines from the last 32 KiB, of the log file or of the process that answers."""
    asked = await call.read(ServerLogsParameters)
    log = call.services.configuration.logs
    lines = await log.lines(newest_first=asked.reverse)
    return answer(wire.ServerLogsResponse(hue_hostname=log.host_name, logs=list(lines), status=0))


@router.get(
    "/logs/download",
    response_class=Response,
    responses={**gives("application/zip"), **_FAILURES},
    summary="The server's log as a ZIP file",
)
async def download(call: AdminCall) -> Response:
    """The last MiB."""
    name, content = await call.services.configuration.logs.archive()
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, headers, "application/zip")
