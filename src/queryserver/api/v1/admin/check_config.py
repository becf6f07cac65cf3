"""check_config: what is wrong with the settings of this process (Contract platform 7.5)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.schemas import generated as wire

router = APIRouter(prefix="/api/v1", tags=["admin"], route_class=AdminRoute)


@router.get(
    "/check_config",
    response_model=wire.CheckConfigResponse,
    responses=failures(403),
    summary="Check the settings",
)
async def check_config(call: AdminCall) -> Response:
    """What `queryserver config check` finds, without what would change anything, within 30 s."""
    report = await call.services.configuration.check.report()
    return answer(
        wire.CheckConfigResponse(
            hue_config_dir=report.directory,
            config_errors=[
                wire.ConfigProblem(name=one.key, message=one.text, value=report.value_of(one.key), level=one.level)
                for one in report.findings
            ],
            status=0,
        )
    )
