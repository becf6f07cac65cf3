"""Path groups, path parameter types, and the route class that determines the error format of a group."""

from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

from queryserver.api.errors import internal_error, respond, wrong_method
from queryserver.api.schemas import generated as wire
from queryserver.errors.base import QueryServerError


class RawConvertor(Convertor[str]):
    """Path parameter that stays percent-encoded, so that `%2F` can be part of a name."""

    def __init__(self, regex: str) -> None:
        self.regex = regex  # pyright: ignore[reportAttributeAccessIssue] Starlette reads it from the instance

    def convert(self, value: str) -> str:
        return value


class NameConvertor(RawConvertor):
    """Path parameter that is a decoded segment. Paths with invalid UTF-8 or U+0000 have already been rejected (404)."""

    def convert(self, value: str) -> str:
        return unquote_to_bytes(value).decode()


def register_convertors() -> None:
    """Register the path parameter types with Starlette. Must be called before the first route uses one of them."""
    # The interface in context calls, and the names of Hue's optimizer calls (Contract platform 7.8).
    register_url_convertor("interface", RawConvertor("(?!status$)[A-Za-z0-9_-]+"))
    calls = "query_risk|query_compatibility|similar_queries|predict"
    register_url_convertor("optimizer", RawConvertor(f"top_(?:databases|tables|columns|filters|joins|aggs)|{calls}"))
    # The id of a task. `submit` is excluded, because it is a call with another method.
    register_url_convertor("task", NameConvertor("(?!submit$)[^/]+"))
    # The id of a schedule. The excluded names are calls with another method.
    register_url_convertor("schedule", NameConvertor("(?!(?:new|update|delete|run)$)[^/]+"))
    # The id of a document. The excluded names are calls with another method.
    calls = "save|delete|restore|restore_version|move|share|change_owner"
    register_url_convertor("document", NameConvertor(f"(?!(?:{calls})$)[^/]+"))
    # A path of the console (Contract console 1.1). Its script selects the view.
    views = "login|editor|results|tables|queries|history|files|import|admin"
    register_url_convertor("view", RawConvertor(f"(?:{views})(?:/.*)?"))
    # The path after `=` in storage calls.
    register_url_convertor("raw", RawConvertor(".*"))
    # One or more non-empty segments, split by `names_of`.
    register_url_convertor("rest", RawConvertor("[^/]+(?:/[^/]+)*"))
    register_url_convertor("segment", NameConvertor("[^/]*"))
    register_url_convertor("name", NameConvertor("[^/]+"))


def names_of(rest: str) -> tuple[str, ...]:
    """Return the decoded segments of a `{…:rest}` parameter."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))


register_convertors()

RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]


class PlatformRoute(APIRoute):
    """A route whose error responses have the `status` -1 (Contract platform 1.4). Subclasses override the format."""

    def get_route_handler(self) -> RouteHandler:
        handle = super().get_route_handler()

        async def handle_failures(request: Request) -> Response:
            try:
                return await handle(request)
            except QueryServerError as error:
                return self.failure(request, error)

        return handle_failures

    def failure(self, request: Request, error: QueryServerError) -> Response:
        """Return the response to a failed call."""
        return respond(request, error, plain=True)

    def internal_error(self, request: Request) -> Response:
        """Return the response to a call that failed because of an error in this service."""
        return internal_error(request)

    def wrong_method(self, allow: str) -> Response:
        """Return the response to a method that the path does not support. `allow` lists the supported methods."""
        return wrong_method(allow)


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the value of `responses=` for error statuses that only some calls have."""
    return {status: {"model": wire.ErrorBody} for status in statuses}


_BYTES = {"type": "string", "format": "binary"}
_MEDIA_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "application/json": {"type": "object"},
    "application/yaml": {"type": "object"},
    # Without `type`, because tools disagree on whether the schema describes the whole stream or one event.
    "text/event-stream": {
        "description": "`status`, `progress`, `log`, `end` and `denied` events, each with JSON data."
    },
    "text/html": {"type": "string"},
    "text/plain": {"type": "string"},
}
_OK: Mapping[int, str] = {200: "OK"}
PAGE: Mapping[int, str] = {200: "OK", 304: "The caller already has this version."}
FILE: Mapping[int, str] = {
    200: "The file.",
    206: "The requested range of the file.",
    304: "The caller already has this version.",
}


def contents(*media_types: str, words: Mapping[int, str] = _OK) -> dict[int | str, dict[str, Any]]:
    """Return the value of `responses=` for bodies that are not models. `words` maps each status to its description.

    Use together with `response_class=Response`; otherwise FastAPI also describes a JSON body.
    """
    content = {kind: {"schema": _MEDIA_SCHEMAS.get(kind, _BYTES)} for kind in media_types}
    return {
        status: {"description": text} if status == 304 else {"content": content, "description": text}
        for status, text in words.items()
    }


def operation_id(route: APIRoute) -> str:
    """Return the name of the handler, or the route's own `name` if the handler serves several routes."""
    return route.name


class PathGroup(APIRouter):
    """Router of a path group. Operation ids, from which client generators derive method names, are handler names.

    `matches` is overridden for speed: FastAPI would try every route of every earlier router, and the routes of the
    call's own router twice, which takes 0.3 ms for the last routers (docs/benchmarks.md).
    """

    def __init__(self, tag: str, *, prefix: str = "/api/v1", route_class: type[APIRoute] = PlatformRoute) -> None:
        super().__init__(prefix=prefix, tags=[tag], route_class=route_class, generate_unique_id_function=operation_id)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match like FastAPI, but look up paths without parameters in a table and skip routers that cannot match.

        FastAPI then selects the route in a second pass.
        """
        path = scope["path"]
        if scope["method"] in self._methods_by_path.get(path, ()):
            return Match.FULL, {}
        return super().matches(scope) if path.startswith(self._beginnings) else (Match.NONE, {})

    @cached_property
    def _methods_by_path(self) -> Mapping[str, Collection[str]]:
        """The methods of each path without parameters."""
        methods: defaultdict[str, set[str]] = defaultdict(set)
        for route in self.routes:
            if isinstance(route, APIRoute) and not route.param_convertors:
                methods[route.path] |= route.methods or set()
        return methods

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        """The part of each path before its first parameter."""
        return tuple({route.path.partition("{")[0] for route in self.routes if isinstance(route, APIRoute)})


def editor_group(tag: str = "editor") -> PathGroup:
    """Create a router for editor calls. Their routes contain full paths, because most have an alias below `/notebook`.

    The application's exception handler builds their error responses, whose `status` depends on the error (Contract
    editor 1.4).
    """
    return PathGroup(tag, prefix="", route_class=APIRoute)
