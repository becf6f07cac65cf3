"""`db.schedules` and `qs schedule` (Contract platform 10.7)."""

import asyncio
import datetime as dt
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import open_api
from tests.api.serving import served
from tests.client.conftest import QUICK, Server, stored
from tests.client.shell import Make, Qs
from tests.client.test_readme import blocks, run

from queryserver.platform.ownership import Ownership
from queryserver.platform.roles import Role
from queryserver_client import ApiError, Conflict, Connection, NotFound, PermissionDenied, connect, connect_sync

pytestmark = pytest.mark.platform(119)
HOURLY = {"connector": "duckdb", "statement": "SELECT 1 AS n", "interval_s": 3600}


@pytest.fixture(scope="module")
async def scheduler(server: Server) -> AsyncIterator[str]:
    """The URL of a server on the same database whose settings permit `run`. The first server runs the statements."""
    settings = server.api.services.settings
    tasks = settings.desktop.task_server.model_copy(update={"enabled": True, "beat_enabled": True})
    desktop = settings.desktop.model_copy(update={"task_server": tasks})
    async with open_api(settings.model_copy(update={"desktop": desktop})) as api, served(api) as url:
        yield url


@pytest.fixture(autouse=True)
async def no_schedules(server: Server) -> AsyncIterator[None]:
    """Deletes the schedules of the test."""
    yield
    await server.api.database.execute("delete from schedules")


@pytest.fixture
async def admin(server: Server, scheduler: str) -> AsyncIterator[Connection]:
    async with connect(scheduler, token=await server.token(admin=True), retries=QUICK) as connection:
        yield connection


@pytest.fixture
async def qs_of_admin(server: Server, scheduler: str, make: Make) -> Qs:
    return make(QUERYSERVER_URL=scheduler, QUERYSERVER_TOKEN=await server.token(admin=True))


async def finish_runs(server: Server, admin: Connection, schedule_id: int) -> None:
    """Submit the run that is due, wait for the end of its statement, and record it, as a beat would."""
    beat = server.api.services.scheduling.beat
    await beat.fire()
    (newest,) = [one async for one in admin.schedules.runs(schedule_id, limit=1)]
    if newest["history_uuid"] is not None:
        await admin.statement(newest["history_uuid"]).wait(60)
    await beat.record_ends()


async def test_saved_query_runs_and_writes_a_file(server: Server, admin: Connection, folder: str):
    day = {"name": "n", "type": "bigint"}
    report = await admin.documents.save("report", "SELECT :n AS n", connector="duckdb", parameters=[day])
    made = await admin.schedules.create(
        "nightly report",
        document=report["uuid"],
        parameters={"n": 7},
        into=f"{folder}/report-{{date}}.csv",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        expires_at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC),
    )
    shown = (made["kind"], made["statement"], made["document"], made["into"], made["expires_at"])
    into = {"path": f"{folder}/report-{{date}}.csv"}
    assert shown == ("statement", None, report["uuid"], into, "2100-01-01T00:00:00Z")
    fire_id = await admin.schedules.run(made["id"])
    with pytest.raises(Conflict) as caught:
        await admin.schedules.run(made["id"])
    assert caught.value.code == "schedule_running"
    await finish_runs(server, admin, made["id"])
    (only,) = [one async for one in admin.schedules.runs(made["id"])]
    assert (only["fire_id"], only["status"], only["message"]) == (fire_id, "finished", "")
    ((name, written),) = stored(server, folder).items()
    assert re.fullmatch(r"report-\d{4}-\d{2}-\d{2}\.csv", name)
    assert written == b"n\r\n7\r\n"
    found = await admin.schedules.get(made["id"])
    assert (found["last_status"], found["last_history_uuid"], found["total_runs"]) == (
        "finished",
        only["history_uuid"],
        1,
    )
    await admin.schedules.delete(made["id"])
    with pytest.raises(NotFound):
        await admin.schedules.get(made["id"])
    with pytest.raises(NotFound):
        [one async for one in admin.schedules.runs(made["id"])]


async def test_failed_run_says_why(server: Server, admin: Connection):
    made = await admin.schedules.create("failing", **{**HOURLY, "statement": "SELECT wrong"})
    await admin.schedules.run(made["id"])
    await finish_runs(server, admin, made["id"])
    (only,) = [one async for one in admin.schedules.runs(made["id"])]
    assert only["status"] == "failed"
    assert "wrong" in only["message"]


async def test_schedule_is_changed_paused_and_resumed(admin: Connection):
    made = await admin.schedules.create("changed", **HOURLY, database="main")
    assert (made["enabled"], made["next_run"] is not None) == (True, True)
    paused = await admin.schedules.pause(made["id"])
    assert (paused["enabled"], paused["next_run"]) == (False, None)
    resumed = await admin.schedules.resume(made["id"])
    assert (resumed["enabled"], resumed["next_run"] is not None) == (True, True)
    changed = await admin.schedules.update(
        made["id"], version=resumed["version"], name="changed again", cron="0 4 * * 1", interval_s=None, database=None,
        statement="SELECT ? AS n", parameters=[dt.date(2026, 1, 5)],
    )  # fmt: skip
    assert (changed["name"], changed["cron"], changed["interval_s"]) == ("changed again", "0 4 * * 1", None)
    assert (changed["database"], changed["parameters"]) == (None, [{"type": "date", "value": "2026-01-05"}])
    with pytest.raises(Conflict) as caught:
        await admin.schedules.update(made["id"], version=1, overlap="queue")
    assert caught.value.code == "version_conflict"
    with pytest.raises(Conflict) as caught:
        await admin.schedules.create("Changed Again", **HOURLY)
    assert caught.value.code == "name_taken"
    with pytest.raises(ApiError) as refused:
        await admin.schedules.create("no times", connector="duckdb", statement="SELECT 1")
    assert refused.value.code == "invalid_parameter"


async def test_task_is_scheduled(admin: Connection):
    made = await admin.schedules.create("cleanup", task="document_cleanup", params={"keep_days": 5}, interval_s=86_400)
    assert (made["kind"], made["task"], made["params"]) == ("task", "document_cleanup", {"keep_days": 5})


async def test_lists_read_all_pages_and_filter(server: Server, admin: Connection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queryserver_client.schedules._PAGE_ITEMS", 2)
    other = await server.api.user("other")
    names = [f"listed {number}" for number in range(5)]
    made = [await admin.schedules.create(name, **HOURLY) for name in names]
    await admin.schedules.update(made[0]["id"], owner=other.username)
    await admin.schedules.pause(made[1]["id"])
    assert [one["name"] async for one in admin.schedules.list()] == names
    assert [one["name"] async for one in admin.schedules.list(limit=3)] == names[:3]
    assert [one["name"] async for one in admin.schedules.list(owner=other.username)] == names[:1]
    assert [one["name"] async for one in admin.schedules.list(is_enabled=False)] == names[1:2]
    assert len([one async for one in admin.schedules.list(is_enabled=True)]) == 4


async def test_others_than_administrators_are_refused(db: Connection):
    for call in (db.schedules.get(1), db.schedules.create("x", **HOURLY), db.schedules.run(1)):
        with pytest.raises(PermissionDenied) as caught:
            await call
        assert caught.value.code == "admin_required"


async def test_synchronous_schedules(server: Server, scheduler: str):
    token = await server.token(admin=True)

    def work() -> None:
        with connect_sync(scheduler, token=token, retries=QUICK) as db:
            made = db.schedules.create("sync", **HOURLY)
            assert [one["name"] for one in db.schedules.list()] == ["sync"]
            assert db.schedules.pause(made["id"])["enabled"] is False
            assert db.schedules.run(made["id"]).startswith(f"beat:{made['id']}:")
            assert [one["status"] for one in db.schedules.runs(made["id"])] == [""]
            assert db.schedules.beat_is_running() is False
            db.schedules.delete(made["id"])

    await asyncio.to_thread(work)


async def test_running_beat_is_reported(server: Server, admin: Connection):
    assert not await admin.schedules.beat_is_running()
    async with Ownership(server.api.database, lease=dt.timedelta(seconds=30), name="beat-1").running(Role.BEAT):
        assert await admin.schedules.beat_is_running()


async def test_readme_example_runs(admin: Connection, folder: str, capsys: pytest.CaptureFixture[str]):
    await admin.documents.save("Daily sales", "SELECT :day AS day", connector="duckdb", parameters=[{"name": "day"}])
    (example,) = blocks("python schedules")
    await run(example.replace("s3a://reports", folder), {"db": admin})
    (schedule,) = [one async for one in admin.schedules.list()]
    (only,) = [one async for one in admin.schedules.runs(schedule["id"])]
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{schedule['id']} \d{{4}}-\S+Z", first)
    assert second == f"{only['due']} in progress"
    assert not schedule["enabled"]


async def test_qs_adds_changes_runs_and_deletes(server: Server, admin: Connection, qs_of_admin: Qs, folder: str):
    qs = qs_of_admin
    assert (await qs("saved", "save", "Report", "SELECT :n AS n", "-c", "duckdb", "-p", "n:bigint")).code == 0
    added = await qs(
        "schedule", "add", "Nightly", "--document", "Report", "-p", "n=7", "--into", f"{folder}/r.csv", "--if-exists",
        "replace", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--paused",
    )  # fmt: skip
    assert added.code == 0, added.err
    number, _, times = added.text.partition("  ")
    assert times == "next run never\n"
    assert "no scheduler" in added.err
    shown = json.loads((await qs("schedule", "show", "nightly", "--json")).text)
    assert shown["into"] == {"path": f"{folder}/r.csv", "if_exists": "replace"}
    assert (shown["parameters"], shown["enabled"], shown["timezone"]) == ({"n": 7}, False, "Europe/Berlin")
    fired = await qs("schedule", "run", "Nightly")
    assert fired.text.startswith(f"beat:{number}:"), fired.err
    await finish_runs(server, admin, int(number))
    (ran,) = json.loads((await qs("schedule", "runs", number, "-o", "json")).text)
    assert (ran["status"], ran["message"]) == ("finished", "")
    assert stored(server, folder) == {"r.csv": b"n\r\n7\r\n"}
    resumed = await qs("schedule", "resume", "Nightly")
    assert re.fullmatch(rf"{number}  next run \d{{4}}-\S+Z\n", resumed.text), resumed.err

    changed = await qs(
        "schedule", "change", "Nightly", "SELECT 8 AS n", "-c", "duckdb", "--every", "6h", "--name", "Often",
        "--overlap", "queue", "--until", "7d", "--unset", "parameters", "--unset", "into",
    )  # fmt: skip
    assert changed.code == 0, changed.err
    shown = await admin.schedules.get(int(number))
    assert (shown["name"], shown["statement"], shown["document"]) == ("Often", "SELECT 8 AS n", None)
    assert (shown["cron"], shown["interval_s"], shown["overlap"]) == (None, 21_600, "queue")
    assert (shown["parameters"], shown["into"], shown["expires_at"] is None) == (None, None, False)
    text = (await qs("schedule", "show", "Often")).text
    assert "statement: SELECT 8 AS n\n" in text
    assert "document" not in text
    (listed,) = json.loads((await qs("schedule", "list", "-o", "json")).text)
    assert (listed["name"], listed["enabled"], listed["times"], listed["runs"]) == ("Often", True, "every 21600s", 1)
    assert [one["enabled"] for one in (await qs("schedule", "list", "--enabled")).records] == ["true"]
    assert (await qs("schedule", "pause", "Often")).code == 0
    assert (await qs("schedule", "list", "--enabled")).records == []
    assert (await qs("schedule", "delete", "Often")).code == 0
    gone = await qs("schedule", "show", "Often")
    assert (gone.code, "no schedule named Often" in gone.err) == (2, True)
    assert (await qs("schedule", "show", number)).code == 1


async def test_qs_schedules_statements_and_tasks(admin: Connection, qs_of_admin: Qs, tmp_path: Path):
    qs, file = qs_of_admin, tmp_path / "a.sql"
    file.write_text("SELECT ? AS n")
    into = ["--into", "postgresql:public.copied", "--if-exists", "append"]
    made = await qs("schedule", "add", "filed", "-f", str(file), "-p", "3", "-c", "duckdb", "--every", "1d", *into)
    assert made.code == 0, made.err
    shown = json.loads((await qs("schedule", "show", "filed", "--json")).text)
    assert (shown["statement"], shown["parameters"], shown["interval_s"]) == ("SELECT ? AS n", [3], 86_400)
    target = {"connector": "postgresql", "database": "public", "table": "copied", "if_exists": "append"}
    assert shown["into"] == target
    task = await qs("schedule", "add", "tidy", "--task", "document_cleanup", "-p", "keep_days=5", "--every", "7d")
    assert task.code == 0, task.err
    (_, listed) = (await qs("schedule", "list")).records
    assert (listed["statement"], listed["times"]) == ("task document_cleanup", "every 604800s")
    assert (await qs("schedule", "change", "tidy", "-", "-c", "duckdb", stdin="SELECT 5")).code == 0
    shown = json.loads((await qs("schedule", "show", "tidy", "--json")).text)
    assert (shown["kind"], shown["statement"], shown["task"]) == ("statement", "SELECT 5", None)
    assert (await qs("schedule", "delete", "filed", "tidy")).code == 0
    assert [one async for one in admin.schedules.list()] == []


@pytest.mark.parametrize(
    "words",
    [
        ("add", "x", "--every", "1h"),
        ("add", "x", "SELECT 1"),
        ("add", "x", "SELECT 1", "--every", "often"),
        ("add", "x", "SELECT 1", "--every", "1h", "--cron", "* * * * *"),
        ("add", "x", "SELECT 1", "--task", "result_cleanup", "--every", "1h"),
        ("add", "x", "--task", "result_cleanup", "-p", "7", "--every", "1h"),
        ("add", "x", "SELECT 1", "--every", "1h", "--if-exists", "append"),
        ("add", "x", "SELECT 1", "--every", "1h", "--into", "local.csv"),
        ("add", "x", "SELECT 1", "--every", "1h", "--on", "failed"),
        ("add", "x", "SELECT 1", "--every", "1h", "--until", "soon"),
        ("add", "x", "--document", "unknown", "--every", "1h"),
        ("change", "unknown", "--every", "1h"),
        ("change", "unknown"),
        ("change", "unknown", "--every", "1h", "--unset", "cron"),
    ],
)
async def test_wrong_use_is_refused(qs_of_admin: Qs, words: tuple[str, ...]):
    ended = await qs_of_admin("schedule", *words)
    assert (ended.code, ended.text) == (2, ""), ended.err


async def test_qs_reports_the_refusals_of_the_server(server: Server, scheduler: str, make: Make, qs_of_admin: Qs):
    reader = make(QUERYSERVER_URL=scheduler, QUERYSERVER_TOKEN=await server.token())
    refused = await reader("schedule", "list")
    assert (refused.code, "administrator" in refused.err.lower()) == (1, True)
    wrong = await qs_of_admin("schedule", "add", "x", "SELECT 1", "-c", "nowhere", "--every", "1h")
    assert (wrong.code, "schedule.connector" in wrong.err) == (1, True)
