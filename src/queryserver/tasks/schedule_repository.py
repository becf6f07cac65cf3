"""The records of schedules and their runs in the service database. All times are from the database clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import structlog

from queryserver import errors
from queryserver.errors.base import InvalidParameter
from queryserver.platform.database import Connection, Database, Row
from queryserver.tasks.deliveries import Message, Outbox, new_deliveries
from queryserver.tasks.model import (
    DueRun,
    NewTask,
    Notify,
    Overlap,
    RunEnd,
    RunStatus,
    Schedule,
    ScheduleDefinition,
    ScheduleKind,
    ScheduleRun,
    TaskName,
)
from queryserver.tasks.repository import submit_with

# Columns with the same name as a definition field. Enumerations and `notify` are converted separately.
_DEFINITION_FIELDS = (
    "name", "enabled", "connector", "database", "statement", "document", "parameters", "into", "task", "params",
    "cron", "interval_s", "timezone", "expires_at",
)  # fmt: skip
COLUMNS = f"""s.id, s.version, s.owner_id, s.next_run_at, s.last_run_at, s.last_status, s.last_statement_id,
    s.total_runs, {", ".join(f's."{name}"' for name in _DEFINITION_FIELDS)},
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
        """Return the number of matching schedules and one page of them, sorted by name."""
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

    async def runs(self, schedule_id: int, *, offset: int, limit: int) -> tuple[int, Sequence[ScheduleRun]]:
        """Return the number of recorded runs of a schedule and one page of them, newest first."""
        count = await self._database.value("select count(*) from schedule_runs where schedule_id = $1", schedule_id)
        rows = await self._database.fetch(
            """select fire_id, due_at, status, message, statement_id, task_id, fired_at, ended_at
            from schedule_runs where schedule_id = $1
            order by fired_at desc, fire_id desc offset $2 limit $3""",
            schedule_id,
            offset,
            limit,
        )
        return count, [_run_from_row(row) for row in rows]

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
        columns = ", ".join(f'"{name}"' for name in names)
        schedule_id = await self._write(
            definition,
            f"insert into schedules ({columns}) values ({placeholders}) returning id",
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
        changes = ", ".join(f'"{name}" = ${number}' for number, name in enumerate(_columns(definition), 6))
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
                raise errors.schedule_running(f"The previous run of {schedule.definition.name} is still in progress.")
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
            raise errors.NameTaken(f"A schedule named {definition.name} already exists.") from None
        except asyncpg.ForeignKeyViolationError:
            raise errors.unknown_user(definition.owner) from None


async def insert_run(connection: Connection, schedule: Schedule, due: datetime, status: str = "") -> str:
    """Record the run that is due at this time, unless it is already recorded. Return its fire id."""
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


def _run_from_row(row: Row) -> ScheduleRun:
    return ScheduleRun(
        fire_id=row["fire_id"],
        due=row["due_at"],
        status=RunStatus(row["status"]),
        message=row["message"],
        history_uuid=row["statement_id"],
        task_id=row["task_id"],
        started=row["fired_at"],
        ended=row["ended_at"],
    )


log = structlog.get_logger(__name__)

_BATCH = 50
_LATE_AFTER = timedelta(minutes=10)
# Idempotency keys are kept for 24 hours. After that, a retry would submit the statement a second time.
_SUBMIT_WITHIN = timedelta(hours=20)

# Excludes schedules that wait for their previous run. Otherwise, 50 such schedules would block all others.
_DUE = f"""
select {COLUMNS}, now() as read_at from {SCHEDULES}
where s.enabled and s.next_run_at <= now() and (s.overlap = 'skip' or not exists (
    select from schedule_runs r where r.schedule_id = s.id and r.status = ''
))
order by s.next_run_at limit {_BATCH} for update of s skip locked
"""

# The first run of each schedule that has no run in progress. The least recently tried runs come first. Otherwise, 50
# runs that always fail would block all others.
_UNSUBMITTED = f"""
with first as (
    select distinct on (schedule_id) fire_id, due_at, tried_at from schedule_runs r
    where status = '' and statement_id is null and task_id is null and not exists (
        select from schedule_runs o
        where o.schedule_id = r.schedule_id and o.status = '' and (o.statement_id is not null or o.task_id is not null)
    )
    order by schedule_id, due_at
), turn as (
    select r.fire_id from schedule_runs r join first using (fire_id)
    order by first.tried_at nulls first, first.due_at limit {_BATCH} for update of r skip locked
)
update schedule_runs r set tried_at = now() from turn
where r.fire_id = turn.fire_id and r.status = ''
returning r.fire_id, r.schedule_id, r.owner_id, r.job,
    coalesce(r.submitting_at, now()) < now() - $1::interval as is_late
"""

_ENDED = """
select r.fire_id, s.state, coalesce(s.message, t.message) as message, t.state as task_state, s.rows,
    coalesce(s.sent_at, s.recorded_at, t.started_at, t.created_at) as started,
    coalesce(s.ended_at, t.ended_at, now()) as ended, s.id is null and t.id is null as is_gone
from schedule_runs r left join statements s on s.id = r.statement_id left join tasks t on t.id = r.task_id
where r.status = '' and (r.statement_id is not null or r.task_id is not null)
    and coalesce(s.state, t.state, '') not in ('waiting', 'running', 'queued')
limit 200
"""

# `not $4` means that the submission failed. The run then ends only if no other beat has submitted it since.
_END = """
update schedule_runs set status = $2, message = $3, ended_at = now()
where fire_id = $1 and status = '' and ($4 or (statement_id is null and task_id is null))
returning schedule_id, owner_id, job, statement_id, fired_at
"""

_SUCCESS_STATES = frozenset({"available", "success", "expired", "closed", "finished"})


class ScheduleRuns:
    """Reads and writes the `schedule_runs` table. Any number of beats may call each method concurrently."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox

    async def claim_due(self) -> Sequence[RunStatus]:
        """Record a run for each due schedule and set its next time. Return the statuses of the recorded runs.

        If a schedule has missed several fires, a single run is recorded, with the time of the first missed fire.
        """
        async with self._database.transaction() as connection:
            due = await connection.fetch(_DUE)
            # Read after the rows are locked, because a call may have started a run in the meantime.
            running = {
                row["schedule_id"]
                for row in await connection.fetch(
                    "select schedule_id from schedule_runs where status = '' and schedule_id = any($1::bigint[])",
                    [row["id"] for row in due],
                )
            }
            claimed = [await self._claim_row(connection, row, is_running=row["id"] in running) for row in due]
        return [status for status in claimed if status is not None]

    async def _claim_row(self, connection: Connection, row: Row, *, is_running: bool) -> RunStatus | None:
        try:
            async with connection.transaction():  # a savepoint, so that a failure does not affect the other rows
                return await self._claim(connection, schedule_from_row(row), row["read_at"], is_running=is_running)
        except (asyncpg.InterfaceError, OSError):  # the connection failed, not the row
            raise
        except Exception:  # a row written by a newer version must not prevent other schedules from firing
            log.exception("schedule could not be read", schedule=row["id"])
            return None

    async def _claim(
        self, connection: Connection, schedule: Schedule, now: datetime, *, is_running: bool
    ) -> RunStatus | None:
        definition, due = schedule.definition, schedule.next_run
        if due is None or (is_running and definition.overlap is Overlap.QUEUE):
            return None
        try:
            next_time = definition.next_time(now, due=due)
        except (ValueError, InvalidParameter) as error:  # for example, a time zone that this system no longer knows
            log.warning("schedule disabled", schedule=schedule.id, reason=str(error))
            await connection.execute(
                "update schedules set enabled = false, version = version + 1 where id = $1", schedule.id
            )
            return None
        is_over = definition.expires_at is not None and due > definition.expires_at
        status = RunStatus.SKIPPED if is_running else RunStatus.OPEN
        if not is_over:
            await insert_run(connection, schedule, due, status.value)
        starts = not is_over and not is_running
        await connection.execute(
            """update schedules set next_run_at = $2,
                last_run_at = case when $3 then now() else last_run_at end,
                last_statement_id = case when $3 then null else last_statement_id end,
                last_status = case when $4 then last_status else $5 end,
                total_runs = total_runs + case when $3 then 1 else 0 end
            where id = $1""",
            schedule.id,
            next_time,
            starts,
            is_over,
            status.value,
        )
        return None if is_over else status

    async def unsubmitted(self) -> Sequence[DueRun]:
        """Return runs without a recorded statement or task, including those recorded by a beat that has died."""
        rows = await self._database.fetch(_UNSUBMITTED, _LATE_AFTER)
        return [DueRun(row["fire_id"], row["schedule_id"], row["owner_id"], row["job"], row["is_late"]) for row in rows]

    async def may_submit(self, fire_id: str) -> bool:
        """Return whether the run may be submitted, and record the time of the first attempt.

        Returns False once the idempotency key of the first attempt may have expired, or if the run has ended.
        """
        return bool(
            await self._database.value(
                """update schedule_runs set submitting_at = coalesce(submitting_at, now())
                where fire_id = $1 and status = '' returning submitting_at > now() - $2::interval""",
                fire_id,
                _SUBMIT_WITHIN,
            )
        )

    async def record_statement(self, fire_id: str, statement_id: UUID) -> bool:
        """Record the run's statement. Return False if another beat has already recorded it."""
        return bool(
            await self._database.execute(
                """with run as (
                    update schedule_runs set statement_id = $2
                    where fire_id = $1 and status = '' and statement_id is null returning schedule_id
                ) update schedules set last_statement_id = $2 from run where id = run.schedule_id""",
                fire_id,
                statement_id,
            )
        )

    async def queue_task(self, run: DueRun) -> bool:
        """Queue the run's task once. Return False if it is already queued."""
        async with self._database.transaction() as connection:
            is_open = await connection.fetchval(
                "select true from schedule_runs where fire_id = $1 and status = '' and task_id is null for update",
                run.fire_id,
            )
            if is_open:
                task_id = uuid4()
                task = NewTask(task_id, TaskName(run.job["task"]), run.job["params"], run.owner_id)
                await submit_with(connection, task)
                await connection.execute(
                    "update schedule_runs set task_id = $2 where fire_id = $1", run.fire_id, task_id
                )
        return bool(is_open)

    async def find_ended(self) -> Sequence[RunEnd]:
        """Return the ends of runs whose statement or task has ended, but whose end is not recorded yet."""
        return [_run_end_from_row(row) for row in await self._database.fetch(_ENDED)]

    async def end(self, end: RunEnd) -> bool:
        """Record the end of a run and its notifications in one transaction. Return False if the end is already
        recorded.
        """
        async with self._database.transaction() as connection:
            run = await connection.fetchrow(_END, end.fire_id, end.status.value, end.message, end.was_submitted)
            if run is None:
                return False
            await connection.execute(
                """update schedules set last_status = $2, enabled = enabled and not $3,
                    version = version + case when enabled and $3 then 1 else 0 end,
                    next_run_at = case when $3 then null else next_run_at end
                where id = $1""",
                run["schedule_id"],
                end.status.value,
                end.disables_schedule,
            )
            notify = run["job"]["notify"]
            if notify:
                message = Message(
                    event=end.status.value,
                    name=run["job"]["name"],
                    connector=run["job"]["connector"] or "",
                    state=end.state or end.status.value,
                    started=end.started or run["fired_at"],
                    duration_ms=end.duration_ms,
                    rows=end.rows,
                    history_uuid=run["statement_id"],
                    error=end.message if end.status is RunStatus.FAILED else "",
                    owner_id=run["owner_id"],
                )
                about = str(run["statement_id"] or end.fire_id)
                await self._outbox.add(connection, new_deliveries(about, message, Notify.of(notify)))
        return True

    async def delete_ended(self, *, older_than: timedelta) -> None:
        """Delete the records of runs that ended more than `older_than` ago."""
        await self._database.execute(
            "delete from schedule_runs where status <> '' and ended_at < now() - $1::interval", older_than
        )


def _run_end_from_row(row: Row) -> RunEnd:
    state = row["state"] or row["task_state"] or ""
    if row["is_gone"]:
        return RunEnd(row["fire_id"], RunStatus.FAILED, "The record of the run no longer exists.", was_submitted=True)
    return RunEnd(
        row["fire_id"],
        RunStatus.FINISHED if state in _SUCCESS_STATES else RunStatus.FAILED,
        message=row["message"] or "",
        state=state,
        started=row["started"],
        duration_ms=round((row["ended"] - row["started"]) / timedelta(milliseconds=1)),
        rows=row["rows"] or 0,
        was_submitted=True,
    )
