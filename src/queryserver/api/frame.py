"""What happens to every call before and after its route: id, path, host, headers, counting, the outer wall."""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver.api.access_log import CALLER, AccessLog, Caller
from queryserver.api.body_shares import BODY_SHARES, BodyShares
from queryserver.api.errors import failure, internal_error
from queryserver.api.metrics import RequestMetrics
from queryserver.api.routing import AS_IT_CAME, answers_head, normalized
from queryserver.api.streaming import HEADERS_ONLY
from queryserver.api.unknown_fields import HEADER, SEEN_FIELDS, SeenFields, UnknownFieldsLog, header_value

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
    ) -> None:
        self._app = app
        self._access_log = access_log
        self._metrics = metrics
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
        seen = SeenFields()
        answer = _Answer(scope, send, request_id, seen)
        # A scope of our own: the server writes what its own one says, so a HEAD there must stay a HEAD.
        call = {**scope, "request_id": request_id, AS_IT_CAME: scope, BODY_SHARES: self._bodies, SEEN_FIELDS: seen}
        call[CALLER] = Caller()
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
            self._metrics.active.dec()
            seconds = time.perf_counter() - started
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

    def __init__(self, scope: Scope, send: Send, request_id: str, seen: SeenFields) -> None:
        self._send = send
        self._seen = seen
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
            self.unknown_fields = self._seen.unknown(self.status)
            if self.unknown_fields:
                headers[HEADER] = header_value(self.unknown_fields)
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
