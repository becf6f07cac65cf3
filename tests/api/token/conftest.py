"""Applications for tests of logins. Each test has its own service database."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.api.conftest import make_settings
from tests.api.driving import Api, open_api
from tests.api.token.logins import PASSWORD, JwtOpener, Opener, ProviderOpener, accounts
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer
from tests.fakes.provider import CLIENT, Provider

from queryserver.identity.model import AuthenticatedUser


@pytest.fixture
def opener(tmp_path: Path, database_dsn: str, users_url: str) -> Opener:
    """A function that opens an application on the test's own database. Its arguments change settings in `desktop` and
    `desktop.auth`.
    """

    def opened(desktop: dict[str, Any] | None = None, **auth: Any) -> AbstractAsyncContextManager[Api]:
        settings = make_settings(tmp_path, database_dsn, users_url)
        changed = settings.desktop.auth.model_validate({**settings.desktop.auth.model_dump(), **auth})
        whole = settings.desktop.model_copy(update={"auth": changed, **(desktop or {})})
        return open_api(settings.model_copy(update={"desktop": whole}))

    return opened


@pytest.fixture
async def tokens(opener: Opener) -> AsyncIterator[Api]:
    """An application with default settings and the user ana."""
    async with opener() as api:
        await accounts(api).create(AuthenticatedUser("ana"), PASSWORD)
        yield api


@pytest.fixture
def issuer() -> Issuer:
    """An external issuer, which signs tokens."""
    return Issuer()


@pytest.fixture
def jwt_opener(opener: Opener) -> JwtOpener:
    """A function that opens an application that accepts the issuer's tokens. The positional arguments are the URLs of
    key servers.
    """

    def opened(*urls: str, auth: dict[str, Any] | None = None, **jwt: Any) -> AbstractAsyncContextManager[Api]:
        settings = {"key_server_url": urls, "issuer": ISSUER, "audience": AUDIENCE, "timeout_s": 60, **jwt}
        return opener(jwt=settings, **(auth or {}))

    return opened


@pytest.fixture
async def external(jwt_opener: JwtOpener, issuer: Issuer) -> AsyncIterator[Api]:
    """An application with default settings, except that it accepts the issuer's tokens."""
    async with issuer.serving() as url, jwt_opener(url) as api:
        yield api


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    async with made.serving():
        yield made


@pytest.fixture
def provider_opener(opener: Opener, provider: Provider) -> ProviderOpener:
    """A function that opens an application whose users may log in at the provider."""

    def opened(
        desktop: dict[str, Any] | None = None, *, jwt: dict[str, Any] | None = None, **oidc: Any
    ) -> AbstractAsyncContextManager[Api]:
        issuer = {
            "key_server_url": (f"{provider.issuer}/keys",),
            "issuer": provider.issuer,
            "audience": "another audience",
            "timeout_s": 30,
            **(jwt or {}),
        }
        client = {"client_id": CLIENT, "client_secret": SecretStr(provider.secret), **oidc}
        return opener(desktop, jwt=issuer, oidc=client)

    return opened
