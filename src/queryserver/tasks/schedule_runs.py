"""Schedule run records in the service database. All times are from the database clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import structlog

from queryserver.errors.base import InvalidParameter
from queryserver.platform.database import Connection, Database, Row
from queryserver.tasks.deliveries import Message, Outbox, new_deliveries
from queryserver.tasks.model import NewTask, TaskName
from queryserver.tasks.repository import submit_with
from queryserver.tasks.schedule_model import DueRun, Notify, Overlap, RunEnd, RunStatus, Schedule
from queryserver.tasks.schedule_repository import COLUMNS, SCHEDULES, insert_run, schedule_from_row

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
            async with connection.transaction():  # a savepoint
                return await self._claim(connection, schedule_from_row(row), row["read_at"], is_running=is_running)
        except (asyncpg.InterfaceError, OSError):  # the connection failed, not the row
            raise
        except Exception:  # a row written by a newer version must not prevent other schedules from firing
            log.exception("schedule not read", schedule=row["id"])
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
            log.warning("schedule switched off", schedule=schedule.id, reason=str(error))
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
        """Return whether the run may be submitted. False once its idempotency key may have expired."""
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
        """Return the ends of statements and tasks whose runs are still open."""
        return [_run_end_from_row(row) for row in await self._database.fetch(_ENDED)]

    async def end(self, end: RunEnd) -> bool:
        """Record an end and its notifications in one transaction. Return False if it is already recorded."""
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
        return RunEnd(row["fire_id"], RunStatus.FAILED, "The record of the run is gone.", was_submitted=True)
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
