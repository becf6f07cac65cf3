"""What authenticators see of a call."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request

from queryserver.api.client_address import client_address
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
        """In capitals."""
        return self._request.method

    @property
    def url(self) -> str:
        """The whole address, query included."""
        return str(self._request.url)

    @property
    def headers(self) -> Headers:
        """The headers by name."""
        return self._request.headers

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says."""
        return client_address(self._request, self._trusted)

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is a trusted proxy."""
        peer = self._request.client
        return peer is not None and contains(self._trusted, peer.host)
