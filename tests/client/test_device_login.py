"""`qs login --device` at a provider (Contract platform 3.13)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import open_api
from tests.api.serving import served
from tests.client.shell import Make
from tests.fakes.provider import CLIENT, USER_CODE, Provider
from tests.timing import until


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider(secret="", interval=1)
    async with made.serving():
        yield made


@pytest.fixture
async def url(provider: Provider, tmp_path: Path, database_dsn: str, users_url: str) -> AsyncIterator[str]:
    """A server whose users log in at the provider."""
    jwt = {"key_server_url": f"{provider.issuer}/keys", "issuer": provider.issuer, "audience": "queryserver"}
    auth = {"jwt": jwt, "oidc": {"client_id": CLIENT}}
    settings = make_settings(tmp_path, database_dsn, users_url, desktop={"auth": auth})
    async with open_api(settings) as api, served(api) as address:
        yield address


@pytest.mark.platform(139)
async def test_program_logs_in_after_the_user_has_approved(url: str, provider: Provider, make: Make) -> None:
    qs = make()
    command = await qs.start("login", url, "--device")
    await until(lambda: bool(provider.devices))
    provider.decide("approved")
    ended = await command.end()
    assert (ended.code, ended.out) == (0, b""), ended.err
    assert USER_CODE in ended.err
    assert f"{provider.issuer}/activate" in ended.err
    assert (await qs("sql", "duckdb", "SELECT 1 AS one")).text == "one\n1\n"
    assert (await qs("logout")).code == 0


@pytest.mark.platform(139)
async def test_denied_login_stores_nothing(url: str, provider: Provider, make: Make, tmp_path: Path) -> None:
    qs = make()
    command = await qs.start("login", url, "--device")
    await until(lambda: bool(provider.devices))
    provider.decide("access_denied")
    ended = await command.end()
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == "qs: The login was denied at the issuer."
    assert not (tmp_path / "config" / "login.json").exists()
    wrong = await qs("login", url, "--device", "--user", "ana")
    assert (wrong.code, "--device cannot be combined" in wrong.err) == (2, True)
