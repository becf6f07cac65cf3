"""Logins of programs by a code that the user enters at the external issuer (Contract platform 3.13, RFC 8628)."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.api.driving import Api
from tests.api.token.logins import ProviderOpener, accounts, bearer
from tests.fakes.provider import USER_CODE, Provider
from tests.fakes.webhdfs import Answer


@pytest.fixture
async def api(provider_opener: ProviderOpener) -> AsyncIterator[Api]:
    async with provider_opener() as opened:
        yield opened


async def begin(api: Api) -> dict[str, Any]:
    return await api.stranger.post_ok("token/device/begin")


async def poll(api: Api, device: str) -> httpx.Response:
    return await api.stranger.post("token/device/poll", device=device)


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@pytest.mark.platform(139)
async def test_user_approves_the_login_of_a_program(
    api: Api, provider: Provider, provider_opener: ProviderOpener
) -> None:
    begun = await begin(api)
    assert begun.pop("device")
    assert begun == {
        "status": 0,
        "user_code": USER_CODE,
        "verification_uri": f"{provider.issuer}/activate",
        "verification_uri_complete": f"{provider.issuer}/activate?user_code={USER_CODE}",
        "expires_in": 600,
        "interval": 5,
    }
    device = (await begin(api))["device"]
    for state, expected in [("authorization_pending", "pending"), ("slow_down", "slow_down")]:
        provider.decide(state)
        assert (await poll(api, device)).json() == {"status": 0, "state": expected}
    provider.decide("approved")
    async with provider_opener() as other:
        done = (await poll(other, device)).json()
    assert list(done) == ["status", "state", "access", "refresh", "expires_in"]
    assert (done["state"], done["expires_in"]) == ("done", 86400)
    assert (await bearer(api, done["access"])).status_code == 200
    assert (await api.stranger.post("token/refresh", refresh=done["refresh"])).status_code == 200
    assert [account.username for account in await accounts(api).all()] == ["ana"]


@pytest.mark.platform(139)
async def test_denied_and_expired_codes_have_stable_codes(api: Api, provider: Provider) -> None:
    device = (await begin(api))["device"]
    for state, expected in [
        ("access_denied", (401, "issuer_login_refused")),
        ("expired_token", (400, "device_code_expired")),
        ("invalid_grant", (401, "issuer_login_refused")),
    ]:
        provider.decide(state)
        assert refusal(await poll(api, device)) == expected
    provider.decide("approved", aud="another client")
    assert refusal(await poll(api, device)) == (401, "issuer_login_refused")


@pytest.mark.platform(139)
async def test_values_that_this_server_did_not_issue_are_not_sent_to_the_issuer(api: Api, provider: Provider) -> None:
    device = (await begin(api))["device"]
    provider.decide("approved")
    code = next(iter(provider.devices))
    for value in (code, "x", device[:-8], "A" * 9000):
        assert refusal(await poll(api, value)) == (400, "device_code_expired")
    assert not [one for one in provider.requests if one.path.endswith("/token")]
    assert refusal(await api.stranger.post("token/device/poll")) == (400, "missing_parameter")


@pytest.mark.platform(139)
async def test_login_expires_with_its_code(api: Api, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    device = (await begin(api))["device"]
    provider.decide("approved")
    logins = api.services.accounts.issuer_logins
    assert logins is not None
    now = logins.clock()
    monkeypatch.setattr(logins, "clock", lambda: now + 601)
    assert refusal(await poll(api, device)) == (400, "device_code_expired")


@pytest.mark.platform(139)
@pytest.mark.parametrize(("interval", "expected"), [(None, 5), ("x", 5), (0, 1), (10_000, 300), (7.5, 7)])
async def test_interval_is_a_whole_number_of_seconds(
    api: Api, provider: Provider, interval: object, expected: int
) -> None:
    provider.interval = interval
    assert (await begin(api))["interval"] == expected


@pytest.mark.platform(139)
async def test_device_logins_can_be_missing_or_switched_off(
    api: Api, tokens: Api, provider: Provider, provider_opener: ProviderOpener
) -> None:
    provider.broken["/device"] = Answer(502)
    assert refusal(await api.stranger.post("token/device/begin")) == (503, "issuer_unavailable")
    assert refusal(await tokens.stranger.post("token/device/begin")) == (501, "issuer_not_configured")
    assert refusal(await poll(tokens, "x")) == (501, "issuer_not_configured")
    async with provider_opener(device_login=False) as without:
        assert refusal(await without.stranger.post("token/device/begin")) == (501, "device_login_not_supported")
    provider.document["device_authorization_endpoint"] = None
    async with provider_opener() as without:
        assert refusal(await without.stranger.post("token/device/begin")) == (501, "device_login_not_supported")
