"""Determines the server and the credentials: from the environment, or else from the file that `qs login` stored.

The file contains the server address and tokens, never a password, and is readable only by its owner. A stored token is
sent only to the server that issued it.
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
    """There are no credentials in the environment and no valid stored login."""


def config_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's configuration directory: QUERYSERVER_CONFIG_DIR, or else the system default. May not exist."""
    if given := environment.get("QUERYSERVER_CONFIG_DIR"):
        return Path(given)
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "queryserver"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "queryserver"
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "queryserver"


def private_directory() -> Path:
    """Return the configuration directory. If it does not exist, create it with access for this user only."""
    directory = config_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


@dataclass(frozen=True)
class Login:
    """A login stored by `qs login`: the tokens of a password login, or an API token."""

    url: str
    user: str = ""
    access: Secret | None = None
    refresh: Secret | None = None
    token: Secret | None = None

    def store(self) -> None:
        """Replace the login file atomically, so that readers never see a partial file. Only the owner may read it."""
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
    """Return the stored login; None if there is none. Raises ConfigurationError if the file is invalid."""
    try:
        stored = json.loads((config_directory() / _FILE).read_text("utf-8"), object_hook=_hidden)
        return Login(**{field.name: stored[field.name] for field in fields(Login) if field.name in stored})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{config_directory() / _FILE} cannot be read; log in again") from error


def _hidden(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if name in {"url", "user"} else hidden(value) for name, value in facts.items()}


def forget_login() -> None:
    (config_directory() / _FILE).unlink(missing_ok=True)


class StoredTokens:
    """The bearer token of a stored login. A rejected access token is refreshed and stored for later commands."""

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
        """Do nothing, because the login lasts until `qs logout`."""

    async def _refreshed(self, post: Post) -> bool:
        # Another qs process may have refreshed the token since this process read the file. Use its token, because some
        # refresh tokens can be used only once.
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
        with suppress(OSError):  # if the directory is not writable, only this command uses the new token
            self._login.store()
        return True


def login_of(url: str, user: str, pair: Mapping[str, Any], refresh: Secret | None = None) -> Login:
    """Create a login from the response of token/auth or token/refresh."""
    return Login(url, user, Secret(pair["access"]), Secret(pair["refresh"]) if "refresh" in pair else refresh)


def open_connection() -> Connection:
    """Create a connection to the server in the environment, or else to the server of `qs login`. Sends no request."""
    given = os.environ.get("QUERYSERVER_URL")
    url = server_address(given) if given else ""
    if os.environ.get("QUERYSERVER_TOKEN") or os.environ.get("QUERYSERVER_USER"):
        stored = None if url else stored_login()
        return connect_sync(url or (stored.url if stored else None))
    login = stored_login()
    if login is None or (url and url != login.url):
        raise NotLoggedIn(
            f"not logged in{f' to {url}' if url else ''}: run qs login, or set QUERYSERVER_URL and QUERYSERVER_TOKEN"
        )
    return Connection(partial(_connected, login))


def anonymous(url: str) -> Connection:
    """Create a connection for login and logout calls, which send no bearer token."""
    return connect_sync(url, token="none")  # noqa: S106


def _connected(login: Login) -> AsyncConnection:
    if login.token is not None:
        return AsyncConnection(Transport(login.url, FixedToken(login.token)))
    return AsyncConnection(Transport(login.url, StoredTokens(login)))


_EXPIRED = "the login has expired; run qs login"
