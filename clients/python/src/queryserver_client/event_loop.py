"""The event loop of a synchronous connection, which runs the async core in a thread with an anyio portal."""

import asyncio
import atexit
import gc
import logging
import os
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal

from queryserver_client.errors import ConfigurationError, QueryserverError

T = TypeVar("T")
_CANCEL_WITHIN_S = 20.0
_STOP_WITHIN_S = 5.0
_serving = threading.local()

log = logging.getLogger("queryserver_client")


class _Collector:
    """Tracks in which thread the garbage collector of this process is running."""

    def __init__(self) -> None:
        self._thread = 0

    def watch(self) -> None:
        callbacks = getattr(gc, "callbacks", [])  # only CPython has this list
        if self._note not in callbacks:
            callbacks.append(self._note)

    @property
    def is_here(self) -> bool:
        """Whether the garbage collector, which is running in this thread, called the caller."""
        return self._thread == threading.get_ident()

    def _note(self, phase: str, _counts: object) -> None:
        self._thread = threading.get_ident() if phase == "start" else 0


_collector = _Collector()


class Loop:
    """The event loop of a connection, in its own thread."""

    def __init__(self) -> None:
        _collector.watch()
        self._process = os.getpid()
        self._running: dict[Future[Any], threading.Event] = {}
        # Makes starting and registering a call atomic. Reentrant, because the garbage collector may run while the lock
        # is held and close a connection in the same thread.
        self._starting = threading.RLock()
        ready: Future[BlockingPortal] = Future()
        # A daemon thread, because otherwise a program with an open connection would never exit.
        self._thread = threading.Thread(target=_serve, args=(ready,), daemon=True, name="queryserver-client")
        self._thread.start()
        self._portal = ready.result()
        atexit.register(self._close_at_exit)

    @property
    def is_ours(self) -> bool:
        """Whether the thread belongs to this process. False in a forked child, which does not inherit threads."""
        return self._process == os.getpid()

    @property
    def must_not_wait(self) -> bool:
        """Whether waiting for this event loop in the current thread could cause a deadlock.

        That is the case in the thread of an event loop, because two loops could wait for each other, and in the garbage
        collector, which may run while its thread holds a lock that the loop needs (of imports, a log handler, a
        future).
        """
        return getattr(_serving, "is_loop", False) or _collector.is_here

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the event loop and return its result.

        If an exception such as Ctrl-C interrupts the wait, the coroutine is canceled before the exception is raised. A
        QueryserverError is raised without the frames inside the coroutine, which are logged at level DEBUG.
        """
        try:
            return self._run(call)
        except QueryserverError as error:
            failure = error
        try:
            # The frames of the event loop and the HTTP library would hide the caller's line in a traceback.
            log.debug("A call failed.", exc_info=failure)
            raise failure.with_traceback(None)
        finally:
            del failure  # otherwise the exception and this frame would keep each other in memory

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not self.is_ours:
            raise ConfigurationError(
                "the connection was opened before this process was forked; open a new one in this process"
            )
        ended, passed, scopes = threading.Event(), list[BaseException](), list[anyio.CancelScope]()

        async def watched() -> T | None:
            try:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    return await call()
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:  # noqa: BLE001 raised in the thread that called
                # Raised by a callback, or a panic of a Rust library. It would stop the event loop for all calls.
                passed.append(error)
            finally:
                ended.set()
            return None

        future: Future[T | None] | None = None
        try:
            with self._starting:
                future = self._portal.start_task_soon(watched)
                self._running[future] = ended
            given = future.result()
        except BaseException:
            if future is None:
                self._cancel_unreturned(scopes, ended)
            elif not future.done():
                future.cancel()
                ended.wait(_CANCEL_WITHIN_S)
            raise
        finally:
            if future is not None:
                self._running.pop(future, None)
        if passed:
            raise passed[0]
        return cast("T", given)

    def _cancel_unreturned(self, scopes: list[anyio.CancelScope], ended: threading.Event) -> None:
        """Cancel a coroutine whose start was interrupted before its future was returned, e.g. by Ctrl-C.

        The event loop may have started it nonetheless: `start_task_soon` waits for the event loop.
        """

        async def cancel() -> None:  # starts after the coroutine, because tasks start in order
            for scope in scopes:
                scope.cancel()
            if not scopes:
                ended.set()

        with suppress(RuntimeError):  # the loop is closed, so nothing was started
            self._portal.start_task_soon(cancel)
            ended.wait(_CANCEL_WITHIN_S)

    def cancel_running(self) -> None:
        """Cancel the coroutines that other threads run on this loop, and wait up to 20 s until they have ended."""
        if not self.is_ours:
            return
        with self._starting:
            running, until = dict(self._running), time.monotonic() + _CANCEL_WITHIN_S
        for future in running:
            future.cancel()
        for ended in running.values():
            ended.wait(max(0.0, until - time.monotonic()))

    def iterate(self, make: Callable[[], Any]) -> Iterator[Any]:
        """Yield the items of an async iterator. Each item is fetched when it is requested."""
        items = make()
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        async def close() -> None:
            await items.aclose()

        def closed() -> None:
            # These errors mean that the connection, and with it the iterator's resources, is already closed.
            with suppress(RuntimeError, ConfigurationError, CancelledError):
                self.run(close)

        try:
            while (item := self.run(step)) is not end:
                yield item
        finally:
            if self.must_not_wait:
                with suppress(RuntimeError):  # the program is exiting
                    start_new_thread(closed, ())
            else:
                closed()

    def close(self) -> None:
        """Stop the thread. Does nothing in a forked child, which has no such thread."""
        if not self.is_ours:
            return
        atexit.unregister(self._close_at_exit)
        with suppress(RuntimeError):  # already closed
            self._portal.call(self._portal.stop)
        self._thread.join()

    def _close_at_exit(self) -> None:
        """Cancel the coroutines that daemon threads run on this loop, and stop the thread."""
        if not self.is_ours:
            return
        self.cancel_running()
        with suppress(RuntimeError, TimeoutError):
            self._portal.start_task_soon(self._portal.stop, True).result(_STOP_WITHIN_S)
        self._thread.join(_STOP_WITHIN_S)


def _serve(ready: "Future[BlockingPortal]") -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    _serving.is_loop = True
    try:
        anyio.run(serve)
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)  # passed to the thread that waits for the event loop
