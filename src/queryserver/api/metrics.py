"""Counters of the HTTP side, in Prometheus form (Contract platform 9.3). No label names a user, path or statement."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope


class RequestMetrics:
    """Calls by route template."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "queryserver_http_requests", "Calls answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "queryserver_http_request_seconds", "Time from call to answer.", ["route"], registry=registry
        )
        self.active = Gauge("queryserver_http_requests_active", "Calls being answered.", registry=registry)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """One call is over."""
        route = getattr(scope.get("route"), "path", "unknown")
        self._requests.labels(scope["method"], route, status).inc()
        self._seconds.labels(route).observe(seconds)
