"""The ASGI application: routes in their order, error handlers, the frame around all."""

from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp

from queryserver import __version__
from queryserver.api import debug, description
from queryserver.api.access_log import AccessLog
from queryserver.api.address_shares import AddressShares, SharedByAddress
from queryserver.api.cors import Cors, CorsPolicy
from queryserver.api.dependencies import authenticated
from queryserver.api.errors import failure, internal_error, respond, wrong_method
from queryserver.api.frame import Frame
from queryserver.api.metrics import RequestMetrics
from queryserver.api.request_limits import count_public_calls
from queryserver.api.route_groups import RouteGroups
from queryserver.api.routing import answers_head
from queryserver.api.user_shares import SharedByUser
from queryserver.api.v1 import (
    admin,
    connector,
    context,
    dialect,
    editor,
    get_config,
    importer,
    metadata,
    optimizer,
    storage,
    taskserver,
    token,
)
from queryserver.api.v1.iam import own as own_router
from queryserver.api.v1.iam import router as iam_router
from queryserver.domain.errors.base import QueryServerError

# Paths that ask for no credentials, whatever the method (Contract platform 1.1).
_PUBLIC = (
    "/api/v1/token/",
    "/api/v1/banners",
    "/desktop/debug/",
    "/metrics",
    "/api/schema",
    "/api/docs",
    "/api/swagger",
    "/api/v1/openapi.json",
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
    # Added flat: an included router is matched anew at each of its levels, for every call.
    app.router.routes.extend([*debug.router.routes, *editor.routes, *token.router.routes])
    app.router.routes.extend([*storage.routes, *importer.routes, *taskserver.router.routes])
    app.router.routes.extend([*get_config.router.routes, *context.routes, *admin.routes, *optimizer.router.routes])
    app.router.routes.extend(metadata.router.routes)
    if docs_enabled:
        app.router.routes.extend(description.router.routes)
    app.router.routes.extend([*iam_router.routes, *own_router.routes, *connector.routes])
    # After all fixed groups, so that none of them is read as a dialect.
    app.router.routes.extend(dialect.router.routes)
    count_public_calls(app.router.routes, _PUBLIC)
    app.router.middleware_stack = RouteGroups(app.router)
    app.add_exception_handler(QueryServerError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    description.describe(app)
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
    inner: ASGIApp = SharedByUser(app, calls_per_user)
    inner = SharedByAddress(inner, shares) if shares and shares.trusted else inner
    inner = Cors(inner, cors) if cors else inner
    return Frame(inner, metrics=metrics, prefix=prefix, allowed_hosts=allowed_hosts, access_log=access_log)


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
    if not request.url.path.startswith(_PUBLIC):
        try:
            await authenticated(request)
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
