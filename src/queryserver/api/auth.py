"""Who calls: the address of the client, the user, and the shares of both."""

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import cast
from urllib.parse import quote

import structlog
from starlette.datastructures import URL, Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queryserver.api.connections import counted_address
from queryserver.api.errors import respond
from queryserver.errors.base import TooManyConnections, TooManyRequests
from queryserver.identity.model import User
from queryserver.platform.limits import FairPlaces
from queryserver.platform.settings.sections import Network, contains, parsed_address
from queryserver.services import Services

log = structlog.get_logger(__name__)

AS_IT_CAME = "queryserver.as_it_came"
"""Key of a scope: the server's own scope, whose method and path are as the client sent them."""

CALLER = "queryserver.caller"
"""Key of a scope: the `Caller` of the call, for the access log."""

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_SHARE = "queryserver.user_share"
_MAX_WAITING = 500
_WAIT_S = 30.0

UNKNOWN = "unknown"
"""Stands for an address that no trusted proxy tells plainly. It lies in no network; all such callers count as one."""


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """The peer; behind trusted proxies the last address of their chain that is not one of them.

    A proxy that writes one of the two headers may pass the other one on as the caller sent it: the two must agree.
    UNKNOWN where they do not, or name no address: with the peer's address a stranger would have the proxy's rights.
    """
    peer = request.client.host if request.client else ""
    if not contains(trusted, peer):
        return peer
    chains = (_forwarded_for(request.headers), _forwarded(request.headers))
    told = {_beyond(trusted, chain) for chain in chains if chain}
    if not told:
        return peer
    address = told.pop() if len(told) == 1 else UNKNOWN
    if address == UNKNOWN:
        _warn_once()
    return address


def _beyond(trusted: Sequence[Network], chain: Sequence[str]) -> str:
    farthest = UNKNOWN
    for hop in reversed(chain):
        address = parsed_address(_without_port(hop))
        if address is None:
            # A proxy of ours wrote what is no address: behind it nothing can be believed.
            return UNKNOWN
        farthest = str(address)
        if not contains(trusted, farthest):
            break
    return farthest


@cache
def _warn_once() -> None:
    """Once per process: every stranger can cause it. The values are the caller's own words."""
    log.warning(
        "the address of a client is unknown",
        reason="the headers of a trusted proxy disagree, or name no address",
        advice="let the proxy remove whichever of X-Forwarded-For and Forwarded it does not write itself",
    )


def _forwarded_for(headers: Headers) -> list[str]:
    """The addresses of `X-Forwarded-For`, the nearest last."""
    return [hop.strip() for value in headers.getlist("x-forwarded-for") for hop in value.split(",")]


def _forwarded(headers: Headers) -> list[str]:
    """Those of `Forwarded`."""
    return [_for(element) for value in headers.getlist("forwarded") for element in value.split(",")]


def _for(element: str) -> str:
    """The `for` of one element of `Forwarded` (RFC 7239)."""
    for pair in element.split(";"):
        name, _, value = pair.strip().partition("=")
        if name.lower() == "for":
            return value.strip('"')
    return ""


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


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
    """Who called, once that is known."""

    name = ""


def services_of(request: Request) -> Services:
    """The services of this process."""
    return cast("Services", request.app.state.services)


async def authenticated(request: Request) -> User:
    """The caller; the stored connectors are at least as new as the rights.

    Waits while the user has too many calls under way. Raises NotAuthenticated, TooManyRequests.
    """
    services = services_of(request)
    call = CallToJudge(request, services.settings.desktop.trusted_proxies)
    user = await services.accounts.authenticator.authenticate(call)
    if (caller := request.scope.get(CALLER)) is not None:
        caller.name = user.username
    services.request_limits.count_user(user.id)
    await enter_share(request, user.id)
    await services.connectors.at_least(user.connectors_version)
    return user


class UserShare:
    """The place of one call."""

    def __init__(self, places: FairPlaces) -> None:
        self._places = places
        self._user_id: int | None = None

    async def enter(self, user_id: int) -> None:
        """Wait for the place of a call of this user; once per call. Raises TooManyRequests."""
        if self._user_id is not None:
            return
        try:
            await self._places.take(user_id)
        except TooManyRequests as error:
            raise TooManyRequests("Too many calls of yours are under way.", retry_after=error.retry_after) from None
        self._user_id = user_id

    def leave(self) -> None:
        """The call has ended."""
        if self._user_id is not None:
            self._places.give_back(self._user_id)


class UserShares:
    """Of one user at most `most` calls are answered at once in this process."""

    def __init__(self, most: int) -> None:
        self._places = FairPlaces(sys.maxsize, per_user=most, max_waiting=_MAX_WAITING, wait_s=_WAIT_S)

    @contextmanager
    def around(self, scope: Scope) -> Generator[None]:
        """Around one call: it takes a place once its user is known, and leaves it at the end."""
        share = scope[_SHARE] = UserShare(self._places)
        try:
            yield
        finally:
            share.leave()


async def enter_share(request: Request, user_id: int) -> None:
    """Wait for the place of a call whose user is known. Raises TooManyRequests."""
    share = cast("UserShare | None", request.scope.get(_SHARE))
    if share is not None:
        await share.enter(user_id)


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
