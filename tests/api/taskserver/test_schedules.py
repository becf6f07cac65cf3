"""Schedules are managed through API calls and commands (Contract platform 10.7, 12)."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.documents.calls import save, share
from tests.api.driving import verdict
from tests.api.taskserver.conftest import Desktop, Fleet
from tests.api.test_logs import Event, about, audited
from tests.unit.cli.test_commands import Command, command_in

__all__ = ["audited"]  # a fixture

Fleets = Callable[..., Any]


@pytest.fixture
async def fleet(fleets: Fleets, desktop: Desktop) -> AsyncIterator[Fleet]:
    async with fleets(beats=False, desktop=desktop()) as opened:
        yield opened


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """The command-line program on the application's database. It is configured with one of the application's
    connectors.
    """
    (tmp_path / "databases").mkdir(exist_ok=True)
    (tmp_path / "databases" / "api.sqlite").touch()
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__SECRET_KEY="k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge",
        QUERYSERVER__DESKTOP__DATA_DIR=str(tmp_path / "data"),
        QUERYSERVER__DESKTOP__CONNECTOR_POLICY__LOCAL_DATABASE_DIR=str(tmp_path / "databases"),
        QUERYSERVER__NOTEBOOK__INTERPRETERS__SQLITE='{"interface": "sqlite", "options": {"path": "api.sqlite"}}',
        QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED="true",
        QUERYSERVER__DESKTOP__TASK_SERVER__BEAT_ENABLED="true",
    )


@pytest.mark.platform(108)
async def test_calls_and_commands_are_equivalent(fleet: Fleet, command: Command, tmp_path: Path, audited: list[Event]):
    root, file = fleet.root, tmp_path / "schedule.json"

    async def printed(*arguments: str) -> Any:
        ended = await command("schedules", *arguments, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    given = {"name": "nightly", "kind": "statement", "connector": "sqlite", "statement": "select 1"}
    by_call = (await root.post_json("taskserver/schedules/new", schedule={**given, "cron": "30 2 * * *"})).json()
    file.write_text(json.dumps({**given, "name": "hourly", "interval_s": 3600, "owner": root.username}))
    by_command = await printed("add", str(file))
    assert by_command == await fleet.read(by_command["id"])
    assert await printed("show", str(by_call["schedule"]["id"])) == by_call["schedule"]
    assert await printed("list") == (await root.get("taskserver/schedules")).json()["schedules"]
    one = str(by_command["id"])
    file.write_text(json.dumps({"interval_s": None, "cron": "0 4 * * 1", "timezone": "Europe/Berlin", "version": 1}))
    changed = await printed("update", one, str(file))
    assert changed == await fleet.read(by_command["id"])
    assert (changed["version"], changed["cron"], changed["interval_s"]) == (2, "0 4 * * 1", None)
    stale = await command("schedules", "update", one, str(file))
    assert (stale.code, "has changed since" in stale.err) == (1, True)
    assert (await command("schedules", "disable", one)).code == 0
    assert not (await fleet.read(by_command["id"]))["enabled"]
    assert (await command("schedules", "enable", one)).code == 0
    assert (await fleet.read(by_command["id"]))["next_run"]
    fired = await command("schedules", "run", one)
    assert fired.out.startswith(f"beat:{one}:")
    (run,) = await printed("runs", one)
    assert [run] == (await root.get(f"taskserver/schedules/{one}/runs")).json()["runs"]
    assert (await command("schedules", "runs", one, "--no-header")).out == f"{run['due']}\trunning\t-\t-\t\n"
    assert (await command("schedules", "run", one)).code == 1  # refused, because the first run has not ended
    assert (await command("schedules", "remove", one)).out == f"Removed {one}.\n"
    assert verdict(await root.get(f"taskserver/schedules/{one}")) == (404, -1, "schedule_not_found")
    assert (await command("schedules", "show", one)).code == 1
    assert about(audited, "schedule.new")[0]["user"] == root.username


@pytest.mark.platform(108)
async def test_schedule_requires_exactly_one_of_cron_and_interval(fleet: Fleet):
    plain = {"name": "x", "kind": "statement", "connector": "mysql", "statement": "rows 1"}
    for times in ({}, {"cron": "* * * * *", "interval_s": 60}):
        response = await fleet.root.post_json("taskserver/schedules/new", schedule={**plain, **times})
        assert verdict(response) == (400, -1, "invalid_parameter")
    made = await fleet.schedule("one")
    response = await fleet.root.post_json(
        "taskserver/schedules/update", schedule={"id": made["id"], "cron": "* * * * *"}
    )
    assert verdict(response) == (400, -1, "invalid_parameter")
    assert await fleet.read(made["id"]) == made


@pytest.mark.platform(108)
async def test_stale_version_returns_409_and_changes_nothing(fleet: Fleet):
    made = await fleet.schedule("one")
    change = {"id": made["id"], "version": 1, "enabled": False}
    first = await fleet.root.post("taskserver/schedules/update", schedule=json.dumps(change))
    assert (first.json()["schedule"]["version"], first.json()["schedule"]["next_run"]) == (2, None)
    stale = await fleet.root.post("taskserver/schedules/update", schedule=json.dumps({**change, "name": "two"}))
    assert verdict(stale) == (409, -1, "version_conflict")
    assert stale.json()["version"] == 2
    assert (await fleet.read(made["id"]))["name"] == "one"
    await fleet.schedule("Two")
    taken = await fleet.root.post_json("taskserver/schedules/update", schedule={"id": made["id"], "name": "TWO"})
    assert verdict(taken) == (409, -1, "name_taken")


async def test_invalid_fields_are_refused(fleet: Fleet, subtests: pytest.Subtests):
    for wrong in [
        {"name": ""},
        {"name": "x" * 101},
        {"name": "a\r\nBcc: b@example.org"},
        {"name": None},
        {"kind": "mail"},
        {"kind": None},
        {"owner": "nobody-of-this-name"},
        {"owner": ""},
        {"connector": "nowhere"},
        {"connector": None},
        {"statement": "  "},
        {"interval_s": 9},
        {"interval_s": "often"},
        {"interval_s": None, "cron": "* * *"},
        {"timezone": "Mars/Olympus"},
        {"overlap": "both"},
        {"expires_at": "tomorrow"},
        {"kind": "task", "task": "format_disk"},
        {"kind": "task", "task": "document_cleanup", "params": {"keep_days": 0}},
        {"kind": "task", "task": "document_cleanup", "params": {"days": 1}},
        {"kind": "task", "task": "close_sessions", "params": {"age_in_days": 1}},
        {"notify": {"to": ["a@elsewhere.org"]}},
        {"notify": {"to": ["a@example.org\r\nBcc: b@example.org"]}},
        {"notify": {"to": ["a@example.org, b@elsewhere.org"]}},
        {"notify": {"to": []}},
        {"notify": {"on": [], "to": ["a@example.org"]}},
        {"notify": {"on": ["begun"], "to": ["a@example.org"]}},
        {"notify": {"url": "ftp://example.org/"}},
        {"notify": {"url": "http://example.org/"}},
        {"notify": {"url": "https://u:p@example.org/"}},
        {"notify": {"url": "https://169.254.169.254/latest"}},
        {"notify": {"url": "https://2852039166/"}},
        {"notify": {"url": "https://example.org/\nX"}},
        {"notify": {"url": "https://"}},
    ]:
        with subtests.test(wrong=wrong):
            given = {"name": "x", "kind": "statement", "connector": "mysql", "statement": "rows 1", "interval_s": 60}
            given["owner"] = fleet.root.username
            response = await fleet.root.post_json("taskserver/schedules/new", schedule={**given, **wrong})
            assert response.status_code == 400, response.text
            assert (await fleet.root.get("taskserver/schedules")).json()["count"] == 0


async def test_fields_have_defaults_and_omitted_fields_are_kept(fleet: Fleet):
    made = await fleet.schedule("plain", interval_s=60)
    assert {**made, "next_run": None} == {
        "id": made["id"],
        "version": 1,
        "next_run": None,
        "last_run": None,
        "last_status": "",
        "last_history_uuid": None,
        "total_runs": 0,
        "name": "plain",
        "enabled": True,
        "owner": fleet.root.username,
        "kind": "statement",
        "connector": "mysql",
        "database": None,
        "statement": "rows 3",
        "document": None,
        "parameters": None,
        "into": None,
        "task": None,
        "params": {},
        "cron": None,
        "interval_s": 60,
        "timezone": "UTC",
        "overlap": "skip",
        "expires_at": None,
        "notify": None,
    }
    notify = {"on": ["failed"], "to": ["a@example.org"], "attach_csv": True}
    change = {"id": made["id"], "notify": notify, "expires_at": "2100-01-01T01:00:00+01:00", "overlap": "queue"}
    changed = (await fleet.root.post_json("taskserver/schedules/update", schedule=change)).json()["schedule"]
    assert {**changed, "next_run": None} == {
        **made,
        "version": 2,
        "next_run": None,
        "notify": {**notify, "url": None},
        "expires_at": "2100-01-01T00:00:00Z",
        "overlap": "queue",
    }
    change = {"id": made["id"], "notify": None, "expires_at": None, "overlap": None}
    changed = (await fleet.root.post_json("taskserver/schedules/update", schedule=change)).json()["schedule"]
    assert (changed["notify"], changed["expires_at"], changed["overlap"]) == (None, None, "queue")


async def test_only_known_users_addresses_are_allowed_without_domains(fleets: Fleets, desktop: Desktop):
    async with fleets(beats=False, desktop=desktop(email_allowed_domains=[])) as fleet:
        await fleet.schedule("to me", notify={"to": [f"{fleet.root.username}@EXAMPLE.org"]})
        response = await fleet.root.post_json(
            "taskserver/schedules/new",
            schedule={"name": "x", "kind": "statement", "connector": "mysql", "statement": "rows 1",
                      "interval_s": 60, "notify": {"to": ["other@example.org"]}},
        )  # fmt: skip
        assert verdict(response) == (400, -1, "invalid_parameter")


async def test_schedules_are_sorted_by_name_and_filtered(fleet: Fleet):
    bob = await fleet.api.user("bob")
    for name, members in (("b", {}), ("A", {"enabled": False}), ("c", {"owner": bob.username})):
        await fleet.schedule(name, **members)

    async def names(**query: Any) -> tuple[list[str], int]:
        body = (await fleet.root.get("taskserver/schedules", **query)).json()
        return [one["name"] for one in body["schedules"]], body["count"]

    assert await names() == (["A", "b", "c"], 3)
    assert await names(enabled="true") == (["b", "c"], 2)
    assert await names(owner=bob.username) == (["c"], 1)
    assert await names(owner="no body!") == ([], 0)
    assert await names(page=2, limit=2) == (["c"], 3)


@pytest.mark.platform(110)
async def test_schedules_require_an_administrator_but_no_task_server(fleet: Fleet):
    made, ana = await fleet.schedule("one"), await fleet.api.user("ana")
    assert verdict(await ana.get("taskserver/schedules")) == (403, -1, "admin_required")
    assert verdict(await ana.get(f"taskserver/schedules/{made['id']}")) == (403, -1, "admin_required")
    assert verdict(await ana.get(f"taskserver/schedules/{made['id']}/runs")) == (403, -1, "admin_required")
    for call in ("schedules/new", "schedules/update", "schedules/delete", "schedules/run", "email/test"):
        assert await ana.refused(f"taskserver/{call}") == (403, -1, "admin_required")
    # The task server is disabled here, so the call run is refused. Tests above and in other files cover all other
    # calls.
    chosen = json.dumps({"id": made["id"]})
    assert await fleet.root.refused("taskserver/schedules/run", schedule=chosen) == (501, -1, "task_server_disabled")
    assert (await fleet.root.post_ok("taskserver/schedules/delete", schedule=chosen)) == {"id": made["id"], "status": 0}
    for call in ("delete", "run", "update"):
        code = (501, -1, "task_server_disabled") if call == "run" else (404, -1, "schedule_not_found")
        assert await fleet.root.refused(f"taskserver/schedules/{call}", schedule=chosen) == code


@pytest.mark.platform(117)
async def test_runs_are_listed_newest_first_with_the_reason_of_failures(fleet: Fleet):
    beat = fleet.api.services.scheduling.beat
    made = await fleet.schedule("listed")

    async def listed(**query: Any) -> tuple[list[dict[str, Any]], int]:
        body = (await fleet.root.get(f"taskserver/schedules/{made['id']}/runs", **query)).json()
        return body["runs"], body["count"]

    assert await listed() == ([], 0)
    for statement in ("rows 3", "fail broken"):
        await fleet.root.post_json("taskserver/schedules/update", schedule={"id": made["id"], "statement": statement})
        await fleet.due(made["id"])
        await beat.fire()
        ((going, *_), _) = await listed()
        assert (going["status"], going["ended"]) == ("", None)
        await fleet.root.on(going["history_uuid"], "check_status", wait=60)
        await beat.record_ends()
    runs, count = await listed()
    assert ([run["status"] for run in runs], count) == (["failed", "finished"], 2)
    assert [bool(run["message"]) for run in runs] == [True, False]
    stored = {run["fire_id"]: run for run in await fleet.runs(made["id"])}
    for run in runs:
        row = stored[run["fire_id"]]
        assert (run["history_uuid"], run["task_id"]) == (str(row["statement_id"]), None)
        assert run["due"] <= run["started"] <= run["ended"]
    assert await listed(limit=1, page=2) == (runs[1:], 2)
    assert await listed(page=3) == ([], 2)
    for unknown in ("99999", "x", "9" * 30):
        answer = await fleet.root.get(f"taskserver/schedules/{unknown}/runs")
        assert verdict(answer) == (404, -1, "schedule_not_found")


async def test_runs_of_a_task_name_the_task(fleet: Fleet):
    made = await fleet.schedule("task", kind="task", task="document_cleanup")
    await fleet.due(made["id"])
    await fleet.api.services.scheduling.beat.fire()
    (run,) = (await fleet.root.get(f"taskserver/schedules/{made['id']}/runs")).json()["runs"]
    (stored,) = await fleet.runs(made["id"])
    assert (run["history_uuid"], run["task_id"]) == (None, str(stored["task_id"]))


@pytest.mark.platform(118)
async def test_command_refuses_a_document_that_the_owner_may_not_run(fleet: Fleet, command: Command, tmp_path: Path):
    file, ana = tmp_path / "schedule.json", await fleet.api.user("ana")
    document = await save(fleet.root, name="Closed", statement="select 1", connector="sqlite")
    given = {"name": "theirs", "kind": "statement", "document": document["uuid"], "interval_s": 60}
    file.write_text(json.dumps({**given, "owner": ana.username}))
    refused = await command("schedules", "add", str(file))
    assert (refused.code, "schedule.document" in refused.err, "does not exist" in refused.err) == (2, True, True)
    assert (await fleet.root.get("taskserver/schedules")).json()["count"] == 0
    file.write_text(json.dumps({**given, "owner": fleet.root.username}))
    added = await command("schedules", "add", str(file), "--json")
    assert added.code == 0, added.err
    number = str(json.loads(added.out)["id"])
    file.write_text(json.dumps({"owner": ana.username}))
    assert "schedule.document" in (await command("schedules", "update", number, str(file))).err
    granted = await share(fleet.root, document["uuid"], {"user": ana.username, "permission": "run"})
    assert granted.status_code == 200, granted.text
    assert (await command("schedules", "update", number, str(file))).code == 0
    assert (await fleet.read(int(number)))["owner"] == ana.username


async def test_schedule_of_a_disabled_owner_can_still_be_disabled(fleet: Fleet):
    bob = await fleet.api.user("bob")
    made = await fleet.schedule("of bob", owner=bob.username)
    await fleet.api.services.accounts.accounts.disable(bob.username)
    change = {"id": made["id"], "name": "still of bob"}
    assert (await fleet.root.post_json("taskserver/schedules/update", schedule=change)).status_code == 400
    off = await fleet.root.post_json("taskserver/schedules/update", schedule={**change, "enabled": False})
    assert off.json()["schedule"]["name"] == "still of bob"


async def test_manual_run_fires_once_immediately(small_api: ApiOpener, fleets: Fleets):
    on = {"task_server": {"enabled": True, "beat_enabled": True}}
    async with fleets() as fleet, small_api(desktop=on) as server:
        root = await server.user("admin", admin=True)
        made = await fleet.schedule("by hand", enabled=False, statement="sleep 600")
        waits = await fleet.schedule("in line", enabled=False, statement="sleep 600", overlap="queue")
        fired = await root.post_json("taskserver/schedules/run", schedule={"id": made["id"]})
        fire_id = fired.json()["fire_id"]
        assert fire_id.startswith(f"beat:{made['id']}:")
        again = await root.post_json("taskserver/schedules/run", schedule={"id": made["id"]})
        assert verdict(again) == (409, -1, "schedule_running")
        await fleet.until(lambda: _is_submitted(fleet, made["id"]))
        assert [run["fire_id"] for run in await fleet.runs(made["id"])] == [fire_id]
        ids: list[str] = []
        for _ in range(3):
            fired = await root.post_json("taskserver/schedules/run", schedule={"id": waits["id"]})
            ids.append(fired.json()["fire_id"])
            await fleet.until(lambda: _is_submitted(fleet, waits["id"]))
        assert len(await fleet.runs(waits["id"])) <= 2
        assert ids[1] == ids[2]
        await fleet.until(lambda: _is_submitted(fleet, waits["id"]))
        for schedule in (made, waits):
            statement = (await fleet.runs(schedule["id"]))[0]["statement_id"]
            await fleet.root.on(str(statement), "cancel_statement")
        (run,) = await fleet.ended(made["id"])
        assert (run["status"], run["message"].startswith("Canceled")) == ("failed", True)


async def _is_submitted(fleet: Fleet, schedule_id: int) -> bool:
    return any(run["statement_id"] for run in await fleet.runs(schedule_id))


async def test_beat_exits_with_3_when_disabled_or_without_database(command: Command, tmp_path: Path, database_dsn: str):
    off = command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn)
    ended = await off("beat")
    assert ended.code == 3
    assert "error desktop.task_server.beat_enabled: is false" in ended.err
    nowhere = command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL="postgresql://nobody@127.0.0.1:9/none",
        QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED="true",
        QUERYSERVER__DESKTOP__TASK_SERVER__BEAT_ENABLED="true",
    )
    ended = await nowhere("beat")
    assert (ended.code, "database cannot be reached" in ended.err) == (3, True)


async def test_out_of_range_numbers_times_zones_and_tasks_are_refused(fleets: Fleets):
    async with fleets(beats=False) as fleet:
        made = await fleet.schedule("bounds", enabled=False)
        for member in (
            {"interval_s": 31_536_001},
            {"interval_s": 2**31},
            {"expires_at": "9999-12-31T23:59:59-14:00"},
            {"expires_at": "0001-01-01T00:00:00+14:00"},
            {"timezone": "localtime"},
            {"timezone": "posixrules"},
        ):
            changed = {"id": made["id"], **member}
            response = await fleet.root.post_json("taskserver/schedules/update", schedule=changed)
            assert verdict(response) == (400, -1, "invalid_parameter"), member
        task = await fleet.schedule("task", kind="task", task="document_cleanup", enabled=False)
        for member in ({"task": "nonsense"}, {"params": {"keep_days": "x"}}):
            changed = {"id": task["id"], **member}
            response = await fleet.root.post_json("taskserver/schedules/update", schedule=changed)
            assert verdict(response)[0] == 400, member
