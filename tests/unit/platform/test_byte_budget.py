"""Bytes in memory that calls share."""

import asyncio
import gc

import pytest
from tests.timing import settle

from queryserver.errors.base import TooManyRequests
from queryserver.platform.byte_budget import ByteBudget, Reservation

ANA, BOB, EVE = 1, 2, 3


async def test_calls_are_served_in_their_order_once_bytes_are_free() -> None:
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


async def test_a_user_whose_share_is_in_use_does_not_hold_up_others() -> None:
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


async def test_more_than_a_share_is_cut_to_it() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(ANA, 10_000)
    assert held.size_bytes == 50
    assert held.grow(10_000)
    assert budget.used_bytes == 50


async def test_growing_never_waits_and_never_overtakes() -> None:
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


async def test_who_waits_too_long_is_refused_and_leaves_the_line() -> None:
    budget = ByteBudget(100, wait_s=0)
    held = await ByteBudget.reserve(budget, ANA, 50)
    with pytest.raises(TooManyRequests):
        await budget.reserve(ANA, 10)
    assert budget.waiting == 0
    held.release()
    held.release()
    assert budget.used_bytes == 0


async def test_who_leaves_in_the_moment_of_being_served_gives_back() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(ANA, 50)
    waiting = asyncio.ensure_future(budget.reserve(ANA, 40))
    await settle()
    held.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used_bytes == 0


async def test_what_is_forgotten_is_given_back() -> None:
    budget = ByteBudget(100)
    held: Reservation | None = await budget.reserve(ANA, 50)
    assert held is not None
    held = None
    gc.collect()
    await settle()
    assert budget.used_bytes == 0
