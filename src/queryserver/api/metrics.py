"""Counters of the HTTP side, in Prometheus form (Contract platform 9.3). No label names a user, path or statement."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope

from queryserver.api.connections.guard import Cut

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


class ConnectionCounts:
    """See `api.connections.guard.ConnectionMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge(
            "queryserver_http_connections", "Open connections.", registry=registry, multiprocess_mode="livesum"
        )
        self._refused = Counter(
            "queryserver_http_connections_refused",
            "Connections above a bound, by the bound.",
            ["bound"],
            registry=registry,
        )
        self._cut = Counter(
            "queryserver_http_connections_cut", "Connections ended early, by reason.", ["reason"], registry=registry
        )

    def opened(self) -> None:
        """One more is open."""
        self._open.inc()

    def closed(self) -> None:
        """One fewer is open."""
        self._open.dec()

    def refused(self, bound: Literal["address", "total"]) -> None:
        """One was not admitted."""
        self._refused.labels(bound).inc()

    def cut(self, reason: Cut) -> None:
        """One was ended by the server."""
        self._cut.labels(reason).inc()
