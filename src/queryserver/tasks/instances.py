"""The fleet's live processes, by the database clock (Contract platform 10.6)."""

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

_GONE_AFTER_BEATS = 3
_FORGOTTEN_AFTER = timedelta(days=1)

_BEAT = """
with forgotten as (delete from instances where heartbeat_at < now() - $7::interval)
insert into instances as known (id, kind, name, version, running, capacity) values ($1, $2, $3, $4, $5, $6)
on conflict (id) do update set heartbeat_at = now(), running = excluded.running, capacity = excluded.capacity
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """One process in the fleet. `running` and `capacity` count statements and tasks."""

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
    """How much a process runs, and how much it can run concurrently. With capacity 0 it takes nothing from the
    queue.
    """

    running: int = 0
    capacity: int = 0


class Instances:
    """Process records. A process is alive while its last heartbeat is less than three intervals old."""

    def __init__(self, database: Database, *, heartbeat: timedelta) -> None:
        self._database = database
        self._heartbeat = heartbeat

    @asynccontextmanager
    async def present(self, instance_id: str, role: Role, load: Callable[[], Load] = Load) -> AsyncGenerator[None]:
        """Register this process as alive inside the context. Raises DatabaseUnavailable on entry only."""

        async def beat() -> None:
            now = load()
            name = f"{socket.gethostname()}-{os.getpid()}"
            await self._database.execute(
                _BEAT, instance_id, role.value, name, __version__, now.running, now.capacity, _FORGOTTEN_AFTER
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
        """Return live processes, ordered by start time."""
        rows = await self._database.fetch(
            """select * from instances where heartbeat_at > now() - $1::interval and ($2::text is null or kind = $2)
            order by started_at, id""",
            self._heartbeat * _GONE_AFTER_BEATS,
            role.value if role else None,
        )
        return [_instance(row) for row in rows]

    async def recent(self) -> Sequence[tuple[Instance, bool]]:
        """Return live processes (with True) and those that died within a day (with False)."""
        rows = await self._database.fetch(
            """select *, heartbeat_at > now() - $1::interval as lives from instances
            where heartbeat_at > now() - $2::interval order by started_at, id""",
            self._heartbeat * _GONE_AFTER_BEATS,
            _FORGOTTEN_AFTER,
        )
        return [(_instance(row), row["lives"]) for row in rows]

    async def lives_here(self, role: Role) -> bool:
        """Return whether a process with that role is alive on this host."""
        host = socket.gethostname()
        return any(instance.name.rpartition("-")[0] == host for instance in await self.living(role))


def _instance(row: Row) -> Instance:
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
