"""The routes of the table as one: few patterns are tried for a path."""

from collections.abc import Sequence

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

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: OperationRoute = scope[FOUND]
        await route.handle(scope, receive, send)


def _head(path: str) -> str:
    """The first segments of a path, or of the template of a path."""
    return "/".join(path.split("/", _SEGMENTS + 1)[: _SEGMENTS + 1])
