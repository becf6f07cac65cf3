"""Health and metrics: no login (Contract platform 9)."""

from fastapi import Response

from queryserver.administration.readiness import ReadinessCheck
from queryserver.api.answers import answer
from queryserver.api.calls import PathGroup, PublicCall, PublicRoute
from queryserver.api.monitoring import metrics_response
from queryserver.api.schemas import generated as wire

router = PathGroup(PublicRoute)


@router.operation("is_alive")
async def is_alive(call: PublicCall) -> Response:
    """200 as long as the process runs; touches nothing else. Spec §1, Contract platform 9.1."""
    del call
    return Response(b"", media_type="text/plain")


@router.operation("is_ready")
async def is_ready(call: PublicCall) -> Response:
    """200 when everything that the service needs is in reach. Contract platform 9.2."""
    readiness = call.services.readiness
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
        return answer(wire.ReadyResponse(status=0, ready=True, checks=shown))
    code, message = ("stopping", "This server is stopping.") if stopping else ("not_ready", "This server is not ready.")
    refused = wire.NotReadyResponse(status=-1, code=code, message=message, ready=False, checks=shown)
    return answer(refused, status=503, headers={"Retry-After": "5"})


@router.operation("get_metrics")
async def metrics(call: PublicCall) -> Response:
    """For allowed networks, or with the metrics token. Contract platform 9.3."""
    return await metrics_response(call.request, call.services.settings.desktop, call.services.metrics_text)


def _shown(check: ReadinessCheck) -> wire.HealthCheck:
    return wire.HealthCheck(ok=check.ok, ms=check.ms)
