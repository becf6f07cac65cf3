"""Each schedule fires exactly once each time it is due, whatever the number of beats (Contract platform 10.4)."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from tests.api.taskserver.conftest import Fleet

from queryserver.platform.ownership import Ownership
from queryserver.platform.roles import Role
from queryserver.statements.submission import Submission

Fleets = Callable[..., Any]


async def statements_of(fleet: Fleet, schedule_id: int) -> int:
    """Return the number of statements that a schedule has submitted, whether or not its runs record them."""
    return await fleet.api.database.value(
        "select count(*) from idempotency_keys where key like $1", f"beat:{schedule_id}:%"
    )


@pytest.mark.platform(107)
async def test_two_beats_run_each_fire_of_ten_schedules_once(fleets: Fleets):
    async with AsyncExitStack() as stack:
        fleet, other = [await stack.enter_async_context(fleets()) for _ in range(2)]
        ids = [(await fleet.schedule(f"hourly {number}", interval_s=3600))["id"] for number in range(10)]
        for fire in range(1, 4):
            await fleet.due(*ids)
            await asyncio.gather(*(fleet.ended(one, fire) for one in ids))
        for one in ids:
            runs = await fleet.runs(one)
            assert [run["status"] for run in runs] == ["finished"] * 3
            assert len({run["statement_id"] for run in runs}) == 3
            assert {run["fire_id"] for run in runs} == {
                f"beat:{one}:{int(run['due_at'].timestamp() * 1000)}" for run in runs
            }
            assert await statements_of(fleet, one) == 3
            shown = await fleet.read(one)
            assert (shown["total_runs"], shown["last_status"]) == (3, "finished")
            assert shown["last_history_uuid"] == str(runs[-1]["statement_id"])
        assert await fleet.api.database.value("select count(*) from statements") == 30
        assert await other.api.database.value("select count(*) from statements where priority = 1") == 30
        # Statements of schedules are in their owner's history, like all other statements.
        assert (await fleet.root.history())["count"] == 30


@pytest.mark.platform(107)
async def test_changed_cron_applies_to_the_next_fire(fleets: Fleets):
    async with fleets() as fleet:
        made = await fleet.schedule("yearly", interval_s=None, cron="0 0 1 1 *")
        first = made["next_run"]
        changed = await fleet.root.post_json(
            "taskserver/schedules/update", schedule={"id": made["id"], "cron": "* * * * *"}
        )
        assert changed.json()["schedule"]["next_run"] < first
        await fleet.due(made["id"])
        await fleet.ended(made["id"])
        seconds = await fleet.api.database.value(
            """select extract(epoch from next_run_at - (select max(fired_at) from schedule_runs where schedule_id = $1))
            from schedules where id = $1""",
            made["id"],
        )
        assert 0 < seconds <= 60


@pytest.mark.platform(107)
async def test_disabled_owner_stops_the_schedule(fleets: Fleets):
    async with fleets() as fleet:
        bob = await fleet.api.user("bob")
        made = await fleet.schedule("of bob", owner=bob.username)
        await fleet.api.services.accounts.accounts.disable(bob.username)
        await fleet.due(made["id"])
        (run,) = await fleet.ended(made["id"])
        assert (run["status"], run["message"]) == ("failed", "The owner of the schedule is disabled.")
        shown = await fleet.read(made["id"])
        assert (shown["enabled"], shown["next_run"], shown["last_status"]) == (False, None, "failed")
        assert shown["version"] == made["version"] + 1
        assert await statements_of(fleet, made["id"]) == 0


async def test_lost_right_stops_the_schedule_even_if_another_connector_has_the_dialect(fleets: Fleets):
    async with fleets() as fleet:
        bob = await fleet.api.user("bob", groups=("analysts",))
        made = await fleet.schedule("closed to bob", owner=bob.username, connector="closed")
        await fleet.api.database.execute(
            "delete from group_members m using users u where u.id = m.user_id and u.username = $1", bob.username
        )
        await fleet.due(made["id"])
        (run,) = await fleet.ended(made["id"])
        assert run["message"] == "The owner of the schedule no longer has permission to use its connector."
        assert not (await fleet.read(made["id"]))["enabled"]
        gone = await fleet.schedule("gone", connector="hive2")
        # A dialect is not the key of a connector. The statement must not run on another connector that has this
        # dialect.
        await fleet.api.database.execute("update schedules set connector = 'hive' where id = $1", gone["id"])
        await fleet.due(gone["id"])
        (run,) = await fleet.ended(gone["id"])
        assert run["message"] == "The connector of the schedule no longer exists."


async def test_all_script_statements_run_and_the_first_failure_fails_the_run(fleets: Fleets):
    async with fleets() as fleet:
        good = await fleet.schedule("script", statement="ddl; change 1; rows 3")
        bad = await fleet.schedule("breaks", statement="ddl; fail in the middle; ddl")
        await fleet.due(good["id"], bad["id"])
        (run,) = await fleet.ended(good["id"])
        assert run["status"] == "finished"
        states = "select state from statements where operation_id = $1 order by statement_index"
        found = await fleet.api.database.fetch(states, run["statement_id"])
        assert [row["state"] for row in found] == ["success", "success", "available"]
        (run,) = await fleet.ended(bad["id"])
        assert (run["status"], run["message"]) == ("failed", "in the middle")


async def test_failed_statement_keeps_the_schedule_enabled(fleets: Fleets):
    async with fleets() as fleet:
        made = await fleet.schedule("fails", statement="fail no such table")
        frozen = await fleet.schedule("writes", connector="replica", statement="drop table x")
        await fleet.due(made["id"], frozen["id"])
        (run,) = await fleet.ended(made["id"])
        assert (run["status"], run["message"]) == ("failed", "no such table")
        (refused,) = await fleet.ended(frozen["id"])
        assert refused["status"] == "failed"
        shown = await fleet.read(made["id"])
        assert (shown["enabled"], shown["last_status"]) == (True, "failed")


async def test_beat_dying_between_claim_and_submission_loses_no_fire(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        made = await fleet.schedule("claimed")
        await fleet.due(made["id"])
        await beat.runs.claim_due()
        (run,) = await fleet.runs(made["id"])
        assert (run["status"], run["statement_id"]) == ("", None)
        await asyncio.gather(beat.fire(), beat.fire())  # two other beats find that the run is already claimed
        (run,) = await fleet.runs(made["id"])
        assert run["statement_id"] is not None
        assert await statements_of(fleet, made["id"]) == 1


async def test_beat_dying_after_the_submission_repeats_no_fire(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        services = fleet.api.services
        beat = services.scheduling.beat
        made = await fleet.schedule("submitted")
        await fleet.due(made["id"])
        await beat.runs.claim_due()
        (run,) = await beat.runs.unsubmitted()
        user = await services.accounts.directory.user(run.owner_id)
        assert user is not None
        submission = Submission(
            connector="mysql", script="rows 3", idempotency_key=run.fire_id, priority=1, run_all=True
        )
        recorded = await services.statements.submissions.submit(user, submission)
        # The schedule is changed before the run is recorded. The run keeps the statement that was fired.
        await fleet.root.post_json("taskserver/schedules/update", schedule={"id": made["id"], "statement": "rows 9"})
        await beat.fire()
        (found,) = await fleet.runs(made["id"])
        assert found["statement_id"] == recorded.record.status.id
        assert await fleet.api.database.value("select count(*) from statements") == 1


async def test_run_with_an_expired_idempotency_key_is_not_submitted_again(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        made = await fleet.schedule("old")
        await fleet.due(made["id"])
        await beat.runs.claim_due()
        await fleet.api.database.execute("update schedule_runs set submitting_at = now() - interval '21 hours'")
        await beat.fire()
        (run,) = await fleet.runs(made["id"])
        assert (run["status"], run["message"]) == ("failed", "The run could not be submitted within a day.")
        assert (await fleet.read(made["id"]))["enabled"]


async def test_one_run_makes_up_for_all_missed_fires(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        made = await fleet.schedule("missed", interval_s=3600)
        await fleet.due(made["id"], since="10 hours")
        for _ in range(3):
            await beat.fire()
        assert len(await fleet.runs(made["id"])) == 1
        seconds = await fleet.api.database.value("select extract(epoch from next_run_at - now()) from schedules")
        assert 0 < seconds <= 3600


async def test_overlapping_fire_is_skipped_or_queued(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        skips = await fleet.schedule("skips", statement="sleep 600")
        waits = await fleet.schedule("waits", statement="sleep 600", overlap="queue")
        ids = skips["id"], waits["id"]
        for _ in range(2):
            await fleet.due(*ids)
            await beat.fire()
            await beat.record_ends()
        assert [run["status"] for run in await fleet.runs(skips["id"])] == ["", "skipped"]
        assert [run["status"] for run in await fleet.runs(waits["id"])] == [""]
        shown = await fleet.read(skips["id"])
        assert (shown["last_status"], shown["total_runs"]) == ("skipped", 1)
        for one in ids:
            await fleet.root.on(str((await fleet.runs(one))[0]["statement_id"]), "cancel_statement")
        await fleet.until(lambda: _ended_once(fleet, *ids))
        await beat.fire()
        assert [run["status"] for run in await fleet.runs(waits["id"])] == ["failed", ""]
        assert (await fleet.read(waits["id"]))["total_runs"] == 2
        await fleet.root.on(str((await fleet.runs(waits["id"]))[1]["statement_id"]), "cancel_statement")


async def _ended_once(fleet: Fleet, *ids: int) -> bool:
    await fleet.api.services.scheduling.beat.record_ends()
    return {(await fleet.runs(one))[0]["status"] for one in ids} == {"failed"}


async def test_expired_schedule_does_not_fire(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        made = await fleet.schedule("over", expires_at="2100-01-01T00:00:00Z")
        await fleet.api.database.execute("update schedules set expires_at = now() - interval '1 hour'")
        await fleet.due(made["id"], since="1 minute")
        await fleet.api.services.scheduling.beat.fire()
        assert await fleet.runs(made["id"]) == []
        assert (await fleet.read(made["id"]))["next_run"] is None


async def test_task_schedule_queues_its_task_once(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        made = await fleet.schedule("tidies", kind="task", task="document_cleanup", params={})
        assert (made["params"], made["statement"], made["connector"]) == ({"keep_days": 30}, None, None)
        await fleet.due(made["id"])
        await asyncio.gather(beat.fire(), beat.fire())
        await beat.fire()
        (row,) = await fleet.api.database.fetch("select id, name, params, state from tasks")
        assert (row["name"], row["params"], row["state"]) == ("document_cleanup", {"keep_days": 30}, "queued")
        await beat.record_ends()
        assert [run["status"] for run in await fleet.runs(made["id"])] == [""]
        await fleet.api.database.execute("update tasks set state = 'failed', message = 'No.', ended_at = now()")
        await beat.record_ends()
        assert [(run["status"], run["message"]) for run in await fleet.runs(made["id"])] == [("failed", "No.")]


async def test_invalid_schedule_row_is_disabled_and_stops_no_other(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        bad, good = [(await fleet.schedule(name))["id"] for name in ("bad", "good")]
        await fleet.api.database.execute(
            "update schedules set interval_s = null, cron = '* * * * *', timezone = 'Mars/Olympus' where id = $1", bad
        )
        await fleet.due(bad, since="1 minute")
        await fleet.due(good)
        await beat.fire()
        assert not (await fleet.read(bad))["enabled"]
        await fleet.until(lambda: _ended_well(fleet, good))


async def _ended_well(fleet: Fleet, schedule_id: int) -> bool:
    await fleet.api.services.scheduling.beat.record_ends()
    return [run["status"] for run in await fleet.runs(schedule_id)] == ["finished"]


async def test_beat_process_counts_as_running(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        assert not (await fleet.root.get("taskserver/schedules")).json()["beat_running"]
        async with Ownership(fleet.api.database, lease=timedelta(seconds=30), name="beat-1").running(Role.BEAT):
            assert (await fleet.root.get("taskserver/schedules")).json()["beat_running"]


async def test_only_fires_due_before_the_expiry_are_made_up(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        made, over = [await fleet.schedule(name, expires_at="2100-01-01T00:00:00Z") for name in ("at", "after")]
        await fleet.due(made["id"], over["id"], since="1 minute")
        await fleet.api.database.execute(
            "update schedules set expires_at = next_run_at - interval '1 microsecond' * (id = $1)::int", over["id"]
        )
        await fleet.api.services.scheduling.beat.runs.claim_due()
        assert len(await fleet.runs(made["id"])) == 1
        assert await fleet.runs(over["id"]) == []


async def test_fifty_blocked_runs_do_not_delay_other_runs(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        runs = fleet.api.services.scheduling.beat.runs
        first = (await fleet.schedule("first"))["id"]
        await fleet.api.database.execute(
            """insert into schedules (name, owner_id, kind, connector, statement, interval_s, timezone, next_run_at)
            select 'more ' || n, owner_id, kind, connector, statement, interval_s, timezone, now()
            from schedules, generate_series(1, 50) n"""
        )
        await fleet.due(first)
        await runs.claim_due()
        await runs.claim_due()
        one, two = await runs.unsubmitted(), await runs.unsubmitted()
        assert len(one) == len(two) == 50
        assert len({run.schedule_id for run in (*one, *two)}) == 51


async def test_run_is_counted_once_and_cannot_fail_after_its_statement_starts(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat = fleet.api.services.scheduling.beat
        counter = beat.metrics.schedules_fired.labels("submitted")
        made = await fleet.schedule("slow", statement="sleep 600")
        await fleet.due(made["id"])
        await beat.runs.claim_due()
        (late,) = await beat.runs.unsubmitted()
        before = counter._value.get()
        await beat._start(late)
        await beat._start(late)
        assert counter._value.get() == before + 1
        await beat._fail(late, "The run could not be submitted in time.")
        (run,) = await fleet.runs(made["id"])
        assert (run["status"], run["message"]) == ("", "")
        await fleet.root.on(str(run["statement_id"]), "cancel_statement")
        await fleet.until(lambda: _ended_once(fleet, made["id"]))


async def test_rows_of_a_newer_version_stop_no_others(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat, database = fleet.api.services.scheduling.beat, fleet.api.database
        strange, good, ends = [(await fleet.schedule(name))["id"] for name in ("strange", "good", "ends")]
        await fleet.due(ends)
        await beat.fire()
        await database.execute('update schedule_runs set job = job || \'{"notify": {"how": 1}}\'')
        await database.execute("update schedules set kind = 'newer' where id = $1", strange)
        await fleet.due(strange, since="1 minute")
        await fleet.due(good)
        await beat.fire()
        await fleet.until(lambda: _ended_well(fleet, good))
        assert [run["status"] for run in await fleet.runs(ends)] == [""]
        statement = (await fleet.runs(ends))[0]["statement_id"]
        await database.execute("update statements set notify = '[1]' where id = $1", statement)
        await database.execute(
            'update statements set notify = \'{"url": "https://example.org/"}\' where id <> $1', statement
        )
        await beat.runs._outbox.add_ended_statements(None)

        async def has_one_delivery() -> bool:
            return await database.value("select count(*) from deliveries") == 1

        await fleet.until(has_one_delivery)  # the worker may be adding the same deliveries at this moment


async def test_history_cleanup_keeps_statements_of_schedule_runs(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        beat, database = fleet.api.services.scheduling.beat, fleet.api.database
        made = await fleet.schedule("kept")
        for _ in range(2):
            await fleet.due(made["id"])
            await beat.fire()
            await fleet.until(lambda: _all_ended(fleet, made["id"]))
        await database.execute("update schedule_runs set status = '', ended_at = null where due_at = ("
                               "select min(due_at) from schedule_runs)")  # fmt: skip
        await fleet.root.run("mysql", "rows 1")
        await database.execute("update statements set recorded_at = now() - interval '900 days', ended_at = null")
        await fleet.api.services.statements.retention.clean_up()
        kept = {run["statement_id"] for run in await fleet.runs(made["id"])}
        assert {row["id"] for row in await database.fetch("select id from statements")} == kept
        assert len(kept) == 2


async def _all_ended(fleet: Fleet, schedule_id: int) -> bool:
    await fleet.api.services.scheduling.beat.record_ends()
    return all(run["status"] == "finished" for run in await fleet.runs(schedule_id))
