"""Look-ups of one loop turn share a query."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from tests.cases import each

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import CoalescingReader


class Store:
    """Answers with the square of each key, and remembers the queries."""

    def __init__(self) -> None:
        self.queries: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def read(self, keys: Sequence[int]) -> Mapping[int, int]:
        self.queries.append(list(keys))
        await self.gate.wait()
        if self.error:
            raise self.error
        return {key: key * key for key in keys if key >= 0}


async def test_each_caller_gets_the_value_of_its_key():
    reader = CoalescingReader(Store().read)
    assert await asyncio.gather(*(reader.get(key) for key in (1, 2, 3, -1, 2))) == [1, 4, 9, None, 4]


async def test_callers_of_one_moment_share_queries():
    store = Store()
    reader = CoalescingReader(store.read)
    await asyncio.gather(*(reader.get(key) for key in range(100)))
    assert len(store.queries) <= 2
    assert sorted(key for query in store.queries for key in query) == list(range(100))


async def test_a_question_is_never_answered_from_before_it_was_asked():
    store = Store()
    store.gate.clear()
    reader = CoalescingReader(store.read, side_by_side=1)
    first = asyncio.ensure_future(reader.get(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(reader.get(1))
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, second) == [1, 1]
    assert store.queries == [[1], [1]]


@each("turns", range(12))
async def test_nobody_waits_for_a_reader_that_has_just_ended(turns: int):
    """Whatever the turn of the loop in which the second caller asks, that of the reader's last step included."""
    reader = CoalescingReader(Store().read, side_by_side=1)

    async def ask_later() -> int | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await reader.get(4)

    async with asyncio.timeout(5):
        assert await asyncio.gather(reader.get(3), ask_later()) == [9, 16]


async def test_a_caller_that_goes_away_takes_nobody_with_it():
    store = Store()
    store.gate.clear()
    reader = CoalescingReader(store.read)
    leaving, staying = asyncio.ensure_future(reader.get(3)), asyncio.ensure_future(reader.get(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    store.gate.set()
    assert await staying == 9
    assert leaving.cancelled()


async def test_an_error_reaches_every_caller_of_its_query_and_no_later_one():
    store = Store()
    store.error = DatabaseUnavailable()
    reader = CoalescingReader(store.read)
    answers = await asyncio.gather(*(reader.get(key) for key in range(3)), return_exceptions=True)
    assert all(isinstance(answer, DatabaseUnavailable) for answer in answers)
    store.error = None
    assert await reader.get(2) == 4


async def test_an_unforeseen_error_cancels_nobody_and_leaves_nobody_waiting():
    store = Store()
    store.error = RuntimeError("nobody thought of this")
    store.gate.clear()
    reader = CoalescingReader(store.read, side_by_side=1)
    first = asyncio.ensure_future(reader.get(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(reader.get(2))
    await asyncio.sleep(0)
    store.gate.set()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(first, behind, return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError]


async def test_closing_cancels_those_who_wait():
    store = Store()
    store.gate.clear()
    reader = CoalescingReader(store.read)
    waiting = asyncio.ensure_future(reader.get(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await reader.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
