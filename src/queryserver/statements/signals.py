"""Wakes calls that wait for statement changes."""

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

# Deleted statements count as changed, so that waiting calls can report that they no longer exist.
_CHANGED = """
select distinct watched.id from unnest($1::uuid[], $2::text[]) as watched (id, seen) left join statements using (id)
where state is null or state not in ('waiting', 'running') or state <> seen
"""


@dataclass(slots=True, eq=False)
class Watch:
    """Signals changes of a statement that happen after the watch was created.

    Create the watch before reading the record, so that no change is missed.
    """

    statement_id: UUID
    ends_only: bool
    seen_state: StatementState | None = None
    """The state that the caller has read and waits to change. None if the caller waits for rows or for the end."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def signal_change(self) -> None:
        self._changed.set()

    async def changed_within(self, within_s: float) -> bool:
        """Wait up to `within_s` for a change. Return whether the statement has changed since the last call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed


class StateSignals:
    """Wakes the calls in this process that wait for statements.

    Changes are signaled by the runner for statements that run here, and by messages from other processes.
    `StateChangePoller` finds changes whose message was lost.
    """

    def __init__(self) -> None:
        self._watches: defaultdict[UUID, set[Watch]] = defaultdict(set)
        self.has_watches = asyncio.Event()
        self.waits_are_over = False
        """Set when the server stops. Calls that wait for statements of other servers then return the current state."""

    def notify(self, statement_id: UUID, *, may_have_ended: bool = True) -> None:
        """Wake the calls that wait for the statement."""
        for watch in self._watches.get(statement_id, ()):
            if may_have_ended or not watch.ends_only:
                watch.signal_change()

    def notify_all(self) -> None:
        """Wake all calls, because any statement may have changed."""
        for statement_id in self._watches:
            self.notify(statement_id)

    def end_waits(self) -> None:
        """End all current and future waits."""
        self.waits_are_over = True
        self.notify_all()

    @contextmanager
    def watch(self, statement_id: UUID, *, ends_only: bool = False) -> Generator[Watch]:
        """Watch the statement inside the block. If `ends_only` is set, ignore changes that cannot be its end."""
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
        """Return the watched statements, each with the state that the caller has seen."""
        return {
            (statement_id, watch.seen_state) for statement_id, watches in self._watches.items() for watch in watches
        }


@dataclass(eq=False)
class StateChangePoller:
    """Finds changes of watched statements that were not signaled, in one query per round. Active inside `running()`.

    Statements that run here are polled less often: they change without a signal only if their lease is lost.
    """

    database: Database = field(repr=False)
    signals: StateSignals
    runs_here: Callable[[UUID], bool]
    every_s: float = 0.5
    own_every_s: float = 5.0

    def running(self) -> AbstractAsyncContextManager[None]:
        return background(self._poll(), "changed-states")

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        own_due = loop.time()
        while True:
            await self.signals.has_watches.wait()
            await asyncio.sleep(self.every_s)
            watched = self.signals.watched()
            if loop.time() >= own_due:
                own_due = loop.time() + self.own_every_s
            else:
                watched = {watch for watch in watched if not self.runs_here(watch[0])}
            try:
                for statement_id in await self._changed(list(watched)):
                    self.signals.notify(statement_id)
            except DatabaseUnavailable:
                # Each waiting call then reads the record itself and raises the error, as a new call would.
                self.signals.notify_all()
            except Exception:  # last resort of a task: calls must not wait until they time out
                log.exception("statement changes could not be read")
                self.signals.notify_all()

    async def _changed(self, watched: Sequence[tuple[UUID, StatementState | None]]) -> Sequence[UUID]:
        if not watched:
            return ()
        rows = await self.database.fetch(_CHANGED, [one for one, _ in watched], [seen for _, seen in watched])
        return [row["id"] for row in rows]
