"""Threads for blocking work during logins and calls: password hashing, directory access and plug-ins."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeAlias

from queryserver.errors.base import LoginBackendUnavailable

_Outcome: TypeAlias = tuple[object, BaseException | None]


class TooManyWaiting(LoginBackendUnavailable):
    """So many calls are waiting for a thread that another call would time out."""

    def __init__(self) -> None:
        super().__init__("Too many concurrent logins.")


class LimitedThreads:
    """Runs blocking functions in threads. Defaults: 8 threads, and 10 s per call including the wait for a thread.

    If `max_waiting` calls are already waiting, further calls raise TooManyWaiting.
    """

    def __init__(
        self, name: str = "plug-in", *, threads: int = 8, limit_s: float = 10.0, max_waiting: int | None = None
    ) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        # Calls wait on this semaphore, as the pool's queue would keep abandoned calls, with their passwords, in memory.
        self._free = asyncio.Semaphore(threads)
        self._waiting = 0
        self._max_waiting = max_waiting
        self._limit_s = limit_s
        self._running: set[asyncio.Task[_Outcome]] = set()

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a sync or async function and return its result.

        The function runs in its own task, because it may ignore cancellation or raise an exception, such as SystemExit,
        that would otherwise stop the server. Raises the function's exceptions (RuntimeError in place of exceptions like
        SystemExit), TimeoutError, TooManyWaiting.
        """
        running = asyncio.create_task(self._outcome(function, arguments), name=self._name)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            done, _ = await asyncio.wait([running], timeout=self._limit_s)
        finally:
            running.cancel()
        if not done:
            raise TimeoutError
        result, error = running.result()
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise error
        if error is not None:
            raise RuntimeError(f"{type(error).__name__} in a call of {self._name}") from error
        return result

    def close(self) -> None:
        """Shut down without waiting for running calls, whose results are discarded."""
        for running in self._running:
            running.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _outcome(self, function: Callable[..., object], arguments: tuple[object, ...]) -> _Outcome:
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments), None
            result, error = await self._in_thread(function, arguments)
            # A decorated coroutine function may not be recognized as one above.
            return (await result if inspect.isawaitable(result) else result), error
        except BaseException as error:  # noqa: BLE001 raised by the caller
            return None, error

    async def _in_thread(self, function: Callable[..., object], arguments: tuple[object, ...]) -> _Outcome:
        if self._free.locked() and self._max_waiting is not None and self._waiting >= self._max_waiting:
            raise TooManyWaiting
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        context, loop = copy_context(), asyncio.get_running_loop()

        def outcome() -> _Outcome:
            # Returned, not raised: a future rejects StopIteration, and SystemExit would stop the server.
            try:
                return context.run(function, *arguments), None
            except BaseException as error:  # noqa: BLE001 raised by the caller
                return None, error

        def give_back(_: object) -> None:  # runs in the thread, possibly after the loop was closed
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._free.release)

        # An abandoned call keeps its thread until the function returns.
        running = self._threads.submit(outcome)
        running.add_done_callback(give_back)
        return await asyncio.wrap_future(running)
