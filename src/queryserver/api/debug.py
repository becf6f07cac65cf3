"""Health and metrics: no login (Contract platform 9)."""

from hmac import compare_digest

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from queryserver.administration.readiness import ReadinessCheck
from queryserver.api.addresses import client_address
from queryserver.api.answers import answer
from queryserver.api.calls import PathGroup, PublicCall, PublicRoute
from queryserver.api.errors import failure
from queryserver.api.schemas import generated as wire
from queryserver.platform.settings.desktop import MetricsSettings
from queryserver.platform.settings.sections import Networks, contains

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
    services = call.services
    desktop = services.settings.desktop
    if services.metrics_text is None:
        return failure(404, "not_found", "Not found.")
    if not may_read_metrics(call.request, desktop.metrics, desktop.trusted_proxies):
        return failure(403, "permission_denied", "Metrics are not for this address.")
    return Response(await services.metrics_text.text(), media_type=CONTENT_TYPE_LATEST)


def may_read_metrics(request: Request, settings: MetricsSettings, trusted: Networks) -> bool:
    token = settings.token.get_secret_value()
    given = request.headers.get("authorization", "")
    if token and compare_digest(given.encode(), f"Bearer {token}".encode()):
        return True
    return contains(settings.allowed_networks, client_address(request, trusted))


def _shown(check: ReadinessCheck) -> wire.HealthCheck:
    return wire.HealthCheck(ok=check.ok, ms=check.ms)
