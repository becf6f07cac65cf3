"""The registry of live processes in the fleet. All times are from the database clock (Contract platform 10.6)."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, Row
from queryserver.platform.roles import Role
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

_DEAD_AFTER_HEARTBEATS = 3
_RECORD_RETENTION = timedelta(days=1)

_BEAT = """
with forgotten as (delete from instances where heartbeat_at < now() - $7::interval)
insert into instances as known (id, kind, name, version, running, capacity) values ($1, $2, $3, $4, $5, $6)
on conflict (id) do update set heartbeat_at = now(), running = excluded.running, capacity = excluded.capacity
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of the fleet. `running` and `capacity` have the same meaning as in `Load`."""

    id: str
    kind: Role
    name: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    running: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Load:
    """The number of statements and tasks that a process is running, and the maximum.

    A process with capacity 0 takes no work from the queue.
    """

    running: int = 0
    capacity: int = 0


class Instances:
    """Process records. A process counts as alive if its last heartbeat is less than three intervals old."""

    def __init__(self, database: Database, *, heartbeat: timedelta) -> None:
        self._database = database
        self._heartbeat = heartbeat

    @asynccontextmanager
    async def present(self, instance_id: str, role: Role, load: Callable[[], Load] = Load) -> AsyncGenerator[None]:
        """Register this process as alive while the context is open. Raises DatabaseUnavailable only on entry."""

        async def beat() -> None:
            now = load()
            name = f"{socket.gethostname()}-{os.getpid()}"
            await self._database.execute(
                _BEAT, instance_id, role.value, name, __version__, now.running, now.capacity, _RECORD_RETENTION
            )

        await beat()
        try:
            async with background(every(self._heartbeat.total_seconds(), beat), "instance-heartbeat"):
                yield
        finally:
            with suppress(DatabaseUnavailable, asyncio.TimeoutError):
                async with asyncio.timeout(self._heartbeat.total_seconds()):
                    await self._database.execute("delete from instances where id = $1", instance_id)

    async def living(self, role: Role | None = None) -> Sequence[Instance]:
        """Return the live processes, optionally only those with one role, ordered by start time."""
        rows = await self._database.fetch(
            """select * from instances where heartbeat_at > now() - $1::interval and ($2::text is null or kind = $2)
            order by started_at, id""",
            self._heartbeat * _DEAD_AFTER_HEARTBEATS,
            role.value if role else None,
        )
        return [_instance_from_row(row) for row in rows]

    async def recent(self) -> Sequence[tuple[Instance, bool]]:
        """Return the processes that sent a heartbeat within the last day, each with whether it is alive."""
        rows = await self._database.fetch(
            """select *, heartbeat_at > now() - $1::interval as lives from instances
            where heartbeat_at > now() - $2::interval order by started_at, id""",
            self._heartbeat * _DEAD_AFTER_HEARTBEATS,
            _RECORD_RETENTION,
        )
        return [(_instance_from_row(row), row["lives"]) for row in rows]

    async def lives_here(self, role: Role) -> bool:
        """Return whether a process with this role is alive on this host."""
        host = socket.gethostname()
        return any(instance.name.rpartition("-")[0] == host for instance in await self.living(role))


def _instance_from_row(row: Row) -> Instance:
    return Instance(
        id=row["id"],
        kind=Role(row["kind"]),
        name=row["name"],
        version=row["version"],
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        running=row["running"],
        capacity=row["capacity"],
    )
