"""Calls under way by the address of their client, for clients behind a trusted proxy.

A proxy connects for many clients, so that its connections say nothing about them.
"""

from collections import Counter
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queryserver.api.client_address import client_address
from queryserver.api.connections.guard import counted_address
from queryserver.api.errors import respond
from queryserver.domain.errors.base import TooManyConnections
from queryserver.settings.networks import Network, contains, parsed_address


class AddressShares:
    """Counts the calls of one process. `trusted` are the proxies whose calls are counted by client."""

    def __init__(self, trusted: Sequence[Network], most: int) -> None:
        self.trusted = trusted
        self.most = most
        self._under_way: Counter[str] = Counter()

    def enter(self, address: str) -> None:
        """Count a call. Raises TooManyConnections."""
        if self._under_way[address] >= self.most:
            raise TooManyConnections("Too many calls of your address are under way.")
        self._under_way[address] += 1

    def leave(self, address: str) -> None:
        """The call has ended."""
        self._under_way[address] -= 1
        if not self._under_way[address]:
            del self._under_way[address]


class SharedByAddress:
    """An ASGI layer that refuses calls above the share of their client's address."""

    def __init__(self, app: ASGIApp, shares: AddressShares) -> None:
        self._app = app
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call. A call of the proxy itself, such as a health check, is not counted."""
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] != "http" or not contains(self._shares.trusted, peer):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        told = client_address(request, self._shares.trusted)
        address = counted_address(told)
        if parsed_address(told) == parsed_address(peer):
            await self._app(scope, receive, send)
            return
        try:
            self._shares.enter(address)
        except TooManyConnections as refused:
            await respond(request, refused)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._shares.leave(address)
