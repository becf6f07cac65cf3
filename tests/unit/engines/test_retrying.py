"""How long, and how often, calls are repeated after a break of the network."""

import asyncio

from queryserver.engines.connections import RETRY_S, Retries
from queryserver.engines.hiveserver2.variants import Limits
from queryserver.engines.trino.protocol import TrinoTimeouts


async def test_without_time_there_is_no_further_attempt() -> None:
    assert not await Retries(0).pause()


async def test_a_pause_that_must_be_longer_than_the_time_left_is_none() -> None:
    assert not await Retries(1).pause(least_s=2)
    begun = asyncio.get_running_loop().time()
    assert await Retries(1).pause(least_s=0.2)
    assert asyncio.get_running_loop().time() - begun >= 0.2


async def test_pauses_grow_and_end_with_the_time(monkeypatch) -> None:
    loop = asyncio.get_running_loop()
    now, slept = loop.time(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(loop, "time", lambda: now + sum(slept))
    monkeypatch.setattr("queryserver.engines.connections.asyncio.sleep", sleep)
    retries = Retries(10)
    while await retries.pause():
        pass
    assert slept == sorted(slept)
    assert slept[0] < 0.1
    assert slept[-1] == 1
    assert 9 <= sum(slept) <= 10


def test_engines_with_statements_that_outlive_a_connection_have_the_same_patience() -> None:
    assert Limits().retry_s == TrinoTimeouts().retry_s == RETRY_S == 60
