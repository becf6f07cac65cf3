"""Bounds on time that a busy machine does not break.

What is slow by itself is slow every time; what other work holds up is hardly held up three times in a row.
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
    """Lets every task run until it waits for something that does not come by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(holds: Callable[[], object]) -> None:
    """Returns once it holds, or once what is awaited of it does; fails after a minute, which no busy machine takes."""
    async with asyncio.timeout(60):
        while True:
            held = holds()
            if await held if inspect.isawaitable(held) else held:
                return
            await asyncio.sleep(0.01)


async def soon(call: Callable[[], Awaitable[T]], *, within_s: float) -> T:
    """What the call gave; fails unless one of three took less than `within_s` from its beginning to its end."""

    async def took() -> tuple[float, T]:
        began = time.monotonic()
        given = await call()
        return time.monotonic() - began, given

    return await at_best(took, below_s=within_s)


async def at_best(measure: Callable[[], Awaitable[tuple[float, T]]], *, below_s: float) -> T:
    """What came with the first measure below `below_s`, in seconds; fails when none of three is."""
    measures: list[float] = []
    for _ in range(TRIES):
        seconds, given = await measure()
        if seconds < below_s:
            return given
        measures.append(seconds)
    message = f"not below {below_s:g} s: {', '.join(f'{one:.2f}' for one in measures)}"
    raise AssertionError(message)


def others_waited_s(work: Callable[[], T]) -> tuple[float, T]:
    """The longest time, in seconds, for which another thread did not run meanwhile, and what the work gave."""
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
    """Seconds of processor time that this thread spent; others' work does not count."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
