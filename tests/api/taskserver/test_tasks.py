"""The status and the tasks of the task server (Contract platform 10.6)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api, Caller, open_api, until, verdict
from tests.api.test_logs import Event, about, audited
from tests.api.test_monitoring import Page
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.statements.running_statements import Intake
from queryserver.tasks.model import TaskName

__all__ = ["audited"]  # a fixture

CALLS = [
    ("GET", "taskserver/status"),
    ("GET", "taskserver/tasks"),
    ("GET", f"taskserver/tasks/{uuid4()}"),
    ("POST", "taskserver/tasks/submit"),
    ("POST", f"taskserver/tasks/{uuid4()}/cancel"),
]
KEYS = {
    "id", "name", "params", "state", "owner", "created", "started", "ended", "progress", "message", "result",
}  # fmt: skip
NO_LOAD = Load()
SERVER = {"task_server": {"enabled": True}, "metrics": {"token": "metrics-token-of-the-tests"}}


@pytest.fixture(scope="module")
async def fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Api]:
    """An application with the task server enabled. Tasks run only if a test runs them. Statements run in this
    process.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(tmp_path_factory.mktemp("fleet"), dsn, users_url, desktop=SERVER, index=True)
        async with open_api(settings) as opened:
            # Tests trigger metadata refreshes themselves.
            vars(opened.services.searching.refresh)["_start_due"] = lambda: None
            opened.services.statements.runner.instance.intake = Intake.OWN
            yield opened


@pytest.fixture
async def boss(fleet: Api) -> Caller:
    """The administrator of one test. The tasks and statements of earlier tests have been deleted."""
    await fleet.database.execute("delete from tasks")
    await fleet.database.execute("delete from statements")
    return await fleet.user("boss", admin=True)


def present(fleet: Api, name: str, role: Role, load: Load = NO_LOAD) -> AbstractAsyncContextManager[None]:
    """Register a process of the given role and load as alive while the context is open."""
    return Ownership(fleet.database, lease=timedelta(seconds=30), name=name).running(role, lambda: load)


async def submitted(caller: Caller, name: str, **params: Any) -> dict[str, Any]:
    answer = await caller.post_json("taskserver/tasks/submit", name=name, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


async def shown(caller: Caller, task_id: str) -> dict[str, Any]:
    answer = await caller.get(f"taskserver/tasks/{task_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


async def listed(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    answer = await caller.get("taskserver/tasks", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["tasks"]


async def run(caller: Caller, name: str, **params: Any) -> dict[str, Any]:
    """Submit a task and run it; return its record after the run."""
    task = await submitted(caller, name, **params)
    assert await caller.api.services.tasks.runner.run_next()
    return await shown(caller, task["id"])


class TestRights:
    @pytest.mark.platform(110)
    @pytest.mark.parametrize("on", [False, True])
    async def test_administrator_right_is_checked_first(self, api: Api, fleet: Api, on: bool):
        ana = await (fleet if on else api).user("ana")
        for method, path in CALLS:
            assert verdict(await ana.send(method, path)) == (403, -1, "admin_required"), path

    @pytest.mark.platform(110)
    async def test_only_status_works_with_the_task_server_off(self, api: Api):
        boss = await api.user("boss", admin=True)
        for method, path in CALLS[1:]:
            answer = await boss.send(method, path, json={"name": 7} if method == "POST" else None)
            assert verdict(answer) == (501, -1, "task_server_disabled"), path
        status = (await boss.get("taskserver/status")).json()
        assert (status["enabled"], status["beat_enabled"], status["broker_ok"]) == (False, False, False)
        assert (status["beat_running"], status["workers"], status["status"]) == (False, [], 0)

    async def test_submit_is_not_a_task_id(self, boss: Caller):
        answer = await boss.get("taskserver/tasks/submit")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        for unknown in ("7", "submitted", str(uuid4()), uuid4().hex, "a%20b"):
            for answer in (
                await boss.get(f"taskserver/tasks/{unknown}"),
                await boss.post(f"taskserver/tasks/{unknown}/cancel"),
            ):
                assert verdict(answer) == (404, -1, "task_not_found"), unknown


class TestStatus:
    @pytest.mark.platform(110)
    async def test_status_counts_queued_tasks_and_names_live_workers(self, fleet: Api, boss: Caller):
        await submitted(boss, "result_cleanup")
        async with (
            present(fleet, "worker-of-the-test", Role.WORKER, Load(running=1, capacity=8)),
            present(fleet, "beat-of-the-test", Role.BEAT),
        ):
            status = (await boss.get("taskserver/status")).json()
            assert (status["enabled"], status["beat_enabled"], status["beat_running"]) == (True, False, True)
            assert (status["queued"], status["running"], status["broker_ok"]) == (1, 0, False)
            [worker] = status["workers"]
            assert worker["id"].endswith(f"-{os.getpid()}")
            assert (worker["running"], worker["capacity"]) == (1, 8)
            assert worker["started"].endswith("Z")
            assert worker["heartbeat"] >= worker["started"]

            async def are_gone() -> bool:
                """The update is repeated, because a heartbeat may arrive between the update and the check."""
                await fleet.database.execute(
                    "update instances set alive_until = now() - interval '1 s' where kind in ('worker', 'beat')"
                )
                status = (await boss.get("taskserver/status")).json()
                return (status["workers"], status["beat_running"]) == ([], False)

            await until(are_gone)
        await boss.execute("mysql", "sleep 300")
        [statement] = await listed(boss, name="statement")
        await boss.running(statement["id"])
        assert (await boss.get("taskserver/status")).json()["running"] == 1
        await boss.post(f"taskserver/tasks/{statement['id']}/cancel")

    @pytest.mark.platform(100)
    async def test_metrics_report_tasks_and_workers_without_host_names(self, fleet: Api, boss: Caller, monkeypatch):
        monkeypatch.setattr("queryserver.platform.metrics._FACTS_EVERY_S", 0.0)
        monkeypatch.setattr("queryserver.platform.metrics._FACTS_WITHIN_S", 60.0)
        fleet.services.metrics_text._facts_due_at = 0.0  # type: ignore[union-attr] what was read before is old
        await submitted(boss, "result_cleanup")
        headers = {"Authorization": "Bearer metrics-token-of-the-tests"}
        async with present(fleet, "worker-of-the-test", Role.WORKER):
            page = Page((await fleet.http.get("/metrics", headers=headers)).text)
            assert (page.value("tasks_queued"), page.value("workers_alive")) == (1, 1)
            before = page.value("tasks_total", task="result_cleanup", outcome="finished")
            assert await fleet.services.tasks.runner.run_next()
        page = Page((await fleet.http.get("/metrics", headers=headers)).text)
        assert (page.value("tasks_queued"), page.value("workers_alive")) == (0, 0)
        assert page.value("tasks_total", task="result_cleanup", outcome="finished") == before + 1
        assert os.uname().nodename not in page.text
        assert boss.username not in page.text


class TestSubmit:
    @pytest.mark.platform(110)
    async def test_task_record_matches_the_contract(self, boss: Caller, audited: list[Event]):
        task = await submitted(boss, "document_cleanup", keep_days=30)
        assert set(task) == KEYS
        assert (task["state"], task["owner"], task["progress"], task["message"]) == ("queued", boss.username, 0, "")
        assert (task["started"], task["ended"], task["result"]) == (None, None, None)
        assert task["created"].endswith("Z")
        assert task == await shown(boss, task["id"])
        [event] = about(audited, "task.submit")
        assert (event["user"], event["subject"], event["task_id"]) == (boss.username, "document_cleanup", task["id"])

    async def test_parameters_are_accepted_as_json_text_or_natively_and_have_defaults(self, boss: Caller):
        fields = {"name": "document_cleanup", "params": '{"keep_days": 7}'}
        for answer in (
            await boss.post("taskserver/tasks/submit", **fields),
            await boss.send("POST", "taskserver/tasks/submit", files={key: (None, v) for key, v in fields.items()}),
            await boss.post_json("taskserver/tasks/submit", **fields),
            await boss.post_json("taskserver/tasks/submit", name="document_cleanup", params={"keep_days": 7}),
        ):
            assert answer.status_code == 200, answer.text
            assert answer.json()["task"]["params"] == {"keep_days": 7}
        for answer in (
            await boss.post("taskserver/tasks/submit", name="document_cleanup"),
            await boss.post_json("taskserver/tasks/submit", name="document_cleanup", params=None),
            await boss.post_json("taskserver/tasks/submit", name="document_cleanup", params={}),
        ):
            assert answer.json()["task"]["params"] == {"keep_days": 30}

    @pytest.mark.platform(110)
    @pytest.mark.parametrize(
        ("fields", "code", "text"),
        [
            ({}, "missing_parameter", "name"),
            ({"name": "vacuum"}, "invalid_parameter", "Unknown task: vacuum."),
            ({"name": "document_cleanup", "params": {"keep_days": 0}}, "invalid_parameter", "params.keep_days must be"),
            ({"name": "document_cleanup", "params": {"days": 1}}, "invalid_parameter", "params.days is unknown"),
            (
                {"name": "close_sessions", "params": {"age_in_days": 1}},
                "missing_parameter",
                "params.dialect is required.",
            ),
            ({"name": "document_cleanup", "params": [1]}, "invalid_parameter", "params must be a JSON object."),
            ({"name": "document_cleanup", "params": "{"}, "invalid_json", "params is not valid"),
        ],
    )
    async def test_invalid_submissions_return_400_and_are_not_recorded(
        self, boss: Caller, fields, code: str, text: str
    ):
        form = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        for answer in (
            await boss.post_json("taskserver/tasks/submit", **fields),
            await boss.post("taskserver/tasks/submit", **form),
        ):
            assert verdict(answer) == (400, -1, code)
            assert answer.json()["message"].startswith(text)
        assert await listed(boss) == []

    async def test_unavailable_broker_fails_no_calls(self, fleet: Api, boss: Caller):
        service = fleet.services.tasks.service
        assert not (await service.status()).broker_ok
        task = await submitted(boss, "result_cleanup")
        assert await fleet.services.tasks.runner.run_next()
        assert (await shown(boss, task["id"]))["state"] == "finished"

    async def test_submission_with_the_same_id_returns_the_same_task(self, fleet: Api, boss: Caller):
        user = await fleet.services.accounts.directory.user(
            await fleet.database.value("select id from users where username = $1", boss.username)
        )
        assert user is not None
        key = uuid4()
        first, second = [
            await fleet.services.tasks.service.submit(user, name, {}, task_id=key)
            for name in ("result_cleanup", "close_queries")
        ]
        assert first == second
        assert len(await listed(boss)) == 1


class TestList:
    @pytest.mark.platform(110)
    async def test_tasks_are_paginated_newest_first_and_filtered(self, boss: Caller):
        names = ["result_cleanup", "close_queries", "result_cleanup", "upload_cleanup"]
        ids = [(await submitted(boss, name))["id"] for name in names]
        await boss.post(f"taskserver/tasks/{ids[0]}/cancel")
        newest = ids[::-1]
        assert [task["id"] for task in await listed(boss)] == newest
        first = (await boss.get("taskserver/tasks", page=1, limit=3)).json()
        second = (await boss.get("taskserver/tasks", page=2, limit=3)).json()
        third = (await boss.get("taskserver/tasks", page=2**62, limit=1000)).json()
        assert [task["id"] for task in first["tasks"] + second["tasks"]] == newest
        assert [one["count"] for one in (first, second, third)] == [4, 4, 4]
        assert third["tasks"] == []
        assert [one["id"] for one in await listed(boss, name="result_cleanup")] == [ids[2], ids[0]]
        assert [one["id"] for one in await listed(boss, name="result_cleanup", state="canceled")] == [ids[0]]
        assert [one["id"] for one in await listed(boss, state="queued", name="")] == newest[:3]
        assert await listed(boss, name="unknown") == []
        assert [one["id"] for one in await listed(boss, limit=10**30)] == newest
        for query in ({"state": "sleeping"}, {"page": 0}, {"limit": 0}):
            assert verdict(await boss.get("taskserver/tasks", **query)) == (400, -1, "invalid_parameter"), query

    @pytest.mark.platform(110)
    async def test_statement_jobs_are_listed_without_their_text(self, fleet: Api, boss: Caller):
        ana = await fleet.user("ana")
        good = (await ana.run(POSTGRESQL, "SELECT 'plantedtext'"))["history_uuid"]
        bad = (await ana.run(POSTGRESQL, "SELECT plantedtext"))["history_uuid"]
        task = (await submitted(boss, "result_cleanup"))["id"]
        running = (await ana.execute("mysql", "sleep 300"))["history_uuid"]
        await ana.running(running)
        answer = await boss.get("taskserver/tasks")
        assert "plantedtext" not in answer.text
        assert answer.json()["count"] == 4
        tasks = answer.json()["tasks"]
        assert [one["id"] for one in tasks] == [running, task, bad, good]
        assert all(set(one) == KEYS for one in tasks)
        first = tasks[3]
        assert (first["name"], first["state"], first["owner"]) == ("statement", "finished", ana.username)
        assert first["params"] == {"connector": "postgresql", "history_uuid": good}
        assert (first["progress"], first["message"], first["result"]) == (100, "", {"rows": 1})
        assert (tasks[2]["state"], tasks[2]["message"], tasks[2]["result"]) == ("failed", "engine_error", None)
        assert (tasks[0]["state"], tasks[0]["ended"], tasks[0]["result"]) == ("running", None, None)
        assert [one["id"] for one in await listed(boss, name="statement")] == [running, bad, good]
        assert [one["id"] for one in await listed(boss, state="running")] == [running]
        assert [one["id"] for one in await listed(boss, state="finished")] == [good]
        assert await shown(boss, good) == first
        pages = [(await listed(boss, page=page, limit=1))[0]["id"] for page in range(1, 5)]
        assert pages == [running, task, bad, good]
        canceled = (await boss.post(f"taskserver/tasks/{running}/cancel")).json()["task"]
        assert (canceled["id"], canceled["state"]) == (running, "canceled")
        unchanged = (await boss.post(f"taskserver/tasks/{good}/cancel")).json()["task"]
        assert unchanged == first

    async def test_statements_are_listed_as_long_as_tasks(self, fleet: Api, boss: Caller):
        for days in (29, 31):
            operation = (await boss.run("mysql", "ddl"))["history_uuid"]
            sql = "update statements set recorded_at = now() - make_interval(days => $2) where id = $1"
            await fleet.database.execute(sql, operation, days)
        old = (await boss.execute("mysql", "sleep 300"))["history_uuid"]
        await fleet.database.execute("update statements set recorded_at = now() - interval '99 d' where id = $1", old)
        seen = (await boss.get("taskserver/tasks")).json()
        assert (len(seen["tasks"]), seen["count"], seen["tasks"][-1]["id"]) == (2, 2, old)
        await boss.post(f"taskserver/tasks/{old}/cancel")


class TestCancel:
    @pytest.mark.platform(110)
    async def test_waiting_task_is_canceled_immediately_and_ended_task_is_unchanged(
        self, boss: Caller, audited: list[Event]
    ):
        task = await submitted(boss, "result_cleanup")
        canceled = (await boss.post(f"taskserver/tasks/{task['id']}/cancel")).json()["task"]
        assert (canceled["state"], canceled["message"]) == ("canceled", "Canceled.")
        again = await boss.post_json(f"taskserver/tasks/{task['id']}/cancel")
        assert (again.status_code, again.json()["task"]) == (200, canceled)
        [event] = about(audited, "task.cancel")
        assert (event["user"], event["owner"], event["task_id"]) == (boss.username, boss.username, task["id"])
        ended = await run(boss, "result_cleanup")
        assert (await boss.post(f"taskserver/tasks/{ended['id']}/cancel")).json()["task"] == ended

    @pytest.mark.platform(110)
    async def test_running_task_stops_soon_after_cancel(self, fleet: Api, boss: Caller):
        """The task waits for a table lock that the test holds."""
        runner = fleet.services.tasks.runner
        async with fleet.database.transaction() as connection:
            await connection.execute("lock table idempotency_keys in access exclusive mode")
            task = await submitted(boss, "document_cleanup")
            running = asyncio.create_task(runner.run_next())
            await until(lambda: runner.active == 1)
            assert (await shown(boss, task["id"]))["state"] == "running"
            assert (await boss.post(f"taskserver/tasks/{task['id']}/cancel")).status_code == 200
            # The notification about the cancellation stops the task. With heartbeats alone, this could take up to ten
            # seconds.
            assert await asyncio.wait_for(running, 60)
        assert (await shown(boss, task["id"]))["state"] == "canceled"

    @pytest.mark.platform(110)
    async def test_task_of_a_dead_worker_runs_again(self, fleet: Api, boss: Caller):
        task = await submitted(boss, "result_cleanup")
        records = fleet.services.tasks.service.records
        async with present(fleet, "dead", Role.WORKER):
            assert await records.claim(owner="dead") is not None
            assert not await fleet.services.tasks.runner.run_next()
        assert await fleet.services.tasks.runner.run_next()
        assert (await shown(boss, task["id"]))["state"] == "finished"


class TestTaskEffects:
    async def test_document_cleanup_deletes_only_old_documents(self, fleet: Api, boss: Caller):
        old, young = [(await boss.run("mysql", "ddl"))["history_uuid"] for _ in range(2)]
        await fleet.database.execute(
            "update statements set recorded_at = now() - interval '40 d', ended_at = now() - interval '40 d'"
            " where id = $1",
            old,
        )
        task = await run(boss, "document_cleanup", keep_days=30)
        assert (task["state"], task["progress"]) == ("finished", 100)
        assert (task["message"], task["result"]) == ("1 documents deleted.", {"documents": 1})
        left = await fleet.database.fetch("select id::text from statements")
        assert [row["id"] for row in left] == [young]

    async def test_close_tasks_close_unused_queries_and_sessions(self, fleet: Api, boss: Caller):
        operation = (await boss.run("mysql", "rows 3"))["history_uuid"]
        await fleet.database.execute("update statements set last_used_at = now() - interval '8 d'")
        task = await run(boss, "close_queries")
        assert (task["message"], task["params"]) == ("1 queries closed. 0 queries already closed.", {"age_in_days": 7})
        assert task["result"] == {"queries": 1, "already_closed": 0}
        assert await boss.state(operation) == "closed"
        for kind in ("mysql", "hive2"):
            await boss.post_ok("editor/create_session", session=json.dumps({"type": kind}))
        for dialect, closed in (("hive", 1), ("all", 1)):
            task = await run(boss, "close_sessions", age_in_days=0, dialect=dialect)
            assert (task["state"], task["result"]["sessions"]) == ("finished", closed), task
        task = await run(boss, "close_sessions", age_in_days=0, dialect="x")
        assert (task["state"], task["message"], task["result"]) == ("failed", "Unknown dialect: x", None)

    async def test_result_cleanup_deletes_expired_results(self, fleet: Api, boss: Caller):
        await run(boss, "result_cleanup")  # removes the orphaned files of earlier tests
        due = (await boss.run("mysql", "rows 3000 wide 100"))["history_uuid"]
        result = fleet.services.settings.results_dir / due[-2:] / due
        assert result.exists()
        await fleet.database.execute(
            "update statements set expires_at = now() - interval '1 h' where id = $1::text::uuid", due
        )
        task = await run(boss, "result_cleanup")
        # This process sweeps every two seconds, so it may have deleted the result before the task.
        assert task["result"]["results"] in {0, 1}
        assert task["message"] == f"{task['result']['results']} results deleted."
        await until(lambda: not result.exists())

    async def test_upload_cleanup_deletes_orphans_and_keeps_live_uploads(self, fleet: Api, boss: Caller):
        area = fleet.services.settings.uploads_dir
        orphan, young = area / ("a" * 64), area / ("b" * 64)
        for file, minutes in ((orphan, 12), (young, 8)):
            file.write_bytes(b"x")
            moment = (datetime.now(UTC) - timedelta(minutes=minutes)).timestamp()
            os.utime(file, (moment, moment))
        sent = await boss.send("POST", "importer/upload/file", files={"file": ("a.csv", b"a,b\n1,2\n")})
        assert sent.status_code in {200, 201}, sent.text
        live = [file for file in area.iterdir() if file.name not in {orphan.name, young.name}]
        for file in live:
            os.utime(file, (0, 0))
        assert live
        task = await run(boss, "upload_cleanup", older_than_minutes=10)
        assert (task["state"], task["result"]) == ("finished", {"uploads": 1}), task
        assert task["message"] == "1 uploads deleted."
        assert not orphan.exists()
        assert all(file.exists() for file in (young, *live))

    async def test_metadata_refresh_reads_the_index_immediately(self, fleet: Api, boss: Caller):
        looks = len(fleet.shelf.looks)
        for _ in range(2):  # the second run reads the index although it is fresh
            task = await run(boss, "metadata_refresh", connector="shelf")
            assert task["state"] == "finished", task
            tables = task["result"]["tables"]
            assert task["message"] == f"{tables} tables read."
            assert tables == await fleet.database.value(
                "select count(*) from metadata_objects where kind <> 'DATABASE'"
            )
            assert tables > 0
            assert len(fleet.shelf.looks) > looks
            looks = len(fleet.shelf.looks)
        for name, text in (("nothing", "The connector nothing is not configured."), ("mysql", "This connector has no")):
            task = await run(boss, "metadata_refresh", connector=name)
            assert task["state"] == "failed"
            assert task["message"].startswith(text)

    async def test_metadata_refresh_without_an_index_fails_with_a_reason(self, small_api: ApiOpener):
        async with small_api(desktop={"task_server": {"enabled": True}}) as api:
            boss = await api.user("boss", admin=True)
            task = await run(boss, "metadata_refresh", connector="shelf")
            assert (task["state"], task["message"]) == ("failed", "The metadata search index is disabled.")

    async def test_every_task_is_repeatable(self, fleet: Api, boss: Caller):
        params = {"close_sessions": {"age_in_days": 0, "dialect": "all"}, "metadata_refresh": {"connector": "shelf"}}
        for name in TaskName:
            for _ in range(2):
                assert (await run(boss, name, **params.get(name, {})))["state"] == "finished", name

    async def test_clean_up_deletes_old_ended_tasks(self, fleet: Api, boss: Caller):
        task = await run(boss, "result_cleanup")
        await fleet.database.execute("update tasks set ended_at = now() - interval '31 d'")
        counts = await fleet.services.statements.retention.clean_up()
        assert counts["ended tasks"] == 1
        assert verdict(await boss.get(f"taskserver/tasks/{task['id']}")) == (404, -1, "task_not_found")
