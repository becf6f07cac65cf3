"""The public keys of external token issuers, and how they are cached (Contract platform 3.9)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fakes.issuer import jwk, rsa_key
from tests.timing import settle

from queryserver.errors.base import KeyServerUnavailable
from queryserver.identity.external_keys import KeyCache, Keys, keys_in, keys_named
from queryserver.platform.settings.desktop import JwtSettings


def document(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


GOOD = jwk(rsa_key("one"), "one")


@pytest.mark.parametrize("more", [{}, {"use": "sig"}, {"alg": "RS256"}, {"use": "sig", "alg": "RS256", "x5c": ["x"]}])
def test_rs256_signature_keys_are_usable(more: dict[str, Any]) -> None:
    assert [key.kid for key in keys_named(keys_in(document(GOOD | more)), "one")] == ["one"]


@pytest.mark.security("T12")
@pytest.mark.parametrize(
    "bad",
    [
        GOOD | {"use": "enc"},
        GOOD | {"alg": "RS512"},
        GOOD | {"alg": "HS256"},
        GOOD | {"alg": None},
        GOOD | {"kty": "EC"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "one"},
        GOOD | {"n": "AQAB"},
        GOOD | {"n": None},
        GOOD | {"n": "***"},
        GOOD | {"n": "____" * 1000},
        GOOD | {"e": "Ag"},
        GOOD | {"e": "AQ"},
        GOOD | {"e": 65537},
        GOOD | {"kid": 5},
        jwk(rsa_key("short", 1024), "one"),
        "one",
        None,
        [],
    ],
)
def test_unusable_keys_are_skipped(bad: Any) -> None:
    keys = keys_in(document(bad, jwk(rsa_key("two"), "two")))
    assert [key.kid for key in keys] == ["two"]


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "null", '{"keys": {}}', '{"keys": null}', "[" * 5000, "\xff"])
def test_malformed_key_document_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 json and our own code raise it
        keys_in(text.encode("latin-1"))


def test_missing_key_id_matches_only_a_single_key_without_id() -> None:
    alone = keys_in(document(jwk(rsa_key("one"), None)))
    assert keys_named(alone, None) == alone
    assert keys_named(alone, "") == keys_named(alone, "one") == ()
    assert keys_named(keys_in(document(GOOD, jwk(rsa_key("two"), "two"))), None) == ()


def test_all_keys_of_an_id_are_candidates() -> None:
    keys = keys_named(keys_in(document(GOOD, jwk(rsa_key("two"), "one"))), "one")
    assert len(keys) == 2
    assert keys[0] != keys[1]


class Source:
    """A key source that records its fetches; `gate` blocks them."""

    def __init__(self) -> None:
        self.kids = ["one"]
        self.is_down = False
        self.fetches = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False

    async def fetch(self) -> Keys | None:
        self.fetches += 1
        await self.gate.wait()
        if self.is_down:
            return None
        return keys_in(json.dumps({"keys": [jwk(rsa_key(kid), kid) for kid in self.kids]}).encode())

    async def aclose(self) -> None:
        self.is_closed = True


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def keys(source: Source, clock: Clock) -> AsyncIterator[KeyCache]:
    cache = KeyCache(source, JwtSettings(cache_s=3600, refetch_floor_s=30, max_stale_s=86400), clock=clock)
    yield cache
    await cache.aclose()
    assert source.is_closed


@pytest.mark.platform(41)
async def test_key_set_is_cached_for_its_lifetime(keys: KeyCache, source: Source, clock: Clock) -> None:
    (key,) = await keys.find("one")
    clock.now += 3599
    assert await keys.find("one")
    assert keys.is_fresh(key)
    assert source.fetches == 1
    clock.now += 1
    assert not keys.is_fresh(key)
    assert await keys.find("one")
    assert source.fetches == 2
    assert keys.is_fresh(key)


@pytest.mark.platform(41)
async def test_unknown_ids_wait_for_the_refetch_interval(keys: KeyCache, source: Source, clock: Clock) -> None:
    assert await keys.find("one")
    assert not await keys.find("two")
    assert source.fetches == 2
    source.kids = ["one", "two"]
    clock.now += 29
    assert not await keys.find("two")
    assert source.fetches == 2
    clock.now += 1
    assert await keys.find("two")
    assert source.fetches == 3


@pytest.mark.platform(41)
async def test_first_fetch_also_serves_unknown_ids(keys: KeyCache, source: Source) -> None:
    for number in range(100):
        assert not await keys.find(f"unknown{number}")
    assert source.fetches == 1


async def test_concurrent_calls_share_a_fetch_even_if_one_is_canceled(keys: KeyCache, source: Source) -> None:
    source.gate.clear()
    calls = [asyncio.ensure_future(keys.find("one")) for _ in range(20)]
    await settle()
    calls[0].cancel()
    source.gate.set()
    assert all(await asyncio.gather(*calls[1:]))
    assert source.fetches == 1


@pytest.mark.platform(43)
async def test_cached_keys_survive_an_outage_until_they_are_too_old(keys, source, clock) -> None:
    (key,) = await keys.find("one")
    source.is_down = True
    began = clock.now
    for age_s in (3600, 3610, 80_000, 86_400):
        clock.now = began + age_s
        assert await keys.find("one") == (key,)
    assert source.fetches == 4, "one of the first two, for the floor"
    clock.now = began + 86_401
    with pytest.raises(KeyServerUnavailable):
        await keys.find("one")
    source.is_down = False
    clock.now += 1
    assert await keys.find("one") == (key,)


@pytest.mark.platform(43)
async def test_callers_do_not_wait_for_the_refresh_of_valid_keys(keys: KeyCache, source: Source, clock: Clock) -> None:
    (key,) = await keys.find("one")
    clock.now += 3600
    source.gate.clear()
    async with asyncio.timeout(30):
        assert await keys.find("one") == (key,)
    source.kids = ["two"]
    source.gate.set()
    await settle()
    assert not keys.is_fresh(key)
    assert not await keys.find("one")


@pytest.mark.platform(42)
async def test_failed_first_fetch_is_retried_after_a_second(keys: KeyCache, source: Source, clock: Clock) -> None:
    source.is_down = True
    for _ in range(5):
        with pytest.raises(KeyServerUnavailable):
            await keys.find("one")
    assert source.fetches == 1
    clock.now += 1
    source.is_down = False
    assert await keys.find("one")


async def test_close_cancels_a_running_fetch(source: Source, clock: Clock) -> None:
    cache = KeyCache(source, JwtSettings(), clock=clock)
    source.gate.clear()
    call = asyncio.ensure_future(cache.find("one"))
    await settle()
    await cache.aclose()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert source.is_closed
