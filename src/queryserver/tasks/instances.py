"""The registry of live processes in the fleet, and the doctor's check of the fleet.

All times are from the database clock (Contract platform 10.6).
"""

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queryserver.administration.doctor import INSTANCES, Finding
from queryserver.platform.database import Database, Row
from queryserver.platform.ownership import RECORD_RETENTION
from queryserver.platform.roles import Role
from queryserver.platform.settings.tree import Settings

_DEAD_AFTER_HEARTBEATS = 3

# Programs before 0026 do not record until when they count as alive.
_LIVES = "coalesce(alive_until, heartbeat_at + $1::interval) > now()"

CONNECTIONS = "database"

_MAX_LISTED_DEAD = 5
_OTHER_CONNECTIONS = 2
"""Connections that a process opens outside its pool: one for notifications, and one for its readiness checks."""
_ERROR_SHARE, _WARNING_SHARE = 1.0, 0.8

_AVAILABLE_CONNECTIONS = """
    select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of the fleet. `running` and `capacity` have the same meaning as in `platform.ownership.Load`."""

    id: str
    kind: Role
    name: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    running: int
    capacity: int


class Instances:
    """Reads the records of processes, which `platform.ownership` writes."""

    def __init__(self, database: Database, *, heartbeat: timedelta) -> None:
        self._database = database
        self._heartbeat = heartbeat

    async def living(self, role: Role | None = None) -> Sequence[Instance]:
        """Return the live processes, optionally only those with one role, ordered by start time."""
        rows = await self._database.fetch(
            f"""select * from instances where {_LIVES} and ($2::text is null or kind = $2)
            order by started_at, id""",
            self._heartbeat * _DEAD_AFTER_HEARTBEATS,
            role.value if role else None,
        )
        return [_instance_from_row(row) for row in rows]

    async def recent(self) -> Sequence[tuple[Instance, bool]]:
        """Return the processes that sent a heartbeat within the last day, and for each whether it is alive."""
        rows = await self._database.fetch(
            f"""select *, {_LIVES} as lives from instances
            where heartbeat_at > now() - $2::interval order by started_at, id""",
            self._heartbeat * _DEAD_AFTER_HEARTBEATS,
            RECORD_RETENTION,
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


async def examine_fleet(settings: Settings, database: Database) -> Sequence[Finding]:
    """Check the fleet without changing anything. Raises DatabaseUnavailable."""
    heartbeat = timedelta(seconds=settings.desktop.task_server.heartbeat_s)
    instances = await Instances(database, heartbeat=heartbeat).recent()
    living = [instance for instance, lives in instances if lives]
    connections = await database.value(_AVAILABLE_CONNECTIONS)
    return [
        *_live_findings(settings, living),
        *_dead_findings([one for one, lives in instances if not lives]),
        connections_finding(len(living), settings.desktop.database.pool_max, connections),
    ]


def _live_findings(settings: Settings, living: Sequence[Instance]) -> Iterator[Finding]:
    tasks, count = settings.desktop.task_server, Counter(instance.kind for instance in living)
    yield Finding.ok(INSTANCES, f"{_count_text(count)} running.")
    if not count[Role.SERVER]:
        to_do = "Start `queryserver serve`, or run this command with the settings of the servers."
        yield Finding.warning(INSTANCES, "No server is running on this database.", to_do)
    if tasks.enabled and not count[Role.WORKER]:
        what = "desktop.task_server.enabled is true, but no worker is running: statements stay queued."
        yield Finding.error(INSTANCES, what, "Start `queryserver worker`.")
    if tasks.beat_enabled and not count[Role.BEAT]:
        what = "desktop.task_server.beat_enabled is true, but no beat is running: schedules do not run."
        yield Finding.error(INSTANCES, what, "Start `queryserver beat`.")
    if not tasks.enabled and count[Role.WORKER]:
        what = f"{count[Role.WORKER]} workers are running, but desktop.task_server.enabled is false in these settings."
        yield Finding.warning(INSTANCES, what, "Use the same settings for all processes.")
    versions = Counter(one.version for one in living)
    if len(versions) > 1:
        counts = ", ".join(f"{number} of {version}" for version, number in sorted(versions.items()))
        yield Finding.warning(
            INSTANCES, f"The running processes have different versions: {counts}.", "Finish the upgrade."
        )


def _count_text(count: Counter[Role]) -> str:
    return ", ".join(f"{count[role]} {role.value}{'' if count[role] == 1 else 's'}" for role in Role)


def _dead_findings(dead: Sequence[Instance]) -> Iterator[Finding]:
    """Report the processes that died most recently, each by name, and the number of the other dead processes."""
    newest_first = sorted(dead, key=lambda instance: instance.heartbeat_at, reverse=True)
    for one in newest_first[:_MAX_LISTED_DEAD]:
        at = f"{one.heartbeat_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        what = f"The {one.kind.value} {one.name} stopped unexpectedly; its last heartbeat was at {at}."
        to_do = "Check its log and the memory of its host. This warning is shown for a day."
        yield Finding.warning(INSTANCES, what, to_do)
    if more := newest_first[_MAX_LISTED_DEAD:]:
        to_do = "Find out why they stopped. Possible causes are the OOM killer and a timeout of the service manager."
        yield Finding.warning(INSTANCES, f"{len(more)} more processes stopped unexpectedly within a day.", to_do)


def connections_finding(processes: int, pool_max: int, connections: int) -> Finding:
    """Compare the connections that `processes` may open with those that the database allows."""
    needed = processes * (pool_max + _OTHER_CONNECTIONS)
    what = (
        f"{processes} processes may open {needed} connections (desktop.database.pool_max = {pool_max}), "
        f"and PostgreSQL allows {connections}"
    )
    to_do = "Raise max_connections, lower desktop.database.pool_max, or run fewer processes."
    if needed > _ERROR_SHARE * connections:
        return Finding.error(CONNECTIONS, f"{what}: requests will fail with database_unavailable under load.", to_do)
    if needed > _WARNING_SHARE * connections:
        return Finding.warning(CONNECTIONS, f"{what}: there is hardly room for another process.", to_do)
    return Finding.ok(CONNECTIONS, f"{what}.")
