"""Tables that are read again soon."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa

from queryserver.domain.errors.files import StorageUnavailable
from queryserver.domain.lru import LruCache


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Names one segment. What it names never changes."""

    statement_id: UUID
    fence: int
    number: int


class SegmentCache:
    """Tables by segment, least recently used out first; holds at most `max_bytes`.

    Readers who ask for one segment at a time share one load. A reader who goes away does not stop it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._tables = LruCache[SegmentKey, pa.Table](max_bytes, weigh=pa.Table.get_total_buffer_size)
        self._loads: dict[SegmentKey, asyncio.Task[pa.Table]] = {}
        self._running: set[asyncio.Task[pa.Table]] = set()

    async def close(self) -> None:
        """Stop loads under way; their readers get StorageUnavailable. Idempotent."""
        for load in self._running:
            load.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._tables.clear()

    def peek(self, key: SegmentKey) -> pa.Table | None:
        """The table if it is here."""
        return self._tables.get(key)

    async def get(self, key: SegmentKey, load: Callable[[], Coroutine[Any, Any, pa.Table]]) -> pa.Table:
        """The table, from here or from `load`, whose errors every waiting reader gets."""
        table = self._tables.get(key)
        if table is not None:
            return table
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = asyncio.create_task(load())
            self._running.add(task)
            task.add_done_callback(partial(self._loaded, key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise StorageUnavailable("The result store is closing.") from None
            raise

    def forget(self, statement_id: UUID) -> None:
        """Drop a statement's tables; loads under way still answer their readers and are not kept."""
        for key in [key for key in self._tables if key.statement_id == statement_id]:
            self._tables.pop(key)
        for key in [key for key in self._loads if key.statement_id == statement_id]:
            del self._loads[key]

    def _loaded(self, key: SegmentKey, task: asyncio.Task[pa.Table]) -> None:
        self._running.discard(task)
        is_current = self._loads.get(key) is task
        if is_current:
            del self._loads[key]
        # Asking for the error marks it as seen, also when every reader has gone away.
        if task.cancelled() or task.exception() is not None or not is_current:
            return
        self._tables.put(key, task.result())
