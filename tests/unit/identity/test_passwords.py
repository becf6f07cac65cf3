"""Hashing of passwords."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from argon2 import PasswordHasher
from tests.fixtures.passwords import PRODUCT
from tests.timing import Stopwatch, at_best

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.passwords import Passwords, strength
from queryserver.platform.settings.desktop import AuthSettings

QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


@pytest.fixture
def passwords() -> Iterator[Passwords]:
    with closing(Passwords(QUICK)) as opened:
        yield opened


async def test_password_matches_only_its_hash(passwords: Passwords) -> None:
    made = await passwords.hash("geheim")
    assert made.startswith("$argon2id$")
    assert made != await passwords.hash("geheim")
    assert await passwords.verify(made, "geheim")
    assert not await passwords.verify(made, "Geheim")
    assert not await passwords.verify("no hash", "geheim")


@pytest.mark.parametrize(
    "password",
    ["1234567890", "aaaaaaaaaa", "abcabcabcabc", "qwertyuiop", "password12", "adminadmin", "iloveyou123",
    "maria.lopez", "maria.lopez1"],
)  # fmt: skip
def test_predictable_passwords_are_weak(password: str) -> None:
    assert strength(password, name="maria.lopez").score < AuthSettings().password_min_score


@pytest.mark.parametrize(
    "password",
    ["correct horse battery", "k9$Qv2!xLp", "a password for real data", "пароль для тестов", "日本語の合言葉です"],
)
def test_unrelated_words_and_random_characters_are_strong(password: str) -> None:
    assert strength(password, name="maria.lopez").score >= AuthSettings().password_min_score


async def test_strength_of_the_longest_password_is_estimated_quickly(passwords: Passwords) -> None:
    assert (await passwords.strength("aB3$" * 256, name="ana")).score >= 0


async def test_missing_hash_never_matches(passwords: Passwords) -> None:
    assert not await passwords.verify(None, "nobody's password")


async def test_hash_with_other_parameters_is_outdated(passwords: Passwords) -> None:
    assert not passwords.is_outdated(await passwords.hash("geheim"))
    assert passwords.is_outdated(PasswordHasher(time_cost=2, memory_cost=64, parallelism=1).hash("geheim"))


async def test_flood_is_rejected_and_the_event_loop_stays_responsive() -> None:
    with closing(Passwords(PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1))) as passwords:

        async def pause_in_a_flood() -> tuple[float, tuple[int, int]]:
            flood = [asyncio.create_task(passwords.verify(None, "x")) for _ in range(600)]
            watch = Stopwatch()
            await asyncio.sleep(0.01)
            pause_s = watch.lap()
            results = await asyncio.gather(*flood, return_exceptions=True)
            refused = sum(isinstance(result, LoginBackendUnavailable) for result in results)
            return pause_s, (refused, results.count(False))

        assert await at_best(pause_in_a_flood, below_s=1) == (100, 500)


def test_hashing_cost_meets_the_owasp_recommendation() -> None:
    assert PRODUCT.memory_cost >= 19 * 1024
    assert PRODUCT.time_cost >= 2
