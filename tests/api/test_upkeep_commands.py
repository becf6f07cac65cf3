"""close_queries, close_sessions and cleanup beside a running server (Contract platform 12.1, 12.2)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api, Caller
from tests.unit.test_cli import Ended, command_in

Command = Callable[..., Awaitable[Ended]]


@pytest.fixture
async def served(small_api: ApiOpener) -> AsyncIterator[Api]:
    """A server on this test's own database."""
    async with small_api() as api:
        yield api


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """The program on the same database and data directory; it knows the dialect hive."""
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER_DATA_DIR=str(tmp_path / "data"),
        QUERYSERVER__NOTEBOOK__INTERPRETERS__HIVE2='{"interface": "x", "dialect": "hive"}',
    )


@pytest.mark.platform(57)
async def test_close_queries_closes_finished_ones_and_no_running_one(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    done = await ana.run("sqlite", "select 1")
    running = await ana.execute("postgresql", "select pg_sleep(30)")
    by_default = await command("close_queries")
    assert by_default == Ended(
        0, "Closing queries older than 7 days...\n0 queries closed. 0 queries already closed.\n", ""
    )
    everything = await command("close_queries", "0")
    assert everything.out.splitlines() == [
        "Closing queries older than 0 days...",
        "1 queries closed. 0 queries already closed.",
    ]
    status = (await ana.on(done["history_uuid"], "check_status"))["query_status"]["status"]
    assert status == "closed"
    await ana.on(running["history_uuid"], "cancel_statement")
    assert (await command("close_queries", "--", "-1")).code == 2


@pytest.mark.platform(58)
async def test_close_sessions_leaves_other_dialects_and_busy_ones(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    sessions = [await _session(ana, connector) for connector in ("hive2", "sqlite", "postgresql")]
    running = await ana.execute("postgresql", "select pg_sleep(30)", session_id=sessions[2])
    ended = await command("close_sessions", "0", "hive")
    assert ended.out.splitlines() == [
        "Closing hive sessions older than 0 days...",
        "Found 1 open sessions to close",
        "1 sessions closed. 0 sessions skipped because already closed. 0 sessions skipped because in use.",
    ]
    everything = (await command("close_sessions", "0", "all")).out.splitlines()
    assert everything[1:] == [
        "Found 2 open sessions to close",
        "1 sessions closed. 0 sessions skipped because already closed. 1 sessions skipped because in use.",
    ]
    await ana.on(running["history_uuid"], "cancel_statement")
    unknown = await command("close_sessions", "0", "nope")
    assert (unknown.code, unknown.err) == (1, "Unknown dialect: nope\n")
    assert (await command("close_sessions", "0")).code == 2


@pytest.mark.platform(58)
async def test_close_sessions_knows_stored_connectors_by_id_and_by_dialect(served: Api, command: Command) -> None:
    boss = await served.user("boss", admin=True)
    made = {"nice_name": "Notes", "dialect": "sqlite", "interface": "sqlite"}
    ids = []
    for name in ("Notes", "More notes"):
        answer = await boss.told("connector/instance/update", connector=json.dumps({**made, "nice_name": name}))
        ids.append(answer["connector"]["id"])
    sessions = [await _session(boss, connector) for connector in ids]
    assert len(sessions) == 2
    by_id = (await command("close_sessions", "0", ids[0])).out.splitlines()
    assert by_id[:2] == [f"Closing {ids[0]} sessions older than 0 days...", "Found 1 open sessions to close"]
    by_dialect = (await command("close_sessions", "0", "sqlite")).out.splitlines()
    assert by_dialect[1] == "Found 1 open sessions to close"
    deleted = await boss.told("connector/instance/delete", connector=json.dumps({"id": ids[0]}))
    assert deleted["id"] == ids[0]
    assert (await command("close_sessions", "0", ids[0])).code == 1


@pytest.mark.platform(59)
async def test_a_dry_run_announces_what_the_clean_up_then_deletes(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    for _ in range(3):
        await ana.run("sqlite", "select 1")
    await served.database.execute(
        "update statements set recorded_at = recorded_at - interval '40 d', ended_at = ended_at - interval '40 d', "
        "last_used_at = last_used_at - interval '40 d'"
    )
    await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"a,b")})
    await served.database.execute("update import_uploads set expires_at = now()")
    announced = (await command("cleanup", "--dry-run")).out
    assert "history entries: 3 would be deleted" in announced
    assert "expired import files: 1 would be deleted" in announced
    assert await served.database.value("select count(*) from statements") == 3
    done = await command("desktop_document_cleanup")
    assert done.out == announced.replace("would be deleted", "deleted")
    assert await served.database.value("select count(*) from statements") == 0
    assert list(served.services.settings.uploads_dir.iterdir()) == []


async def _session(caller: Caller, connector: str) -> int:
    told = await caller.told("editor/create_session", session=json.dumps({"type": connector}))
    return told["session"]["id"]
