"""`qs login` and `qs logout`."""

import getpass
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.device_login import approved_tokens
from queryserver_client.cli.failures import WrongUse, say
from queryserver_client.cli.login import Login, anonymous, forget_login, login_of, stored_login
from queryserver_client.credentials import Secret
from queryserver_client.errors import ConfigurationError, QueryserverError
from queryserver_client.transport import server_address

if TYPE_CHECKING:
    from queryserver_client.sync import Connection


def log_in(url: str | None, user: str | None, *, is_token: bool, is_device: bool, is_piped: bool) -> None:
    """Prompt for missing values, log in and store the tokens. The tokens of the previous login are revoked."""
    if is_device and (is_token or is_piped or user):
        raise WrongUse("--device cannot be combined with --user, --token or --stdin")
    url = server_address(url or _prompt("Server (https://…): ", "the address"))
    before = _known_login()
    with anonymous(url) as db:  # checks the address before prompting for a secret
        if is_token:
            token = _secret("API token: ", is_piped=is_piped)
            _post(url, "token/verify", {"token": token})
            made = Login(url, token=token)
        elif is_device:
            made = login_of(url, "", approved_tokens(lambda path, fields: _post_by(db, path, fields)))
        else:
            user = user or _prompt("User: ", "the user")
            password = _secret("Password: ", is_piped=is_piped)
            fields = {"username": user, "password": password}
            made = login_of(url, user, _post_by(db, "token/auth", fields))
    made.store()
    if before is not None:
        _revoke(before)
    print(f"logged in to {url}{f' as {user}' if user else ''}", file=sys.stderr)


def log_out() -> None:
    """Revoke and delete the stored login. The file is deleted even if the server is unreachable."""
    login = _known_login()
    forget_login()
    if login is None:
        say("not logged in")
        return
    if not _revoke(login):
        say("the server is unreachable; the tokens remain valid until they expire")


def _known_login() -> Login | None:
    """Return the stored login. None also if the file is invalid, because callers replace or delete it anyway."""
    try:
        return stored_login()
    except ConfigurationError:
        return None


def _revoke(login: Login) -> bool:
    """Revoke the tokens of a password login; API tokens stay valid. Return False if the server did not revoke them."""
    token = login.refresh or login.access
    if token is None:
        return True
    try:
        _post(login.url, "token/revoke", {"token": token})
    except QueryserverError:
        return False
    return True


def _post(url: str, path: str, fields: "dict[str, str | Secret]") -> None:
    with anonymous(url) as db:
        _post_by(db, path, fields)


def _post_by(db: "Connection", path: str, fields: "Mapping[str, str | Secret]") -> "dict[str, Any]":
    return db.loop.run(lambda: db.core.transport.call("POST", path, fields, is_repeatable=True))


def _prompt(prompt: str, what: str) -> str:
    if not sys.stdin.isatty():
        raise WrongUse(f"specify {what}, because stdin is not a terminal")
    print(prompt, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer:
        raise WrongUse(f"give {what}")
    return answer


def _secret(prompt: str, *, is_piped: bool) -> Secret:
    if is_piped:
        text = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        text = getpass.getpass(prompt)
    else:
        raise WrongUse("stdin is not a terminal; use --stdin to read the password or token from it")
    if not text:
        raise WrongUse("the input is empty")
    return Secret(text)
