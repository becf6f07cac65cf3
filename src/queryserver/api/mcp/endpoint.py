"""The ASGI application of `/mcp`: checks credentials, origin and body, then calls the SDK (Contract mcp 1)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import orjson
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import PARSE_ERROR
from sse_starlette.sse import AppStatus
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from queryserver.api import bodies
from queryserver.api.dependencies import authenticated, count_client, services_of
from queryserver.api.errors import failure, json_response, respond, wrong_method
from queryserver.api.mcp.resource import METADATA_PATH, challenge, metadata
from queryserver.api.mcp.server import create_server
from queryserver.api.mcp.tools import TASKS
from queryserver.errors.base import InvalidJson, NotAuthenticated
from queryserver.platform.networks import LOOPBACK, contains
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.sections import MIB
from queryserver.platform.text import parse_json
from queryserver.platform.threads import Tasks
from queryserver.services import Services

MAX_BODY_BYTES = MIB
"""Maximum size of a request body. The SDK parses bodies on the event loop, which takes 10 ms for this size."""

_TASKS_END_WITHIN_S = 1.0
_METHOD = "POST"
_NOT_FOUND = "Not found."
_ORIGIN = (
    "The origin of this web page may not call this server. List it in `desktop.cors_allowed_origins`, or list the name"
    " of this server in `desktop.allowed_hosts`."
)


class McpEndpoint:
    """Serves `/mcp` with the SDK's streamable HTTP transport, without sessions, so that any instance answers a call.

    The transport runs only inside `running()`, which the application's lifespan enters: the lifespan of a mounted
    application is never entered (python-sdk#1367).
    """

    def __init__(self) -> None:
        self._manager: StreamableHTTPSessionManager | None = None
        self._tasks = Tasks()

    @asynccontextmanager
    async def running(self, services: Services) -> AsyncGenerator[None]:
        """Serve calls while the context is open. Calls that are in progress at its end are canceled."""
        if not services.settings.mcp.enabled:
            yield
            return
        # Otherwise, event streams of the revisions with a handshake would be cut at the stop signal. The shutdown ends
        # the waits of calls itself (`StateSignals.end_waits`). The flag lasts as long as the process: a stop signal to
        # an earlier server in it, as in tests, would cut every stream of this one.
        AppStatus.disable_automatic_graceful_drain()
        AppStatus.should_exit = False
        server = create_server(services)
        # Hosts and origins are checked below and by the middleware `AllowedHosts`, because the SDK's settings can
        # express neither `*` nor "the same origin".
        server.streamable_http_app(
            stateless_http=True,
            max_request_body_size=MAX_BODY_BYTES,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        manager = server.session_manager
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None
                await self._tasks.aclose(grace_s=_TASKS_END_WITHIN_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call.

        Raises the errors of `authenticated` except NotAuthenticated, and the errors of `raw_body`.
        """
        request = Request(scope, receive)
        manager = self._manager
        if manager is None:
            await failure(404, "not_found", _NOT_FOUND)(scope, receive, send)
            return
        if (refusal := await _refusal(request)) is not None:
            await refusal(scope, receive, send)
            return
        user_id, settings = request.scope["user"].id, services_of(request).settings
        max_bytes = min(settings.editor.request_body_max_bytes, MAX_BODY_BYTES)
        # Counted until the end of the call, because the SDK keeps the body.
        with bodies.holding(request, user_id, max_bytes) as hold:
            body = await bodies.raw_body(request, max_bytes=max_bytes, hold=hold)
            content = b"" if body is None else body.content
            if (invalid := await _invalid_json(request, content)) is not None:
                await invalid(scope, receive, send)
                return
            scope[TASKS] = self._tasks
            await manager.handle_request(scope, _replayed(content, receive), send)


class _LoggedRoute(Route):
    """A route that metrics and logs name, which read it from the scope as FastAPI's routes set it."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


def mcp_routes(endpoint: McpEndpoint) -> Sequence[BaseRoute]:
    """Return the routes of the endpoint and of the metadata that its 401 responses name."""
    return [
        _LoggedRoute("/mcp", endpoint, name="mcp"),
        _LoggedRoute(METADATA_PATH, _resource_metadata, name="mcp_resource_of_path", methods=["GET"]),
        _LoggedRoute(METADATA_PATH.removesuffix("/mcp"), _resource_metadata, name="mcp_resource", methods=["GET"]),
    ]


async def _resource_metadata(request: Request) -> Response:
    """Return the protected-resource metadata (RFC 9728), or 404 if no external issuer is configured."""
    await count_client(request)
    described = metadata(request)
    if described is None:
        return failure(404, "not_found", _NOT_FOUND)
    return json_response(described, 200, {"Cache-Control": "max-age=3600"})


async def _refusal(request: Request) -> Response | None:
    """Return the response that refuses a call before its body is read, or None. Sets `user` in the scope.

    Credentials are checked before the method (Contract platform 1.1).
    """
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": _METHOD})
    if not may_call(request.headers.get("origin"), request.headers.get("host", ""), _desktop(request)):
        return failure(403, "origin_not_allowed", _ORIGIN)
    try:
        request.scope["user"] = await authenticated(request)
    except NotAuthenticated as error:
        response = respond(request, error)
        response.headers["WWW-Authenticate"] = challenge(request)
        for other in error.challenges:
            response.headers.append("WWW-Authenticate", other)
        return response
    # Without sessions there are no messages that a stream (GET) could carry, and nothing to delete.
    return None if request.method == _METHOD else wrong_method(_METHOD)


def may_call(origin: str | None, host: str, desktop: DesktopSettings) -> bool:
    """Return whether the page that sent the call may use the endpoint (Contract mcp 1.4).

    Programs send no origin. A page of the same origin may call if the name of the host is known to be this server's,
    otherwise it may come from a host that only resolves to this server (DNS rebinding).
    """
    if origin is None:
        return True
    if desktop.cors_enabled and not {"*", origin}.isdisjoint(desktop.cors_allowed_origins):
        return True
    try:
        page = urlsplit(origin)
    except ValueError:  # an invalid IPv6 address
        return False
    if not page.netloc or page.netloc.casefold() != host.casefold():
        return False
    name = (page.hostname or "").casefold()
    known = {one.casefold().strip("[]") for one in desktop.allowed_hosts}
    return name in known or name == "localhost" or contains(LOOPBACK, name)


def _desktop(request: Request) -> DesktopSettings:
    return services_of(request).settings.desktop


async def _invalid_json(request: Request, content: bytes) -> Response | None:
    """Return the response to a body that is no strict JSON, or None. The SDK would accept U+0000 and duplicate keys."""
    services = services_of(request)
    parsed = partial(parse_json, content, max_depth=services.settings.limits.max_json_depth)
    try:
        await bodies.parse_in_thread_if_large(services.threads, request.scope["user"].id, parsed, len(content))
    except InvalidJson as error:
        message = {"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": error.message}}
        return Response(orjson.dumps(message), 400, media_type="application/json")
    return None


def _replayed(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body once more, then the messages after it."""
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    return receive_again
