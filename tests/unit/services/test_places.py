"""Places that users take in turns, and threads that are given by them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event

import pytest

from queryserver.errors.base import TooComplex, TooManyRequests
from queryserver.platform.limits import FairPlaces
from queryserver.platform.threads import FairThreads, Stop

ANA, BOB, EVE = 1, 2, 3


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    with ThreadPoolExecutor(2) as pool:
        yield FairThreads(pool, FairPlaces(2))


async def settle() -> None:
    """Lets every task run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def calls_in_order(places: FairPlaces, users: list[int]) -> list[int]:
    """The users as they get a place, when all calls of `users` wait for one that is taken."""
    served: list[int] = []

    async def call(user_id: int) -> None:
        async with places.place(user_id):
            served.append(user_id)

    await places.take(EVE)
    tasks = [asyncio.create_task(call(user_id)) for user_id in users]
    await settle()
    places.give_back(EVE)
    await asyncio.gather(*tasks)
    return served


class TestPlaces:
    async def test_users_take_turns_however_many_calls_one_has(self):
        served = await calls_in_order(FairPlaces(1), [ANA, ANA, ANA, ANA, BOB, BOB])
        assert served == [ANA, BOB, ANA, BOB, ANA, ANA]

    async def test_a_user_has_one_place_even_when_others_are_free(self):
        places = FairPlaces(2)
        await places.take(ANA)
        second = asyncio.create_task(places.take(ANA))
        await settle()
        assert not second.done()
        await places.take(BOB)
        places.give_back(ANA)
        await second

    async def test_a_long_line_of_one_user_is_refused_and_no_other_s(self):
        places = FairPlaces(1, max_waiting=2)
        await places.take(ANA)
        line = [asyncio.create_task(places.take(ANA)) for _ in range(2)]
        await settle()
        with pytest.raises(TooManyRequests) as refused:
            await places.take(ANA)
        assert refused.value.retry_after.total_seconds() > 0
        other = asyncio.create_task(places.take(BOB))
        await settle()
        assert not other.done()
        for task in [*line, other]:
            task.cancel()
        await asyncio.gather(*line, other, return_exceptions=True)
        assert places.waiting == 0

    async def test_a_call_that_waits_too_long_is_refused(self):
        places = FairPlaces(1, wait_s=0)
        await places.take(ANA)
        with pytest.raises(TooManyRequests):
            await places.take(BOB)
        places.give_back(ANA)
        await FairPlaces(1).take(BOB)

    async def test_a_place_that_is_given_in_the_moment_of_giving_up_is_not_lost(self):
        places = FairPlaces(1)
        await places.take(ANA)
        waiting = asyncio.create_task(places.take(BOB))
        await settle()
        places.give_back(ANA)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(10):
            await places.take(EVE)

    async def test_calls_that_gave_up_are_not_kept_in_the_line(self):
        places = FairPlaces(1, max_waiting=None, wait_s=None)
        await places.take(ANA)
        first = asyncio.create_task(places.take(ANA))
        for _ in range(50):
            later = asyncio.create_task(places.take(ANA))
            await settle()
            later.cancel()
            await asyncio.gather(later, return_exceptions=True)
        assert len(places._lines[ANA]) == 1
        places.give_back(ANA)
        await first

    @pytest.mark.parametrize("seed", range(5))
    async def test_whoever_gives_up_whenever_no_place_is_lost_and_nobody_holds_more_than_a_share(self, seed: int):
        dice, inside = Random(seed), Counter[int]()
        places = FairPlaces(3, per_user=2, max_waiting=5, wait_s=0.01)

        async def call(user_id: int) -> None:
            async with places.place(user_id):
                inside[user_id] += 1
                assert inside[user_id] <= 2
                assert inside.total() <= 3
                try:
                    for _ in range(dice.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside[user_id] -= 1

        tasks = list[asyncio.Task[None]]()
        for _ in range(500):
            tasks.append(asyncio.create_task(call(dice.choice([ANA, BOB, EVE]))))
            if dice.random() < 0.5:
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                dice.choice(tasks).cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError, TooManyRequests}
        assert places.is_unused
        assert (places._free, places._lines, places._last_turns) == (3, {}, {})


class TestThreads:
    async def test_work_that_is_given_up_keeps_its_place_until_its_thread_has_ended(self, threads: FairThreads):
        begun, go_on = Event(), Event()

        def work(_: Stop) -> None:
            begun.set()
            go_on.wait(60)

        first = asyncio.create_task(threads.run(ANA, work))
        await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.create_task(threads.run(ANA, lambda _: "second"))
        assert await threads.run(BOB, lambda _: "other") == "other"
        assert not second.done()
        go_on.set()
        assert await second == "second"

    async def test_work_that_is_given_up_ends_at_its_next_check(self, threads: FairThreads):
        begun, ended = Event(), Event()

        def work(stop: Stop) -> None:
            try:
                while True:
                    stop.check()
                    begun.set()
            except TooComplex:
                ended.set()
                raise

        task = asyncio.create_task(threads.run(ANA, work))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await asyncio.to_thread(ended.wait, 60)
