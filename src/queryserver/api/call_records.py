"""What the service records of each call: its user, metrics, and a line of the access log."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver.api.addresses import client_address
from queryserver.platform.logs import log_call
from queryserver.platform.networks import Network

CALL = "queryserver.call"
"""Key of a scope: the `CallRecord` of the call."""

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_OTHER = "other"
_MAX_PATH_CHARACTERS = 500


class Slots(Protocol):
    async def take(self, user_id: int) -> None:
        """Wait for a slot of this user. Raises TooManyRequests."""
        ...


@dataclass(slots=True)
class CallRecord:
    """What the middlewares know of a call."""

    received: Scope
    """The scope as the server made it, with method and path as the client sent them."""
    username: str = ""
    """Empty until the user is known."""
    slots: Slots | None = None
    slot_user_id: int | None = None
    """The user of whose slots the call holds one."""

    async def take_slot(self, user_id: int) -> None:
        """Wait until the user may run this call, too. Raises TooManyRequests."""
        if self.slots is not None and self.slot_user_id is None:
            await self.slots.take(user_id)
            self.slot_user_id = user_id


class RequestMetrics:
    """Counters of calls, by method, route and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "queryserver_http_requests", "Calls answered.", ["method", "route", "status"], registry=registry
        )
        seconds = Histogram(
            "queryserver_http_request_seconds", "Time from call to answer.", ["route"], registry=registry
        )
        # Cached, because finding the series of a label takes longer than counting.
        self._requests_of = cache(requests.labels)
        self._seconds_of = cache(seconds.labels)
        self.active = Gauge(
            "queryserver_http_requests_active", "Calls being answered.", registry=registry, multiprocess_mode="livesum"
        )

    def observe(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Count a call that has ended. Clients choose path and method, so only known ones become labels."""
        route = described_path(scope, _OTHER)
        self._requests_of(method if method in _METHODS else _OTHER, route, status).inc()
        self._seconds_of(route).observe(seconds)


def described_path(scope: Scope, default: str) -> str:
    """The path of the call's operation in the OpenAPI document; `default` for an unknown path."""
    route = scope.get("route")
    if route is None:
        return default
    paths: Mapping[str, str] = getattr(scope["app"].state, "paths", {})
    return paths.get(route.name, route.path)


class AccessLog:
    """Writes a line for each call, with its path but without its query, which may hold a token."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = trusted

    def write(self, call: Scope, *, status: int, size_bytes: int, seconds: float, complete: bool) -> None:
        """To be called at the end of a call. `status` 0: the client left before the response."""
        record: CallRecord = call[CALL]
        fields: dict[str, object] = {
            "user": record.username or "-",
            "client": client_address(Request(call), self._trusted),
            "method": call["method"],
            "path": call["raw_path"].decode("latin-1")[:_MAX_PATH_CHARACTERS],
            "status": status,
            "bytes": size_bytes,
            "ms": round(seconds * 1000, 1),
        }
        if not complete:
            fields["complete"] = False
        log_call(fields)


class CallRecords:
    """The middleware that measures calls and writes the access log."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, access_log: AccessLog | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = size_bytes = 0
        is_complete = False

        async def send_and_count(message: Message) -> None:
            nonlocal status, size_bytes, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size_bytes += len(message.get("body", b""))
                is_complete = not message.get("more_body", False)
            await send(message)

        started = time.perf_counter()
        self._metrics.active.inc()
        try:
            await self._app(scope, receive, send_and_count)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.active.dec()
            self._metrics.observe(scope, scope["method"], status, seconds)
            if self._access_log is not None:
                self._access_log.write(
                    scope, status=status, size_bytes=size_bytes, seconds=seconds, complete=is_complete
                )
