"""Limits: free space of disks, fair places and slots, byte budgets, caches."""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event
from types import FrameType
from typing import NamedTuple

import pytest
from tests.cases import each
from tests.timing import TRIES, settle

from queryserver.errors.base import TooComplex, TooManyRequests
from queryserver.errors.files import InsufficientStorage
from queryserver.platform.limits import NO_FLOOR, ByteBudget, DiskFloor, FairPlaces, Held, LruCache, Slots
from queryserver.platform.threads import FairThreads, Stop

HERE = Path("/somewhere")


class Usage(NamedTuple):
    total: int
    free: int


@each(("percent", "min_bytes", "room"), (5, 0, 150), (5, 30, 150), (5, 120, 80), (0, 30, 170), (100, 0, -3800))
def test_the_floor_is_a_share_and_at_least_a_size(percent: int, min_bytes: int, room: int):
    floor = DiskFloor(percent=percent, min_bytes=min_bytes, usage=lambda _: Usage(1000 if percent < 100 else 4000, 200))
    assert floor.room(HERE) == room


def test_a_write_must_end_above_the_floor():
    floor = DiskFloor(min_bytes=100, usage=lambda _: Usage(1000, 150))
    floor.require(HERE)
    floor.require(HERE, 50)
    for size in (51, 10**12):
        with pytest.raises(InsufficientStorage):
            floor.require(HERE, size)


def test_a_disk_is_measured_once_a_second():
    now, measured = [0.0], [0]

    def usage(_directory: Path) -> Usage:
        measured[0] += 1
        return Usage(1000, 1000 - 300 * measured[0])

    floor = DiskFloor(min_bytes=500, usage=usage, clock=lambda: now[0])
    for moment in (0.0, 0.5, 0.9):
        now[0] = moment
        floor.require(HERE)
    now[0] = 1.0
    with pytest.raises(InsufficientStorage):
        floor.require(HERE)
    assert measured == [2]


def test_a_disk_that_cannot_be_measured_and_a_floor_of_nothing_refuse_nothing(tmp_path: Path):
    DiskFloor(percent=5, min_bytes=2**60).require(tmp_path / "missing")
    with pytest.raises(OSError, match="missing"):
        DiskFloor(percent=5).room(tmp_path / "missing")
    NO_FLOOR.require(tmp_path, 2**62)


ANA, BOB, EVE = 1, 2, 3


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    with ThreadPoolExecutor(2) as pool:
        yield FairThreads(pool, FairPlaces(2))


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
        async with asyncio.timeout(60):
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
        assert len(places._lines[ANA].calls) == 1
        places.give_back(ANA)
        await first

    @each("seed", range(5))
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

    async def test_users_that_give_up_while_no_place_gets_free_are_forgotten(self):
        places = FairPlaces(1)
        await places.take(EVE)
        for user_id in range(10, 210):
            waiting = asyncio.create_task(places.take(user_id))
            await settle()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert (places._lines, places._last_turns) == ({}, {EVE: 0})
        assert len(places._queue) < 20

    async def test_a_turn_takes_as_many_steps_among_a_thousand_waiting_users_as_among_ten(self):
        few = [await calls_of_a_turn(waiting=10) for _ in range(TRIES)]
        many = [await calls_of_a_turn(waiting=1000) for _ in range(TRIES)]
        assert min(many) <= min(few) < 100  # what ends elsewhere in the process may call functions of its own


async def calls_of_a_turn(*, waiting: int) -> int:
    """How many functions are called while a user gives a place back and a new one begins to wait."""
    places = FairPlaces(1, wait_s=None)  # the heap of the loop's timers is not looked at
    await places.take(EVE)
    tasks = [asyncio.create_task(places.take(user_id)) for user_id in range(10, 10 + waiting)]
    await settle()
    called = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal called
        called += event in {"call", "c_call"}

    newcomer = places.take(BOB)
    profiler = sys.getprofile()
    gc.disable()  # what it finds may call functions at its end
    sys.setprofile(count)
    try:
        places.give_back(EVE)
        newcomer.send(None)
    finally:
        sys.setprofile(profiler)
        gc.enable()
    newcomer.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return called


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


class Crowd:
    """Statements that hold a place until they are let go."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.inside, self.go = slots, list[int](), asyncio.Event()

    async def run(self, user_id: int, connector: str = "c") -> None:
        async with self.slots.slot(connector, user_id):
            self.inside.append(user_id)
            await self.go.wait()


async def test_one_user_leaves_places_to_others() -> None:
    crowd = Crowd(Slots(per_connector=4, per_user=2))
    tasks = [asyncio.create_task(crowd.run(user)) for user in (1, 1, 1, 1, 2)]
    await settle()
    assert sorted(crowd.inside) == [1, 1, 2]
    crowd.go.set()
    await asyncio.gather(*tasks)
    assert sorted(crowd.inside) == [1, 1, 1, 1, 2]


async def test_a_connector_takes_no_more_than_it_may() -> None:
    crowd = Crowd(Slots(per_connector=3, per_user=2))
    tasks = [asyncio.create_task(crowd.run(user)) for user in (1, 1, 2, 2, 3)]
    others = asyncio.create_task(crowd.run(1, "another"))
    await settle()
    assert len(crowd.inside) == 3 + 1
    crowd.go.set()
    await asyncio.gather(*tasks, others)


async def test_a_free_place_goes_to_the_user_who_holds_the_fewest() -> None:
    """First come, first served would give every place that becomes free to the user with the longest line."""
    slots = Slots(per_connector=2, per_user=2)
    inside, go = list[int](), [asyncio.Event() for _ in range(6)]

    async def run(number: int, user_id: int) -> None:
        async with slots.slot("c", user_id):
            inside.append(user_id)
            await go[number].wait()

    tasks = [asyncio.create_task(run(number, user)) for number, user in enumerate((1, 1, 1, 1, 2, 3))]
    await settle()
    assert inside == [1, 1]
    go[0].set()
    go[1].set()
    await asyncio.gather(*tasks[:2])
    await settle()
    assert sorted(inside[2:]) == [2, 3]
    for event in go:
        event.set()
    await asyncio.gather(*tasks)
    assert slots._connectors == {}


async def test_who_stops_waiting_takes_no_place() -> None:
    crowd = Crowd(Slots(per_connector=1, per_user=1))
    first, second, third = (asyncio.create_task(crowd.run(user)) for user in (1, 2, 3))
    await settle()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    crowd.go.set()
    await asyncio.gather(first, third)
    assert crowd.inside == [1, 3]
    assert crowd.slots._connectors == {}


async def test_calls_are_served_in_their_order_once_bytes_are_free() -> None:
    budget = ByteBudget(100)
    first, second = await budget.hold(ANA, 50), await budget.hold(BOB, 40)
    large = asyncio.ensure_future(budget.hold(EVE, 50))
    small = asyncio.ensure_future(budget.hold(EVE, 5))
    await settle()
    assert (budget.waiting, large.done(), small.done()) == (2, False, False)
    first.release()
    assert (await large).size_bytes == 50
    await settle()
    assert not small.done(), "a user has half of the budget at most"
    second.release()
    large.result().release()
    assert (await small).size_bytes == 5


async def test_a_user_whose_share_is_in_use_does_not_hold_up_others() -> None:
    budget = ByteBudget(100)
    held = await budget.hold(ANA, 50)
    waiting = [asyncio.ensure_future(budget.hold(ANA, 30)) for _ in range(10)]
    await settle()
    assert (await asyncio.wait_for(budget.hold(BOB, 50), 60)).size_bytes == 50
    assert not any(one.done() for one in waiting)
    held.release()
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_more_than_a_share_is_cut_to_it() -> None:
    budget = ByteBudget(100)
    held = await budget.hold(ANA, 10_000)
    assert held.size_bytes == 50
    assert held.grow(10_000)
    assert budget.used_bytes == 50


async def test_growing_never_waits_and_never_overtakes() -> None:
    budget = ByteBudget(100)
    held, other = await budget.hold(ANA, 30), await budget.hold(BOB, 50)
    assert held.grow(50)
    held.shrink(40)
    waiting = asyncio.ensure_future(budget.hold(EVE, 20))
    await settle()
    assert not held.grow(50)
    other.release()
    assert (await waiting).size_bytes == 20
    assert held.grow(50)


async def test_who_waits_too_long_is_refused_and_leaves_the_line() -> None:
    budget = ByteBudget(100, wait_s=0)
    held = await ByteBudget.hold(budget, ANA, 50)
    with pytest.raises(TooManyRequests):
        await budget.hold(ANA, 10)
    assert budget.waiting == 0
    held.release()
    held.release()
    assert budget.used_bytes == 0


async def test_who_leaves_in_the_moment_of_being_served_gives_back() -> None:
    budget = ByteBudget(100)
    held = await budget.hold(ANA, 50)
    waiting = asyncio.ensure_future(budget.hold(ANA, 40))
    await settle()
    held.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used_bytes == 0


async def test_what_is_forgotten_is_given_back() -> None:
    budget = ByteBudget(100)
    held: Held | None = await budget.hold(ANA, 50)
    assert held is not None
    held = None
    gc.collect()
    await settle()
    assert budget.used_bytes == 0


def test_the_least_recently_used_value_is_dropped_first():
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    assert cache.put("c", 3) == ["b"]
    assert (list(cache), cache.get("b"), len(cache)) == (["a", "c"], None, 2)


def test_weights_are_counted_and_a_former_value_gives_its_weight_back():
    cache = LruCache[str, str](10, weigh=len)
    for _ in range(3):
        cache.put("a", "123456")
    cache.put("b", "1234")
    assert list(cache) == ["a", "b"]
    assert cache.pop("a") == "123456"
    assert cache.put("c", "123456") == []
    assert cache.put("d", "a text of more than ten") == ["b", "c", "d"]
    cache.clear()
    assert (len(cache), cache.put("e", "1234567890")) == (0, [])


def test_the_newest_values_stay_whatever_they_weigh():
    cache = LruCache[str, str](3, weigh=len, least=1)
    cache.put("a", "1")
    assert cache.put("b", "12345") == ["a"]
    assert list(cache) == ["b"]


def test_a_value_is_gone_after_its_life_also_when_it_was_used_meanwhile():
    now = 0.0
    cache = LruCache[str, int](2, life_s=60, clock=lambda: now)
    cache.put("a", 1)
    now = 59.9
    assert cache.get("a") == 1
    now = 60.0
    assert (cache.get("a"), "a" in cache) == (None, False)


def test_values_that_are_gone_by_their_age_are_named_once():
    now = 0.0
    cache = LruCache[str, int](3, life_s=60, clock=lambda: now)
    cache.put("a", 1)
    cache.put("b", 2)
    now = 30.0
    cache.put("c", 3)
    assert cache.drop_old() == []
    now = 60.0
    assert (cache.drop_old(), cache.drop_old(), list(cache)) == (["a", "b"], [], ["c"])
