"""A bounded cache whose misses are loaded once for all callers that wait for the same value."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from queryserver.errors.files import StorageUnavailable
from queryserver.platform.limits import LruCache
from queryserver.platform.threads import Tasks

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedLoads(Generic[K, V]):
    """The values of `cache`, and the loads under way. Close it before what the loads use."""

    def __init__(self, cache: LruCache[K, V]) -> None:
        self._cache = cache
        self._loads: dict[K, asyncio.Task[V]] = {}
        self._running = Tasks()

    async def close(self) -> None:
        """Stop loads under way, whose callers get StorageUnavailable. Idempotent."""
        await self._running.aclose()
        self._cache.clear()

    def cached(self, key: K) -> V | None:
        return self._cache.get(key)

    def put(self, key: K, value: V) -> None:
        self._cache.put(key, value)

    def is_loading(self, key: K) -> bool:
        """Whether the value is being loaded, and has not been forgotten since."""
        return key in self._loads

    async def get(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value of `key`, by `load` if it is not cached. A caller that goes away does not stop it for others."""
        value = self._cache.get(key)
        if value is not None:
            return value
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._running.start(load(), "segment")
            task.add_done_callback(partial(self._loaded, key))
        waiting: Awaitable[V] = asyncio.shield(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            if task.cancelled():
                raise StorageUnavailable("The result store is closing.") from None
            raise

    def forget(self, concerned: Callable[[K], bool]) -> None:
        """Drop values. Loads under way still answer their callers, and are not cached."""
        for key in [key for key in self._cache if concerned(key)]:
            self._cache.pop(key)
        for key in [key for key in self._loads if concerned(key)]:
            del self._loads[key]

    def _loaded(self, key: K, task: asyncio.Task[V]) -> None:
        is_current = self._loads.get(key) is task
        if is_current:
            del self._loads[key]
        # Reading the error marks it as retrieved, also when every caller has gone away.
        if not task.cancelled() and task.exception() is None and is_current:
            self._cache.put(key, task.result())
