"""The caller's credentials: a token, a function that returns tokens, or a user and password (Contract platform 3).

No object here shows a secret in its text. A secret is only revealed where a request is made, so that traceback frames
never hold secrets in variables.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import anyio

from queryserver_client.errors import AuthenticationError, ConfigurationError

T = TypeVar("T")
TokenSource = Callable[[], "str | Awaitable[str]"]


class Secret:
    """Text that does not show itself in its `repr`, and so not where programs print traceback variables.

    Accepted wherever a token, a password or a connector setting is accepted.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        return self._text

    def __reduce__(self) -> str:
        message = "a secret is not pickled"
        raise TypeError(message)


def hidden(value: "T | str") -> "T | Secret":
    """Return a text as a secret, and anything else unchanged."""
    return Secret(value) if isinstance(value, str) else value


def hidden_values(fields: "Mapping[str, str | Secret] | None") -> "Mapping[str, Secret] | None":
    """Return headers with their values as secrets."""
    return None if fields is None else {name: hidden(value) for name, value in fields.items()}


Post = Callable[[str, Mapping[str, "str | Secret"]], Awaitable[dict[str, Any]]]
"""Calls a path under `token/` without credentials and returns the response's JSON."""


class Credentials(Protocol):
    """Provides the bearer token for a call, and a new token if the server rejects it."""

    async def bearer(self, post: Post) -> Secret: ...

    async def renewed(self, refused: Secret, post: Post) -> bool:
        """Return whether `bearer` now provides a different token than the one that the server rejected."""
        ...

    async def forget(self, post: Post) -> None:
        """Revoke the tokens that were issued for this client only."""
        ...


class FixedToken:
    """A fixed token: an API token, or a token from another program's login."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    async def bearer(self, post: Post) -> Secret:  # noqa: ARG002
        return self._token

    async def renewed(self, refused: Secret, post: Post) -> bool:  # noqa: ARG002
        return False

    async def forget(self, post: Post) -> None:
        """Do nothing, because the token does not belong to this client."""


class CalledToken:
    """Tokens from a function, which is called for the first call and whenever the server rejects the previous token."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._token: Secret | None = None
        self._lock = anyio.Lock()

    async def bearer(self, post: Post) -> Secret:  # noqa: ARG002
        async with self._lock:
            if self._token is None:
                self._token = await self._fetch()
            return self._token

    async def renewed(self, refused: Secret, post: Post) -> bool:  # noqa: ARG002
        async with self._lock:
            if self._token is refused:
                self._token = await self._fetch()
            return self._token is None or self._token != refused

    async def forget(self, post: Post) -> None:
        """Do nothing, because the tokens do not belong to this client."""

    async def _fetch(self) -> Secret:
        given = hidden(self._source())
        return _token(hidden(await given) if inspect.isawaitable(given) else given)


class Password:
    """Logs in at the first call. Refreshes a rejected token, and logs in again if that fails."""

    def __init__(self, user: str, password: Secret) -> None:
        self._user = user
        self._password = password
        self._access: Secret | None = None
        self._refresh: Secret | None = None
        self._lock = anyio.Lock()

    async def bearer(self, post: Post) -> Secret:
        async with self._lock:
            return self._access or await self._log_in(post)

    async def renewed(self, refused: Secret, post: Post) -> bool:
        async with self._lock:
            if self._access is refused and not await self._refreshed(post):
                await self._log_in(post)
        return True

    async def forget(self, post: Post) -> None:
        """Revoke this login's tokens (Contract platform 3.6)."""
        if self._refresh is not None:
            await post("token/revoke", {"token": self._refresh})
            self._access = self._refresh = None

    async def _refreshed(self, post: Post) -> bool:
        if self._refresh is None:
            return False
        try:
            self._keep(await post("token/refresh", {"refresh": self._refresh}))
        except AuthenticationError:
            return False
        return True

    async def _log_in(self, post: Post) -> Secret:
        return self._keep(await post("token/auth", {"username": self._user, "password": self._password}))

    def _keep(self, pair: Mapping[str, str]) -> Secret:
        if "refresh" in pair:
            self._refresh = Secret(pair["refresh"])
        self._access = access = Secret(pair["access"])
        return access


def credentials_of(token: "Secret | TokenSource | None", user: str | None, password: Secret | None) -> Credentials:
    """Return the credentials from the arguments of `connect`, or from QUERYSERVER_TOKEN, or else QUERYSERVER_USER
    and _PASSWORD.
    """
    if token is None and user is None and password is None:
        token = hidden(os.environ.get("QUERYSERVER_TOKEN") or None)
        if token is None:
            user, password = os.environ.get("QUERYSERVER_USER"), hidden(os.environ.get("QUERYSERVER_PASSWORD"))
    if token is not None:
        if user is not None or password is not None:
            raise ConfigurationError("give either a token, or a user and a password")
        return FixedToken(_token(token)) if isinstance(token, Secret) else CalledToken(token)
    if not user or password is None:
        raise ConfigurationError(
            "no credentials: give token=…, or user=… and password=…, or set QUERYSERVER_TOKEN (or QUERYSERVER_USER and "
            "QUERYSERVER_PASSWORD)"
        )
    return Password(user, password)


def _token(given: Any) -> Secret:
    """Return the token in its header form. If it is invalid, raises ConfigurationError, which does not show it."""
    if not isinstance(given, Secret):
        message = f"a token is text, not {type(given).__qualname__}"
        raise ConfigurationError(message)
    made = Secret(given.reveal().strip())
    if not (made.reveal() and made.reveal().isascii() and made.reveal().isprintable()):
        raise ConfigurationError("the token is empty, or has characters that no token has")
    return made
