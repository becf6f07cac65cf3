"""A memory budget shared by concurrent calls."""

import asyncio
import gc

import pytest
from tests.timing import settle

from queryserver.errors.base import TooManyRequests
from queryserver.platform.fair_queue import ByteBudget, Reservation

ANA, BOB, EVE = 1, 2, 3


async def test_waiting_calls_are_served_as_bytes_are_released() -> None:
    budget = ByteBudget(100)
    first, second = await budget.reserve(ANA, 50), await budget.reserve(BOB, 40)
    large = asyncio.ensure_future(budget.reserve(EVE, 50))
    small = asyncio.ensure_future(budget.reserve(EVE, 5))
    await settle()
    assert (budget.waiting, large.done(), small.done()) == (2, False, False)
    first.release()
    assert (await large).size_bytes == 50
    await settle()
    assert not small.done(), "a user has half of the budget at most"
    second.release()
    large.result().release()
    assert (await small).size_bytes == 5


async def test_user_with_exhausted_share_does_not_block_others() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(ANA, 50)
    waiting = [asyncio.ensure_future(budget.reserve(ANA, 30)) for _ in range(10)]
    await settle()
    assert (await asyncio.wait_for(budget.reserve(BOB, 50), 60)).size_bytes == 50
    assert not any(one.done() for one in waiting)
    held.release()
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_reservation_is_limited_to_the_user_share() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(ANA, 10_000)
    assert held.size_bytes == 50
    assert held.grow(10_000)
    assert budget.used_bytes == 50


async def test_growing_reservation_fails_instead_of_waiting_or_overtaking() -> None:
    budget = ByteBudget(100)
    held, other = await budget.reserve(ANA, 30), await budget.reserve(BOB, 50)
    assert held.grow(50)
    held.shrink(40)
    waiting = asyncio.ensure_future(budget.reserve(EVE, 20))
    await settle()
    assert not held.grow(50)
    other.release()
    assert (await waiting).size_bytes == 20
    assert held.grow(50)


async def test_call_that_waits_too_long_is_refused_and_leaves_the_queue() -> None:
    budget = ByteBudget(100, wait_s=0)
    held = await ByteBudget.reserve(budget, ANA, 50)
    with pytest.raises(TooManyRequests):
        await budget.reserve(ANA, 10)
    assert budget.waiting == 0
    held.release()
    held.release()
    assert budget.used_bytes == 0


async def test_call_canceled_while_being_served_returns_its_bytes() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(ANA, 50)
    waiting = asyncio.ensure_future(budget.reserve(ANA, 40))
    await settle()
    held.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used_bytes == 0


async def test_garbage_collected_reservation_returns_its_bytes() -> None:
    budget = ByteBudget(100)
    held: Reservation | None = await budget.reserve(ANA, 50)
    assert held is not None
    held = None
    gc.collect()
    await settle()
    assert budget.used_bytes == 0
