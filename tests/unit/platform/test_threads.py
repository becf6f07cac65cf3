"""A thread pool shared fairly by users."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from queryserver.errors.base import TooComplex
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads, Stop

ANA, BOB = 1, 2


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    with ThreadPoolExecutor(2) as pool:
        yield FairThreads(pool, FairSemaphore(2))


class TestThreads:
    async def test_canceled_work_keeps_its_slot_until_its_thread_ends(self, threads: FairThreads):
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

    async def test_canceled_work_stops_at_its_next_check(self, threads: FairThreads):
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
