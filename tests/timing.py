"""Time limits that hold even on a busy machine.

A measurement is repeated a few times: slow code is slow every time, whereas other load on the machine comes in bursts.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TRIES = 6
_PAUSE_S = 0.5
"""Pause after the first attempt. Each later pause is longer by this time, so that a burst of other load may end."""


async def settle() -> None:
    """Run the event loop until every task waits for an external event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object]) -> None:
    """Wait until the condition is true. `holds` may be a coroutine function. Fails after a minute, which is enough even
    on a busy machine.
    """
    async with asyncio.timeout(60):
        while True:
            held = holds()
            if await held if inspect.isawaitable(held) else held:
                return
            await asyncio.sleep(0.01)


async def soon(call: Callable[[], Awaitable[T]], *, within_s: float) -> T:
    """Call the function up to `TRIES` times; return the first result that takes less than `within_s` seconds. Fails if
    no call does.
    """

    async def took() -> tuple[float, T]:
        began = time.monotonic()
        given = await call()
        return time.monotonic() - began, given

    return await at_best(took, below_s=within_s)


async def at_best(measure: Callable[[], Awaitable[tuple[float, T]]], *, below_s: float) -> T:
    """Repeat the measurement up to `TRIES` times; return the result of the first that is below `below_s` seconds. Fails
    if none is.
    """
    measures: list[float] = []
    for number in range(TRIES):
        await asyncio.sleep(_PAUSE_S * number)
        seconds, given = await measure()
        if seconds < below_s:
            return given
        measures.append(seconds)
    message = f"not below {below_s:g} s: {', '.join(f'{one:.2f}' for one in measures)}"
    raise AssertionError(message)


class Stopwatch:
    """Measures for how long a computation blocked the event loop or another thread of this process.

    The result is the elapsed time or the CPU time of the process, whichever is less. Other load on the machine
    increases only the elapsed time, and parallel threads increase only the CPU time, whereas a blocking computation
    increases both.
    """

    def __init__(self) -> None:
        self._began = self._now()

    def lap(self) -> float:
        """Return the seconds since the start or the previous lap."""
        now = self._now()
        elapsed_s, processor_s = (later - earlier for later, earlier in zip(now, self._began, strict=True))
        self._began = now
        return min(elapsed_s, processor_s)

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.process_time()


def others_waited_s(work: Callable[[], T]) -> tuple[float, T]:
    """Return the longest time in seconds for which `work` blocked another thread, and the result of `work`."""
    laps, done, watch = [0.0], threading.Event(), Stopwatch()

    def tick() -> None:
        while not done.wait(0.001):
            laps.append(watch.lap())

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        given = work()
    finally:
        done.set()
        ticker.join()
    return max(*laps, watch.lap()), given


def processor_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` uses in this thread; other threads are not counted."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
