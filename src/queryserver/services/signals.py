"""Changes of state made in this process, for calls of this process that wait for them."""

import asyncio
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from uuid import UUID


class StateSignals:
    """Wakes watchers at once; a change made by another process is found by looking at the record now and then."""

    def __init__(self) -> None:
        self._watches: defaultdict[UUID, set[Watch]] = defaultdict(set)
        self.waits_are_over = False
        """Set when the server stops: what still waits for a statement of another server gets its present state."""

    def notify(self, statement_id: UUID) -> None:
        """Something changed in the record."""
        for watch in self._watches.get(statement_id, ()):
            watch.event.set()

    def end_waits(self) -> None:
        """End all waits, and those that begin from now on."""
        self.waits_are_over = True
        for statement_id in list(self._watches):
            self.notify(statement_id)

    @contextmanager
    def watch(self, statement_id: UUID) -> "Generator[Watch]":
        """Notice every change from now on: look at the record inside, then wait."""
        watch = Watch()
        self._watches[statement_id].add(watch)
        try:
            yield watch
        finally:
            self._watches[statement_id].discard(watch)
            if not self._watches[statement_id]:
                del self._watches[statement_id]


class Watch:
    """One watcher of one statement."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def changed(self, timeout_s: float) -> bool:
        """Whether a change came since the last call, or comes within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            return False
        self.event.clear()
        return True
