"""Credentials: a token, a function that returns tokens, or a user name and password (Contract platform 3).

No `repr` in this module shows a secret. Secrets are revealed only where a request is built, so that no variable in a
traceback contains a secret.
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
    """A string whose `repr` is masked, for example where programs log the variables of a traceback.

    Can be passed wherever a token, a password or a connector setting is expected.
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
        message = "secrets cannot be pickled"
        raise TypeError(message)


def hidden(value: "T | str") -> "T | Secret":
    """Wrap a string in a Secret. Return any other value unchanged."""
    return Secret(value) if isinstance(value, str) else value


def hidden_values(fields: "Mapping[str, str | Secret] | None") -> "Mapping[str, Secret] | None":
    """Return the fields with their values wrapped in Secrets; None if `fields` is None."""
    return None if fields is None else {name: hidden(value) for name, value in fields.items()}


Post = Callable[[str, Mapping[str, "str | Secret"]], Awaitable[dict[str, Any]]]
"""Makes a `token/` call without credentials, and returns the JSON object in the response."""


class Credentials(Protocol):
    """Provides bearer tokens, and replaces a token that the server rejects."""

    async def bearer(self, post: Post) -> Secret: ...

    async def renewed(self, refused: Secret, post: Post) -> bool:
        """Renew the token if it is still `refused`. Return whether `bearer` now returns a different token."""
        ...

    async def forget(self, post: Post) -> None:
        """Revoke the tokens that were issued to this client."""
        ...


class FixedToken:
    """A fixed token: an API token, or a token from the login of another program."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    async def bearer(self, post: Post) -> Secret:  # noqa: ARG002
        return self._token

    async def renewed(self, refused: Secret, post: Post) -> bool:  # noqa: ARG002
        return False

    async def forget(self, post: Post) -> None:
        """Do nothing, because the token was not issued to this client."""


class CalledToken:
    """Tokens from a function, which is called before the first request and whenever the server rejects the token."""

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
        """Do nothing, because the tokens were not issued to this client."""

    async def _fetch(self) -> Secret:
        given = hidden(self._source())
        return _token(hidden(await given) if inspect.isawaitable(given) else given)


class Password:
    """Logs in before the first request. Refreshes a rejected token, or logs in again if the refresh fails."""

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
        """Revoke the tokens of this login (Contract platform 3.6)."""
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
    """Return the credentials from the arguments of `connect`, or else from the environment.

    The environment variables are QUERYSERVER_TOKEN, or else QUERYSERVER_USER and QUERYSERVER_PASSWORD. Raises
    ConfigurationError.
    """
    if token is None and user is None and password is None:
        token = hidden(os.environ.get("QUERYSERVER_TOKEN") or None)
        if token is None:
            user, password = os.environ.get("QUERYSERVER_USER"), hidden(os.environ.get("QUERYSERVER_PASSWORD"))
    if token is not None:
        if user is not None or password is not None:
            raise ConfigurationError("pass either a token, or a user and a password")
        return FixedToken(_token(token)) if isinstance(token, Secret) else CalledToken(token)
    if not user or password is None:
        raise ConfigurationError(
            "no credentials; pass token=…, or user=… and password=…, or set QUERYSERVER_TOKEN (or QUERYSERVER_USER and "
            "QUERYSERVER_PASSWORD)"
        )
    return Password(user, password)


def _token(given: Any) -> Secret:
    """Return the token without surrounding white space.

    Raises ConfigurationError if it is invalid; the message does not contain the token.
    """
    if not isinstance(given, Secret):
        message = f"a token must be a string, not {type(given).__qualname__}"
        raise ConfigurationError(message)
    made = Secret(given.reveal().strip())
    if not (made.reveal() and made.reveal().isascii() and made.reveal().isprintable()):
        raise ConfigurationError("the token is empty or contains invalid characters")
    return made
