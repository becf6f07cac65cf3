"""The ASGI application: routes in their order, error handlers, the frame around all."""

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, unquote_to_bytes
from uuid import uuid4

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver import __version__
from queryserver.api import debug, pages
from queryserver.api.addresses import AddressShares, SharedByAddress, client_address
from queryserver.api.answers import HEADERS_ONLY
from queryserver.api.bodies import (
    BODY_SHARES,
    HEADER,
    SEEN_FIELDS,
    BodyShares,
    SeenFields,
    UnknownFieldsLog,
    header_value,
)
from queryserver.api.calls import (
    AS_IT_CAME,
    CALLER,
    PRINTABLE,
    Caller,
    OperationRoute,
    Routes,
    authenticated,
    operations,
    services_of,
)
from queryserver.api.errors import failure, internal_error, respond, wrong_method
from queryserver.api.v1 import (
    admin,
    connector,
    context,
    dialect,
    editor,
    get_config,
    iam,
    importer,
    metadata,
    optimizer,
    storage,
    taskserver,
    token,
)
from queryserver.errors.base import QueryServerError
from queryserver.platform.limits import FairPlaces
from queryserver.platform.logs import log_call
from queryserver.platform.settings.sections import Network

_MAX_WAITING = 500
_WAIT_S = 30.0
"""Bounds of the calls of one user that wait for their turn."""

_PATHS = ("/api/", "/desktop/")
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
    "Access-Control-Allow-Headers": (
        "accept, authorization, content-type, x-requested-with, x-csrftoken, idempotency-key, x-request-id, "
        "if-none-match, if-range, last-event-id, range"
    ),
    "Access-Control-Max-Age": "86400",
}
_EXPOSED = {
    "Access-Control-Expose-Headers": (
        "X-Request-Id, Retry-After, Content-Disposition, X-Unknown-Fields, Accept-Ranges, Content-Range, ETag, "
        "X-Result-Rows, X-Result-Truncated, X-Result-Truncated-Reason"
    )
}


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """Which origins may call. None by default; `*` stands for all, and never goes with credentials."""

    origins: frozenset[str] = frozenset()
    allow_credentials: bool = False

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """What an answer tells the browser of a page from `origin`; nothing when it is not listed."""
        if origin is None:
            return {}
        if "*" in self.origins and not self.allow_credentials:
            return {"Access-Control-Allow-Origin": "*"}
        if origin not in self.origins:
            return {}
        credentials = {"Access-Control-Allow-Credentials": "true"} if self.allow_credentials else {}
        return {"Access-Control-Allow-Origin": origin, **credentials}


class Cors:
    """Answers preflights of listed origins, and marks all other answers to them."""

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http" or not scope["path"].startswith(_PATHS):
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        told = self._policy.headers(asked.get("origin"))

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.update(told)
                # Also without an origin: a cache must not give this answer to a page.
                headers.add_vary_header("Origin")
            await send(message)

        if told and scope["method"] == "OPTIONS" and "access-control-request-method" in asked:
            await Response(headers=_PREFLIGHT)(scope, receive, marked)
            return
        told = {**told, **_EXPOSED} if told else told
        await self._app(scope, receive, marked)


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


_LONGEST_PATH = 500


class AccessLog:
    """Writes the lines. A line has the path of the call without its query, which may hold a token."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = trusted

    def write(self, call: Scope, *, status: int, size_bytes: int, seconds: float, complete: bool) -> None:
        """To be called at the end of a call. `status` 0: the client left before it was answered."""
        fields: dict[str, object] = {
            "user": cast("Caller", call[CALLER]).name or "-",
            "client": client_address(Request(call), self._trusted),
            "method": call["method"],
            "path": call["raw_path"].decode("latin-1")[:_LONGEST_PATH],
            "status": status,
            "bytes": size_bytes,
            "ms": round(seconds * 1000, 1),
        }
        if not complete:
            fields["complete"] = False
        log_call(fields)


_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NO_HOST_CHECK = "/desktop/debug/"

log = structlog.get_logger(__name__)


class Frame:
    """The outermost ASGI layer."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: RequestMetrics,
        prefix: str = "",
        allowed_hosts: Sequence[str] = ("*",),
        access_log: AccessLog | None = None,
        calls_per_user: int,
    ) -> None:
        self._app = app
        self._access_log = access_log
        self._metrics = metrics
        self._users = FairPlaces(sys.maxsize, per_user=calls_per_user, max_waiting=_MAX_WAITING, wait_s=_WAIT_S)
        self._prefix = prefix.rstrip("/")
        self._bodies = BodyShares()
        self._unknown_fields = UnknownFieldsLog()
        self._hosts = frozenset(host.casefold() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call; nothing that goes wrong inside leaves as a trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        # A scope of our own: the server writes what its own one says, so a HEAD there must stay a HEAD.
        call = {**scope, "request_id": request_id, AS_IT_CAME: scope, BODY_SHARES: self._bodies}
        caller = call[CALLER] = Caller()
        caller.places = self._users
        answer = _Answer(call, send, request_id)
        started = time.perf_counter()
        self._metrics.active.inc()
        # Each call runs in a context of its own: what is bound here ends with it.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            await self._serve(call, receive, answer)
        except ClientDisconnect:
            log.debug("client left before the call was answered")
        except asyncio.CancelledError:  # by the end of a stop, which waits for no call any longer
            log.warning("call cut off by the stop")
            if answer.started:
                raise
            await internal_error(Request(call))(call, receive, answer)
        except Exception:  # the outer wall of a request: the client learns an id, the log the rest
            log.exception("call failed", error_id=request_id)
            if not answer.started:
                await internal_error(Request(call))(call, receive, answer)
            elif not answer.ended:
                raise
        finally:
            self._ended(call, answer, time.perf_counter() - started)

    def _ended(self, call: Scope, answer: "_Answer", seconds: float) -> None:
        caller: Caller = call[CALLER]
        if caller.user_id is not None:
            self._users.give_back(caller.user_id)
        self._metrics.active.dec()
        self._metrics.observe(call, answer.status, seconds)
        if self._access_log is not None:
            size_bytes, complete = answer.size_bytes, answer.ended
            self._access_log.write(
                call, status=answer.status, size_bytes=size_bytes, seconds=seconds, complete=complete
            )
        if answer.unknown_fields:
            self._unknown_fields.note(_template(call), answer.unknown_fields)

    async def _serve(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        path = normalized(scope.get("raw_path") or scope["path"].encode(), prefix=self._prefix)
        if path is None:
            await failure(404, "not_found", "Not found.")(scope, receive, answer)
            return
        scope["path"] = path
        scope["raw_path"] = path.encode()
        if not self._knows_host(scope, path):
            await failure(400, "invalid_host", "This host name is not served.")(scope, receive, answer)
            return
        if scope["method"] == "HEAD" and answers_head(path):
            scope["method"] = "GET"
            scope[HEADERS_ONLY] = True
        await self._app(scope, receive, answer)

    def _knows_host(self, scope: Scope, path: str) -> bool:
        if "*" in self._hosts or path.startswith(_NO_HOST_CHECK):
            return True
        # Of several somebody behind us may believe another one (RFC 9112, 3.2).
        host, *others = [value.casefold() for value in Headers(scope=scope).getlist("host")] or [""]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name in self._hosts and not others


class _Answer:
    """Passes an answer on with the headers that every answer has."""

    def __init__(self, call: Scope, send: Send, request_id: str) -> None:
        scope = call[AS_IT_CAME]
        self._send = send
        self._call = call
        self._request_id = request_id
        self._uncached = scope["path"].startswith("/api/v1/") or "/api/v1/" in scope["path"]
        self._has_body = scope["method"] != "HEAD"
        self.started = False
        self.ended = False
        self.status = 0
        self.size_bytes = 0
        self.unknown_fields: tuple[str, ...] = ()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["X-Request-Id"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
            if self._uncached and "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
            seen: SeenFields | None = self._call.get(SEEN_FIELDS)
            if seen is not None and (unknown := seen.unknown(self.status)):
                self.unknown_fields = unknown
                headers[HEADER] = header_value(unknown)
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
            if not self._has_body:
                message = _without_body(message)
            self.size_bytes += len(message.get("body", b""))
        await self._send(message)


def _without_body(message: Message) -> dict[str, Any]:
    return {**message, "body": b""}


def _template(scope: Scope) -> str:
    """The path of the route: that of the call may hold names of a user's objects."""
    return getattr(scope.get("route"), "path", scope["path"])


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            return given if _REQUEST_ID.fullmatch(given) else uuid4().hex
    return uuid4().hex


# Characters that a segment may show as they are (RFC 3986 pchar); everything else is written percent-encoded.
_PLAIN = "!$&'()*+,;=:@-._~"


_PATH_FORM = re.compile(rb"/api/v1/storage/(?:view|stat|download|content_summary)=")


def normalized(raw_path: bytes, *, prefix: str = "") -> str | None:
    """The path for matching: prefix and one last slash removed, each segment in one form of encoding.

    None when no path of ours can be meant: another prefix, invalid UTF-8 or U+0000 in a segment.
    """
    path = raw_path.partition(b"?")[0]
    if path.startswith(prefix.encode()) and _PATH_FORM.match(path, len(prefix.encode())):
        # The argument is the caller's own path: double slashes, encoded slashes and a last slash are part of it.
        return quote(path, safe=PRINTABLE)[len(prefix) :]
    if b"%" not in path and path.isascii():
        text = path.decode()
    else:
        try:
            text = "/".join(_segment(part) for part in path.split(b"/"))
        except UnicodeDecodeError:
            return None
    if "%00" in text or not text.startswith(prefix):
        return None
    text = text[len(prefix) :] or "/"
    return text[:-1] if len(text) > 1 and text.endswith("/") else text


def answers_head(path: str) -> bool:
    """Whether a path that has GET also has HEAD: an event stream has no end to wait for, so it has none."""
    return not path.startswith("/api/v1/editor/events/")


def _segment(raw: bytes) -> str:
    return quote(unquote_to_bytes(raw).decode(), safe=_PLAIN)


_GROUPS = (
    *(admin, connector, context, debug, dialect, pages, editor, get_config, iam, importer, metadata, optimizer),
    *(storage, taskserver, token),
)


def create_application(*, docs_enabled: bool = True) -> FastAPI:
    """Routes and error handlers; whoever serves it sets `app.state.services`."""
    app = FastAPI(
        title="Query Server API",
        version=__version__,
        summary="SQL on any engine over HTTP; any instance answers.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Asked anew for each call whether somebody listens, through the environment: a tenth of a status call.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    declared = {route.name: route for group in _GROUPS for route in group.router.routes if isinstance(route, Route)}
    # Added flat, because an included router is matched again at each of its levels; in the order of the table.
    app.router.routes.extend(
        declared[row.id] for row in operations().values() if docs_enabled or row.group != "description"
    )
    app.router.middleware_stack = Routes(app.router)
    app.add_exception_handler(QueryServerError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    pages.describe(app)
    return app


def framed(
    app: FastAPI,
    *,
    metrics: RequestMetrics,
    prefix: str,
    allowed_hosts: Sequence[str],
    cors: CorsPolicy | None = None,
    shares: AddressShares | None = None,
    calls_per_user: int = 64,
    access_log: AccessLog | None = None,
) -> ASGIApp:
    """The application as served. Without `cors` no answer has a header of it; `shares` bounds calls of one address."""
    inner: ASGIApp = SharedByAddress(app, shares) if shares and shares.trusted else app
    inner = Cors(inner, cors) if cors else inner
    return Frame(
        inner,
        metrics=metrics,
        prefix=prefix,
        allowed_hosts=allowed_hosts,
        access_log=access_log,
        calls_per_user=calls_per_user,
    )


async def _domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueryServerError)  # noqa: S101 registered for it
    return respond(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods: the credentials are looked at before the method (Contract platform 1.1)."""
    assert isinstance(error, HTTPException)  # noqa: S101 registered for it
    # The root is a page for browsers only: for programs it is unknown by every method.
    if error.status_code != 405 or request.scope["path"] == "/":
        return failure(404, "not_found", "Not found.")
    allow = _allow(request)
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allow})
    route = request.scope.get("route")
    if not (isinstance(route, OperationRoute) and route.operation.is_public):
        try:
            await authenticated(request, services_of(request))
        except QueryServerError as refused:
            return respond(request, refused)
    return wrong_method(request, allow)


async def _unexpected(request: Request, error: Exception) -> Response:
    del error  # the frame logs it, once
    return internal_error(request)


def _allow(request: Request) -> str:
    """The header `Allow` of a path: the methods of all its routes, and HEAD where GET brings it."""
    found = (
        getattr(route, "methods", None) or ()
        for route in request.app.router.routes
        if route.matches(request.scope)[0] is not Match.NONE
    )
    methods = {method for methods in found for method in methods}
    if "GET" in methods and answers_head(request.scope["path"]):
        methods.add("HEAD")
    return ", ".join(sorted(methods))
