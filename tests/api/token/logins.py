"""Logins, and the responses to invalid tokens."""

from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
from tests.api.driving import Api, Caller
from tests.fakes.issuer import ISSUER

from queryserver.identity.model import jwt_issuer
from queryserver.identity.users import Accounts, Identities
from queryserver.platform.settings.desktop import AuthSettings, JwtSettings

PASSWORD = "correct horse battery"

Opener = JwtOpener = ProviderOpener = Callable[..., AbstractAsyncContextManager[Api]]


def accounts(api: Api) -> Accounts:
    return api.services.accounts.accounts


async def link(api: Api, name: str, subject: str | None = None, issuer: str = jwt_issuer(ISSUER)) -> None:
    """Link a user to an external identity, as `queryserver link-user` does."""
    await Identities(api.database, AuthSettings(jwt=JwtSettings(issuer="*"))).link(name, issuer, subject)


async def log_in(api: Api, username: str = "ana", password: str = PASSWORD) -> dict[str, str]:
    response = await api.stranger.post("token/auth", username=username, password=password)
    assert response.status_code == 200, response.text
    return response.json()


async def call(api: Api, *headers: tuple[str, str]) -> httpx.Response:
    """Make a call that requires credentials, with the given headers."""
    return await api.http.get(
        "/api/v1/editor/get_history", headers=[(name, value.encode("latin-1")) for name, value in headers]
    )


async def bearer(api: Api, token: str) -> httpx.Response:
    return await Caller(api, "", {"Authorization": f"Bearer {token}"}).get("editor/get_history")


def not_valid(message: str = "Token is invalid or expired", kind: str = "access", detail: str | None = None) -> Any:
    return {
        "detail": detail or "Given token not valid for any token type",
        "code": "token_not_valid",
        "messages": [{"token_class": f"{kind.capitalize()}Token", "token_type": kind, "message": message}],
    }


def tampered(token: str) -> str:
    """Change the first character of the token's signature. In the last character, some bits are unused, so changing it
    might have no effect.
    """
    head, _, signature = token.rpartition(".")
    return f"{head}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


def refusals(lines: list[MutableMapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the check and the reason that the log contains for each rejected external token."""
    return [(line["check"], line["reason"]) for line in lines if line["event"] == "external token rejected"]
