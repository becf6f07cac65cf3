"""Work that several callers may wait for at once, each bounded in time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.statements import EngineTimeout, EngineUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Flight:
    def __init__(self, task: "asyncio.Task[Any]", *, until: float) -> None:
        self.task = task
        self.until = until
        self.waiting = 0


class Flights:
    """Owns the tasks. Equal keys share one; it is canceled when its time is over or nobody waits any more.

    A canceled task may take a while to end the engine's work: nobody waits for that, but `running` does at its end.
    """

    def __init__(self) -> None:
        self._joinable: dict[Hashable, _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """End all work at the end."""
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, budget: timedelta) -> T:
        """What `work` gives, or equal work that is under way. Raises EngineTimeout after the work's `budget`."""
        flight = self._joinable.get(key) or self._start(key, work, budget)
        flight.waiting += 1
        try:
            left_s = max(flight.until - asyncio.get_running_loop().time(), 0)
            done, _ = await asyncio.wait({flight.task}, timeout=left_s)
            if not done:
                raise EngineTimeout(f"The data source did not answer within {_seconds(budget)}.")
            if flight.task.cancelled():
                raise EngineUnavailable("The server ended this look at the data source.")
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if not flight.task.done() and (not flight.waiting or flight.until <= asyncio.get_running_loop().time()):
                self._leave(key, flight)
                flight.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], budget: timedelta) -> _Flight:
        task = asyncio.create_task(work(), name="look-up")
        flight = _Flight(task, until=asyncio.get_running_loop().time() + budget.total_seconds())
        self._joinable[key] = flight
        self._tasks.add(task)

        def ended(_: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            self._leave(key, flight)
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, QueryServerError):
                log.error("look-up failed", exc_info=error)

        task.add_done_callback(ended)
        return flight

    def _leave(self, key: Hashable, flight: _Flight) -> None:
        if self._joinable.get(key) is flight:
            del self._joinable[key]


def _seconds(budget: timedelta) -> str:
    return f"{budget.total_seconds():g} s"
