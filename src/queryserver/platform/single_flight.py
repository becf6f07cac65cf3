"""Single flight: concurrent requests with the same key share one call to the data source."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineTimeout, EngineUnavailable
from queryserver.platform.threads import Tasks

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _SharedCall:
    def __init__(self, task: "asyncio.Task[Any]", *, until: float) -> None:
        self.task = task
        self.until = until
        self.waiting = 0


class SingleFlight:
    """Runs one task for all callers of a key. Cancels it when its time budget expires or the last caller leaves.

    Cancellation at the data source may take a while. Only leaving the `running` context waits for it.
    """

    def __init__(self) -> None:
        self._joinable: dict[Hashable, _SharedCall] = {}
        self._tasks = Tasks()
        self.running = self._tasks.running

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, budget: timedelta) -> T:
        """Return the result of `work`, or of the task that is already running for this key.

        `budget` is counted from the start of the task. Raises EngineTimeout when it expires, EngineUnavailable if this
        object is closed, and the errors of `work`.
        """
        call = self._joinable.get(key) or self._start(key, work, budget)
        call.waiting += 1
        try:
            left_s = max(call.until - asyncio.get_running_loop().time(), 0)
            done, _ = await asyncio.wait({call.task}, timeout=left_s)
            if not done:
                raise EngineTimeout(f"The data source did not answer within {budget.total_seconds():g} s.")
            if call.task.cancelled():
                raise EngineUnavailable("The server ended this work at the data source.")
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
