"""An LRU cache, and single flight: concurrent requests with the same key share one call."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

import structlog

from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineTimeout, EngineUnavailable
from queryserver.platform.threads import Tasks

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class LruCache(Generic[K, V]):
    """Stores values with a total weight of at most `max_weight`; evicts the least recently used values first.

    By default each value weighs 1. Values expire `life_s` seconds after they were stored, regardless of use. At least
    `min_values` values are kept, even if they exceed `max_weight`.
    """

    max_weight: int
    weigh: Callable[[V], int] = lambda _: 1
    min_values: int = 0
    life_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    _values: OrderedDict[K, tuple[V, int, float]] = field(
        default_factory=OrderedDict[K, tuple[V, int, float]], init=False
    )
    _weight: int = field(default=0, init=False)

    def get(self, key: K) -> V | None:
        """Return the value and mark it as recently used; None if the key is unknown or its value has expired."""
        stored = self._values.get(key)
        if stored is None:
            return None
        value, _, until = stored
        if until <= self.clock():
            self.pop(key)
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[K]:
        """Store or replace a value. Returns the evicted keys."""
        self.pop(key)
        weight = self.weigh(value)
        self._values[key] = value, weight, self.clock() + self.life_s
        self._weight += weight
        dropped: list[K] = []
        while self._weight > self.max_weight and len(self._values) > self.min_values:
            oldest, (_, freed, _) = self._values.popitem(last=False)
            self._weight -= freed
            dropped.append(oldest)
        return dropped

    def pop(self, key: K) -> V | None:
        """Remove and return the value; None if the key is unknown. May return an expired value."""
        stored = self._values.pop(key, None)
        if stored is None:
            return None
        self._weight -= stored[1]
        return stored[0]

    def drop_old(self) -> list[K]:
        """Remove expired values. Returns their keys."""
        now = self.clock()
        old = [key for key, (_, _, until) in self._values.items() if until <= now]
        for key in old:
            self.pop(key)
        return old

    def clear(self) -> None:
        self._values.clear()
        self._weight = 0

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)


class _SharedCall:
    def __init__(self, task: "asyncio.Task[Any]", *, until: float) -> None:
        self.task = task
        self.until = until
        self.waiting = 0


class SingleFlight:
    """Runs one task for all callers of a key. Cancels it when its time budget expires or the last caller leaves.

    After cancellation, a task may still need time to cancel its request at the data source. Only leaving the `running`
    context waits for that.
    """

    def __init__(self) -> None:
        self._joinable: dict[Hashable, _SharedCall] = {}
        self._tasks = Tasks()
        self.running = self._tasks.running

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, budget: timedelta) -> T:
        """Return the result of `work`, or of the task that is already running for this key.

        `budget` starts with the task, not with this call. Raises EngineTimeout when it expires, EngineUnavailable if
        this object is closed, and the errors of `work`.
        """
        call = self._joinable.get(key) or self._start(key, work, budget)
        call.waiting += 1
        try:
            left_s = max(call.until - asyncio.get_running_loop().time(), 0)
            done, _ = await asyncio.wait({call.task}, timeout=left_s)
            if not done:
                raise EngineTimeout(f"The data source did not respond within {budget.total_seconds():g} s.")
            if call.task.cancelled():
                raise EngineUnavailable("The server aborted this request to the data source.")
            return call.task.result()
        finally:
            call.waiting -= 1
            if not call.task.done() and (not call.waiting or call.until <= asyncio.get_running_loop().time()):
                self._leave(key, call)
                call.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], budget: timedelta) -> _SharedCall:
        task = self._tasks.start(work(), "shared-work")
        call = _SharedCall(task, until=asyncio.get_running_loop().time() + budget.total_seconds())
        self._joinable[key] = call

        def ended(_: "asyncio.Task[Any]") -> None:
            self._leave(key, call)
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, QueryServerError):
                log.error("shared work failed", exc_info=error)

        task.add_done_callback(ended)
        return call

    def _leave(self, key: Hashable, call: _SharedCall) -> None:
        if self._joinable.get(key) is call:
            del self._joinable[key]
