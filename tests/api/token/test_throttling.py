"""Limits on failed logins (Contract platform 3.8)."""

import asyncio
from ipaddress import ip_network

import pytest
from tests.api.driving import Api
from tests.api.token.logins import PASSWORD, Opener, accounts, log_in


@pytest.mark.platform(33)
async def test_the_sixth_failure_is_throttled_until_the_window_ends(tokens: Api) -> None:
    for _ in range(5):
        assert (await tokens.stranger.post("token/auth", username="ana", password="wrong")).status_code == 401
    for password in ("wrong", PASSWORD):
        refused = await tokens.stranger.post("token/auth", username="ana", password=password)
        assert (refused.status_code, refused.json()["code"]) == (429, "login_throttled")
        assert 0 < int(refused.headers["retry-after"]) <= 300
    await tokens.database.execute("update login_failures set window_started_at = now() - interval '301 s'")
    assert await log_in(tokens)


@pytest.mark.platform(33)
async def test_unlock_frees_a_name(tokens: Api) -> None:
    for _ in range(6):
        await tokens.stranger.post("token/auth", username="ana", password="wrong")
    await accounts(tokens).unlock("ANA")
    assert await log_in(tokens)


@pytest.mark.platform(34)
async def test_servers_count_failures_together_and_unknown_names_too(opener: Opener) -> None:
    async with opener() as one, opener() as other:
        statuses = [
            (await api.stranger.post("token/auth", username="nobody", password="x")).status_code
            for api in (one, other, one, other, one, other)
        ]
        assert statuses == [401] * 5 + [429]


@pytest.mark.security("T15")
@pytest.mark.slow
async def test_guesses_sent_at_once_do_not_get_past_the_limit(tokens: Api) -> None:
    guesses = [tokens.stranger.post("token/auth", username="ana", password=f"wrong {n}") for n in range(30)]
    statuses = [response.status_code for response in await asyncio.gather(*guesses)]
    assert statuses.count(401) == 5
    assert statuses.count(429) == 25


async def test_a_success_forgets_the_failures_of_its_name_and_address(tokens: Api) -> None:
    for _ in range(3):
        for _ in range(4):
            await tokens.stranger.post("token/auth", username="ana", password="wrong")
        assert await log_in(tokens)


@pytest.mark.platform(35)
async def test_a_forwarded_address_counts_from_a_trusted_proxy_only(opener: Opener) -> None:
    async def fail(api: Api, address: str) -> int:
        forged = {"X-Forwarded-For": address}
        fields = {"username": "nobody", "password": "x"}
        return (await api.stranger.send("POST", "token/auth", data=fields, headers=forged)).status_code

    async with opener() as direct:
        assert [await fail(direct, f"10.0.0.{n}") for n in range(6)] == [401] * 5 + [429]
        await direct.database.execute("delete from login_failures")
    async with opener({"trusted_proxies": (ip_network("127.0.0.1"),)}) as behind:
        assert [await fail(behind, f"10.0.0.{n}") for n in range(6)] == [401] * 6
        await behind.database.execute("delete from login_failures")
        assert [await fail(behind, f"2001:db8:0:1::{n}") for n in range(6)] == [401] * 5 + [429]
        assert await fail(behind, "2001:db8:0:2::1") == 401


@pytest.mark.platform(36)
@pytest.mark.security("T15")
async def test_no_spelling_of_a_name_has_failures_of_its_own(tokens: Api) -> None:
    spellings = ["ana", "ANA", " ana ", "\uff41\uff4e\uff41", "\uff21na"]
    for name in spellings:
        assert (await tokens.stranger.post("token/auth", username=name, password="wrong")).status_code == 401
    assert (await tokens.stranger.post("token/auth", username="ana", password=PASSWORD)).status_code == 429


@pytest.mark.platform(36)
@pytest.mark.security("T15")
async def test_no_spelling_that_a_directory_folds_has_failures_of_its_own(opener: Opener) -> None:
    rule = {"ignore_username_case": False, "force_username_lowercase": False}
    async with opener(login_failures_per_user_and_address=0, login_failures_per_user=8, **rule) as api:
        spellings = ["rene", "René", "RENE\u0301", "R\u00c9NE", "rene\u0301", "\uff32ene", "r\u00ebn\u00ea", "rEnE"]
        for name in spellings:
            assert (await api.stranger.post("token/auth", username=name, password="wrong")).status_code == 401, name
        assert (await api.stranger.post("token/auth", username="r\u00e8ne", password="wrong")).status_code == 429
        assert (await api.stranger.post("token/auth", username="irene", password="wrong")).status_code == 401
        await accounts(api).unlock("RENE")
        assert (await api.stranger.post("token/auth", username="ren\u00e9", password="wrong")).status_code == 401
