"""What each call passes before its route: the frame and the caller."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import cast
from urllib.parse import quote, unquote_to_bytes
from uuid import uuid4

import structlog
from fastapi import Request
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as MetricCounter
from starlette.datastructures import URL, Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver.api import bodies
from queryserver.api.addresses import client_address
from queryserver.api.answers import HEADERS_ONLY
from queryserver.api.errors import failure, internal_error
from queryserver.errors.base import TooManyRequests
from queryserver.identity.model import User
from queryserver.platform.logs import log_call
from queryserver.platform.networks import Network, contains
from queryserver.services import Services

AS_IT_CAME = "queryserver.as_it_came"
"""Key of a scope: the server's own scope, whose method and path are as the client sent them."""

CALLER = "queryserver.caller"
"""Key of a scope: the `CallRecord` of the call, for the access log."""

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_OTHER = "other"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NO_HOST_CHECK = "/desktop/debug/"
_UNCACHED = ("/api/v1/", "/api/token/", "/notebook/api/")
_LONGEST_PATH = 500
_MAX_WAITING = 500
_WAIT_S = 30.0  # bounds of the calls of one user that wait for their turn
_RETRY_AFTER = timedelta(seconds=2)
_CROWDED = "Too many calls of yours are under way."
# Characters that a segment may show as they are (RFC 3986 pchar); everything else is written percent-encoded.
_PLAIN = "!$&'()*+,;=:@-._~"
_PATH_FORM = re.compile(rb"/api/v1/storage/(?:view|stat|download|content_summary)=")

log = structlog.get_logger(__name__)


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


class CallToJudge:
    """What authenticators read of a call; nothing is computed before it is read."""

    __slots__ = ("_request", "_trusted", "raw_headers")

    def __init__(self, request: Request, trusted: Sequence[Network]) -> None:
        self._request = request
        self._trusted = trusted
        self.raw_headers: Sequence[tuple[bytes, bytes]] = request.scope["headers"]

    @property
    def method(self) -> str:
        """In capitals; HEAD is HEAD, though it is answered as GET is."""
        return self._as_it_came()["method"]

    @property
    def url(self) -> str:
        """The whole address as it came, query included."""
        scope = self._as_it_came()
        # With our prefix, a last slash and the client's own way of encoding.
        if raw_path := scope.get("raw_path"):
            scope = {**scope, "path": quote(raw_path.partition(b"?")[0], safe=PRINTABLE)}
        return str(URL(scope=scope))

    @property
    def headers(self) -> Headers:
        return self._request.headers

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""
        return client_address(self._request, self._trusted)

    @property
    def is_from_trusted_proxy(self) -> bool:
        peer = self._request.client
        return peer is not None and contains(self._trusted, peer.host)

    def _as_it_came(self) -> Scope:
        return self._request.scope.get(AS_IT_CAME, self._request.scope)


class UserPlaces:
    """At most `per_user` calls of one user at a time; up to 500 further ones wait in their order, 30 s at most."""

    def __init__(self, per_user: int) -> None:
        self._per_user = per_user
        self._turns: dict[int, asyncio.Semaphore] = {}
        self.calls: Counter[int] = Counter()
        """By user, those that wait included."""

    async def take(self, user_id: int) -> None:
        """Wait for a place, which must be given back. Raises TooManyRequests."""
        if self.calls[user_id] >= self._per_user + _MAX_WAITING:
            raise TooManyRequests(_CROWDED, retry_after=_RETRY_AFTER)
        self.calls[user_id] += 1
        turns = self._turns.setdefault(user_id, asyncio.Semaphore(self._per_user))
        if not turns.locked():
            await turns.acquire()  # at once
            return
        try:
            async with asyncio.timeout(_WAIT_S):
                await turns.acquire()
        except TimeoutError:
            self._forget(user_id)
            raise TooManyRequests(_CROWDED, retry_after=_RETRY_AFTER) from None
        except asyncio.CancelledError:
            self._forget(user_id)
            raise

    def give_back(self, user_id: int) -> None:
        self._turns[user_id].release()
        self._forget(user_id)

    def _forget(self, user_id: int) -> None:
        self.calls[user_id] -= 1
        if not self.calls[user_id]:
            del self.calls[user_id], self._turns[user_id]


@dataclass(slots=True)
class CallRecord:
    """Who makes a call, once that is known. The frame has one for each call."""

    places: UserPlaces
    name: str = ""
    user_id: int | None = None
    """The user who holds a place among `places` for this call."""

    async def take_place(self, user_id: int) -> None:
        """Wait for the place of a call of this user; the frame gives it back. Raises TooManyRequests."""
        await self.places.take(user_id)
        self.user_id = user_id


async def authenticated(request: Request, services: Services) -> User:
    """The caller; the stored connectors are at least as new as the rights.

    Waits while the user has too many calls under way. Raises NotAuthenticated, TooManyRequests.
    """
    user = await services.accounts.authenticator.authenticate(
        CallToJudge(request, services.settings.desktop.trusted_proxies)
    )
    caller: CallRecord | None = request.scope.get(CALLER)
    if caller is not None:
        caller.name = user.username
    if user.api_token is not None:
        # In every line of the log and every audit event of this call.
        structlog.contextvars.bind_contextvars(token_id=str(user.api_token.id))
    if services.request_limits.are_on:
        services.request_limits.count_user(user.id)
    if caller is not None and caller.user_id is None:
        await caller.take_place(user.id)
    if user.connectors_version > services.connectors.version:
        await services.connectors.at_least(user.connectors_version)
    return user


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        requests = MetricCounter(
            "queryserver_http_requests", "Calls answered.", ["method", "route", "status"], registry=registry
        )
        seconds = Histogram(
            "queryserver_http_request_seconds", "Time from call to answer.", ["route"], registry=registry
        )
        # Kept, because finding the series of a label takes longer than counting.
        self._requests_of = cache(requests.labels)
        self._seconds_of = cache(seconds.labels)
        self.active = Gauge(
            "queryserver_http_requests_active", "Calls being answered.", registry=registry, multiprocess_mode="livesum"
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """One call is over. Callers choose path and method, so that only known ones become labels."""
        route = _described_path(scope, _OTHER)
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        self._requests_of(method, route, status).inc()
        self._seconds_of(route).observe(seconds)


def _described_path(scope: Scope, otherwise: str) -> str:
    """The path template of the call in the API description; `otherwise` for an unknown path."""
    route = scope.get("route")
    if isinstance(route, APIRoute):
        paths: Mapping[str, str] = getattr(scope["app"].state, "paths", {})
        return paths.get(route.name, route.path)
    return otherwise


class AccessLog:
    """Writes the lines. A line has the path of the call without its query, which may hold a token."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = trusted

    def write(self, call: Scope, *, status: int, size_bytes: int, seconds: float, complete: bool) -> None:
        """To be called at the end of a call. `status` 0: the client left before it was answered."""
        fields: dict[str, object] = {
            "user": cast("CallRecord", call[CALLER]).name or "-",
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


class Frame:
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
        self._users = UserPlaces(calls_per_user)
        self._prefix = prefix.rstrip("/")
        self._bodies = bodies.BodyShares()
        self._unknown_fields = bodies.UnknownFieldsLog()
        self._hosts = frozenset(host.casefold() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call; nothing that goes wrong inside leaves as a trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        # A scope of our own: the server writes what its own one says, so a HEAD there must stay a HEAD.
        call = {**scope, "request_id": request_id, AS_IT_CAME: scope, bodies.BODY_SHARES: self._bodies}
        call[CALLER] = CallRecord(self._users)
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
        caller: CallRecord = call[CALLER]
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
            # The path of the route: that of the call may hold names of a user's objects.
            self._unknown_fields.note(_described_path(call, call["path"]), answer.unknown_fields)

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
        # Of several hosts another program may believe another one (RFC 9112, 3.2).
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
        self._uncached = any(beginning in scope["path"] for beginning in _UNCACHED)
        self._has_body = scope["method"] != "HEAD"
        self._head: Message | None = None
        """Sent with the first piece of the body: the two are one visit to the connection."""
        self.started = False
        self.ended = False
        self.status = 0
        self.size_bytes = 0
        self.unknown_fields: tuple[str, ...] = ()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["X-Request-Id"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
            if self._uncached and "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
            seen: bodies.SeenFields | None = self._call.get(bodies.SEEN_FIELDS)
            if seen is not None and (seen.unread or seen.misplaced) and (unknown := seen.unknown(self.status)):
                self.unknown_fields = unknown
                headers[bodies.HEADER] = bodies.header_value(unknown)
            self._head = message
            return
        if self._head is not None:
            head, self._head = self._head, None
            self.started = True
            await self._send(head)
        if message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
            if not self._has_body:
                message = {**message, "body": b""}
            self.size_bytes += len(message.get("body", b""))
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return given if _REQUEST_ID.fullmatch(given) else uuid4().hex


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
            text = "/".join(quote(unquote_to_bytes(part).decode(), safe=_PLAIN) for part in path.split(b"/"))
        except UnicodeDecodeError:
            return None
    if "%00" in text or not text.startswith(prefix):
        return None
    text = text[len(prefix) :] or "/"
    return text[:-1] if len(text) > 1 and text.endswith("/") else text


def answers_head(path: str) -> bool:
    """Whether a path that has GET also has HEAD: an event stream has no end to wait for, so it has none."""
    return not path.startswith("/api/v1/editor/events/")
