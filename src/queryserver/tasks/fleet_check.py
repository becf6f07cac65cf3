"""Checks the fleet for the doctor: live and dead processes, and the number of database connections."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta

from queryserver.administration.doctor import Finding
from queryserver.platform.database import Database
from queryserver.platform.roles import Role
from queryserver.platform.settings.tree import Settings
from queryserver.tasks.instances import Instance, Instances

INSTANCES, CONNECTIONS = "instances", "database"

_MAX_LISTED_DEAD = 5
_OTHER_CONNECTIONS = 2
"""Connections that a process opens outside its pool: one for notifications, and one for its readiness checks."""
_ERROR_SHARE, _WARNING_SHARE = 1.0, 0.8

_AVAILABLE_CONNECTIONS = """
    select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
"""


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
    yield Finding.ok(INSTANCES, f"{_count_text(count)} live.")
    if not count[Role.SERVER]:
        to_do = "Start `queryserver serve`, or give this command the settings of the servers."
        yield Finding.warning(INSTANCES, "No server lives on this database.", to_do)
    if tasks.enabled and not count[Role.WORKER]:
        what = "desktop.task_server.enabled is true and no worker lives: statements wait."
        yield Finding.error(INSTANCES, what, "Start `queryserver worker`.")
    if tasks.beat_enabled and not count[Role.BEAT]:
        what = "desktop.task_server.beat_enabled is true and no beat lives: schedules do not fire."
        yield Finding.error(INSTANCES, what, "Start `queryserver beat`.")
    if not tasks.enabled and count[Role.WORKER]:
        what = f"{count[Role.WORKER]} workers live, and desktop.task_server.enabled is false in these settings."
        yield Finding.warning(INSTANCES, what, "Give all processes the same settings.")
    versions = Counter(one.version for one in living)
    if len(versions) > 1:
        counts = ", ".join(f"{number} of {version}" for version, number in sorted(versions.items()))
        yield Finding.warning(INSTANCES, f"They have different versions: {counts}.", "Finish the upgrade.")


def _count_text(count: Counter[Role]) -> str:
    return ", ".join(f"{count[role]} {role.value}{'' if count[role] == 1 else 's'}" for role in Role)


def _dead_findings(dead: Sequence[Instance]) -> Iterator[Finding]:
    """Report the processes that died last, each by name, and count the rest."""
    newest_first = sorted(dead, key=lambda instance: instance.heartbeat_at, reverse=True)
    for one in newest_first[:_MAX_LISTED_DEAD]:
        at = f"{one.heartbeat_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        what = f"The {one.kind.value} {one.name} ended without saying so; it was last alive at {at}."
        to_do = "Look at its log, and at the memory of its machine. This is shown for a day."
        yield Finding.warning(INSTANCES, what, to_do)
    if more := newest_first[_MAX_LISTED_DEAD:]:
        to_do = "Look at what ends them: a kill for want of memory, a time-out of the service manager."
        yield Finding.warning(INSTANCES, f"{len(more)} more ended so within a day.", to_do)


def connections_finding(processes: int, pool_max: int, connections: int) -> Finding:
    """Compare the connections that `processes` may open with those that the database allows."""
    needed = processes * (pool_max + _OTHER_CONNECTIONS)
    what = (
        f"{processes} processes may open {needed} connections (desktop.database.pool_max = {pool_max}), "
        f"and PostgreSQL gives {connections}"
    )
    to_do = "Raise max_connections, lower desktop.database.pool_max, or run fewer processes."
    if needed > _ERROR_SHARE * connections:
        return Finding.error(CONNECTIONS, f"{what}: under load calls fail with database_unavailable.", to_do)
    if needed > _WARNING_SHARE * connections:
        return Finding.warning(CONNECTIONS, f"{what}: there is hardly room for one more.", to_do)
    return Finding.ok(CONNECTIONS, f"{what}.")
