"""Who calls, and by which proof."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from queryserver.identity.model import AuthenticatedUser, ExternalIdentity, User


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a login back end may know of the call."""

    client: str
    """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""


class LoginBackend(Protocol):
    """Judges a name and a password; asked in the order of `desktop.auth.backend`."""

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user; None: the next back end is asked.

        Raises AuthenticationFailed: nobody else is asked. Any other error counts as "out of reach".
        """
        ...


class CallHeaders(Protocol):
    """Headers of a call by name, whatever the case."""

    def get(self, name: str, /) -> str | None:
        """The first value of that name."""
        ...

    def getlist(self, name: str, /) -> list[str]:
        """All values of that name, in their order."""
        ...


class AuthRequest(Protocol):
    """What an authenticator may know of a call; the body is not for it."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case, and values, as they came."""
        ...

    @property
    def method(self) -> str:
        """In capitals."""
        ...

    @property
    def url(self) -> str:
        """The whole address, query included."""
        ...

    @property
    def headers(self) -> CallHeaders:
        """The headers by name."""
        ...

    @property
    def client(self) -> str:
        """Address of the client: of the peer, or what a trusted proxy says; `unknown` where that is unclear."""
        ...

    @property
    def is_from_trusted_proxy(self) -> bool:
        """Whether the peer is in `desktop.trusted_proxies`: else its headers are the caller's own word (T19)."""
        ...


class Authenticator(Protocol):
    """Tells who makes a call."""

    async def authenticate(self, request: AuthRequest) -> User:
        """The caller. Raises NotAuthenticated, KeyServerUnavailable, DatabaseUnavailable."""
        ...


class CallerSource(Protocol):
    """One entry of `desktop.auth.api_auth`."""

    async def caller(self, request: AuthRequest) -> User | None:
        """The caller; None: the next entry is asked. Raises NotAuthenticated: nobody else is asked."""
        ...

    async def challenge(self, request: AuthRequest) -> str | None:
        """What the answer says in a further `WWW-Authenticate` when nobody knew the caller; within 2 s.

        Raises nothing: what goes wrong is left out.
        """
        ...


class Passwords(Protocol):
    """Hashes of passwords. Each call costs tens of milliseconds of a bounded number of threads."""

    async def hash(self, password: str) -> str:
        """A salted hash. Raises LoginBackendUnavailable under overload."""
        ...

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether they belong together; without a hash the same work is done in vain.

        Raises LoginBackendUnavailable under overload.
        """
        ...

    def is_outdated(self, password_hash: str) -> bool:
        """Whether the hash was made with other parameters than today's."""
        ...


class TokenType(StrEnum):
    """What a token is good for."""

    ACCESS = "access"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The content of an own token (Contract platform 3.3)."""

    token_type: TokenType
    user_id: int
    epoch: int
    family: str
    jti: str = field(repr=False)
    issued_at: int
    expires_at: int
    """Seconds since 1970."""


class TokenCodec(Protocol):
    """Own tokens as text."""

    def sign(self, claims: TokenClaims) -> str:
        """The token."""
        ...

    def recognises(self, token: str) -> bool:
        """Whether a token is of this kind, be it good or not: its algorithm is HS256."""
        ...

    def read(self, token: str, *, expired_too: bool = False) -> TokenClaims:
        """The content of a good token. Raises InvalidToken for a bad form, key, signature or time."""
        ...


@dataclass(frozen=True, slots=True)
class ExternalClaims:
    """What is taken from a good token of another issuer (Contract platform 3.9)."""

    identity: ExternalIdentity
    expires_at: int
    """Its `exp`: seconds since 1970."""
    refused_from: float
    """`exp` and the difference of clocks that is accepted."""
    id: str = field(repr=False)
    """By what it can be ended: a digest of issuer and `jti`, without a `jti` of what was signed."""


class ExternalTokenReader(Protocol):
    """Tokens of another issuer."""

    def recognises(self, token: str) -> bool:
        """Whether a token is of this kind, be it good or not: its algorithm is RS256."""
        ...

    async def read(self, token: str) -> ExternalClaims:
        """The content of a good token. Raises InvalidToken, KeyServerUnavailable."""
        ...
