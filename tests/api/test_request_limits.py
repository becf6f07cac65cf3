"""The setting `limits.api_requests_per_minute` (Contract platform 1.1, 1.6).

A user may make twice as many requests in a burst that crosses the boundary between two minutes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, open_api

MOST = 5
BURST = 12
Opener = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def opener(tmp_path: Path, database_dsn: str, users_url: str) -> Opener:
    def opened(**desktop: object) -> AbstractAsyncContextManager[Api]:
        settings = make_settings(tmp_path, database_dsn, users_url, desktop=desktop)
        limits = settings.limits.model_copy(update={"api_requests_per_minute": MOST})
        return open_api(settings.model_copy(update={"limits": limits}))

    return opened


@pytest.fixture
async def limited(opener: Opener) -> AsyncIterator[Api]:
    async with opener() as api:
        yield api


async def burst(send: Callable[[int], object]) -> Counter[int]:
    answers: list[httpx.Response] = [await send(number) for number in range(BURST)]  # type: ignore[misc]
    assert all(answer.status_code != 429 for answer in answers[:MOST])
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["code"] == "too_many_requests"
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert answer.json().get("retry_after", 1) >= 1
    return Counter(answer.status_code for answer in answers)


@pytest.mark.security("T30")
async def test_frequent_caller_is_throttled_without_affecting_others(limited: Api):
    ana, bob = await limited.user("ana"), await limited.user("bob")
    statuses = await burst(lambda _: ana.get("editor/get_history"))
    assert MOST <= statuses[200] <= 2 * MOST
    assert statuses[429] == BURST - statuses[200]
    assert (await bob.get("editor/get_history")).status_code == 200


async def test_calls_without_valid_credentials_return_401_not_429(limited: Api):
    assert await burst(lambda _: limited.http.get("/api/v1/editor/get_history")) == {401: BURST}
    assert await burst(lambda _: limited.http.get("/api/v1/nothing")) == {404: BURST}


@pytest.mark.platform(35)
@pytest.mark.security("T30")
async def test_forged_address_does_not_bypass_the_limit_on_public_paths(limited: Api):
    statuses = await burst(
        lambda number: limited.http.post(
            "/api/v1/token/verify", data={"token": "x"}, headers={"X-Forwarded-For": f"10.0.0.{number}"}
        )
    )
    assert statuses[429] >= BURST - 2 * MOST


async def test_trusted_proxy_distinguishes_callers(opener: Opener):
    async with opener(trusted_proxies=["127.0.0.1"]) as api:
        statuses = await burst(
            lambda number: api.http.post(
                "/api/v1/token/verify", data={"token": "x"}, headers={"X-Forwarded-For": f"10.0.0.{number}"}
            )
        )
    assert statuses == {401: BURST}


async def test_health_paths_are_not_limited(limited: Api):
    for path in ("is_alive", "is_ready"):
        assert await burst(lambda _, path=path: limited.http.get(f"/desktop/debug/{path}")) == {200: BURST}


async def test_servers_share_their_counts(limited: Api):
    ana = await limited.user("ana")
    user_id = await limited.database.value("select id from users where username = $1", ana.username)
    await ana.get("editor/get_history")
    await limited.services.request_limits.exchange()
    # Another server, whose clock is fast, has already used up the next minute. The test therefore works at any time
    # within a minute.
    await limited.database.execute(
        "update request_counts set requests = 100, minute = minute + 1 where caller = $1", f"user {user_id}"
    )
    await ana.get("editor/get_history")
    await limited.services.request_limits.exchange()
    assert (await ana.get("editor/get_history")).status_code == 429
