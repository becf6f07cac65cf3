"""Places for running statements: nobody fills a connector alone, and nothing is kept for who left."""

import asyncio

import pytest

from queryserver.platform.limits import Slots


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
    await asyncio.sleep(0.01)
    assert sorted(crowd.inside) == [1, 1, 2]
    crowd.go.set()
    await asyncio.gather(*tasks)
    assert sorted(crowd.inside) == [1, 1, 1, 1, 2]


async def test_a_connector_takes_no_more_than_it_may() -> None:
    crowd = Crowd(Slots(per_connector=3, per_user=2))
    tasks = [asyncio.create_task(crowd.run(user)) for user in (1, 1, 2, 2, 3)]
    others = asyncio.create_task(crowd.run(1, "another"))
    await asyncio.sleep(0.01)
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
    await asyncio.sleep(0.01)
    assert inside == [1, 1]
    go[0].set()
    go[1].set()
    await asyncio.gather(*tasks[:2])
    await asyncio.sleep(0.01)
    assert sorted(inside[2:]) == [2, 3]
    for event in go:
        event.set()
    await asyncio.gather(*tasks)
    assert slots._connectors == {}


async def test_who_stops_waiting_takes_no_place() -> None:
    crowd = Crowd(Slots(per_connector=1, per_user=1))
    first, second, third = (asyncio.create_task(crowd.run(user)) for user in (1, 2, 3))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    crowd.go.set()
    await asyncio.gather(first, third)
    assert crowd.inside == [1, 3]
    assert crowd.slots._connectors == {}
