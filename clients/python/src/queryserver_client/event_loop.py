"""The event loop in which the async core of a connection without `await` runs: a thread with a portal of anyio."""

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
    """The garbage collector of this process."""

    def __init__(self) -> None:
        self._thread = 0

    def watch(self) -> None:
        callbacks = getattr(gc, "callbacks", [])  # only CPython has them
        if self._note not in callbacks:
            callbacks.append(self._note)

    @property
    def is_here(self) -> bool:
        """Whether it runs in this thread, below what calls this."""
        return self._thread == threading.get_ident()

    def _note(self, phase: str, _counts: object) -> None:
        self._thread = threading.get_ident() if phase == "start" else 0


_collector = _Collector()


class Loop:
    """The event loop of a connection, in a thread of its own."""

    def __init__(self) -> None:
        _collector.watch()
        self._process = os.getpid()
        self._running: dict[Future[Any], threading.Event] = {}
        # Else a call that has begun might not be among those that are running yet. The garbage collector may come while
        # it is held, and close a connection in the same thread.
        self._starting = threading.RLock()
        ready: Future[BlockingPortal] = Future()
        # A daemon: a program that ends with an open connection would wait for it for ever otherwise.
        self._thread = threading.Thread(target=_serve, args=(ready,), daemon=True, name="queryserver-client")
        self._thread.start()
        self._portal = ready.result()
        atexit.register(self._close_at_exit)

    @property
    def is_ours(self) -> bool:
        """False in a child made by fork: the thread stayed with its parent."""
        return self._process == os.getpid()

    @property
    def must_not_wait(self) -> bool:
        """Whether this is the thread of a loop, or the garbage collector runs in this thread.

        Two loops that wait for each other would do so for ever. And the garbage collector may come where its thread
        holds what the loop needs for its answer: the lock of imports, of a handler of logs, of a future.
        """
        return getattr(_serving, "is_loop", False) or _collector.is_here

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the coroutine gives or raises. An exception in this thread, such as Ctrl-C, cancels it first."""
        if not self.is_ours:
            raise ConfigurationError("the connection was made before this process was forked: make one here")
        ended, passed = threading.Event(), list[BaseException]()

        async def watched() -> T | None:
            try:
                return await call()
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:  # noqa: BLE001 raised in the thread that called
                # Of a callback, or a panic of a library in Rust: it would end the loop, for all calls.
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
        """Cancel what other threads run here, and wait for some time until it has ended."""
        if not self.is_ours:
            return
        with self._starting:
            running, until = dict(self._running), time.monotonic() + _CANCEL_WITHIN_S
        for future in running:
            future.cancel()
        for ended in running.values():
            ended.wait(max(0.0, until - time.monotonic()))

    def iterate(self, make: Callable[[], Any]) -> Iterator[Any]:
        """The items of an async iterator, each fetched when it is wanted."""
        items = make()
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        async def close() -> None:
            await items.aclose()

        def closed() -> None:
            # The connection is closed, and what the iterator held.
            with suppress(RuntimeError, ConfigurationError, CancelledError):
                self.run(close)

        try:
            while (item := self.run(step)) is not end:
                yield item
        finally:
            if self.must_not_wait:
                with suppress(RuntimeError):  # the program ends
                    start_new_thread(closed, ())
            else:
                closed()

    def close(self) -> None:
        """End the thread. In a child made by fork there is none."""
        if not self.is_ours:
            return
        atexit.unregister(self._close_at_exit)
        with suppress(RuntimeError):  # it is closed
            self._portal.call(self._portal.stop)
        self._thread.join()

    def _close_at_exit(self) -> None:
        """Without waiting for what daemon threads of the program run here."""
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
        ready.set_exception(error)  # to whom waits for the loop
