"""Which server, and as whom: the environment, else the login that `qs login` has stored.

The file holds the address and tokens, never a password, and only its owner may read it. A stored token is sent to the
server that issued it and to no other.
"""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from queryserver_client.connection import Connection as AsyncConnection
from queryserver_client.credentials import FixedToken, Post, Secret, hidden
from queryserver_client.errors import AuthenticationError, ConfigurationError
from queryserver_client.sync import Connection, connect_sync
from queryserver_client.transport import Transport, server_address

_FILE = "login.json"


class NotLoggedIn(ConfigurationError):
    """There is neither a login nor credentials in the environment."""


def config_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Of this user: QUERYSERVER_CONFIG_DIR, else the place that the system has for it. It need not exist."""
    if given := environment.get("QUERYSERVER_CONFIG_DIR"):
        return Path(given)
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "queryserver"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "queryserver"
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "queryserver"


def private_directory() -> Path:
    """The directory of the configuration, made for this user alone."""
    directory = config_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


@dataclass(frozen=True)
class Login:
    """What `qs login` has stored: tokens of a login by password, or an API token."""

    url: str
    user: str = ""
    access: Secret | None = None
    refresh: Secret | None = None
    token: Secret | None = None

    def store(self) -> None:
        """Replace the file at once, so that no reader sees half of it; only the owner may read it."""
        path = private_directory() / _FILE
        facts = {"url": self.url, "user": self.user} | {
            name: secret
            for name, secret in (("access", self.access), ("refresh", self.refresh), ("token", self.token))
            if secret is not None
        }
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(facts, file, default=Secret.reveal)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def stored_login() -> Login | None:
    """None when nobody has logged in here."""
    try:
        stored = json.loads((config_directory() / _FILE).read_text("utf-8"), object_hook=_hidden)
        return Login(**{field.name: stored[field.name] for field in fields(Login) if field.name in stored})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{config_directory() / _FILE} cannot be read: log in again") from error


def _hidden(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if name in {"url", "user"} else hidden(value) for name, value in facts.items()}


def forget_login() -> None:
    (config_directory() / _FILE).unlink(missing_ok=True)


class StoredTokens:
    """The bearer of a stored login. A refused access token is refreshed, and the new one stored for later commands."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._lock = anyio.Lock()

    async def bearer(self, post: Post) -> Secret:
        async with self._lock:
            if self._login.access is None and not await self._refreshed(post):
                raise NotLoggedIn(_EXPIRED)
            assert self._login.access is not None  # noqa: S101
            return self._login.access

    async def renewed(self, refused: Secret, post: Post) -> bool:
        async with self._lock:
            if self._login.access is not None and self._login.access != refused:
                return True
            if await self._refreshed(post):
                return True
            raise NotLoggedIn(_EXPIRED)

    async def forget(self, post: Post) -> None:
        """The login lasts until `qs logout`."""

    async def _refreshed(self, post: Post) -> bool:
        # Another qs may have refreshed since this one read the file; a refresh token may be good for one use only.
        known = stored_login()
        if known is not None and known.url == self._login.url and known.access != self._login.access:
            self._login = known
            return known.access is not None
        if self._login.refresh is None:
            return False
        try:
            pair = await post("token/refresh", {"refresh": self._login.refresh})
        except AuthenticationError:
            return False
        self._login = login_of(self._login.url, self._login.user, pair, self._login.refresh)
        with suppress(OSError):  # a home that cannot be written to: the token serves this command
            self._login.store()
        return True


def login_of(url: str, user: str, pair: Mapping[str, Any], refresh: Secret | None = None) -> Login:
    """From an answer of token/auth or token/refresh."""
    return Login(url, user, Secret(pair["access"]), Secret(pair["refresh"]) if "refresh" in pair else refresh)


def open_connection() -> Connection:
    """The server of the environment, else the one of `qs login`. Nothing is sent yet."""
    given = os.environ.get("QUERYSERVER_URL")
    url = server_address(given) if given else ""
    if os.environ.get("QUERYSERVER_TOKEN") or os.environ.get("QUERYSERVER_USER"):
        stored = None if url else stored_login()
        return connect_sync(url or (stored.url if stored else None))
    login = stored_login()
    if login is None or (url and url != login.url):
        raise NotLoggedIn(
            f"not logged in{f' to {url}' if url else ''}: run qs login, or set QUERYSERVER_URL and _TOKEN"
        )
    return Connection(partial(_connected, login))


def anonymous(url: str) -> Connection:
    """For the calls that log in and out, which send no bearer."""
    return connect_sync(url, token="none")  # noqa: S106


def _connected(login: Login) -> AsyncConnection:
    if login.token is not None:
        return AsyncConnection(Transport(login.url, FixedToken(login.token)))
    return AsyncConnection(Transport(login.url, StoredTokens(login)))


_EXPIRED = "the login has ended: run qs login"
