"""The ASGI application: routes in their order, error handlers, the frame around all."""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from queryserver import __version__
from queryserver.api import debug, description
from queryserver.api.auth import AddressShares, SharedByAddress, UserShares, authenticated
from queryserver.api.calls import OperationRoute, Routes, operations
from queryserver.api.errors import failure, internal_error, respond, wrong_method
from queryserver.api.frame import AccessLog, Cors, CorsPolicy, Frame, RequestMetrics, answers_head
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

_GROUPS = (
    *(admin, connector, context, debug, description, dialect, editor, get_config, iam, importer, metadata, optimizer),
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
    inner: ASGIApp = SharedByAddress(app, shares) if shares and shares.trusted else app
    inner = Cors(inner, cors) if cors else inner
    users = UserShares(calls_per_user)
    return Frame(inner, metrics=metrics, prefix=prefix, allowed_hosts=allowed_hosts, access_log=access_log, users=users)


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
