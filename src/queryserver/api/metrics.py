"""Counters of the HTTP side, in Prometheus form (Contract platform 9.3). No label names a user, path or statement."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_OTHER = "other"


class RequestMetrics:
    """Calls by route template."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "queryserver_http_requests", "Calls answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "queryserver_http_request_seconds", "Time from call to answer.", ["route"], registry=registry
        )
        self.active = Gauge(
            "queryserver_http_requests_active",
            "Calls being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """One call is over. Callers choose path and method, so that only known ones become labels."""
        route = getattr(scope.get("route"), "path", _OTHER)
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)
