"""Who makes a call."""

from collections.abc import Sequence
from typing import cast
from urllib.parse import quote

import structlog
from fastapi import Request
from starlette.datastructures import URL, Headers
from starlette.types import Scope

from queryserver.api.addresses import client_address
from queryserver.api.middlewares import CALL, PRINTABLE, CallRecord
from queryserver.identity.model import User
from queryserver.platform.networks import Network, contains
from queryserver.services import Services


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


class ReceivedCall:
    """A call as authenticators see it. Each property is computed when it is read: most calls need the headers alone."""

    __slots__ = ("_request", "_trusted", "raw_headers")

    def __init__(self, request: Request, trusted: Sequence[Network]) -> None:
        self._request = request
        self._trusted = trusted
        self.raw_headers: Sequence[tuple[bytes, bytes]] = request.scope["headers"]

    @property
    def method(self) -> str:
        """In capitals; HEAD is HEAD, though it is served as GET."""
        return self._received["method"]

    @property
    def url(self) -> str:
        """The whole URL as the client sent it, query included."""
        scope = self._received
        # With our prefix, a last slash and the client's own way of encoding.
        if raw_path := scope.get("raw_path"):
            scope = {**scope, "path": quote(raw_path.partition(b"?")[0], safe=PRINTABLE)}
        return str(URL(scope=scope))

    @property
    def headers(self) -> Headers:
        return self._request.headers

    @property
    def client(self) -> str:
        """Address of the client: the peer, or what a trusted proxy reports; `unknown` where its headers disagree."""
        return client_address(self._request, self._trusted)

    @property
    def is_from_trusted_proxy(self) -> bool:
        peer = self._request.client
        return peer is not None and contains(self._trusted, peer.host)

    @property
    def _received(self) -> Scope:
        record: CallRecord | None = self._request.scope.get(CALL)
        return self._request.scope if record is None else record.received


async def authenticated(request: Request) -> User:
    """The user who makes the call; the stored connectors are at least as new as the rights.

    Waits while the user has too many calls running. Raises NotAuthenticated, TooManyRequests.
    """
    services = services_of(request)
    call = ReceivedCall(request, services.settings.desktop.trusted_proxies)
    user = await services.accounts.authenticator.authenticate(call)
    record: CallRecord | None = request.scope.get(CALL)
    if record is not None:
        record.username = user.username
    if user.api_token is not None:
        # In every line of the log and every audit event of this call.
        structlog.contextvars.bind_contextvars(token_id=str(user.api_token.id))
    if services.request_limits.are_on:
        services.request_limits.count_user(user.id)
    if record is not None:
        await record.take_slot(user.id)
    if user.connectors_version > services.connectors.version:
        await services.connectors.at_least(user.connectors_version)
    return user
