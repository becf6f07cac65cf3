"""What administrators see of the statements of all users, and how they stop them (Contract platform 7.9, 12)."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api, Caller, verdict
from tests.api.test_audit import Event, about, audited
from tests.unit.cli.test_commands import Ended, command_in

__all__ = ["audited"]

SLOW = "SELECT pg_sleep(60)"


async def listed(admin: Caller, **query: Any) -> list[dict[str, Any]]:
    answer = await admin.get("admin/statements", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["statements"]


@pytest.fixture
async def admin(api: Api) -> Caller:
    return await api.user("boss", admin=True)


async def test_administrators_see_what_runs_whose_and_since_when_without_its_text(api: Api, ana: Caller, admin: Caller):
    running = (await ana.execute(POSTGRESQL, SLOW))["history_uuid"]
    await ana.running(running)
    failed = (await ana.run(POSTGRESQL, "SELECT 'planted' FROM nothing_there"))["history_uuid"]
    try:
        [shown] = await listed(admin, user=ana.username)
        assert (shown["id"], shown["user"], shown["connector"], shown["state"]) == (
            running,
            ana.username,
            "postgresql",
            "running",
        )
        assert shown["started"] >= shown["submitted"]
        assert shown["ended"] is None
        assert shown["server"] == api.services.statements.runner.owner
        every = await listed(admin, user=ana.username, state="all")
        assert [one["id"] for one in every] == [failed, running]
        assert (every[0]["error_code"], every[0]["ended"] is None) == ("engine_error", False)
        assert "planted" not in json.dumps(every)
        for query, ids in (
            ({"state": "failed"}, [failed]),
            ({"state": "running", "connector": "postgresql"}, [running]),
            ({"state": "all", "connector": "duckdb"}, []),
            ({"state": "all", "older_than_s": 3600}, []),
            ({"state": "all", "older_than_s": 0}, [failed, running]),
        ):
            assert [one["id"] for one in await listed(admin, user=ana.username, **query)] == ids, query
        assert await listed(admin, user="nobody of that name", state="all") == []
    finally:
        await ana.on(running, "cancel_statement")


async def test_pages_follow_each_other(ana: Caller, admin: Caller):
    ids = [(await ana.run("mysql", "ddl"))["history_uuid"] for _ in range(3)]
    first = (await admin.get("admin/statements", user=ana.username, state="all", limit=2)).json()
    assert [one["id"] for one in first["statements"]] == [ids[2], ids[1]]
    second = (
        await admin.get("admin/statements", user=ana.username, state="all", limit=2, after=first["next_after"])
    ).json()
    assert ([one["id"] for one in second["statements"]], second["next_after"]) == ([ids[0]], None)


async def test_only_administrators_may(ana: Caller, admin: Caller):
    path = f"admin/statements/{uuid4()}"
    for call in (ana.get("admin/statements"), ana.get(path), ana.post(f"{path}/cancel")):
        assert verdict(await call) == (403, -1, "admin_required")
    for unknown in (path, "admin/statements/7"):
        assert verdict(await admin.get(unknown)) == (404, -1, "operation_not_found")
        assert verdict(await admin.post(f"{unknown}/cancel")) == (404, -1, "operation_not_found")
    assert verdict(await admin.get("admin/statements", state="sleeping")) == (400, -1, "invalid_parameter")


async def test_the_text_is_shown_of_one_statement_and_that_is_written_down(
    ana: Caller, admin: Caller, audited: list[Event]
):
    operation = (await ana.run("mysql", "text of ana"))["history_uuid"]
    shown = (await admin.get(f"admin/statements/{operation}")).json()
    assert (shown["text"], shown["statement"]["id"]) == ("text of ana", operation)
    [event] = about(audited, "statement.show")
    assert (event["user"], event["owner"], event["operation_id"]) == (admin.username, ana.username, operation)


async def test_an_administrator_stops_a_statement(ana: Caller, admin: Caller, audited: list[Event]):
    operation = (await ana.execute(POSTGRESQL, SLOW))["history_uuid"]
    await ana.running(operation)
    for _ in range(2):  # it may be repeated
        stopped = (await admin.post(f"admin/statements/{operation}/cancel")).json()["statement"]
        assert (stopped["state"], stopped["canceled_by"]) == ("canceled", admin.username)
    assert await ana.state(operation) == "canceled"
    [event] = about(audited, "statement.cancel")
    assert (event["user"], event["owner"], event["operation_id"]) == (admin.username, ana.username, operation)
    [end] = about(audited, "statement.end")
    assert (end["user"], end["outcome"], end["canceled_by"]) == (ana.username, "canceled", admin.username)


async def test_the_end_of_each_statement_is_written_down_once(api: Api, ana: Caller, audited: list[Event]):
    good = (await ana.run(POSTGRESQL, "SELECT generate_series(1, 3) AS planted"))["history_uuid"]
    bad = (await ana.run(POSTGRESQL, "SELECT planted FROM nothing_there"))["history_uuid"]
    late = (await ana.run(POSTGRESQL, SLOW, timeout=1))["history_uuid"]
    ends = {event["operation_id"]: event for event in about(audited, "statement.end")}
    assert set(ends) == {good, bad, late}
    assert len(about(audited, "statement.end")) == 3
    assert {key: end["outcome"] for key, end in ends.items()} == {
        good: "ok",
        bad: "engine_error",
        late: "statement_timeout",
    }
    end = ends[good]
    assert (end["user"], end["subject"], end["engine"], end["rows"]) == (ana.username, "postgresql", "postgresql", 3)
    assert ends[late]["elapsed_ms"] >= 900
    assert end["bytes"] > 0
    assert "planted" not in json.dumps(list(ends.values()))


async def test_a_statement_that_was_never_sent_has_an_end_too(api: Api, ana: Caller, audited: list[Event]):
    running = [(await ana.execute("mysql", "sleep 60"))["history_uuid"] for _ in range(8)]  # all places of a user
    for operation in running:
        await ana.running(operation)
    waiting = (await ana.execute("mysql", "ddl"))["history_uuid"]
    await ana.on(waiting, "cancel_statement")
    [end] = about(audited, "statement.end")
    assert (end["operation_id"], end["outcome"], end["canceled_by"]) == (waiting, "canceled", ana.username)
    assert end.get("elapsed_ms", 0) == 0
    for operation in running:
        await ana.on(operation, "cancel_statement")
    assert len(about(audited, "statement.end")) == 9


@pytest.fixture
def commands(tmp_path: Path, shared_database_dsn: str) -> Any:
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=shared_database_dsn,
        QUERYSERVER_DATA_DIR=str(tmp_path / "data"),
        QUERYSERVER__DESKTOP__LOGGING__AUDIT_FILE=str(tmp_path / "audit.log"),
    )


async def test_the_commands_do_the_same_beside_a_running_server(ana: Caller, commands: Any):
    operation = (await ana.execute(POSTGRESQL, f"{SLOW}\n-- \x1b[2J"))["history_uuid"]
    await ana.running(operation)
    shown: Ended = await commands("statements", "list", "--user", ana.username)
    header, line = shown.out.splitlines()
    assert header.split("\t")[:4] == ["ID", "STATE", "USER", "CONNECTOR"]
    assert line.split("\t")[:4] == [operation, "running", ana.username, "postgresql"]
    found: Ended = await commands("statements", "show", operation)
    assert (found.code, found.out.endswith(f"\n\n{SLOW}\n-- \\x1b[2J\n")) == (0, True)
    exported: Ended = await commands("statements", "list", "--user", ana.username, "--json")
    assert exported.code == 0, exported.err
    [entry] = json.loads(exported.out)
    assert entry["id"] == operation
    assert set(entry) == set((await listed(await ana.api.user("boss", admin=True), user=ana.username))[0])
    stopped: Ended = await commands("statements", "stop", operation)
    assert stopped == Ended(0, f"{operation}: canceled\n", "")
    assert (await ana.ended(operation))["code"] == "canceled"
    unknown: Ended = await commands("statements", "stop", str(uuid4()))
    assert (unknown.code, unknown.out) == (1, "")
