"""Determines client addresses, including those behind trusted proxies, and limits concurrent calls per address."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queryserver.api.errors import respond
from queryserver.errors.base import too_many_connections
from queryserver.platform.networks import Network, contains, network_of, parsed_address

log = structlog.get_logger(__name__)

UNKNOWN = "unknown"
"""Client address if the headers of a trusted proxy disagree or contain no valid address.

It belongs to no network, and all such clients are counted as one.
"""


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """Return the peer address or, behind trusted proxies, the last address in the chain that is not a trusted proxy.

    A proxy that sets `X-Forwarded-For` or `Forwarded` may pass on the other header as the client sent it, so the two
    must agree. If they disagree or contain no valid address, the result is UNKNOWN, because the peer address would
    give the client the proxy's privileges.
    """
    peer = request.client.host if request.client else ""
    if not contains(trusted, peer):
        return peer
    headers = request.headers
    chains = (
        [hop.strip() for value in headers.getlist("x-forwarded-for") for hop in value.split(",")],
        [_for_parameter(element) for value in headers.getlist("forwarded") for element in value.split(",")],
    )
    addresses = {_last_untrusted_address(trusted, chain) for chain in chains if chain}
    if not addresses:
        return peer
    address = addresses.pop() if len(addresses) == 1 else UNKNOWN
    if address == UNKNOWN:
        _warn_once()
    return address


def _last_untrusted_address(trusted: Sequence[Network], chain: Sequence[str]) -> str:
    farthest = UNKNOWN
    for hop in reversed(chain):
        address = parsed_address(_without_port(hop))
        if address is None:
            # A trusted proxy wrote an invalid address, so the remaining chain is not trustworthy.
            return UNKNOWN
        farthest = str(address)
        if not contains(trusted, farthest):
            break
    return farthest


@cache
def _warn_once() -> None:
    """Log a warning, once per process because any client can trigger it. Header values are not logged."""
    log.warning(
        "client address unknown",
        reason="the headers of a trusted proxy disagree or contain no address",
        advice="configure the proxy to remove X-Forwarded-For or Forwarded, whichever it does not set",
    )


def _for_parameter(element: str) -> str:
    """Return the `for` parameter of one element of a `Forwarded` header (RFC 7239)."""
    for pair in element.split(";"):
        name, _, value = pair.strip().partition("=")
        if name.lower() == "for":
            return value.strip('"')
    return ""


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


class AddressSlots:
    """Middleware that limits the concurrent calls of each client address behind the `trusted` proxies."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network], per_address: int) -> None:
        self._app = app
        self._trusted = trusted
        self._per_address = per_address
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the call, or reject it above the limit. The proxy's own calls, such as health checks, are not counted."""
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] != "http" or not contains(self._trusted, peer):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        client = client_address(request, self._trusted)
        if parsed_address(client) == parsed_address(peer):
            await self._app(scope, receive, send)
            return
        address = network_of(client)
        if self._running[address] >= self._per_address:
            refusal = too_many_connections(
                "Too many calls from your address are in progress (`desktop.max_connections_per_address`)."
            )
            await respond(request, refusal)(scope, receive, send)
            return
        self._running[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[address] -= 1
            if not self._running[address]:
                del self._running[address]
