"""Who calls, and by which proof."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from queryserver.domain.user import AuthenticatedUser, User


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a login back end may know of the call."""

    client: str
    """Address of the client: of the peer, or what a trusted proxy says."""


class LoginBackend(Protocol):
    """Judges a name and a password; asked in the order of `desktop.auth.backend`."""

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user; None: the next back end is asked.

        Raises AuthenticationFailed: nobody else is asked. Any other error counts as "out of reach".
        """
        ...


class Authenticator(Protocol):
    """Tells who makes a call."""

    async def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> User:
        """The caller, from the raw headers with lower-case names. Raises NotAuthenticated, DatabaseUnavailable."""
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

    def read(self, token: str, *, expired_too: bool = False) -> TokenClaims:
        """The content of a good token. Raises InvalidToken for a bad form, key, signature or time."""
        ...
