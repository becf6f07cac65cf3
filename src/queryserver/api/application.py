"""The ASGI application: routes in their order, error handlers, the frame around all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryserver import __version__
from queryserver.api import debug, pages
from queryserver.api.addresses import SharedByAddress
from queryserver.api.calls import AccessLog, Frame, RequestMetrics, answers_head, authenticated, services_of
from queryserver.api.dependencies import caller_of
from queryserver.api.errors import failure, internal_error, respond, wrong_method
from queryserver.api.v1 import admin, connector, context, get_config, iam, importer, metadata, token
from queryserver.api.v1.editor import events, results, statements, status
from queryserver.api.v1.editor import metadata as editor_metadata
from queryserver.api.v1.storage import changes, entries, operations, transfers, uploads, views
from queryserver.api.v1.taskserver import schedules, tasks
from queryserver.errors.base import QueryServerError
from queryserver.platform.networks import Network

_PATHS = ("/api/", "/desktop/", "/notebook/api/")
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
        """The headers of an answer to a page from `origin`; none when it is not listed."""
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


# Routes are tried in this order, about a microsecond each: those of health checks and of a statement come first.
_ROUTERS = (
    debug.router,
    status.router,
    statements.router,
    results.router,
    events.router,
    editor_metadata.router,
    views.router,
    entries.router,
    changes.router,
    transfers.router,
    uploads.router,
    operations.router,
    token.router,
    get_config.router,
    context.router,
    context.optimizer,
    connector.router,
    importer.router,
    importer.detection_router,
    iam.router,
    metadata.router,
    admin.router,
    tasks.router,
    tasks.storage_router,
    schedules.router,
    statements.query_router,
    editor_metadata.analyze_router,
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
        # FastAPI reads the environment for each call otherwise: a tenth of the time of a status call.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    # The paths by which logs and metrics name the operations, also those that were called by another path.
    app.state.paths = {}
    for router in (*_ROUTERS, pages.router) if docs_enabled else _ROUTERS:
        app.include_router(router)
        described = (route for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema)
        app.state.paths |= {route.name: route.path for route in described}
    app.add_exception_handler(QueryServerError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    pages.describe(app)
    return app


def routes_of(app: FastAPI) -> Sequence[APIRoute]:
    """All routes of the application, in the order in which they are tried."""
    routes = (context.original_route for context in iter_route_contexts(app.routes))
    return [route for route in routes if isinstance(route, APIRoute)]


def framed(
    app: FastAPI,
    *,
    metrics: RequestMetrics,
    prefix: str,
    allowed_hosts: Sequence[str],
    cors: CorsPolicy | None = None,
    trusted_proxies: Sequence[Network] = (),
    calls_per_address: int = 0,
    calls_per_user: int = 64,
    access_log: AccessLog | None = None,
) -> ASGIApp:
    """As served. Without `cors` no answer has a header of it; calls of one address behind a proxy are bounded."""
    inner: ASGIApp = SharedByAddress(app, trusted_proxies, calls_per_address) if trusted_proxies else app
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
    if not _is_public(request.scope.get("route")):
        try:
            await authenticated(request, services_of(request))
        except QueryServerError as refused:
            return respond(request, refused)
    return wrong_method(request, allow)


async def _unexpected(request: Request, error: Exception) -> Response:
    del error  # the frame logs it, once
    return internal_error(request)


def _is_public(route: object) -> bool:
    """Whether the call requires no credentials."""
    return isinstance(route, APIRoute) and caller_of(route) is None


def _allow(request: Request) -> str:
    """The header `Allow` of a path: the methods of all its routes, and HEAD where GET brings it."""
    routes = [route for route in routes_of(request.app) if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in routes for method in route.methods or ()}
    if "GET" in methods and answers_head(request.scope["path"]):
        methods.add("HEAD")
    return ", ".join(sorted(methods))
