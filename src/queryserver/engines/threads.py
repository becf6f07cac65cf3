"""Bounded threads for drivers that block."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from queryserver.domain.errors import EngineUnavailable

Answered = TypeVar("Answered")

_CONTROL_THREADS = 2

STATEMENT_THREADS = 24
"""One for each statement that a process runs on one connector (16), and for each look at its metadata (8)."""


class DriverThreads:
    """Threads of one engine: `max_statements` for statements, a few more so that opening and closing never wait.

    To be closed by its owner once nothing runs any more.
    """

    def __init__(self, name: str, *, max_statements: int) -> None:
        self._statements = ThreadPoolExecutor(max_statements, thread_name_prefix=f"{name}-statement")
        self._control = ThreadPoolExecutor(_CONTROL_THREADS, thread_name_prefix=f"{name}-control")
        self._counting = threading.Lock()
        self._busy = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Calls into the driver on behalf of statements that are under way."""
        return self._busy

    def start(self, call: Callable[[], Answered]) -> Future[Answered]:
        """Run a piece of a statement once a thread is free. Raises EngineUnavailable after `close`."""
        self._check_open()
        return self._statements.submit(self._counted, call)

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
        for pool in (self._statements, self._control):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

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
