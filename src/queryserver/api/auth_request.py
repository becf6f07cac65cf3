"""What authenticators see of a call."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from queryserver.api.client_address import client_address
from queryserver.api.routing import AS_IT_CAME, whole_url
from queryserver.settings.networks import Network, contains


class CallToJudge:
    """See `interfaces.auth.AuthRequest`. Nothing is worked out before somebody asks for it."""

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
        return str(whole_url(self._as_it_came()))

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
