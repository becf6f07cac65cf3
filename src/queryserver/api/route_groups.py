"""Routes by the group that their path names: matching all of them one after the other costs as much as a small call."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

_GROUP = 3
"""Place of the group's name in `/api/v1/<group>/…`."""


class RouteGroups:
    """Hands a call to a router that has, in their order, only the routes that its path can mean.

    To be made when all routes are there. A route whose group is a parameter is in every router.
    """

    def __init__(self, router: APIRouter) -> None:
        self._whole = router
        named = {group for route in router.routes if (group := _group_of(_template(route))) is not None}
        self._others = _with(router, [route for route in router.routes if _group_of(_template(route)) is None])
        self._routers: Mapping[str, APIRouter] = {
            group: _with(router, [route for route in router.routes if _group_of(_template(route)) in {group, None}])
            for group in named
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call, as the whole router would."""
        if scope["type"] != "http":
            await self._whole.app(scope, receive, send)
            return
        scope.setdefault("router", self._whole)
        await self._routers.get(_group_of(scope["path"]) or "", self._others).app(scope, receive, send)


def _template(route: BaseRoute) -> str:
    return getattr(route, "path", "")


def _group_of(path: str) -> str | None:
    """The group's name without what storage calls write behind it; None where it is a parameter, or there is none."""
    parts = path.split("/", _GROUP + 1)
    if len(parts) <= _GROUP or "{" in parts[_GROUP]:
        return None
    return parts[_GROUP]


def _with(router: APIRouter, routes: Sequence[BaseRoute]) -> APIRouter:
    return APIRouter(routes=list(routes), redirect_slashes=False, default=router.default)
