"""Tasks in a real database: claims, cancellation and completion. The tests replace the tasks' work with
scripts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry
from tests.api.driving import until
from tests.fixtures.database import PATIENT

from queryserver.errors.base import DatabaseUnavailable, InvalidParameter
from queryserver.platform.database import Database, Notices, listening, open_database
from queryserver.platform.metrics import Metrics
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.platform.threads import Progress
from queryserver.tasks.execution import CANCEL, TaskRunner, TaskTimes
from queryserver.tasks.model import ClaimedTask, NewTask, Task, TaskEnd, TaskFilter, TaskName, TaskState
from queryserver.tasks.repository import TaskRecords

LEASE = timedelta(seconds=30)
DONE = TaskEnd(TaskState.FINISHED, "12 documents deleted.", {"documents": 12})


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as opened:
        await opened.execute(
            "insert into users (id, username, username_key) overriding system value values (1, 'ana', 'ana')"
        )
        # Processes that are alive, although they send no heartbeats.
        await opened.execute(
            """insert into instances (id, kind, name, version, alive_until)
            select id, 'worker', 'host-1', '1', now() + interval '1 hour' from unnest($1::text[]) as id""",
            ["one", "two", *map(str, range(8))],
        )
        yield opened


@pytest.fixture
def records(database: Database) -> TaskRecords:
    return TaskRecords(database, keep=timedelta(days=30))


class Work:
    """A task's work, which lasts until the test sets `may_end`."""

    def __init__(self, end: TaskEnd | Exception = DONE) -> None:
        self.end = end
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.progress: Progress = lambda _share, _text: None
        self.runs = 0
        self.was_stopped = False

    async def __call__(self, task: ClaimedTask, progress: Progress) -> TaskEnd:
        self.runs += 1
        self.progress = progress
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_stopped = True
            raise
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def runner_of(
    records: TaskRecords,
    work: Work,
    owner: str = "one",
    *,
    heartbeat_s: float = 0.05,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.monotonic,
    **times: timedelta,
) -> TaskRunner:
    ownership = Ownership(records._database, lease=timedelta(hours=1), name=owner, clock=clock)
    task_times = TaskTimes(heartbeat=timedelta(seconds=heartbeat_s), **times)
    return TaskRunner(
        ownership, records, work, task_times, metrics=metrics or Metrics(CollectorRegistry(), dialects=())
    )


async def alive(runner: TaskRunner) -> TaskRunner:
    """Send the first heartbeat, without which the runner takes over no tasks."""
    await runner._ownership.beat(Role.WORKER, Load())
    return runner


async def submitted(records: TaskRecords, name: TaskName = TaskName.DOCUMENT_CLEANUP) -> UUID:
    new = NewTask(uuid4(), name, {"keep_days": 30}, 1)
    await records.submit(new)
    return new.id


async def shown(records: TaskRecords, task_id: UUID) -> Task:
    found = await records.find(task_id)
    assert found is not None
    return found


@asynccontextmanager
async def running(runner: TaskRunner, work: Work) -> AsyncIterator["asyncio.Task[bool]"]:
    """Provide a running task."""
    run = asyncio.create_task(runner.run_next())
    try:
        await asyncio.wait_for(work.begun.wait(), 30)
        yield run
    finally:
        work.may_end.set()
        await asyncio.gather(run, return_exceptions=True)


async def test_task_runs_to_its_end_and_is_recorded(records: TaskRecords):
    work = Work()
    registry = CollectorRegistry()
    runner = runner_of(records, work, metrics=Metrics(registry, dialects=()))
    task_id = await submitted(records)
    assert (await shown(records, task_id)).state is TaskState.QUEUED
    async with running(runner, work) as run:
        task = await shown(records, task_id)
        assert (task.state, task.owner, task.ended, runner.active) == (TaskState.RUNNING, "ana", None, 1)
        work.may_end.set()
        assert await run
    task = await shown(records, task_id)
    assert (task.state, task.progress, task.message, task.result) == (
        TaskState.FINISHED, 100, "12 documents deleted.", {"documents": 12},
    )  # fmt: skip
    assert task.started is not None
    assert task.ended is not None
    assert task.created <= task.started <= task.ended
    labels = {"task": "document_cleanup", "outcome": "finished"}
    assert registry.get_sample_value("queryserver_tasks_total", labels) == 1
    assert not await runner.run_next()
    assert runner.active == 0


async def test_progress_is_written_during_the_run_and_never_decreases(records: TaskRecords):
    work = Work()
    task_id = await submitted(records)
    async with running(runner_of(records, work), work):
        work.progress(0.4, "4 of 10")

        async def is_written() -> bool:
            task = await shown(records, task_id)
            return (task.progress, task.message) == (40, "4 of 10")

        await until(is_written)
        work.progress(0.2, "again")

        async def is_kept() -> bool:
            task = await shown(records, task_id)
            return (task.progress, task.message) == (40, "again")

        await until(is_kept)


class NotedRecords(TaskRecords):
    """Task records that also keep the progress sent by each heartbeat, because the database stores only the highest
    value.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database, keep=timedelta(days=30))
        self.reports: list[tuple[int, str]] = []

    async def report(self, claimed: ClaimedTask, *, progress: int, message: str) -> bool | None:
        self.reports.append((progress, message))
        return await super().report(claimed, progress=progress, message=message)


async def test_heartbeat_never_reports_decreasing_progress(database: Database):
    records, work = NotedRecords(database), Work()
    await submitted(records)
    async with running(runner_of(records, work), work):
        for share, message in ((0.4, "4 of 10"), (0.2, "again"), (1.2, "more than all")):
            work.progress(share, message)
            await until(lambda message=message: records.reports[-1:] and records.reports[-1][1] == message)
    assert [one for one in dict.fromkeys(records.reports) if one[1]] == [
        (40, "4 of 10"),
        (40, "again"),
        (100, "more than all"),
    ]


@pytest.mark.parametrize(
    ("error", "message"),
    [(InvalidParameter("Unknown dialect: x"), "Unknown dialect: x"), (RuntimeError("planted"), "Internal error.")],
)
async def test_failure_ends_the_task_without_secrets(records: TaskRecords, error: Exception, message: str):
    work = Work(error)
    work.may_end.set()
    task_id = await submitted(records)
    assert await runner_of(records, work).run_next()
    task = await shown(records, task_id)
    assert (task.state, task.message, task.result) == (TaskState.FAILED, message, None)


async def test_two_runners_never_claim_the_same_task(records: TaskRecords):
    ids = {await submitted(records) for _ in range(6)}
    claims = await asyncio.gather(*(records.claim(owner=str(number)) for number in range(8)))
    claimed = [claim.id for claim in claims if claim is not None]
    assert len(claimed) == len(ids)
    assert set(claimed) == ids


async def test_requested_cancel_takes_effect_with_the_heartbeat(records: TaskRecords):
    work = Work()
    task_id = await submitted(records)
    async with running(runner_of(records, work), work) as run:
        assert await records.request_cancel(task_id) is TaskState.RUNNING
        assert await asyncio.wait_for(run, 30)
    task = await shown(records, task_id)
    assert (task.state, task.message, task.result) == (TaskState.CANCELED, "Canceled.", None)
    assert await records.request_cancel(task_id) is None
    assert await shown(records, task_id) == task


async def test_cancel_notification_takes_effect_immediately(
    records: TaskRecords, database: Database, database_dsn: str
):
    """The runner's first heartbeat would come only after the end of this test, so only the notification can cancel the
    task.
    """
    work = Work()
    task_id = await submitted(records)
    runner = runner_of(records, work, heartbeat_s=600)
    connected = asyncio.Event()

    def notified(kind: str, subject: str) -> None:
        assert runner.notified(kind, subject)

    async with listening(database_dsn, notified, connected.set), running(runner, work) as run:
        await asyncio.wait_for(connected.wait(), 30)
        await records.request_cancel(task_id)
        await Notices(database).publish(CANCEL, str(task_id))
        assert await asyncio.wait_for(run, 30)
    assert (await shown(records, task_id)).state is TaskState.CANCELED
    assert runner.notified(CANCEL, "no id")
    assert not runner.notified("connectors", str(task_id))


async def test_queued_task_is_canceled_immediately_and_never_runs(records: TaskRecords):
    task_id = await submitted(records)
    assert await records.request_cancel(task_id) is TaskState.CANCELED
    assert (await shown(records, task_id)).ended is not None
    assert not await runner_of(records, Work()).run_next()
    assert await records.request_cancel(uuid4()) is None


async def died(database: Database, owner: str = "one") -> None:
    """Let the last heartbeat of a process become too old, as if it had died some time ago."""
    await database.execute("update instances set alive_until = now() - interval '1 s' where id = $1", owner)


async def test_task_of_a_dead_worker_runs_again_and_the_dead_worker_writes_nothing(records, database):
    first, second = Work(TaskEnd(TaskState.FAILED, "of the first")), Work()
    task_id = await submitted(records)
    # This runner acts as a stopped process: its next report would come only after the end of the test.
    async with running(runner_of(records, first, "one", heartbeat_s=600), first) as stopped:
        other = await alive(runner_of(records, second, "two"))
        assert not await other.run_next()
        began = (await shown(records, task_id)).started
        await died(database)
        second.may_end.set()
        assert await other.run_next()
        first.may_end.set()
        assert await asyncio.wait_for(stopped, 30)
    task = await shown(records, task_id)
    assert (task.state, task.message, task.started) == (TaskState.FINISHED, DONE.message, began)
    assert await database.value("select fence from tasks") == 2


async def test_runner_that_lost_its_task_stops_its_work(records: TaskRecords, database: Database):
    work = Work()
    task_id = await submitted(records)
    async with running(runner_of(records, work), work) as run:
        await database.execute("update tasks set owner = 'two', fence = fence + 1")
        assert await asyncio.wait_for(run, 30)
    assert work.was_stopped
    assert (await shown(records, task_id)).state is TaskState.RUNNING


async def test_cancel_of_a_task_of_a_dead_worker_needs_no_run(records: TaskRecords, database: Database):
    task_id = await submitted(records)
    assert await records.claim(owner="two") is not None
    await records.request_cancel(task_id)
    await died(database, "two")
    work = Work()
    runner = await alive(runner_of(records, work))
    assert await runner.run_next()
    assert ((await shown(records, task_id)).state, work.runs) == (TaskState.CANCELED, 0)


async def test_runner_whose_heartbeat_was_late_takes_over_tasks_only_after_the_heartbeats_of_others(
    records: TaskRecords, database: Database
):
    now, work = 0.0, Work()
    work.may_end.set()
    runner = await alive(runner_of(records, work, clock=lambda: now))
    started = await submitted(records)
    assert await records.claim(owner="two") is not None
    await died(database, "two")
    queued = await submitted(records)
    now += 3600
    assert await runner.run_next()
    assert (await shown(records, queued)).state is TaskState.FINISHED
    assert not await runner.run_next()
    now += 1800
    assert await runner.run_next()
    assert (await shown(records, started)).state is TaskState.FINISHED


async def test_sweep_runs_waiting_tasks_one_after_the_other(records: TaskRecords):
    work = Work()
    runner = runner_of(records, work, sweep_every=timedelta(seconds=0.01))
    ids = [await submitted(records) for _ in range(3)]
    async with runner.running():
        await asyncio.wait_for(work.begun.wait(), 30)
        assert runner.active == 1
        work.may_end.set()

        async def all_ended() -> bool:
            return all([(await shown(records, one)).ended is not None for one in ids])

        await until(all_ended)
    tasks = [await shown(records, one) for one in ids]
    assert [task.state for task in tasks] == [TaskState.FINISHED] * 3
    assert all(before.ended <= after.started for before, after in pairwise(tasks))  # type: ignore[operator]


@pytest.mark.parametrize("by_sweep", [True, False])
async def test_stopping_process_releases_its_task(records: TaskRecords, database: Database, by_sweep: bool):
    work = Work()
    runner = runner_of(records, work, sweep_every=timedelta(seconds=0.01 if by_sweep else 600))
    task_id = await submitted(records)
    async with runner.running():
        run = None if by_sweep else asyncio.create_task(runner.run_next())
        await asyncio.wait_for(work.begun.wait(), 30)
    task = await shown(records, task_id)
    assert (task.state, runner.active) == (TaskState.QUEUED, 0)
    assert await database.value("select owner is null and lease_until < now() from tasks")
    if run is not None:
        assert await run
    assert not await runner.run_next()
    work.may_end.set()
    assert await runner_of(records, work, "two").run_next()
    assert (await shown(records, task_id)).state is TaskState.FINISHED


async def test_canceled_caller_releases_its_task(records: TaskRecords):
    work = Work()
    runner = runner_of(records, work)
    task_id = await submitted(records)
    async with running(runner, work) as run:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert ((await shown(records, task_id)).state, runner.active) == (TaskState.QUEUED, 0)


async def test_task_may_finish_in_the_shutdown_grace_period(records: TaskRecords):
    work = Work()
    runner = runner_of(records, work, sweep_every=timedelta(seconds=0.01), shutdown_grace=timedelta(seconds=60))
    task_id = await submitted(records)
    async with runner.running():
        await asyncio.wait_for(work.begun.wait(), 30)
        asyncio.get_running_loop().call_later(0.05, work.may_end.set)
    assert (await shown(records, task_id)).state is TaskState.FINISHED


class Failing(TaskRecords):
    """Task records whose database is unavailable while `fails` returns True."""

    fails: Callable[[], bool] = staticmethod(lambda: False)

    async def finish(self, claimed: ClaimedTask, end: TaskEnd) -> bool:
        if self.fails():
            raise DatabaseUnavailable
        return await super().finish(claimed, end)


@pytest.mark.parametrize("dies", [True, False])
async def test_unrecordable_end_makes_the_task_run_again_later(database: Database, dies: bool):
    """The task runs again after its process has died, or two heartbeats later if the process lives."""
    ownership = Ownership(database, lease=LEASE, name="one")
    records = Failing(database, keep=timedelta(days=30))
    records.fails = lambda: True
    work = Work()
    work.may_end.set()
    task_id = await submitted(records)
    metrics = Metrics(CollectorRegistry(), dialects=())
    assert await TaskRunner(ownership, records, work, TaskTimes(heartbeat=LEASE), metrics=metrics).run_next()
    assert (await shown(records, task_id)).state is TaskState.RUNNING
    await ownership.release_strays()
    other = await alive(runner_of(records, work, "two"))
    assert not await other.run_next()
    records.fails = lambda: False
    if dies:
        await died(database)
    else:
        await ownership.release_strays()
    assert await other.run_next()
    assert ((await shown(records, task_id)).state, work.runs) == (TaskState.FINISHED, 2)


async def test_tasks_of_a_newer_version_are_not_claimed(records: TaskRecords, database: Database):
    await database.execute("insert into tasks (id, name) values ($1, 'of_tomorrow')", uuid4())
    assert await records.claim(owner="one") is None


async def test_old_tasks_are_deleted_unless_running(records: TaskRecords, database: Database):
    ended, active = [await submitted(records) for _ in range(2)]
    await records.request_cancel(ended)
    await database.execute("update tasks set created_at = now() - interval '99 days'")
    assert await records.clean_up() == {"ended tasks": 0}
    await database.execute("update tasks set ended_at = now() - interval '31 days' where ended_at is not null")
    assert await records.clean_up(dry_run=True) == {"ended tasks": 1}
    assert await records.clean_up() == {"ended tasks": 1}
    assert await records.find(ended) is None
    assert await records.find(active) is not None


async def test_page_query_uses_indexes(records: TaskRecords, database: Database):
    await database.execute(
        """insert into statements (id, user_id, connector, dialect, state, statement, statement_index,
            statements_count, position, statement_hash, guid, secret, session_id, session_guid, row_limit, timeout_s,
            recorded_at, deadline_at, ended_at, has_result_set)
        select gen_random_uuid(), 1, 'hive', 'hive', 'success', 'planted', 0, 1, '{1,1,1,1}', '', number::text, '', 1,
            '', 1, 1, now() - make_interval(mins => number), now(), now() - make_interval(mins => number), false
        from generate_series(1, 20000) as number"""
    )
    await database.execute("analyze statements")
    page, count = await records.page(TaskFilter(), offset=40, limit=20)
    assert (len(page), count) == (20, 20000)
    sources, arguments = records._sources(TaskFilter())  # type: ignore[attr-defined] the query of the page
    assert len(sources) == 3
    _, table, condition, moment = sources[1]
    plan = await database.fetch(
        f"explain select id from {table} where {condition} order by {moment} desc, id desc limit 60", *arguments
    )
    told = "\n".join(row[0] for row in plan)
    assert "ix_statements_recorded_at" in told
    assert "Seq Scan" not in told
