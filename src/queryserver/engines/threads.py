"""Bounded threads for drivers that block."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from queryserver.domain.errors.statements import EngineUnavailable
from queryserver.services.places import FairPlaces

Answered = TypeVar("Answered")

_CONTROL_THREADS = 2

NO_USER = 0
"""For work of the server itself."""

_LEAST_SHARE = 2
"""Threads of one user where there are few."""

STATEMENT_THREADS = 24
"""One for each statement that a process runs on one connector (16), and for each look at its metadata (8)."""


_NICENESS = 10
"""Of threads and processes that work on statements outside of Python: the event loop runs first."""


def lower_priority(number: int | None = None, *, niceness: int = _NICENESS) -> None:
    """Of the thread or process with that number of the system, by default of the calling thread and those that it
    starts. Nothing happens where the system knows no priority of threads, or does not permit it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, number or threading.get_native_id(), niceness)


def with_lower_priority(call: Callable[[], Answered]) -> Answered:
    """What `call` gives. It runs in a thread of its own, and so the threads that it starts inherit the priority.

    Only for libraries whose threads never run Python.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="low-priority", initializer=lower_priority) as thread:
        return thread.submit(call).result()


class DriverThreads:
    """Threads of one engine: `max_statements` for statements, a few more so that opening and closing never wait.

    One user's statements have half of the threads at most, and a free thread goes to the waiting user who has the
    fewest. A thread counts as its user's until the driver has let go of it, also when its session has been left.
    To be closed by its owner once nothing runs any more.
    """

    def __init__(self, name: str, *, max_statements: int) -> None:
        # At the priority of the event loop: a thread with a lower one would hold the interpreter lock while it waits
        # for the processor, and the loop with it (stalls of 0.5 s were measured on two busy cores).
        self._statements = ThreadPoolExecutor(max_statements, thread_name_prefix=f"{name}-statement")
        share = max(max_statements // 2, min(max_statements, _LEAST_SHARE))
        self._places = FairPlaces(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._waiting = set[asyncio.Task[None]]()
        self._control = ThreadPoolExecutor(_CONTROL_THREADS, thread_name_prefix=f"{name}-control")
        self._counting = threading.Lock()
        self._busy = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Calls into the driver on behalf of statements that are under way."""
        return self._busy

    def start(self, call: Callable[[], Answered], *, user_id: int) -> Future[Answered]:
        """Run a piece of a user's statement once the user has a thread. Raises EngineUnavailable after `close`."""
        self._check_open()
        outcome = Future[Answered]()
        waiting = asyncio.create_task(self._placed(outcome, call, user_id), name="statement waits for a thread")
        self._waiting.add(waiting)
        waiting.add_done_callback(partial(self._waited, outcome))
        outcome.add_done_callback(lambda ended: waiting.cancel() if ended.cancelled() else None)
        return outcome

    async def control(
        self, call: Callable[[], Answered], *, undo: Callable[[Answered], object] | None = None
    ) -> Answered:
        """Run a short call. When the caller gives up waiting, `undo` is done to what the call still gives."""
        self._check_open()
        running = self._control.submit(call)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_forget)
            if undo is not None:
                running.add_done_callback(partial(_undo, undo))
            raise

    async def close(self) -> None:
        """Wait for calls under way, end the threads. Idempotent."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.cancel()
        for pool in (self._statements, self._control):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    async def _placed(self, outcome: Future[Answered], call: Callable[[], Answered], user_id: int) -> None:
        """Take a place, and give it back when the call has ended. `outcome` is settled in any case."""
        await self._places.take(user_id)
        if self._closed or not outcome.set_running_or_notify_cancel():
            self._places.give_back(user_id)
            outcome.cancel()
            return
        loop = asyncio.get_running_loop()
        running = self._statements.submit(self._counted, call)
        running.add_done_callback(lambda ended: self._ended(loop, outcome, ended, user_id))

    def _waited(self, outcome: Future[Answered], waiting: asyncio.Task[None]) -> None:
        self._waiting.discard(waiting)
        if waiting.cancelled():  # perhaps before its first step
            outcome.cancel()

    def _ended(
        self, loop: asyncio.AbstractEventLoop, outcome: Future[Answered], ended: Future[Answered], user_id: int
    ) -> None:
        """In the thread of the call."""
        with suppress(RuntimeError):  # the loop is closed: there is nobody who waits for a place
            loop.call_soon_threadsafe(self._places.give_back, user_id)
        if ended.cancelled():
            outcome.set_exception(EngineUnavailable("The engine is closed."))
        elif (error := ended.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(ended.result())

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The engine is closed.")

    def _counted(self, call: Callable[[], Answered]) -> Answered:
        with self._counting:
            self._busy += 1
        try:
            return call()
        finally:
            with self._counting:
                self._busy -= 1


def _forget(ended: asyncio.Future[Answered]) -> None:
    """Nobody waits for the outcome any more, be it an error."""
    if not ended.cancelled():
        ended.exception()


def _undo(undo: Callable[[Answered], object], ended: Future[Answered]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        undo(ended.result())
