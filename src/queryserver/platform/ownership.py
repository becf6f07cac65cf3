"""Which process works on a row, and whether that process is alive (ADR 84).

A row that a process works on names the process (`owner`, the id of a row in `instances`) and has a `fence`, which each
claim increments. Only the heartbeat of the process in `instances` shows that it is alive; no row is renewed. A row
whose owner is not alive may be claimed. Every write by an owner is conditional on its id and fence, so it changes
nothing after another process has claimed the row.

All times are from the database clock, except for `Ownership.is_current`.
"""

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database
from queryserver.platform.roles import Role
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CHECK_EVERY_S = 1.0
_RETRY_AFTER_S = 1.0
_MIN_TIMEOUT_S = 3.0
_FIRST_TIMEOUT_S = 30.0

RECORD_RETENTION = timedelta(days=1)
"""How long the record of a process that has died is kept."""

# Unlike the monotonic clock, this clock does not stop while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_BEAT = """
with forgotten as (delete from instances where heartbeat_at < now() - $7::interval)
insert into instances as known (id, kind, name, version, running, capacity, alive_until)
values ($1, $2, $3, $4, $5, $6, now() + $8::interval)
on conflict (id) do update set heartbeat_at = now(), running = excluded.running, capacity = excluded.capacity,
    alive_until = excluded.alive_until
"""
_END_OTHERS = "update instances set alive_until = now() where id <> $1 and coalesce(alive_until > now(), true)"


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table whose rows processes claim, and the SQL of its claims.

    The column `lease` distinguishes two kinds of owners. Programs before 0026 claim rows whose lease is null or past,
    and renew a lease that ends soon. This program sets it to 'infinity', so that older programs do not claim the row,
    and judges the owner by its heartbeat. Once no older program can run on the schema, the column can be dropped, and a
    row is claimable if its owner is null or not alive.
    """

    name: str
    key: tuple[str, ...] = ("id",)
    """The columns that identify a row. In texts, their values are separated by blanks."""
    lease: str = "lease_until"
    active: str = "true"
    """SQL condition that every row with an owner meets, so that an index finds them."""
    past: str = "'-infinity'"
    """SQL value of `lease` in rows that are released."""
    older_owner: str = ""
    """Column in which programs before 0026 look for themselves before they write to a row that they have claimed."""

    def is_owned(self, alias: str = "", *, me: str = "") -> str:
        """SQL condition: a process that is alive owns the row. Null if the row has no lease.

        The rows of the process `me`, an SQL expression, count as owned even if its heartbeat is late.
        """
        row = alias or self.name
        mine = f"{row}.owner = {me} or " if me else ""
        lives = f"exists (select from instances where instances.id = {row}.owner and instances.alive_until > now())"
        return f"({row}.{self.lease} > now() and ({row}.{self.lease} < 'infinity' or {mine}{lives}))"

    def claimable(self, alias: str = "", *, me: str = "") -> str:
        """SQL condition: the row may be claimed, because no process that is alive owns it.

        Use it to find rows; claims add `may_claim`. Searches for rows to claim pass the owner as `me`, an SQL
        expression. Otherwise, a process whose heartbeat is late could claim rows that it owns already, so that two of
        its tasks would work on them.
        """
        return f"({self.is_owned(alias, me=me)} is not true)"

    def may_claim(self, owner: str, alias: str = "") -> str:
        """SQL condition of every claim: the row is claimable, and no process has claimed it since the query began.

        While a query waits for a lock, another process may start and claim the row. PostgreSQL then checks the
        conditions again for the changed row, but reads `instances` as it was when the query began. So the new owner
        would count as dead. `owner` is an SQL expression.
        """
        row = alias or self.name
        is_same_row = " and ".join(f"earlier.{column} = {row}.{column}" for column in self.key)
        has_same_fence = f"{row}.fence = (select earlier.fence from {self.name} as earlier where {is_same_row})"
        return f"{self.claimable(alias, me=owner)} and {has_same_fence}"

    def claimed(self, owner: str, alias: str = "", *, until: str = "'infinity'") -> str:
        """SQL assignments that make `owner`, an SQL expression, the row's owner.

        A program that sends no heartbeats passes `until`, an SQL expression: the time until which no other process may
        claim the row.
        """
        claim = f"owner = {owner}, fence = {alias or self.name}.fence + 1, {self.lease} = {until}"
        return f"{claim}, {self.older_owner} = gen_random_uuid()" if self.older_owner else claim

    @property
    def released(self) -> str:
        """SQL assignments with which the owner releases the row, so that any process may claim it."""
        return f"owner = null, {self._expired}"

    @property
    def _expired(self) -> str:
        past = f"{self.lease} = {self.past}"
        return f"{past}, {self.older_owner} = null" if self.older_owner else past

    @property
    def fenced(self) -> str:
        """SQL condition of every write by an owner: its claim on the row is still valid.

        The first parameters of the query are the columns of the key, the owner and the fence.
        """
        named = (f"{column} = ${number}" for number, column in enumerate((*self.key, "owner", "fence"), start=1))
        return " and ".join((*named, self.active))

    def owned_by(self, owner: str) -> str:
        """SQL condition: the process `owner`, an SQL expression, owns the row, whether or not it is alive."""
        return f"owner = {owner} and {self.lease} = 'infinity' and {self.active}"

    @property
    def _text_key(self) -> str:
        values = " || ' ' || ".join(self.key)
        return f"({values})::text"

    @property
    def owned_rows(self) -> str:
        """Query of the name, key and fence of the rows that the process $1 owns."""
        return f"""select '{self.name}' as name, {self._text_key} as key, fence from {self.name}
            where {self.owned_by("$1")}"""

    @property
    def expire(self) -> str:
        """Update that ends the claim of the process $1 on the row with the key $2 and the fence $3."""
        return f"""update {self.name} set {self._expired}, fence = fence + 1
            where {self.owned_by("$1")} and {self._text_key} = $2 and fence = $3"""

    @property
    def expire_leases(self) -> str:
        """Update that ends the leases of older programs. Leases of years mark rows that no process may claim."""
        return f"""update {self.name} set {self.lease} = {self.past}
            where {self.active} and {self.lease} > now() and {self.lease} < now() + interval '1 year'"""


@dataclass(frozen=True, slots=True)
class Load:
    """The number of statements and tasks that a process is running, and the maximum.

    A process with capacity 0 takes no work from the queue.
    """

    running: int = 0
    capacity: int = 0


class Ownership:
    """This process as an owner of rows: its id, its heartbeat, and the rows that it works on."""

    def __init__(
        self,
        database: Database,
        *,
        lease: timedelta,
        heartbeat: timedelta | None = None,
        name: str | None = None,
        clock: Callable[[], float] = lambda: time.clock_gettime(_CLOCK),
    ) -> None:
        """Initialize the owner. The process counts as dead once its last heartbeat is older than `lease`.

        `heartbeat` is the longest interval between heartbeats; it is at most a third of the lease.
        """
        # The random suffix makes the id unique, so that a process with a reused PID is never mistaken for the owner of
        # rows that an earlier process has claimed.
        self.id = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
        self._database = database
        self._lease = lease
        self._every_s = min(heartbeat or lease, lease / 3).total_seconds()
        # Several connections of the pool may be dead, e.g. after a failover, so there is time for several attempts.
        self._timeout_s = max(self._every_s / 3, min(self._every_s, _MIN_TIMEOUT_S))
        self._clock = clock
        self._current_until = float("-inf")
        self._takes_over_from = float("-inf")
        self._last_beat: tuple[Role, Load] | None = None
        self.lapses = 0
        """How often a heartbeat succeeded only after the process could count as dead."""
        self._watched: dict[OwnedTable, list[Callable[[], Collection[str]]]] = {}
        self._held: dict[OwnedTable, Counter[str]] = {}
        self._strays: dict[tuple[str, str, int, int], float] = {}
        """Rows that this process owns but does not work on, with `lapses`, and when each was first seen."""
        self._ended: set[tuple[str, str, int]] = set()
        """Rows on which the work has ended."""

    @property
    def is_current(self) -> bool:
        """Whether this process certainly counts as alive, so that no other process may claim its rows."""
        return self._clock() < self._current_until

    def has_lapsed(self, since: int) -> bool:
        """Whether another process may have claimed rows of this one since `lapses` had the value `since`.

        Read `lapses` before a claim, and check this before an action that cannot be undone: the process may have been
        paused in between, and its heartbeat may be the first to continue.
        """
        return self.lapses != since or not self.is_current

    @property
    def may_take_over(self) -> bool:
        """Whether this process may claim rows of processes that count as dead.

        After an outage of the database, and after the machine was suspended, live processes count as dead until their
        next heartbeats. So a process whose own heartbeat was late first leaves the others time for theirs.
        """
        return self.is_current and self._clock() >= self._takes_over_from

    async def require_current(self) -> None:
        """Send a heartbeat if this process may count as dead, because others may take what it claims while it does.

        Has no effect in programs that send no heartbeats. Raises DatabaseUnavailable.
        """
        if self._last_beat is not None and not self.is_current:
            await self.beat(*self._last_beat)

    @asynccontextmanager
    async def running(
        self, role: Role, load: Callable[[], Load] = Load, *, alone: bool = False
    ) -> AsyncGenerator[None]:
        """Register this process as alive while the context is open. Enter it before any row is claimed.

        `alone` ends the claims of all other processes. Set it only if no other process is alive. Raises
        DatabaseUnavailable only on entry.
        """

        async def heartbeat() -> None:
            while True:
                with suppress(DatabaseUnavailable):
                    return await self.beat(role, load())
                await asyncio.sleep(_RETRY_AFTER_S)

        await self.beat(role, load())
        try:
            if alone:
                await self._end_other_claims()
            # Separate tasks: no lock on another table must delay the heartbeat.
            async with (
                background(every(self._every_s, heartbeat), "instance-heartbeat"),
                background(every(self._every_s, self.release_strays), "stray-rows"),
            ):
                yield
        finally:
            self._current_until, self._last_beat = float("-inf"), None
            with suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._database.execute("delete from instances where id = $1", self.id)

    async def beat(self, role: Role, load: Load) -> None:
        """Send a heartbeat. Raises DatabaseUnavailable."""
        # The lease in the database starts later than this, so this process never believes to be alive for longer.
        began = self._clock()
        name = f"{socket.gethostname()}-{os.getpid()}"
        values = (self.id, role.value, name, __version__, load.running, load.capacity, RECORD_RETENTION, self._lease)
        try:
            # A busy database must not keep a process with a short lease from starting.
            async with asyncio.timeout(self._timeout_s if self._last_beat else _FIRST_TIMEOUT_S):
                await self._database.execute(_BEAT, *values)
        except (DatabaseUnavailable, TimeoutError) as error:
            if not self.is_current:
                log.warning("heartbeats failed for too long: other processes may claim the work of this process")
            raise DatabaseUnavailable from error
        if not self.is_current:
            if self._last_beat is not None:
                self._takes_over_from = self._clock() + self._every_s + self._timeout_s
            self.lapses += 1
        self._last_beat = role, load
        self._current_until = began + self._lease.total_seconds()

    async def _end_other_claims(self) -> None:
        await self._database.execute(_END_OTHERS, self.id)
        for table in self._watched:
            await self._database.execute(table.expire_leases)

    def watch(self, table: OwnedTable, held: Callable[[], Collection[str]] | None = None) -> None:
        """Expire the rows of `table` that this process owns without working on them.

        `held` returns the keys of the rows that it works on, in addition to those of `holding`, as text. Other rows
        appear if the response to a claim is lost, or if a release could not be written. They are expired after a lease,
        because the response may still arrive; rows on which the work has ended are expired sooner. Call this before
        `running`.
        """
        self._watched.setdefault(table, []).extend([held] if held else [])

    @contextmanager
    def holding(self, table: OwnedTable, key: object, fence: int = 0) -> Generator[None]:
        """Mark a row of a watched table as worked on while the context is open. Enter it once the row is claimed.

        A row that is not released on exit is expired soon.
        """
        held, text = self._held.setdefault(table, Counter()), str(key)
        held[text] += 1
        try:
            yield
        finally:
            held[text] -= 1
            if not held[text]:
                del held[text]
            self.expire_soon(table, key, fence)

    def expire_soon(self, table: OwnedTable, key: object, fence: int) -> None:
        """Stop work on a row of a watched table. If it is still owned after the next heartbeats, it is expired."""
        self._ended.add((table.name, str(key), fence))

    async def run(self, work: Coroutine[Any, Any, T], require_row: Callable[[], Awaitable[None]]) -> T:
        """Run work on a claimed row, which is stopped as soon as another process may work on the row.

        `require_row` reads the row, and raises an error if another process has claimed it. It is called only after this
        process could count as dead, because it was paused or the database was unavailable for longer than the lease.
        Raises its errors and those of the work.
        """
        task, lapses = asyncio.create_task(work), self.lapses
        try:
            while not (await asyncio.wait({task}, timeout=_CHECK_EVERY_S))[0]:
                if self.has_lapsed(lapses):
                    lapses = self.lapses
                    await require_row()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def release(self, query: str, *arguments: object) -> bool:
        """Run an update that releases a row. Return False if it changed nothing or the database is unavailable.

        A row that could not be released is expired later, if its table is watched and the row is no longer held.
        """
        try:
            return await self._database.execute(query, *arguments) > 0
        except DatabaseUnavailable:
            log.warning("row not released: database unreachable; it will be released later")
            return False

    async def release_strays(self) -> None:
        """Expire the rows that this process has owned for a lease without working on them, or whose work has ended."""
        if not self._watched:
            return
        tables = {table.name: table for table in self._watched}
        rows = await self._database.fetch(" union all ".join(one.owned_rows for one in tables.values()), self.id)
        now, strays = self._clock(), dict[tuple[str, str, int, int], float]()
        held = {name: self._held_keys(table) for name, table in tables.items()}
        for name, key, fence in rows:
            if key in held[name]:
                continue
            # The time before a pause does not count, because a paused process cannot begin to work on a row.
            seen = name, key, fence, self.lapses
            strays[seen] = self._strays.get(seen, now)
        # The release of a row may be in progress when the row is seen for the first time.
        ended = {seen for seen in self._strays if seen[:3] in self._ended}
        self._ended.intersection_update(tuple(row) for row in rows)
        self._strays, since = strays, now - self._lease.total_seconds()
        for seen in [seen for seen, first_seen in strays.items() if first_seen <= since or seen in ended]:
            name, key, fence, _ = seen
            if key in self._held_keys(tables[name]):  # the work may have begun while another row was being expired
                continue
            if await self._database.execute(tables[name].expire, self.id, key, fence):
                log.warning("row expired that this process owned but did not work on", table=name, key=key)

    def _held_keys(self, table: OwnedTable) -> set[str]:
        return set(self._held.get(table, ())).union(*(held() for held in self._watched[table]))
