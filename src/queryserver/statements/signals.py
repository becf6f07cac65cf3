"""Calls that wait for statements: which change wakes which of them."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database
from queryserver.platform.threads import background
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

# Statements that are gone have changed too: their calls answer that there is no such statement.
_CHANGED = """
select distinct watched.id from unnest($1::uuid[], $2::text[]) as watched (id, seen) left join statements using (id)
where state is null or state not in ('waiting', 'running') or state <> seen
"""


@dataclass(slots=True, eq=False)
class Watch:
    """Notes that a statement has changed, from its beginning on. Read the record inside, then wait."""

    statement_id: UUID
    ends_only: bool
    seen: StatementState | None = None
    """The state that the watcher has read, where it waits for another one; None: for rows, or the end."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def note(self) -> None:
        self._changed.set()

    async def changed_within(self, within_s: float) -> bool:
        """Whether the statement has changed since the last call, or changes `within_s`; returns at the change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed


class StateSignals:
    """Wakes the calls of this process that wait for statements.

    What runs here is signalled by its runner, what runs in another process by a message of that process; what a lost
    message has not signalled is found by `ChangedStates`.
    """

    def __init__(self) -> None:
        self._watches: defaultdict[UUID, set[Watch]] = defaultdict(set)
        self.has_watches = asyncio.Event()
        self.waits_are_over = False
        """The server stops: calls that wait for a statement of another server get its present state."""

    def notify(self, statement_id: UUID, *, may_have_ended: bool = True) -> None:
        """The statement has changed."""
        for watch in self._watches.get(statement_id, ()):
            if may_have_ended or not watch.ends_only:
                watch.note()

    def notify_all(self) -> None:
        """Any of the statements may have changed."""
        for statement_id in self._watches:
            self.notify(statement_id)

    def end_waits(self) -> None:
        """End all waits, and those that begin from now on."""
        self.waits_are_over = True
        self.notify_all()

    @contextmanager
    def watch(self, statement_id: UUID, *, ends_only: bool = False) -> Generator[Watch]:
        """Inside, every change is noted; with `ends_only` the end, and what may be one."""
        watch = Watch(statement_id, ends_only)
        self._watches[statement_id].add(watch)
        self.has_watches.set()
        try:
            yield watch
        finally:
            self._watches[statement_id].discard(watch)
            if not self._watches[statement_id]:
                del self._watches[statement_id]
            if not self._watches:
                self.has_watches.clear()

    def watched(self) -> set[tuple[UUID, StatementState | None]]:
        """The statements, each with the states that its watchers have seen."""
        return {(statement_id, watch.seen) for statement_id, watches in self._watches.items() for watch in watches}


@dataclass(eq=False)
class ChangedStates:
    """Finds the changes of watched statements that nothing has signalled: one query for all of them. Use `running()`.

    A statement that `runs_here` is signalled by its runner; it is read less often, for its lease may have been lost.
    """

    database: Database = field(repr=False)
    signals: StateSignals
    runs_here: Callable[[UUID], bool]
    every_s: float = 0.5
    own_every_s: float = 5.0

    def running(self) -> AbstractAsyncContextManager[None]:
        return background(self._find(), "changed-states")

    async def _find(self) -> None:
        loop = asyncio.get_running_loop()
        own_due = loop.time()
        while True:
            await self.signals.has_watches.wait()
            await asyncio.sleep(self.every_s)
            watched = self.signals.watched()
            if loop.time() >= own_due:
                own_due = loop.time() + self.own_every_s
            else:
                watched = {one for one in watched if not self.runs_here(one[0])}
            try:
                for statement_id in await self._changed(list(watched)):
                    self.signals.notify(statement_id)
            except DatabaseUnavailable:
                # Each call that waits reads the record and gets the error, as one that comes now.
                self.signals.notify_all()
            except Exception:  # the outer wall of a task: calls must not wait for the end of their time
                log.exception("changes of statements not read")
                self.signals.notify_all()

    async def _changed(self, watched: Sequence[tuple[UUID, StatementState | None]]) -> Sequence[UUID]:
        if not watched:
            return ()
        found = await self.database.fetch(_CHANGED, [one for one, _ in watched], [seen for _, seen in watched])
        return [row["id"] for row in found]
