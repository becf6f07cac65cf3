"""The ASGI application: middlewares from outermost to innermost, routes in matching order, and error handlers."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from queryserver import __version__
from queryserver.api import console, debug, pages
from queryserver.api.addresses import AddressSlots
from queryserver.api.bodies import BodyShares
from queryserver.api.dependencies import authenticated, caller_of
from queryserver.api.errors import failure, internal_error, respond, wrong_method
from queryserver.api.mcp import McpEndpoint, mcp_routes
from queryserver.api.middlewares import (
    AccessLog,
    AllowedHosts,
    CallRecords,
    Cors,
    InternalErrors,
    PathForm,
    RequestIds,
    RequestMetrics,
    UnknownFields,
    UserSlots,
    answers_head,
)
from queryserver.api.routes import PlatformRoute
from queryserver.api.v1 import (
    admin,
    connector,
    documents,
    get_config,
    iam,
    importer,
    issuer_logins,
    metadata,
    sessions,
    taskserver,
    token,
)
from queryserver.api.v1.editor import exports, results, shares, statements, status
from queryserver.api.v1.editor import metadata as editor_metadata
from queryserver.api.v1.storage import changes, entries, uploads
from queryserver.errors.base import QueryServerError
from queryserver.platform.settings.tree import Settings

_ROUTERS = (
    debug.router,
    status.router,
    statements.router,
    results.router,
    exports.router,
    shares.router,
    editor_metadata.router,
    entries.router,
    changes.router,
    uploads.router,
    token.router,
    sessions.router,
    issuer_logins.router,
    get_config.router,
    get_config.context_router,
    get_config.optimizer,
    connector.router,
    documents.router,
    importer.router,
    importer.detection_router,
    iam.router,
    metadata.router,
    admin.router,
    taskserver.router,
    taskserver.storage_router,
    statements.query_router,
    editor_metadata.analyze_router,
    console.router,
)


def create_application(*, docs_enabled: bool = True, middleware: Sequence[Middleware] = ()) -> FastAPI:
    """Create the application with its routes, error handlers and `middleware`, outermost first."""
    app = FastAPI(
        title="Query Server API",
        version=__version__,
        summary="SQL on any engine over HTTP; any instance answers.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware,
        lifespan=_lifespan,
        # Otherwise FastAPI reads the environment on each call, which takes 10 % of the time of a status call.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.body_shares = BodyShares()
    # Logs and metrics identify an operation by its documented path, even if it was called by an alias.
    paths: dict[str, str] = {}
    for router in (*_ROUTERS, pages.router) if docs_enabled else _ROUTERS:
        app.include_router(router)
        described = (route for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema)
        paths |= {route.name: route.path for route in described}
    app.state.paths = paths
    app.state.mcp = McpEndpoint()
    app.router.routes.extend(mcp_routes(app.state.mcp))
    app.add_exception_handler(QueryServerError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    pages.describe(app)
    app.state.console = console.ConsoleFiles()
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    endpoint: McpEndpoint = app.state.mcp
    async with endpoint.running(app.state.services):
        yield


def routes_of(app: FastAPI) -> Sequence[APIRoute]:
    """Return all routes of the application in matching order."""
    routes = (context.original_route for context in iter_route_contexts(app.routes))
    return [route for route in routes if isinstance(route, APIRoute)]


def middlewares(settings: Settings, registry: CollectorRegistry) -> list[Middleware]:
    """Return the middlewares that wrap the routes, outermost first."""
    desktop = settings.desktop
    access_log = AccessLog(desktop.trusted_proxies) if desktop.logging.access_log else None
    layers = [
        Middleware(RequestIds),
        Middleware(CallRecords, RequestMetrics(registry), access_log),
        Middleware(InternalErrors, _internal_error),
        Middleware(PathForm, desktop.url_prefix),
    ]
    if "*" not in desktop.allowed_hosts:
        layers.append(Middleware(AllowedHosts, desktop.allowed_hosts))
    if desktop.cors_enabled:
        layers.append(Middleware(Cors, desktop.cors_allowed_origins, allow_credentials=desktop.cors_allow_credentials))
    if desktop.trusted_proxies:
        layers.append(Middleware(AddressSlots, desktop.trusted_proxies, desktop.max_connections_per_address))
    # Streams have a separate limit, so short calls continue regardless of the number of open streams.
    per_user = settings.limits.calls_per_user + settings.editor.max_streams_per_user
    return [*layers, Middleware(UserSlots, per_user), Middleware(UnknownFields)]


def _internal_error(request: Request) -> Response:
    """Return the response to an internal error in the error format of the call's path group."""
    route = request.scope.get("route")
    return route.internal_error(request) if isinstance(route, PlatformRoute) else internal_error(request)


async def _domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueryServerError)  # noqa: S101 registered for it
    return respond(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Respond to unknown paths and unsupported methods.

    Credentials are checked before the method (Contract platform 1.1).
    """
    assert isinstance(error, HTTPException)  # noqa: S101 registered for it
    # The root is only a page for browsers, so an unsupported method gets 404 instead of 405.
    if error.status_code != 405 or request.scope["path"] == "/":
        return failure(404, "not_found", "Not found.")
    allow = _allow(request)
    if request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allow})
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and caller_of(route) is not None:
        try:
            await authenticated(request)
        except QueryServerError as refused:
            return respond(request, refused)
    return route.wrong_method(allow) if isinstance(route, PlatformRoute) else wrong_method(allow)


def _allow(request: Request) -> str:
    """Return the `Allow` header of a path: the methods of all its routes, plus HEAD if its GET also serves HEAD."""
    routes = [route for route in routes_of(request.app) if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in routes for method in route.methods or ()}
    if "GET" in methods and answers_head(request.scope["path"]):
        methods.add("HEAD")
    return ", ".join(sorted(methods))
