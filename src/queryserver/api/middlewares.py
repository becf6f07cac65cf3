"""ASGI middlewares that wrap every call. `application.py` determines their order."""

import asyncio
import collections
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Protocol
from urllib.parse import quote, unquote_to_bytes
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver.api import bodies
from queryserver.api.addresses import client_address
from queryserver.api.errors import failure
from queryserver.api.responses import HEADERS_ONLY
from queryserver.errors.base import TooManyRequests
from queryserver.platform.logs import log_call
from queryserver.platform.networks import Network
from queryserver.platform.text import read_traceparent

CALL = "queryserver.call"
"""Scope key of the call's `CallRecord`."""

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_OTHER = "other"
_MAX_PATH_CHARACTERS = 500


class Slots(Protocol):
    async def take(self, user_id: int) -> None:
        """Wait for a free slot of the user. Raises TooManyRequests."""
        ...


@dataclass(slots=True)
class CallRecord:
    """State of a call that the middlewares share."""

    received: Scope
    """The scope that uvicorn created, with method and path as the client sent them."""
    username: str = ""
    """Empty until the caller has been authenticated."""
    slots: Slots | None = None
    slot_user_id: int | None = None
    """The user whose slot the call holds, or None if it holds none."""

    async def take_slot(self, user_id: int) -> None:
        """Wait until the user has a free slot for this call. Raises TooManyRequests."""
        if self.slots is not None and self.slot_user_id is None:
            await self.slots.take(user_id)
            self.slot_user_id = user_id


class RequestMetrics:
    """Counts calls by method, route and status, and measures their duration by route."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "queryserver_http_requests", "Completed HTTP requests.", ["method", "route", "status"], registry=registry
        )
        seconds = Histogram(
            "queryserver_http_request_seconds", "Duration of HTTP requests.", ["route"], registry=registry
        )
        # Cached, because looking up the time series of a set of labels takes longer than incrementing it.
        self._requests_of = cache(requests.labels)
        self._seconds_of = cache(seconds.labels)
        self.active = Gauge(
            "queryserver_http_requests_active",
            "HTTP requests in progress.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def observe(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Count a call that has ended. Unknown paths and methods share one label, as clients may send any value."""
        route = described_path(scope, _OTHER)
        self._requests_of(method if method in _METHODS else _OTHER, route, status).inc()
        self._seconds_of(route).observe(seconds)


def described_path(scope: Scope, default: str) -> str:
    """Return the path of the call's operation in the OpenAPI document, or `default` for an unknown path."""
    route = scope.get("route")
    if route is None:
        return default
    paths: Mapping[str, str] = getattr(scope["app"].state, "paths", {})
    return paths.get(route.name, route.path)


class AccessLog:
    """Writes a log line for each call, with the path but without the query string, which may contain a token."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = trusted

    def write(self, call: Scope, *, status: int, size_bytes: int, seconds: float, complete: bool) -> None:
        """Log a call that has ended. `status` is 0 if the client disconnected before the response."""
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
    """Middleware that updates the metrics and the access log at the end of each call."""

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


InternalError = Callable[[Request], Response]
"""Creates the response to a call that failed because of an error in this service."""

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNCACHED = ("/api/v1/", "/api/token/", "/notebook/api/")
# Characters that may appear unencoded in a path segment (RFC 3986 pchar). All others are percent-encoded.
_PLAIN = "!$&'()*+,;=:@-._~"
_PATH_ARGUMENT = re.compile(rb"/api/v1/storage/(?:view|stat|download|content_summary)=")
_ANY_HOST = "/desktop/debug/"
_CORS_PATHS = ("/api/", "/desktop/", "/notebook/api/", "/mcp", "/.well-known/oauth-protected-resource")
_CORS_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT")
_CORS_HEADERS = (
    *("accept", "authorization", "content-type", "x-requested-with", "x-csrftoken", "idempotency-key", "x-request-id"),
    *("if-none-match", "if-range", "last-event-id", "range"),
    *("mcp-method", "mcp-name", "mcp-protocol-version"),
)
_CORS_EXPOSED = (
    *("X-Request-Id", "Retry-After", "Content-Disposition", "X-Unknown-Fields", "Accept-Ranges", "Content-Range"),
    *("ETag", "X-Result-Rows", "X-Result-Truncated", "X-Result-Truncated-Reason"),
)
_CORS_MAX_AGE_S = 86_400
_MAX_WAITING = 500
_MAX_WAIT_S = 30.0
_RETRY_AFTER = timedelta(seconds=2)
_TOO_MANY_CALLS = "Too many of your calls are in progress (`limits.calls_per_user`). Send fewer calls at the same time."

log = structlog.get_logger(__name__)


class RequestIds:
    """Assigns each call an id for its response and log lines, and adds the headers that all responses have."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        is_uncached = any(prefix in scope["path"] for prefix in _UNCACHED)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[tuple[bytes, bytes]] = message.setdefault("headers", [])
                headers += [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                if is_uncached and all(name != b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
            await send(message)

        # Uvicorn runs each call in its own context, so the id is unbound when the call ends.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        if (traceparent := read_traceparent(Headers(scope=scope).get("traceparent"))) is not None:
            structlog.contextvars.bind_contextvars(trace_id=traceparent.split("-")[1])
        # Copied, because inner middlewares change the scope, and uvicorn reads the method from the original scope.
        call = {**scope, "request_id": request_id, CALL: CallRecord(received=scope)}
        await self._app(call, receive, send_with_headers)


def _request_id(scope: Scope) -> str:
    sent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return sent if _REQUEST_ID.fullmatch(sent) else uuid4().hex


class InternalErrors:
    """Catches all unexpected errors, logs the traceback, and responds with the id of the log entry."""

    def __init__(self, app: ASGIApp, internal_error: InternalError) -> None:
        self._app = app
        self._internal_error = internal_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _HeldHead(send)
        try:
            await self._app(scope, receive, response)
        except ClientDisconnect:
            log.debug("client disconnected before the response")
        except asyncio.CancelledError:  # uvicorn is shutting down and has stopped waiting for calls to end
            log.warning("call aborted by shutdown")
            if response.has_begun:
                raise
            await self._internal_error(Request(scope))(scope, receive, send)
        except Exception:
            log.exception("call failed", error_id=scope["request_id"])
            if not response.has_begun:
                await self._internal_error(Request(scope))(scope, receive, send)
            elif not response.has_ended:
                raise


class _HeldHead:
    """Holds back the response headers until the first body chunk, so that an earlier error can replace the response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self.has_begun = False
        self.has_ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None:
            head, self._head = self._head, None
            self.has_begun = True
            await self._send(head)
        if message["type"] == "http.response.body":
            self.has_ended = not message.get("more_body", False)
        await self._send(message)


class PathForm:
    """Normalizes paths before routes are matched, and serves HEAD as GET without the body."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = normalized(scope.get("raw_path") or scope["path"].encode(), prefix=self._prefix)
        if path is None:
            await failure(404, "not_found", "Not found.")(scope, receive, send)
            return
        scope["path"] = path
        scope["raw_path"] = path.encode()
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        if answers_head(path):
            scope["method"] = "GET"
            scope[HEADERS_ONLY] = True
        await self._app(scope, receive, send_without_body)


def normalized(raw_path: bytes, *, prefix: str = "") -> str | None:
    """Return the path without prefix and trailing slash, with each segment percent-encoded in the same way.

    Returns None for paths that cannot match a route: wrong prefix, or invalid UTF-8 or U+0000 in a segment.
    """
    path = raw_path.partition(b"?")[0]
    if path.startswith(prefix.encode()) and _PATH_ARGUMENT.match(path, len(prefix.encode())):
        # After `=` comes a storage path, in which double slashes, encoded slashes and a trailing slash are significant.
        return quote(path, safe=PRINTABLE)[len(prefix) :]
    if b"%" not in path and path.isascii():
        text = path.decode()
    else:
        try:
            text = "/".join(quote(unquote_to_bytes(part).decode(), safe=_PLAIN) for part in path.split(b"/"))
        except UnicodeDecodeError:
            return None
    if "%00" in text or not text.startswith(prefix):
        return None
    text = text[len(prefix) :] or "/"
    return text[:-1] if len(text) > 1 and text.endswith("/") else text


def answers_head(path: str) -> bool:
    """Return whether a path that supports GET also supports HEAD. Event streams do not, because they stay open."""
    return not path.startswith("/api/v1/editor/events/")


class AllowedHosts:
    """Rejects calls with a host name that is not in `hosts`. Health checks may use any host name."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.casefold() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_ANY_HOST) or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        await failure(400, "invalid_host", "The host name in the header Host is not allowed.")(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        # Several Host headers are rejected, because a proxy may have used a different one (RFC 9112, 3.2).
        host, *others = [value.casefold() for value in Headers(scope=scope).getlist("host")] or [""]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name in self._hosts and not others


class Cors(CORSMiddleware):
    """Starlette's CORS middleware, for API paths only. Origins not in `origins` get no CORS headers.

    Contract platform 1.5.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], *, allow_credentials: bool) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_CORS_METHODS,
            allow_headers=_CORS_HEADERS,
            allow_credentials=allow_credentials,
            expose_headers=_CORS_EXPOSED,
            max_age=_CORS_MAX_AGE_S,
        )
        # Starlette also lists the headers that browsers always allow; only the documented headers are listed here.
        self.preflight_headers["Access-Control-Allow-Headers"] = ", ".join(_CORS_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_CORS_PATHS):
            await self.app(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin")
        if origin is not None and self.is_allowed_origin(origin):
            await super().__call__(scope, receive, send)
            return

        async def send_with_vary(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Caches must not serve this response to pages of an allowed origin.
                MutableHeaders(raw=message.setdefault("headers", [])).add_vary_header("Origin")
            await send(message)

        await self.app(scope, receive, send_with_vary)


class UserSlots:
    """Limits the concurrent calls per user. Up to 500 further calls wait in order of arrival, each for at most 30 s.

    A call takes its slot with `CallRecord.take_slot` after authentication.
    """

    def __init__(self, app: ASGIApp, per_user: int) -> None:
        self._app = app
        self._per_user = per_user
        self._slots: dict[int, asyncio.Semaphore] = {}
        self.calls: collections.Counter[int] = collections.Counter()
        """Number of running and waiting calls, by user id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: CallRecord = scope[CALL]
        record.slots = self
        try:
            await self._app(scope, receive, send)
        finally:
            if record.slot_user_id is not None:
                self._slots[record.slot_user_id].release()
                self._forget(record.slot_user_id)

    async def take(self, user_id: int) -> None:
        """Wait for a free slot of the user. Raises TooManyRequests if too many calls wait, or after 30 s."""
        if self.calls[user_id] >= self._per_user + _MAX_WAITING:
            raise TooManyRequests(_TOO_MANY_CALLS, retry_after=_RETRY_AFTER)
        self.calls[user_id] += 1
        slots = self._slots.setdefault(user_id, asyncio.Semaphore(self._per_user))
        try:
            if slots.locked():
                async with asyncio.timeout(_MAX_WAIT_S):
                    await slots.acquire()
            else:
                await slots.acquire()
        except TimeoutError:
            self._forget(user_id)
            raise TooManyRequests(_TOO_MANY_CALLS, retry_after=_RETRY_AFTER) from None
        except asyncio.CancelledError:
            self._forget(user_id)
            raise

    def _forget(self, user_id: int) -> None:
        self.calls[user_id] -= 1
        if not self.calls[user_id]:
            del self.calls[user_id], self._slots[user_id]


class UnknownFields:
    """Reports the received fields that a route does not read, in the header X-Unknown-Fields and in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = bodies.UnknownFieldsLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unknown: Sequence[str] = ()

        async def send_with_names(message: Message) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                seen: bodies.SeenFields | None = scope.get(bodies.SEEN_FIELDS)
                if seen is not None and (seen.unread or seen.misplaced):
                    unknown = seen.unknown(message["status"])
                if unknown:
                    headers = MutableHeaders(raw=message.setdefault("headers", []))
                    headers[bodies.HEADER] = bodies.header_value(unknown)
            await send(message)

        await self._app(scope, receive, send_with_names)
        if unknown:
            # Log the route's path template, because the call's path may contain names of a user's objects.
            self._log.note(described_path(scope, scope["path"]), unknown)
