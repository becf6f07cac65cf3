"""The event loop that runs the async core of a synchronous connection: a thread with an anyio portal."""

import asyncio
import atexit
import gc
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

from queryserver_client.errors import ConfigurationError

T = TypeVar("T")
_CANCEL_WITHIN_S = 20.0
_STOP_WITHIN_S = 5.0
_serving = threading.local()


class _Collector:
    """This process's garbage collector."""

    def __init__(self) -> None:
        self._thread = 0

    def watch(self) -> None:
        callbacks = getattr(gc, "callbacks", [])  # only CPython has them
        if self._note not in callbacks:
            callbacks.append(self._note)

    @property
    def is_here(self) -> bool:
        """Whether the garbage collector is running in this thread, below the caller."""
        return self._thread == threading.get_ident()

    def _note(self, phase: str, _counts: object) -> None:
        self._thread = threading.get_ident() if phase == "start" else 0


_collector = _Collector()


class Loop:
    """A connection's event loop, in its own thread."""

    def __init__(self) -> None:
        _collector.watch()
        self._process = os.getpid()
        self._running: dict[Future[Any], threading.Event] = {}
        # Held so that every call that has begun is among the running ones. The garbage collector may run while the lock
        # is held, and close a connection in the same thread.
        self._starting = threading.RLock()
        ready: Future[BlockingPortal] = Future()
        # A daemon thread, because a program with an open connection would otherwise never exit.
        self._thread = threading.Thread(target=_serve, args=(ready,), daemon=True, name="queryserver-client")
        self._thread.start()
        self._portal = ready.result()
        atexit.register(self._close_at_exit)

    @property
    def is_ours(self) -> bool:
        """Whether the thread belongs to this process. False in a forked child, because the thread stayed with its
        parent.
        """
        return self._process == os.getpid()

    @property
    def must_not_wait(self) -> bool:
        """Return whether this is an event loop's thread, or the garbage collector runs in this thread.

        Two event loops that wait for each other would do so forever. The garbage collector may run while its thread
        holds a lock that the event loop needs: that of imports, of a log handler, of a future.
        """
        return getattr(_serving, "is_loop", False) or _collector.is_here

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine and return its result. An exception in this thread, such as Ctrl-C, cancels the
        coroutine first.
        """
        if not self.is_ours:
            raise ConfigurationError("the connection was made before this process was forked: make one here")
        ended, passed = threading.Event(), list[BaseException]()

        async def watched() -> T | None:
            try:
                return await call()
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:  # noqa: BLE001 raised in the thread that called
                # An error from a callback, or a panic in a Rust library. It would stop the event loop for all calls.
                passed.append(error)
                return None
            finally:
                ended.set()

        with self._starting:
            future = self._portal.start_task_soon(watched)
            self._running[future] = ended
        try:
            given = future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(_CANCEL_WITHIN_S)
            raise
        finally:
            self._running.pop(future, None)
        if passed:
            raise passed[0]
        return cast("T", given)

    def cancel_running(self) -> None:
        """Cancel the coroutines that other threads run here, and wait for some time until they have ended."""
        if not self.is_ours:
            return
        with self._starting:
            running, until = dict(self._running), time.monotonic() + _CANCEL_WITHIN_S
        for future in running:
            future.cancel()
        for ended in running.values():
            ended.wait(max(0.0, until - time.monotonic()))

    def iterate(self, make: Callable[[], Any]) -> Iterator[Any]:
        """Yield an async iterator's items, fetching each on demand."""
        items = make()
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        async def close() -> None:
            await items.aclose()

        def closed() -> None:
            # The connection and the iterator's resources are already closed.
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
        """End the thread. A forked child has none."""
        if not self.is_ours:
            return
        atexit.unregister(self._close_at_exit)
        with suppress(RuntimeError):  # it is already closed
            self._portal.call(self._portal.stop)
        self._thread.join()

    def _close_at_exit(self) -> None:
        """Close without waiting for coroutines that daemon threads run here."""
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
