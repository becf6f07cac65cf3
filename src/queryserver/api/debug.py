"""Health checks and metrics, which need no login (Contract platform 9)."""

from fastapi import Request, Response

from queryserver.administration.readiness import ReadinessCheck
from queryserver.api.dependencies import MetricsPageDep, ReadinessDep, SettingsDep
from queryserver.api.monitoring import metrics_response
from queryserver.api.responses import json_response
from queryserver.api.routes import PathGroup, contents, failures
from queryserver.api.schemas import generated as wire

router = PathGroup("health", prefix="")


@router.get("/desktop/debug/is_alive", response_class=Response, responses=contents("text/plain"))
async def is_alive() -> Response:
    """Return 200 as long as the process runs. Dependencies are not checked. Spec §1, Contract platform 9.1."""
    return Response(b"", media_type="text/plain")


@router.get(
    "/desktop/debug/is_ready", response_model=wire.ReadyResponse, responses={503: {"model": wire.NotReadyResponse}}
)
async def is_ready(readiness: ReadinessDep) -> Response:
    """Return 200 if this server accepts calls and all its dependencies are available, otherwise 503.

    Contract platform 9.2.
    """
    checks = await readiness.checks()
    broker = checks["broker"]
    shown = wire.HealthChecks(
        database=_shown(checks["database"]),
        schema_=_shown(checks["schema"]),
        result_store=_shown(checks["result_store"]),
        broker=wire.BrokerCheck(ok=broker.ok, ms=broker.ms, enabled=readiness.has_broker),
    )
    stopping = readiness.stopping
    if all(check.ok for check in checks.values()) and not stopping:
        return json_response(wire.ReadyResponse(status=0, ready=True, checks=shown))
    code, message = ("stopping", "This server is stopping.") if stopping else ("not_ready", "This server is not ready.")
    refused = wire.NotReadyResponse(status=-1, code=code, message=message, ready=False, checks=shown)
    return json_response(refused, status=503, headers={"Retry-After": "5"})


@router.get("/metrics", response_class=Response, responses=contents("text/plain") | failures(403, 404))
async def get_metrics(request: Request, settings: SettingsDep, page: MetricsPageDep) -> Response:
    """Return the metrics. The call must come from an allowed network or contain the metrics token.

    Contract platform 9.3.
    """
    return await metrics_response(request, settings.desktop, page)


def _shown(check: ReadinessCheck) -> wire.HealthCheck:
    return wire.HealthCheck(ok=check.ok, ms=check.ms)
