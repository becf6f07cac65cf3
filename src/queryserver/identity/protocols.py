"""The seams of logins and of calls, and what plug-ins see of a call (Contract platform 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from queryserver.identity.model import AuthenticatedUser


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The facts about a call that login back ends get."""

    client: str
    """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""


class LoginBackend(Protocol):
    """Checks a name and a password. Back ends are tried in the order of `desktop.auth.backend`."""

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user; None: the next back end is tried.

        Raises AuthenticationFailed: no other back end is tried. Any other error counts as "out of reach".
        """
        ...


class CallHeaders(Protocol):
    """Headers of a call by name, whatever the case."""

    def get(self, name: str, /) -> str | None: ...

    def getlist(self, name: str, /) -> list[str]: ...


class AuthRequest(Protocol):
    """The facts about a call that authenticators get; the body is not one of them."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case, and values, as they came."""
        ...

    @property
    def method(self) -> str: ...

    @property
    def url(self) -> str:
        """The whole address, query included."""
        ...

    @property
    def headers(self) -> CallHeaders: ...

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""
        ...

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is in `desktop.trusted_proxies`: else its headers are claims of the caller (T19)."""
        ...
