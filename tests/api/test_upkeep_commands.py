"""Commands of administrators that run while a server is running (Contract platform 7.9, 12)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api, Caller, verdict
from tests.api.test_logs import Event, about, audited
from tests.fixtures.database import execute
from tests.timing import until
from tests.unit.cli.test_commands import CommandOutput, command_in

from queryserver.errors.files import StorageUnavailable
from queryserver.statements.retention import CloseReport
from queryserver.statements.session_repository import SessionRecord, SessionRecords

__all__ = ["audited"]  # a fixture
SLOW = "SELECT pg_sleep(60)"

Command = Callable[..., Awaitable[CommandOutput]]


@pytest.fixture
async def served(small_api: ApiOpener) -> AsyncIterator[Api]:
    async with small_api() as api:
        yield api


@pytest.fixture
def command(tmp_path: Path, database_dsn: str) -> Command:
    """The command-line program with the server's database and data directory, and with a connector of the dialect
    hive.
    """
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER_DATA_DIR=str(tmp_path / "data"),
        QUERYSERVER__NOTEBOOK__INTERPRETERS__HIVE2='{"interface": "x", "dialect": "hive"}',
    )


@pytest.mark.platform(57)
async def test_close_queries_closes_finished_but_not_running_queries(served, command, users_url):
    ana = await served.user("ana")
    old, young = [(await ana.run("sqlite", "select 1"))["history_uuid"] for _ in range(2)]
    for operation, days in ((old, 8), (young, 6)):
        await _unused_for(served, operation, days)
    async with _held_up(users_url) as waits:
        running = (await ana.execute("postgresql", f"select 42 from (select {waits}) as held"))["history_uuid"]
        await ana.running(running)
        await _unused_for(served, running, 4000)
        by_default = await command("close_queries")
        assert by_default == CommandOutput(
            0, "Closing queries older than 7 days...\n1 queries closed. 0 queries already closed.\n", ""
        )
        assert [await ana.state(one) for one in (old, young)] == ["closed", "available"]
        everything = await command("close_queries", "0")
        assert everything == CommandOutput(
            0, "Closing queries older than 0 days...\n1 queries closed. 0 queries already closed.\n", ""
        )
        assert [await ana.state(one) for one in (young, running)] == ["closed", "running"]
    assert (await ana.ended(running))["query_status"]["state"] == "available"
    assert (await ana.page(running))["data"] == [[42]]
    assert (await command("close_queries", "--", "-1")).code == 2


@pytest.mark.platform(57)
async def test_close_queries_treats_a_script_as_one_query_kept_by_any_use_of_its_results(served: Api) -> None:
    ana = await served.user("ana")
    close = served.services.statements.retention.close_queries
    body = await ana.run("sqlite", "select 1; select 2; select 3", run_all="true")
    script, first = body["history_uuid"], body["query_status"]["statements"][0]["operationId"]
    failed = (await ana.run("sqlite", "select 1; select nope", run_all="true"))["history_uuid"]
    running = (await ana.execute("mysql", "rows 1; sleep 60", run_all="true"))["history_uuid"]
    await until(lambda: _is_second_running(ana, running))
    await served.database.execute("update statements set last_used_at = now() - interval '8 days'")
    assert (await ana.page(first))["data"] == [[1]]
    assert await close(timedelta(days=7)) == CloseReport(1, 0)
    assert (await ana.on(failed, "fetch_result_data", statement_id=0))["code"] == "closed"
    assert (await ana.page(script))["data"] == [[3]]
    await served.database.execute("update statements set last_used_at = now() - interval '8 days'")
    assert await close(timedelta(days=7)) == CloseReport(1, 0)
    for fields in ({}, {"statement_id": 0}):
        assert (await ana.on(script, "fetch_result_data", **fields))["code"] == "closed"
    assert len((await ana.page(running, statement_id=0))["data"]) == 1
    await ana.on(running, "cancel_statement")


async def _is_second_running(ana: Caller, operation: str) -> bool:
    return [one["state"] for one in (await ana.on(operation, "check_status"))["query_status"]["statements"]] == [
        "available",
        "running",
    ]


@pytest.mark.platform(57)
async def test_close_queries_names_each_result_that_it_cannot_delete(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    stuck, other = [(await ana.run("mysql", "rows 3000 wide 100"))["history_uuid"] for _ in range(2)]
    where = served.services.settings.results_dir / stuck[-2:]
    aside = where.with_name("aside")
    where.rename(aside)
    where.symlink_to(aside)
    # Both results are in the same directory if their ids end in the same two digits, which happens in one of 256 cases.
    beyond = {one for one in (stuck, other) if one[-2:] == stuck[-2:]}
    ended = await command("close_queries", "0")
    first, *lines, last = ended.out.splitlines()
    assert (ended.code, first) == (1, "Closing queries older than 0 days...")
    assert {line.split()[1] for line in lines if line.startswith("Info: ") and "symbolic link" in line} == beyond
    assert (len(lines), last) == (len(beyond), f"{2 - len(beyond)} queries closed. 0 queries already closed.")
    assert [await ana.state(one) for one in (stuck, other)] == ["closed", "closed"]
    where.unlink()
    aside.rename(where)
    assert (await command("close_queries", "0")).code == 0
    assert not (where / stuck).exists()


async def test_undeletable_result_is_reported_once_and_others_are_deleted(served, monkeypatch):
    ana = await served.user("ana")
    stuck, other = [(await ana.run("mysql", "rows 3000 wide 100"))["history_uuid"] for _ in range(2)]
    store = type(served.services.statements.retention.results)
    delete = store.delete

    async def refusing(self: Any, statement_id: UUID) -> None:
        if str(statement_id) == stuck:
            raise StorageUnavailable("The store is read-only.")
        await delete(self, statement_id)

    monkeypatch.setattr(store, "delete", refusing)
    done = await served.services.statements.retention.close_queries(timedelta(0))
    assert done == CloseReport(1, 0, failed={stuck: "The store is read-only."})
    assert await served.database.fetch("select statement_id::text from doomed_results") == [(stuck,)]
    results = served.services.settings.results_dir
    assert [(results / one[-2:] / one).exists() for one in (stuck, other)] == [True, False]
    assert await served.services.statements.retention.close_queries(timedelta(0)) == CloseReport(0, 0)


@pytest.mark.platform(58)
async def test_close_sessions_skips_other_dialects_and_busy_sessions(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    sessions = [await _session(ana, connector) for connector in ("hive2", "sqlite", "postgresql")]
    running = await ana.execute("postgresql", "select pg_sleep(300)", session_id=sessions[2])
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
async def test_statement_started_while_sessions_are_being_closed_keeps_its_session(served, monkeypatch):
    ana = await served.user("ana")
    session, listed = await _session(ana, "mysql"), SessionRecords.open_sessions
    started: list[str] = []

    async def overtaken(self: SessionRecords, **chosen: Any) -> Sequence[SessionRecord]:
        found = await listed(self, **chosen)
        started.append((await ana.execute("mysql", "sleep 300", session_id=session))["history_uuid"])
        return found

    monkeypatch.setattr(SessionRecords, "open_sessions", overtaken)
    assert await served.services.statements.retention.close_sessions(None, timedelta(0)) == CloseReport(0, 0, in_use=1)
    assert await SessionRecords(served.database).read(session) is not None
    await ana.on(started[0], "cancel_statement")


@pytest.mark.platform(58)
async def test_session_used_concurrently_stays_open_and_closed_session_is_counted(served, monkeypatch):
    ana = await served.user("ana")
    used, closed = [await _session(ana, "mysql") for _ in range(2)]
    await served.database.execute("update sessions set last_used_at = now() - interval '8 days'")
    listed = SessionRecords.open_sessions

    async def overtaken(self: SessionRecords, **chosen: Any) -> Sequence[SessionRecord]:
        found = await listed(self, **chosen)
        await self.touch(used)
        await self.close(closed)
        return found

    monkeypatch.setattr(SessionRecords, "open_sessions", overtaken)
    done = await served.services.statements.retention.close_sessions(None, timedelta(days=7))
    assert done == CloseReport(0, already_closed=1, in_use=1)
    assert await SessionRecords(served.database).read(used) is not None


@pytest.mark.platform(58)
async def test_closed_session_is_held_until_its_last_statement_ends(served: Api) -> None:
    """Simulates that a statement was recorded just after its session had been closed because it seemed unused."""
    ana = await served.user("ana")
    session = await _session(ana, "mysql")
    operation = (await ana.execute("mysql", "sleep 300", session_id=session))["history_uuid"]
    await ana.running(operation)
    await served.database.execute("update sessions set closed_at = now() where id = $1", session)
    records = SessionRecords(served.database)
    owner = await served.database.value("select owner from sessions where id = $1", session)
    assert await records.still_owned([session], owner=owner) == [session]
    assert await records.still_owned([session], owner="another") == []
    assert await records.still_owned([], owner=owner) == []
    await ana.on(operation, "cancel_statement")
    await ana.ended(operation)
    assert await records.still_owned([session], owner=owner) == []


@pytest.mark.platform(58)
async def test_close_sessions_names_each_session_that_it_cannot_close(
    served: Api, tmp_path: Path, database_dsn: str
) -> None:
    hasty = command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=database_dsn,
        QUERYSERVER__DESKTOP__DATABASE__STATEMENT_TIMEOUT_S="4",
        QUERYSERVER_DATA_DIR=str(tmp_path / "data"),
    )
    ana = await served.user("ana")
    locked, free = [await _session(ana, "mysql") for _ in range(2)]
    async with served.database.transaction() as connection:
        await connection.execute("select from sessions where id = $1 for update", locked)
        ended = await hasty("close_sessions", "0", "all")
    assert (ended.code, ended.out.splitlines()) == (
        1,
        [
            "Closing all sessions older than 0 days...",
            "Found 2 open sessions to close",
            f"Session with ID {locked} could not be closed: The service database cannot be reached.",
            "1 sessions closed. 0 sessions skipped because already closed. 0 sessions skipped because in use.",
        ],
    )
    records = SessionRecords(served.database)
    assert [await records.read(one) is None for one in (locked, free)] == [False, True]


@pytest.mark.platform(58)
async def test_close_sessions_accepts_stored_connectors_by_id_and_dialect(served: Api, command: Command) -> None:
    boss = await served.user("boss", admin=True)
    made = {"nice_name": "Notes", "dialect": "sqlite", "interface": "sqlite"}
    ids = []
    for name in ("Notes", "More notes"):
        answer = await boss.post_ok("connector/instance/update", connector=json.dumps({**made, "nice_name": name}))
        ids.append(answer["connector"]["id"])
    sessions = [await _session(boss, connector) for connector in ids]
    assert len(sessions) == 2
    by_id = (await command("close_sessions", "0", ids[0])).out.splitlines()
    assert by_id[:2] == [f"Closing {ids[0]} sessions older than 0 days...", "Found 1 open sessions to close"]
    by_dialect = (await command("close_sessions", "0", "sqlite")).out.splitlines()
    assert by_dialect[1] == "Found 1 open sessions to close"
    deleted = await boss.post_ok("connector/instance/delete", connector=json.dumps({"id": ids[0]}))
    assert deleted["id"] == ids[0]
    assert (await command("close_sessions", "0", ids[0])).code == 1


@pytest.mark.platform(59)
async def test_dry_run_lists_the_entries_that_clean_up_deletes(served: Api, command: Command) -> None:
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


@pytest.mark.platform(59)
async def test_clean_up_honors_keep_days_and_zero_deletes_everything(served: Api, command: Command) -> None:
    ana = await served.user("ana")
    for days in (40, 20, 1):
        operation = (await ana.run("sqlite", "select 1"))["history_uuid"]
        await served.database.execute(
            """update statements set recorded_at = recorded_at - make_interval(days => $2),
            ended_at = ended_at - make_interval(days => $2) where id = $1""",
            operation,
            days,
        )
    for arguments, count in (("--keep-days 50", 0), ("", 1), ("--keep-days 10", 2), ("--keep-days 0", 3)):
        announced = (await command("cleanup", "--dry-run", *arguments.split())).out
        assert f"history entries: {count} would be deleted" in announced.splitlines()
    done = await command("cleanup", "--keep-days", "0")
    assert (done.code, "history entries: 3 deleted" in done.out.splitlines()) == (0, True)
    assert await served.database.value("select count(*) from statements") == 0
    assert (await command("cleanup", "--keep-days", "-1")).code == 2


@pytest.mark.platform(59)
async def test_expired_results_are_counted_separately(small_api, command, database_dsn):
    """No server runs during the command, because a server would expire the results within seconds."""
    async with small_api() as api:
        ana = await api.user("ana")
        due, _ = [(await ana.run("mysql", "rows 3000 wide 100"))["history_uuid"] for _ in range(2)]
        result = api.services.settings.results_dir / due[-2:] / due
    await execute(database_dsn, f"update statements set expires_at = now() - interval '1 h' where id = '{due}'")
    announced = (await command("cleanup", "--dry-run")).out
    assert "expired results: 1 would be deleted" in announced.splitlines()
    assert result.exists()
    assert (await command("cleanup")).out == announced.replace("would be deleted", "deleted")
    assert not result.exists()
    async with small_api() as api:
        states = await api.database.fetch("select state from statements where id = $1", due)
        assert [row["state"] for row in states] == ["expired"]


@asynccontextmanager
async def _held_up(users_url: str) -> AsyncIterator[str]:
    """Yield an SQL expression that blocks when it is evaluated, until the context exits."""
    holder = await asyncpg.connect(users_url)
    try:
        await holder.execute("select pg_advisory_lock(57)")
        yield "pg_advisory_xact_lock(57)"
    finally:
        await holder.execute("select pg_advisory_unlock(57)")
        await holder.close()


async def _unused_for(served: Api, operation: str, days: int) -> None:
    sql = "update statements set last_used_at = now() - make_interval(days => $2) where id = $1"
    await served.database.execute(sql, operation, days)


async def _session(caller: Caller, connector: str) -> int:
    body = await caller.post_ok("editor/create_session", session=json.dumps({"type": connector}))
    return body["session"]["id"]


async def listed(admin: Caller, **query: Any) -> list[dict[str, Any]]:
    answer = await admin.get("admin/statements", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["statements"]


@pytest.fixture
async def admin(api: Api) -> Caller:
    return await api.user("boss", admin=True)


async def test_administrators_see_running_statements_with_owner_and_start_but_without_text(
    api: Api, ana: Caller, admin: Caller
):
    running = (await ana.execute(POSTGRESQL, SLOW))["history_uuid"]
    await ana.running(running)
    failed = (await ana.run(POSTGRESQL, "SELECT 'planted' FROM nothing_there"))["history_uuid"]
    try:
        [shown] = await listed(admin, user=ana.username)
        seen = (shown["id"], shown["user"], shown["connector"], shown["state"])
        assert seen == (running, ana.username, "postgresql", "running")
        assert shown["started"] >= shown["submitted"]
        assert shown["ended"] is None
        assert shown["server"] == api.running.statements.runner.owner
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


async def test_statement_pages_are_consecutive(ana: Caller, admin: Caller):
    ids = [(await ana.run("mysql", "ddl"))["history_uuid"] for _ in range(3)]
    first = (await admin.get("admin/statements", user=ana.username, state="all", limit=2)).json()
    assert [one["id"] for one in first["statements"]] == [ids[2], ids[1]]
    second = (
        await admin.get("admin/statements", user=ana.username, state="all", limit=2, after=first["next_after"])
    ).json()
    assert ([one["id"] for one in second["statements"]], second["next_after"]) == ([ids[0]], None)


async def test_only_administrators_may_list_statements(ana: Caller, admin: Caller):
    path = f"admin/statements/{uuid4()}"
    for call in (ana.get("admin/statements"), ana.get(path), ana.post(f"{path}/cancel")):
        assert verdict(await call) == (403, -1, "admin_required")
    for unknown in (path, "admin/statements/7"):
        assert verdict(await admin.get(unknown)) == (404, -1, "operation_not_found")
        assert verdict(await admin.post(f"{unknown}/cancel")) == (404, -1, "operation_not_found")
    assert verdict(await admin.get("admin/statements", state="sleeping")) == (400, -1, "invalid_parameter")


def ends_of(events: list[Event], *operations: str) -> list[Event]:
    """Return the end events of these operations. All other events may belong to statements of earlier tests."""
    return [event for event in about(events, "statement.end") if event["operation_id"] in operations]


async def test_text_is_shown_only_for_a_single_statement_and_audited(ana, admin, audited):
    operation = (await ana.run("mysql", "text of ana"))["history_uuid"]
    shown = (await admin.get(f"admin/statements/{operation}")).json()
    assert (shown["text"], shown["statement"]["id"]) == ("text of ana", operation)
    [event] = about(audited, "statement.show")
    assert (event["user"], event["owner"], event["operation_id"]) == (admin.username, ana.username, operation)


async def test_administrator_can_cancel_a_statement(ana: Caller, admin: Caller, audited: list[Event]):
    operation = (await ana.execute(POSTGRESQL, SLOW))["history_uuid"]
    await ana.running(operation)
    for _ in range(2):  # the second cancellation has the same result
        stopped = (await admin.post(f"admin/statements/{operation}/cancel")).json()["statement"]
        assert (stopped["state"], stopped["canceled_by"]) == ("canceled", admin.username)
    assert await ana.state(operation) == "canceled"
    [event] = about(audited, "statement.cancel")
    assert (event["user"], event["owner"], event["operation_id"]) == (admin.username, ana.username, operation)
    [end] = ends_of(audited, operation)
    assert (end["user"], end["outcome"], end["canceled_by"]) == (ana.username, "canceled", admin.username)


async def test_end_of_each_statement_is_audited_once(ana: Caller, admin: Caller, audited: list[Event]):
    good = (await ana.run(POSTGRESQL, "SELECT generate_series(1, 3) AS planted FROM pg_sleep(1)"))["history_uuid"]
    bad = (await ana.run(POSTGRESQL, "SELECT planted FROM nothing_there"))["history_uuid"]
    late = (await ana.run(POSTGRESQL, SLOW, timeout=1))["history_uuid"]
    events = ends_of(audited, good, bad, late)
    ends = {event["operation_id"]: event for event in events}
    assert set(ends) == {good, bad, late}
    assert [event["user"] for event in events] == [ana.username] * 3
    assert {key: end["outcome"] for key, end in ends.items()} == {
        good: "ok",
        bad: "engine_error",
        late: "statement_timeout",
    }
    end = ends[good]
    assert (end["user"], end["subject"], end["engine"], end["rows"]) == (ana.username, "postgresql", "postgresql", 3)
    assert end["elapsed_ms"] >= 900
    # The timeout of a statement starts with its submission. Its duration starts when it is sent to the engine.
    lengths = {one["id"]: one["elapsed_ms"] for one in await listed(admin, user=ana.username, state="all")}
    assert {key: event.get("elapsed_ms", 0) for key, event in ends.items()} == lengths
    assert end["bytes"] > 0
    assert "planted" not in json.dumps(list(ends.values()))


async def test_end_of_a_statement_that_was_never_sent_is_audited(api: Api, ana: Caller, audited: list[Event]):
    running = [(await ana.execute("mysql", "sleep 60"))["history_uuid"] for _ in range(8)]  # the maximum for one user
    for operation in running:
        await ana.running(operation)
    waiting = (await ana.execute("mysql", "ddl"))["history_uuid"]
    await ana.on(waiting, "cancel_statement")
    [end] = ends_of(audited, waiting, *running)
    assert (end["operation_id"], end["user"]) == (waiting, ana.username)
    assert (end["outcome"], end["canceled_by"]) == ("canceled", ana.username)
    assert end.get("elapsed_ms", 0) == 0
    for operation in running:
        await ana.on(operation, "cancel_statement")
    assert [event["user"] for event in ends_of(audited, waiting, *running)] == [ana.username] * 9


@pytest.fixture
def commands(tmp_path: Path, shared_database_dsn: str) -> Any:
    return command_in(
        tmp_path,
        QUERYSERVER__DESKTOP__DATABASE__URL=shared_database_dsn,
        QUERYSERVER_DATA_DIR=str(tmp_path / "data"),
        QUERYSERVER__DESKTOP__LOGGING__AUDIT_FILE=str(tmp_path / "audit.log"),
    )


async def test_statement_commands_match_the_calls_alongside_a_running_server(ana: Caller, commands: Any):
    operation = (await ana.execute(POSTGRESQL, f"{SLOW}\n-- \x1b[2J"))["history_uuid"]
    await ana.running(operation)
    shown: CommandOutput = await commands("statements", "list", "--user", ana.username)
    header, line = shown.out.splitlines()
    assert header.split("\t")[:4] == ["ID", "STATE", "USER", "CONNECTOR"]
    assert line.split("\t")[:4] == [operation, "running", ana.username, "postgresql"]
    found: CommandOutput = await commands("statements", "show", operation)
    assert (found.code, found.out.endswith(f"\n\n{SLOW}\n-- \\x1b[2J\n")) == (0, True)
    exported: CommandOutput = await commands("statements", "list", "--user", ana.username, "--json")
    assert exported.code == 0, exported.err
    [entry] = json.loads(exported.out)
    assert entry["id"] == operation
    assert set(entry) == set((await listed(await ana.api.user("boss", admin=True), user=ana.username))[0])
    stopped: CommandOutput = await commands("statements", "stop", operation)
    assert stopped == CommandOutput(0, f"{operation}: canceled\n", "")
    assert (await ana.ended(operation))["code"] == "canceled"
    unknown: CommandOutput = await commands("statements", "stop", str(uuid4()))
    assert (unknown.code, unknown.out) == (1, "")
