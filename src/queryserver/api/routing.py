"""The routes of the table as one: few patterns are tried for a path; and the parameters of paths."""

from collections.abc import Sequence
from types import CoroutineType
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from queryserver.api.calls import OperationRoute

FOUND = "queryserver.found_route"
"""Key of a scope: the route of the call, once it is found."""

_SEGMENTS = 4
"""So many segments of a path tell most routes apart, such as `/api/v1/editor/execute`."""


class RouteTable(BaseRoute):
    """Routes in the order in which they are tried.

    Starlette tries each of them, which is 60 patterns for the calls of one statement. Here only those are tried whose
    first segments are those of the path, and those with a parameter among their first segments.
    """

    def __init__(self, routes: Sequence[OperationRoute]) -> None:
        self.routes = tuple(routes)
        heads = [(_head(route.path), route) for route in self.routes]
        self._anywhere = [route for head, route in heads if "{" in head]
        self._by_head = {
            wanted: [route for head, route in heads if head == wanted or "{" in head]
            for wanted, _ in heads
            if "{" not in wanted
        }

    def candidates(self, path: str) -> Sequence[OperationRoute]:
        """Those that may match the path, in their order."""
        return self._by_head.get(_head(path), self._anywhere)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The first route of the path and method, else the first one of the path."""
        if scope["type"] != "http":
            return Match.NONE, {}
        partial: Scope | None = None
        for route in self.candidates(scope["path"]):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, FOUND: route}
            if match is Match.PARTIAL and partial is None:
                partial = {**found, FOUND: route}
        return (Match.NONE, {}) if partial is None else (Match.PARTIAL, partial)

    def handle(self, scope: Scope, receive: Receive, send: Send) -> "CoroutineType[Any, Any, None]":
        """What serves the call; this table has no part in it."""
        route: OperationRoute = scope[FOUND]
        return route.handle(scope, receive, send)


def _head(path: str) -> str:
    """The first segments of a path, or of the template of a path."""
    return "/".join(path.split("/", _SEGMENTS + 1)[: _SEGMENTS + 1])


# Routes are matched against the percent-encoded path in one normal form, so that `%2F` stays part of a name; a path
# parameter declared `{database:segment}` or `{table:name}` is decoded when it is read.


class RawConvertor(Convertor[str]):
    """A part of the path as it stands there, still encoded: `%2F` is part of a name."""

    def __init__(self, regex: str) -> None:
        self.regex = regex  # pyright: ignore[reportAttributeAccessIssue] Starlette reads it from the instance

    def convert(self, value: str) -> str:
        return value


class NameConvertor(RawConvertor):
    """One path segment, decoded once. Invalid UTF-8 and U+0000 never match: 404."""

    def convert(self, value: str) -> str:
        return unquote_to_bytes(value).decode()


# The interface of a context, the optimizer calls of Hue (Contract platform 7.8); any other text is an unknown path.
register_url_convertor("interface", RawConvertor("(?!status$)[A-Za-z0-9_-]+"))
_CALLS = "query_risk|query_compatibility|similar_queries|predict"
register_url_convertor("optimizer", RawConvertor(f"top_(?:databases|tables|columns|filters|joins|aggs)|{_CALLS}"))
# The id of a task; `submit` is a call of its own, by another method.
register_url_convertor("task", NameConvertor("(?!submit$)[^/]+"))
# The id of a schedule; the others are calls of their own, by another method.
register_url_convertor("schedule", NameConvertor("(?!(?:new|update|delete|run)$)[^/]+"))
# What stands behind `=` in storage calls.
register_url_convertor("raw", RawConvertor(".*"))
# One segment or more that are not empty: `names_of` takes them apart.
register_url_convertor("rest", RawConvertor("[^/]+(?:/[^/]+)*"))
register_url_convertor("segment", NameConvertor("[^/]*"))
register_url_convertor("name", NameConvertor("[^/]+"))


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments that a parameter `{…:rest}` took."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))
