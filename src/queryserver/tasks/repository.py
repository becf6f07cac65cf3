"""Task records, and the list of tasks and statement jobs. All times are from the database clock."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.platform.database import Connection, Database, Row
from queryserver.platform.ownership import OwnedTable
from queryserver.tasks.model import (
    STATEMENT,
    STATEMENT_STATES,
    ActiveCounts,
    ClaimedTask,
    NewTask,
    Task,
    TaskEnd,
    TaskFilter,
    TaskName,
    TaskState,
)

_BATCH = 500

_SUBMIT = """
insert into tasks (id, name, params, owner_id) values ($1, $2, $3, $4) on conflict (id) do nothing
"""

TASKS = OwnedTable("tasks", active="state in ('queued', 'running')")

# If a worker died and the task is claimed again, it keeps its first start time, because its work began then.
_CLAIM = f"""
update tasks set state = 'running', {TASKS.claimed("$1")}, started_at = coalesce(started_at, now()), progress = 0,
    message = ''
where id = (
    select id from tasks
    where {TASKS.active} and {TASKS.claimable(me="$1")} and name = any($2::text[]) and ($3 or state = 'queued')
    order by created_at, id limit 1 for update skip locked
) and {TASKS.may_claim("$1")}
returning id, name, params, owner_id, owner, fence, cancel_requested_at is not null as cancel_requested
"""

_CLAIMED_FIELDS = ("id", "params", "owner_id", "owner", "fence", "cancel_requested")

_REPORT = f"""
update tasks set progress = greatest(progress, $4), message = $5 where {TASKS.fenced}
returning cancel_requested_at is not null as cancel_requested
"""

_FINISH = f"""
update tasks set state = $4, ended_at = now(), message = $5, result = $6, {TASKS.released},
    progress = case when $4 = 'finished' then 100 else progress end
where {TASKS.fenced}
"""

# If a cancel is requested, the task ends instead of returning to the queue.
_RELEASE = f"""
update tasks set {TASKS.released},
    state = case when cancel_requested_at is null then 'queued' else 'canceled' end,
    ended_at = case when cancel_requested_at is null then null else now() end,
    message = case when cancel_requested_at is null then '' else 'Canceled.' end
where {TASKS.fenced}
"""

_CANCEL = """
update tasks set cancel_requested_at = coalesce(cancel_requested_at, now()),
    state = case when state = 'queued' then 'canceled' else state end,
    ended_at = case when state = 'queued' then now() end,
    message = case when state = 'queued' then 'Canceled.' else message end
where id = $1 and state in ('queued', 'running')
returning state
"""

_EXPIRED_TASKS = "select id from tasks where ended_at < now() - $1::interval order by ended_at limit $2"

# The redundant `state in` repeats the condition of the partial index, so that PostgreSQL can use the index.
_COUNT_ACTIVE = """
select
    (select count(*) from tasks where state = 'queued') as queued_tasks,
    (select count(*) from tasks where state = 'running') as running_tasks,
    (select count(*) from statements where state = 'waiting' and not is_script) as waiting,
    (
        select count(*) from statements
        where state in ('waiting', 'running') and state = 'running' and not is_script
    ) as running
"""

_COLUMNS = "id, name, params, state, owner_id, created_at, started_at, ended_at, progress, message, result"

_STATES = " ".join(
    f"when state in ({', '.join(repr(one.value) for one in states)}) then '{state}'"
    for state, states in STATEMENT_STATES.items()
)
# An engine's error message may quote the statement, but its error code does not.
_STATEMENT_COLUMNS = f"""id, '{STATEMENT}' as name,
    jsonb_build_object('connector', connector, 'history_uuid', id) as params,
    case {_STATES} end as state, user_id as owner_id, recorded_at as created_at, sent_at as started_at, ended_at,
    progress, coalesce(error_code, '') as message,
    case when ended_at is not null and error_code is null then jsonb_build_object('rows', rows) end as result"""

_RECENT = "recorded_at > now() - {keep}::interval"
_ACTIVE = "state in ('waiting', 'running')"  # repeats the condition of the partial indexes

_LISTED = """
select shown.*, coalesce(username, '') as owner from ({rows}) as shown left join users on users.id = owner_id
"""


async def submit_with(connection: Connection, new: NewTask) -> None:
    """Submit a task as part of the current transaction."""
    await connection.execute(_SUBMIT, new.id, new.name, dict(new.params), new.owner_id)


class TaskRecords:
    """Reads and writes task records, one transaction per method. All methods raise DatabaseUnavailable.

    `keep` is how long tasks and statement jobs are listed.
    """

    def __init__(self, database: Database, *, keep: timedelta) -> None:
        self._database = database
        self._keep = keep

    async def submit(self, new: NewTask) -> None:
        """Submit a task. Repeated calls with the same id have no effect."""
        async with self._database.connection() as connection:
            await submit_with(connection, new)

    async def claim(self, *, owner: str, may_take_over: bool = True) -> ClaimedTask | None:
        """Claim the oldest task that is waiting, or whose worker died if `may_take_over` is set. Return None if there
        is none.
        """
        # Only known tasks are claimed, because a newer version may have submitted others.
        row = await self._database.row(_CLAIM, owner, [name.value for name in TaskName], may_take_over)
        if row is None:
            return None
        return ClaimedTask(**{name: row[name] for name in _CLAIMED_FIELDS}, name=TaskName(row["name"]))

    async def report(self, claimed: ClaimedTask, *, progress: int, message: str) -> bool | None:
        """Record progress, and return whether a cancel is requested.

        Return None if another worker has the task, or if the task has ended.
        """
        row = await self._database.row(_REPORT, *_fence(claimed), progress, message)
        return None if row is None else row["cancel_requested"]

    async def finish(self, claimed: ClaimedTask, end: TaskEnd) -> bool:
        """Record the end of a task. Return False if another worker has the task."""
        result = None if end.result is None else dict(end.result)
        return await self._database.execute(_FINISH, *_fence(claimed), end.state, end.message, result) == 1

    async def release(self, claimed: ClaimedTask) -> bool:
        """Release the task to other workers immediately. Return False if another worker already has it."""
        return await self._database.execute(_RELEASE, *_fence(claimed)) == 1

    async def request_cancel(self, task_id: UUID) -> TaskState | None:
        """Request cancellation, and return the new state. A queued task is canceled immediately.

        Return None if the task has ended or is unknown.
        """
        state = await self._database.value(_CANCEL, task_id)
        return None if state is None else TaskState(state)

    async def find(self, task_id: UUID) -> Task | None:
        """Return a task, or a statement job of any age. None if the id is unknown."""
        rows = f"""select {_COLUMNS} from tasks where id = $1
            union all select {_STATEMENT_COLUMNS} from statements where id = $1"""
        row = await self._database.row(_LISTED.format(rows=rows), task_id)
        return None if row is None else _task_from_row(row)

    async def page(self, filters: TaskFilter, *, offset: int, limit: int) -> tuple[Sequence[Task], int]:
        """Return one page of tasks and recent statement jobs, newest first, and their total number."""
        sources, arguments = self._sources(filters)
        offset_at, limit_at = f"${len(arguments) + 1}::bigint", f"${len(arguments) + 2}::bigint"
        # Each source is read in index order, and only up to the end of the page.
        parts = [
            f"(select {columns} from {table} where {condition} order by {moment} desc, id desc"
            f" limit {offset_at} + {limit_at})"
            for columns, table, condition, moment in sources
        ]
        newest_first = "order by created_at desc, id desc"
        rows = (
            f"select * from ({' union all '.join(parts)}) as found {newest_first} offset {offset_at} limit {limit_at}"
        )
        counts = " + ".join(f"(select count(*) from {table} where {where})" for _, table, where, _ in sources)
        page = await self._database.fetch(f"{_LISTED.format(rows=rows)} {newest_first}", *arguments, offset, limit)
        return [_task_from_row(row) for row in page], await self._database.value(f"select {counts}", *arguments)

    def _sources(self, filters: TaskFilter) -> tuple[Sequence[tuple[str, str, str, str]], list[Any]]:
        """Return the columns, table, condition and time column of each source, and the arguments of the conditions."""
        arguments: list[Any] = []
        sources: list[tuple[str, str, str, str]] = []
        if filters.name != STATEMENT:
            conditions = ["true"]
            for column, value in (("state", filters.state), ("name", filters.name)):
                if value is not None:
                    arguments.append(value)
                    conditions.append(f"{column} = ${len(arguments)}")
            sources.append((_COLUMNS, "tasks", " and ".join(conditions), "created_at"))
        if filters.name in (None, STATEMENT):
            for condition in _statement_conditions(filters.state):
                if "{keep}" in condition and self._keep not in arguments:
                    arguments.append(self._keep)
                shown = condition.format(keep=f"${len(arguments)}")
                sources.append((_STATEMENT_COLUMNS, "statements", shown, "recorded_at"))
        return sources, arguments

    async def active(self) -> ActiveCounts:
        row = await self._database.row(_COUNT_ACTIVE)
        if row is None:  # a select of counts always has one row
            return ActiveCounts(0, 0, 0)
        queued, running = row["queued_tasks"] + row["waiting"], row["running_tasks"] + row["running"]
        return ActiveCounts(queued, running, queued_tasks=row["queued_tasks"])

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Delete tasks that are no longer listed. Return their number. If `dry_run` is set, only count them."""
        if dry_run:
            count = f"select count(*) from ({_EXPIRED_TASKS}) as forgotten"
            return {"ended tasks": await self._database.value(count, self._keep, 2**31)}
        total, deleted = 0, _BATCH
        while deleted == _BATCH:
            deleted = await self._database.execute(
                f"delete from tasks where id in ({_EXPIRED_TASKS} for update skip locked)", self._keep, _BATCH
            )
            total += deleted
        return {"ended tasks": total}


def _statement_conditions(state: TaskState | None) -> Sequence[str]:
    """Return disjoint conditions for the listed statements, each of which can use a single index."""
    if state is None:
        return _RECENT, f"{_ACTIVE} and not {_RECENT}"
    states = f"state in ({', '.join(repr(one.value) for one in STATEMENT_STATES[state])})"
    return [f"{states} and {_ACTIVE if state in (TaskState.QUEUED, TaskState.RUNNING) else _RECENT}"]


def _fence(claimed: ClaimedTask) -> tuple[UUID, str, int]:
    return claimed.id, claimed.owner, claimed.fence


def _task_from_row(row: Row) -> Task:
    return Task(
        id=row["id"],
        name=row["name"],
        params=row["params"],
        state=TaskState(row["state"]),
        owner=row["owner"],
        created=row["created_at"],
        started=row["started_at"],
        ended=row["ended_at"],
        progress=row["progress"],
        message=row["message"],
        result=row["result"],
    )
