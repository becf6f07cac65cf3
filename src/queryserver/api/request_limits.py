"""Calls to public paths count by address (Contract platform 1.6); those of users count where they are authenticated."""

from collections.abc import Iterable, Sequence

from fastapi import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from queryserver.api.client_address import client_address
from queryserver.api.dependencies import services_of

# A load balancer must always learn how we are; metrics have a rule of their own.
_FREE = ("/desktop/debug/", "/metrics")


def count_public_calls(routes: Iterable[BaseRoute], public: Sequence[str]) -> None:
    """Let the routes below `public` count their calls, before anything of them is read.

    Routes outlive an application, so some may count already.
    """
    for route in routes:
        if not isinstance(route, Route) or isinstance(route.app, _Counted):
            continue
        if route.path.startswith(tuple(public)) and not route.path.startswith(_FREE):
            route.app = _Counted(route.app)


class _Counted:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises TooManyRequests, which the application answers."""
        request = Request(scope)
        services = services_of(request)
        if services.request_limits.are_on:
            address = client_address(request, services.settings.desktop.trusted_proxies)
            services.request_limits.count_address(address)
        await self._app(scope, receive, send)
