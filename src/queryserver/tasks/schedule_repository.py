"""Schedule records in the service database."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from queryserver import errors
from queryserver.platform.database import Connection, Database, Row
from queryserver.tasks.schedule_model import Notify, Overlap, Schedule, ScheduleDefinition, ScheduleKind

# Columns with the same name as a definition field. Enumerations and `notify` are converted separately.
_DEFINITION_FIELDS = (
    "name", "enabled", "connector", "database", "statement", "task", "params", "cron", "interval_s", "timezone",
    "expires_at",
)  # fmt: skip
COLUMNS = f"""s.id, s.version, s.owner_id, s.next_run_at, s.last_run_at, s.last_status, s.last_statement_id,
    s.total_runs, {", ".join(f"s.{name}" for name in _DEFINITION_FIELDS)},
    s.kind, s.overlap, s.notify, u.username as owner"""
SCHEDULES = "schedules s join users u on u.id = s.owner_id"
_FILTER = "where ($1::bool is null or s.enabled = $1) and ($2::text is null or u.username_key = $2)"

FIRE_ID = "'beat:' || {schedule} || ':' || floor(extract(epoch from {due}) * 1000)::bigint"


class ScheduleRecords:
    """Reads and writes the `schedules` table. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        """Return the current time of the database clock, which determines when schedules fire."""
        return await self._database.value("select now()")

    async def page(
        self, *, enabled: bool | None, owner_key: str | None, offset: int, limit: int
    ) -> tuple[int, Sequence[Schedule]]:
        """Return the number of matches and one page of them, sorted by name."""
        count = await self._database.value(f"select count(*) from {SCHEDULES} {_FILTER}", enabled, owner_key)
        rows = await self._database.fetch(
            f"""select {COLUMNS} from {SCHEDULES} {_FILTER}
            order by lower(s.name) collate "C", s.id offset $3 limit $4""",
            enabled,
            owner_key,
            offset,
            limit,
        )
        return count, [schedule_from_row(row) for row in rows]

    async def read(self, schedule_id: int) -> Schedule:
        """Return a schedule. Raises schedule_not_found."""
        row = await self._database.row(f"select {COLUMNS} from {SCHEDULES} where s.id = $1", schedule_id)
        if row is None:
            raise errors.schedule_not_found(schedule_id)
        return schedule_from_row(row)

    async def active_user(self, username_key: str) -> tuple[int, str] | None:
        """Return the id and name of an active user. None if there is no such user."""
        row = await self._database.row(
            "select id, username from users where username_key = $1 and is_active", username_key
        )
        return (row["id"], row["username"]) if row else None

    async def insert(self, definition: ScheduleDefinition, owner_id: int, next_run: datetime | None) -> int:
        """Insert a schedule and return its id. Raises NameTaken."""
        names = ("owner_id", "next_run_at", *_columns(definition))
        placeholders = ", ".join(f"${number}" for number in range(1, len(names) + 1))
        schedule_id = await self._write(
            definition,
            f"insert into schedules ({', '.join(names)}) values ({placeholders}) returning id",
            owner_id,
            next_run,
            *_columns(definition).values(),
        )
        assert schedule_id is not None  # noqa: S101 an insert returns its row
        return schedule_id

    async def update(
        self,
        schedule_id: int,
        version: int,
        definition: ScheduleDefinition,
        owner_id: int,
        next_run: datetime | None,
        *,
        new_times: bool,
    ) -> bool:
        """Update the schedule. Return False if it no longer has this version. Raises NameTaken."""
        changes = ", ".join(f"{name} = ${number}" for number, name in enumerate(_columns(definition), 6))
        changed = await self._write(
            definition,
            f"""update schedules set owner_id = $3, {changes}, version = version + 1, changed_at = now(),
                next_run_at = case when $5 then $4::timestamptz else next_run_at end
            where id = $1 and version = $2 returning id""",
            schedule_id,
            version,
            owner_id,
            next_run,
            new_times,
            *_columns(definition).values(),
        )
        return changed is not None

    async def delete(self, schedule_id: int) -> None:
        """Delete a schedule. Raises schedule_not_found."""
        if not await self._database.execute("delete from schedules where id = $1", schedule_id):
            raise errors.schedule_not_found(schedule_id)

    async def fire_now(self, schedule_id: int) -> str:
        """Record a run that is due immediately, and return its fire id.

        If a run is already queued, return that run's fire id instead. Raises schedule_not_found, schedule_running.
        """
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(
                f"select {COLUMNS} from {SCHEDULES} where s.id = $1 for update of s", schedule_id
            )
            if row is None:
                raise errors.schedule_not_found(schedule_id)
            schedule = schedule_from_row(row)
            waiting = await connection.fetch(
                """select fire_id, statement_id is null and task_id is null as waits from schedule_runs
                where schedule_id = $1 and status = '' order by due_at""",
                schedule_id,
            )
            if waiting and schedule.definition.overlap is Overlap.SKIP:
                raise errors.schedule_running(f"The last run of {schedule.definition.name} has not ended.")
            if queued := [run["fire_id"] for run in waiting if run["waits"]]:
                return queued[0]
            fire_id = await insert_run(connection, schedule, await connection.fetchval("select now()"))
            await connection.execute(
                "update schedules set last_run_at = now(), last_status = '', last_statement_id = null,"
                " total_runs = total_runs + 1 where id = $1",
                schedule_id,
            )
            return fire_id

    async def _write(self, definition: ScheduleDefinition, sql: str, *arguments: object) -> int | None:
        try:
            return await self._database.value(sql, *arguments)
        except asyncpg.UniqueViolationError:
            raise errors.NameTaken(f"A schedule named {definition.name} exists already.") from None
        except asyncpg.ForeignKeyViolationError:
            raise errors.unknown_user(definition.owner) from None


async def insert_run(connection: Connection, schedule: Schedule, due: datetime, status: str = "") -> str:
    """Record the fire that is due at this time, unless it is already recorded. Return its id."""
    fire_id = await connection.fetchval(f"select {FIRE_ID.format(schedule='$1::text', due='$2::timestamptz')}",
                                        str(schedule.id), due)  # fmt: skip
    await connection.execute(
        """insert into schedule_runs (fire_id, schedule_id, due_at, owner_id, job, status, ended_at)
        values ($1, $2, $3, $4, $5, $6, case when $6 = '' then null else now() end) on conflict (fire_id) do nothing""",
        fire_id,
        schedule.id,
        due,
        schedule.owner_id,
        schedule.job(),
        status,
    )
    return fire_id


def _columns(definition: ScheduleDefinition) -> dict[str, object]:
    same = {name: getattr(definition, name) for name in _DEFINITION_FIELDS}
    return {
        **same,
        "params": dict(definition.params),
        "kind": definition.kind.value,
        "overlap": definition.overlap.value,
        "notify": definition.notify.stored() if definition.notify else None,
    }


def schedule_from_row(row: Row) -> Schedule:
    """Build a schedule from a row with COLUMNS."""
    notify = row["notify"]
    definition = ScheduleDefinition(
        **{name: row[name] for name in _DEFINITION_FIELDS},
        owner=row["owner"],
        kind=ScheduleKind(row["kind"]),
        overlap=Overlap(row["overlap"]),
        notify=Notify.of(notify) if notify else None,
    )
    return Schedule(
        id=row["id"],
        version=row["version"],
        definition=definition,
        owner_id=row["owner_id"],
        next_run=row["next_run_at"],
        last_run=row["last_run_at"],
        last_status=row["last_status"],
        last_history_uuid=row["last_statement_id"],
        total_runs=row["total_runs"],
    )
