"""How a recorded statement reaches a runner, and how changes of its state are seen."""

import asyncio
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

from queryserver.connectors.model import Connector
from queryserver.identity.model import User
from queryserver.statements.model import Assignment


class StatementQueue(Protocol):
    """Hands recorded statements to runners, at least once: the claim in the record makes it at most once."""

    async def owner_for(self, connector: Connector, *, session_owner: str | None) -> str | None:
        """The owner to record with a new statement when its runner sits in this process, else None.

        Raises Stopping when this process begins no new work.
        """
        ...

    def dispatch(self, assignment: Assignment, user: User) -> None:
        """Run a statement that was recorded with the owner of this process."""
        ...

    async def announce(self, statement_id: UUID) -> None:
        """Tell the runners elsewhere that a statement waits. Never raises: a sweep finds what was not told."""
        ...

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        """Tell the runner `owner` that the record now asks for a cancel. Never raises."""
        ...


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


CANCEL = "cancel"
"""Kind of the notice that a cancel was recorded; its subject is the id of the statement."""


CLOSE_SESSION = "close-session"
