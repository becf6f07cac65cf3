"""When tokens of another issuer, and its keys, are too old (Contract platform 3.9)."""

import time
from functools import partial

import pytest
from structlog.testing import capture_logs
from tests.api.token.logins import JwtOpener, bearer, not_valid, refusals
from tests.fakes.issuer import Issuer
from tests.fakes.webhdfs import Answer

from queryserver.identity.external_keys import KeyCache
from queryserver.identity.external_tokens import ExternalTokens


class Clock:
    """Stands still, so that no step of a test is too slow."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which applications that are opened later check tokens and keys of other issuers."""
    clock = Clock()
    monkeypatch.setattr("queryserver.identity.build.ExternalTokens", partial(ExternalTokens, clock=clock))
    monkeypatch.setattr("queryserver.identity.build.KeyCache", partial(KeyCache, clock=clock))
    return clock


@pytest.mark.platform(39)
async def test_the_difference_of_clocks_is_accepted_and_no_more(
    clock: Clock, jwt_opener: JwtOpener, issuer: Issuer
) -> None:
    now = int(clock.now)
    async with issuer.serving() as url, jwt_opener(url) as api:
        for good in ({"exp": now - 29}, {"nbf": now + 30}, {"iat": now + 30}):
            assert (await bearer(api, issuer.token(**{"iat": now, **good}))).status_code == 200, good
        for bad in ({"exp": now - 30}, {"nbf": now + 31}, {"iat": now + 31}):
            assert (await bearer(api, issuer.token(**{"iat": now, **bad}))).status_code == 401, bad


async def test_a_token_that_expires_while_it_is_remembered_is_refused_with_its_reason(
    clock: Clock, jwt_opener: JwtOpener, issuer: Issuer
) -> None:
    async with issuer.serving() as url, jwt_opener(url, leeway_s=0) as api:
        token = issuer.token(iat=int(clock.now), exp=int(clock.now) + 2)
        clock.now += 1
        assert (await bearer(api, token)).status_code == 200
        clock.now += 1
        with capture_logs() as lines:
            for _ in range(2):
                assert (await bearer(api, token)).json() == not_valid()
        assert refusals(lines) == [("times", "it has expired")] * 2


@pytest.mark.platform(43)
async def test_keys_that_are_too_old_are_not_used(clock: Clock, jwt_opener: JwtOpener, issuer: Issuer) -> None:
    token = issuer.token(iat=int(clock.now), exp=int(clock.now) + 600)
    async with issuer.serving() as url, jwt_opener(url, cache_s=0, max_stale_s=60, refetch_floor_s=0) as api:
        assert (await bearer(api, token)).status_code == 200
        issuer.answer = Answer(500)
        clock.now += 60
        assert (await bearer(api, token)).status_code == 200
        clock.now += 1
        response = await bearer(api, token)
        assert (response.status_code, response.json()["code"]) == (503, "key_server_unavailable")
        issuer.answer = None
        assert (await bearer(api, token)).status_code == 200
