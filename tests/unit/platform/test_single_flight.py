"""Shared operations: each runs once for all its callers and is canceled when no caller is waiting."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.timing import settle

from queryserver.errors.statements import EngineTimeout, EngineUnavailable, MetadataNotFound, database_not_found
from queryserver.platform.caches import SingleFlight

LONG, SHORT = timedelta(seconds=30), timedelta(seconds=0.05)


@pytest.fixture
async def single_flight() -> AsyncIterator[SingleFlight]:
    """Provide a running `SingleFlight`."""
    opened = SingleFlight()
    async with opened.running():
        yield opened


class Work:
    """An operation that counts its starts and cancellations and completes once `go_on` is set."""

    def __init__(self) -> None:
        self.begun = self.canceled = 0
        self.go_on = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        return self.begun


async def test_only_equal_keys_share_work(single_flight: SingleFlight):
    work = Work()
    joined = [asyncio.create_task(single_flight.join(key, work, budget=LONG)) for key in "aaab"]
    await settle()
    work.go_on.set()
    await asyncio.gather(*joined)
    assert work.begun == 2


async def test_work_is_canceled_when_last_waiter_leaves(single_flight: SingleFlight):
    work = Work()
    first, second = (asyncio.create_task(single_flight.join("a", work, budget=LONG)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    assert work.canceled == 0
    second.cancel()
    await settle()
    assert work.canceled == 1


async def test_work_exceeding_its_budget_is_canceled_and_not_shared_again(single_flight: SingleFlight):
    work = Work()
    with pytest.raises(EngineTimeout, match=r"within 0\.05 s"):
        await single_flight.join("a", work, budget=SHORT)
    work.go_on.set()
    assert await single_flight.join("a", work, budget=LONG) == 2
    assert work.canceled == 1


async def test_work_that_ignores_cancellation_does_not_delay_callers(single_flight: SingleFlight):
    let_go = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()

    async with asyncio.timeout(30):
        with pytest.raises(EngineTimeout):
            await single_flight.join("a", stubborn, budget=SHORT)
    let_go.set()


async def test_all_waiters_get_the_failure(single_flight: SingleFlight):
    async def failing() -> None:
        await asyncio.sleep(0)
        raise database_not_found("nope")

    results = await asyncio.gather(
        *(single_flight.join("a", failing, budget=LONG) for _ in range(3)), return_exceptions=True
    )
    assert [result.code for result in results if isinstance(result, MetadataNotFound)] == ["database_not_found"] * 3


async def test_shutdown_cancels_all_work():
    single_flight, work = SingleFlight(), Work()
    async with single_flight.running():
        joined = asyncio.create_task(single_flight.join("a", work, budget=LONG))
        await settle()
    assert work.canceled == 1
    with pytest.raises(EngineUnavailable, match="aborted this request"):
        await joined
