"""A thread pool shared fairly by users."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from queryserver.errors.base import TooComplex
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads, Stop, settled

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


class TestSettled:
    @staticmethod
    async def canceled(work: "asyncio.Task[int]", *, times: int = 1) -> "asyncio.Task[int]":
        """Return a task that waits for the work and was canceled before the work had ended."""
        waiting = asyncio.create_task(settled(work))
        for _ in range(times):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.sleep(0)
        return waiting

    async def test_cancellation_is_ignored_if_the_work_succeeds(self):
        may_end = asyncio.Event()

        async def work() -> int:
            await may_end.wait()
            return 7

        waiting = await self.canceled(asyncio.create_task(work()))
        may_end.set()
        assert await waiting == 7

    async def test_failure_after_a_cancellation_is_a_cancellation(self):
        may_end = asyncio.Event()

        async def work() -> int:
            await may_end.wait()
            message = "failed"
            raise LookupError(message)

        waiting = await self.canceled(asyncio.create_task(work()))
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(LookupError):
            await settled(asyncio.create_task(work()))

    async def test_second_cancellation_cancels_the_work(self):
        work = asyncio.create_task(asyncio.sleep(600, 7))
        waiting = await self.canceled(work, times=2)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await work
