"""Time limits that hold even on a busy machine.

A measurement is repeated up to three times: slow code is slow every time, whereas other load on the machine rarely
delays it three times in a row.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

TRIES = 3


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
    """Call the function up to three times; return the first result that takes less than `within_s` seconds. Fails if no
    call does.
    """

    async def took() -> tuple[float, T]:
        began = time.monotonic()
        given = await call()
        return time.monotonic() - began, given

    return await at_best(took, below_s=within_s)


async def at_best(measure: Callable[[], Awaitable[tuple[float, T]]], *, below_s: float) -> T:
    """Repeat the measurement up to three times; return the result of the first that is below `below_s` seconds. Fails
    if none is.
    """
    measures: list[float] = []
    for _ in range(TRIES):
        seconds, given = await measure()
        if seconds < below_s:
            return given
        measures.append(seconds)
    message = f"not below {below_s:g} s: {', '.join(f'{one:.2f}' for one in measures)}"
    raise AssertionError(message)


def others_waited_s(work: Callable[[], T]) -> tuple[float, T]:
    """Return the longest time in seconds for which `work` blocked another thread, and the result of `work`."""
    ticks, done = [time.monotonic()], threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        given = work()
    finally:
        done.set()
        ticker.join()
    return max(later - earlier for earlier, later in pairwise([*ticks, time.monotonic()])), given


def processor_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` uses in this thread; other threads are not counted."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
