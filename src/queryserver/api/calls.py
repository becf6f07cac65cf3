"""Calls: routes from the rows of operations.yaml, and what their handlers get.

Routes are matched against the percent-encoded path in one normal form, so that `%2F` stays part of a name; a path
parameter declared `{database:segment}` or `{table:name}` is decoded when it is read.

FastAPI solves dependencies, keeps two exit stacks and validates responses again for each call; these handlers need none
of it, so they are routes of Starlette. FastAPI makes the description of the API of the same rows (ADR 53).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote_to_bytes

import yaml
from fastapi import APIRouter, Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import URL, Headers
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from queryserver.api.addresses import client_address
from queryserver.api.bodies import SEEN_FIELDS, Body, SeenFields, query_fields, read_body, reads
from queryserver.api.errors import respond
from queryserver.api.schemas import requests
from queryserver.api.schemas.fields import Fields, parse
from queryserver.errors.base import QueryServerError, TooManyRequests, admin_required
from queryserver.identity.model import User
from queryserver.platform.limits import FairPlaces
from queryserver.platform.settings.sections import Network, contains
from queryserver.services import Services

Handler = Callable[..., Awaitable[Response]]
Model = TypeVar("Model", bound=Fields)
AnyHandler = TypeVar("AnyHandler", bound=Handler)

# A load balancer must always get a response about health; metrics have a rule of their own, and the root is a page.
_NOT_COUNTED = frozenset({"is_alive", "is_ready", "get_metrics", "get"})


AS_IT_CAME = "queryserver.as_it_came"
"""Key of a scope: the server's own scope, whose method and path are as the client sent them."""

CALLER = "queryserver.caller"
"""Key of a scope: the `Caller` of the call, for the access log."""

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of operations.yaml; its head describes the fields."""

    id: str
    method: str
    path: str
    group: str
    rights: str
    error_style: str
    source: str
    status: str
    request: str | Sequence[str]
    response: Sequence[str]
    http: int = 200
    tag: str = ""
    summary: str = ""
    failures: Sequence[int] = ()
    example: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takes: Sequence[str] = ()
    headers: Sequence[str] = ()
    answers: Mapping[int, str] = field(default_factory=dict[int, str])
    failing: Mapping[int, str] = field(default_factory=dict[int, str])
    body: Mapping[str, Any] | None = None
    query: Sequence[Mapping[str, Any]] = ()
    same_as: str = ""
    fails: bool = False
    hidden: bool = False

    @property
    def is_public(self) -> bool:
        """Whether it requires no credentials."""
        return self.rights in {"public", "network"}

    @property
    def request_model(self) -> type[Fields] | None:
        """The model of its fields."""
        return getattr(requests, self.request) if isinstance(self.request, str) else None


@cache
def operations() -> Mapping[str, Operation]:
    """The served rows by their ids, in the order in which routes are tried."""
    text = files("queryserver.api").joinpath("operations.yaml").read_bytes()
    rows: list[dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)["operations"]
    return {row["id"]: Operation(**row) for row in rows if row["status"] == "served"}


class SegmentConvertor(Convertor[str]):
    """One path segment, possibly empty, decoded once. Invalid UTF-8 and U+0000 never match: 404."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        """The decoded name."""
        return unquote_to_bytes(value).decode()


class NameConvertor(SegmentConvertor):
    """A segment that must not be empty."""

    regex = "[^/]+"


class RawConvertor(Convertor[str]):
    """Everything up to the end of the path, still encoded: what stands behind `=` in storage calls."""

    regex = ".*"

    def convert(self, value: str) -> str:
        """As it is: `%2F` is still part of a name."""
        return value


class RestConvertor(RawConvertor):
    """One segment or more that are not empty: `names_of` takes them apart."""

    regex = "[^/]+(?:/[^/]+)*"


class InterfaceConvertor(RawConvertor):
    """The interface of a context; any other text is an unknown path."""

    regex = "(?!status$)[A-Za-z0-9_-]+"


class OptimizerConvertor(RawConvertor):
    """The optimizer calls of Hue (Contract platform 7.8)."""

    regex = (
        "top_databases|top_tables|top_columns|top_filters|top_joins|top_aggs"
        "|query_risk|query_compatibility|similar_queries|predict"
    )


register_url_convertor("interface", InterfaceConvertor())
register_url_convertor("optimizer", OptimizerConvertor())
register_url_convertor("raw", RawConvertor())
register_url_convertor("rest", RestConvertor())
register_url_convertor("segment", SegmentConvertor())
register_url_convertor("name", NameConvertor())


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments that a parameter `{…:rest}` took."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))


def services_of(request: Request) -> Services:
    """The services of this process."""
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
        """The headers by name."""
        return self._request.headers

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""
        return client_address(self._request, self._trusted)

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is a trusted proxy."""
        peer = self._request.client
        return peer is not None and contains(self._trusted, peer.host)

    def _as_it_came(self) -> Scope:
        return self._request.scope.get(AS_IT_CAME, self._request.scope)


class Caller:
    """Who makes a call, once that is known. The frame has one for each call."""

    name = ""
    places: FairPlaces
    user_id: int | None = None
    """The user who holds a place among `places` for this call."""


async def take_place(caller: Caller, user_id: int) -> None:
    """Wait for the place of a call of this user; the frame gives it back. Raises TooManyRequests."""
    try:
        await caller.places.take(user_id)
    except TooManyRequests as error:
        raise TooManyRequests("Too many calls of yours are under way.", retry_after=error.retry_after) from None
    caller.user_id = user_id


async def authenticated(request: Request, services: Services) -> User:
    """The caller; the stored connectors are at least as new as the rights.

    Waits while the user has too many calls under way. Raises NotAuthenticated, TooManyRequests.
    """
    user = await services.accounts.authenticator.authenticate(
        CallToJudge(request, services.settings.desktop.trusted_proxies)
    )
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None:
        caller.name = user.username
    services.request_limits.count_user(user.id)
    if caller is not None and caller.user_id is None:
        await take_place(caller, user.id)
    if user.connectors_version > services.connectors.version:
        await services.connectors.at_least(user.connectors_version)
    return user


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated call."""

    request: Request
    services: Services
    user: User
    body: Body

    async def read(self, model: type[Model]) -> Model:
        """The fields as the call wants them. Raises InvalidRequest."""
        services = self.services
        reads(self.request.scope, model)
        parsed = partial(parse, model, self.body.fields, max_json_depth=services.settings.limits.max_json_depth)
        if not self.body.is_large:
            return parsed()
        return await services.threads.bodies.run(self.user.id, lambda _: parsed())


@dataclass(frozen=True, slots=True)
class PublicCall:
    """One call without credentials."""

    request: Request
    fields: Mapping[str, Any]
    """Those of a POST."""

    @property
    def services(self) -> Services:
        """The services of this process."""
        return services_of(self.request)


class OperationRoute(Route):
    """A route of one row. Its handler takes the call and the path parameters, and gives a response."""

    def __init__(self, operation: Operation, handler: Handler) -> None:
        super().__init__(operation.path, handler, name=operation.id)
        self.operation = operation
        self.handler = handler
        # HEAD is answered as GET before routes are tried.
        self.methods = {operation.method}
        self.app = self.serve

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call of this path, or refuse its method."""
        scope["route"] = self
        await super().handle(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call of this path and method."""
        request = Request(scope, receive, send)
        response = await self.respond(request)
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """The response. Raises domain errors."""
        return await self.handler(await self.call(request), **request.path_params)

    async def call(self, request: Request) -> object:
        """What the handler gets of the request. Raises domain errors."""
        raise NotImplementedError


class CallRoute(OperationRoute):
    """A route whose handler takes a `Call`: first who calls, then whether that is enough, then the body."""

    async def respond(self, request: Request) -> Response:
        """The response; the `status` of failures of the platform part is -1 (Contract platform 1.4)."""
        try:
            return await self.handler(await self.call(request), **request.path_params)
        except QueryServerError as error:
            if self.operation.error_style != "platform":
                raise
            return respond(request, error, plain=True)

    async def call(self, request: Request) -> object:
        """The call. Raises NotAuthenticated, admin_required (before the body is read), and as `read_body`."""
        services = services_of(request)
        user = await authenticated(request, services)
        if self.operation.rights == "admin" and not user.is_admin:
            raise admin_required("You must be an administrator.")
        if request.method == "GET":
            return Call(request, services, user, query_fields(request))
        is_platform = self.operation.error_style == "platform"
        settings = services.settings
        max_bytes = settings.limits.max_body_bytes if is_platform else settings.editor.request_body_max_bytes
        return Call(request, services, user, await read_body(request, max_bytes=max_bytes, user_id=user.id))


class PublicRoute(OperationRoute):
    """A route whose handler takes a `PublicCall`. Calls count by address (Contract platform 1.6)."""

    async def call(self, request: Request) -> object:
        """The call. Raises TooManyRequests before anything of it is read, and as `read_body`."""
        if self.operation.id not in _NOT_COUNTED:
            services = services_of(request)
            if services.request_limits.are_on:
                services.request_limits.count_address(
                    client_address(request, services.settings.desktop.trusted_proxies)
                )
        model = self.operation.request_model
        if request.method == "GET" or model is None:
            return PublicCall(request, {})
        # Its fields are known before the body is read, so that a refused body names the unread ones of its query.
        request.scope[SEEN_FIELDS] = SeenFields()
        reads(request.scope, model)
        max_bytes = services_of(request).settings.limits.max_body_bytes
        return PublicCall(request, (await read_body(request, max_bytes=max_bytes)).fields)


class PathGroup(APIRouter):
    """The routes of one path group. The table says method, path and rights of a call; the handler says its id."""

    def __init__(self, kind: type[OperationRoute] = CallRoute) -> None:
        super().__init__(redirect_slashes=False)
        self._kind = kind

    def operation(self, *ids: str, kind: type[OperationRoute] | None = None) -> Callable[[AnyHandler], AnyHandler]:
        """Declare the handler of the rows `ids`."""

        def declare(handler: AnyHandler) -> AnyHandler:
            self.routes.extend((kind or self._kind)(operations()[name], handler) for name in ids)
            return handler

        return declare


class Routes:
    """Routes by the group that a path names: trying all of them costs as much as a small call.

    `/api/v1/<group>/…`; a route whose group is a parameter is tried behind those of every group.
    """

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        every = [(_group_of(getattr(route, "path", "")), route) for route in router.routes]
        self._others = [route for group, route in every if group is None]
        self._groups: Mapping[str, Sequence[BaseRoute]] = {
            group: [route for its, route in every if its in {group, None}] for group, _ in every if group is not None
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call. Raises HTTPException 404 and 405."""
        if scope["type"] != "http":
            await self._router.app(scope, receive, send)
            return
        partial_match: tuple[BaseRoute, Scope] | None = None
        for route in self._groups.get(_group_of(scope["path"]) or "", self._others):
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.handle(scope, receive, send)
                return
            if match is Match.PARTIAL and partial_match is None:
                partial_match = route, found
        if partial_match is None:
            raise HTTPException(404)
        scope.update(partial_match[1])
        await partial_match[0].handle(scope, receive, send)


def _group_of(path: str) -> str | None:
    """The third segment of a path or template; None where it is a parameter, or there is none."""
    parts = path.split("/", 4)
    return None if len(parts) < 4 or "{" in parts[3] else parts[3]
