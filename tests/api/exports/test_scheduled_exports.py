"""Schedules that run saved queries with parameters, and export their rows (Contract platform 10.7)."""

import datetime as dt
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from tests.api.documents.calls import save, share
from tests.api.driving import Api, Caller, verdict
from tests.api.storage.conftest import Files
from tests.api.test_api_token_statements import program_of

from queryserver import errors
from queryserver.statements.states import ACTIVE


async def scheduled(root: Caller, name: str, **members: Any) -> dict[str, Any]:
    """Create a schedule that fires once a day at 02:30 in Auckland; return it."""
    given = {"name": name, "kind": "statement", "cron": "30 2 * * *", "timezone": "Pacific/Auckland", **members}
    response = await root.post_json("taskserver/schedules/new", schedule=given)
    assert response.status_code == 200, response.text
    return response.json()["schedule"]


async def fired(api: Api, schedule_id: int, due: str) -> dict[str, Any]:
    """Fire the schedule as if it had been due at this time, and wait for its end; return the run."""
    beat, database = api.services.scheduling.beat, api.database
    moment = dt.datetime.fromisoformat(due)
    await database.execute("update schedules set next_run_at = $2 where id = $1", schedule_id, moment)
    await beat.fire()
    run = await database.row("select * from schedule_runs where schedule_id = $1 order by due_at desc", schedule_id)
    assert run is not None
    if run["statement_id"] is not None:
        reader = api.services.statements.reader
        user = await api.services.accounts.directory.user(run["owner_id"])
        assert user is not None
        status = await reader.status(user, run["statement_id"], wait_s=60)
        assert status.state not in ACTIVE
    await beat.record_ends()
    ended = await database.row("select * from schedule_runs where fire_id = $1", run["fire_id"])
    assert ended is not None
    return dict(ended)


@pytest.fixture
async def root(api: Api) -> Caller:
    return await api.user("root", admin=True)


class TestExports:
    @pytest.mark.platform(114)
    async def test_a_saved_query_is_exported_to_a_file_with_the_date_of_the_run(
        self, api: Api, root: Caller, ana: Caller, files: Files, folder: str
    ):
        parameters = [{"name": "least", "type": "bigint", "default": 1}, {"name": "word", "type": "varchar"}]
        statement = "SELECT range AS n, :word AS word FROM range(5) WHERE range >= :least"
        document = await save(ana, name="Nightly", statement=statement, connector="duckdb", parameters=parameters)
        into = {"path": f"file:///{folder}/orders-{{date}}-{{time}}.csv"}
        schedule = await scheduled(
            root,
            f"nightly {folder}",
            owner=ana.username,
            document=document["uuid"],
            parameters={"word": "x"},
            into=into,
        )
        shown = {name: schedule[name] for name in ("document", "statement", "connector", "parameters", "into")}
        assert shown == {
            "document": document["uuid"], "statement": None, "connector": None, "parameters": {"word": "x"},
            "into": into,
        }  # fmt: skip
        # 02:30 of February 1 in Auckland
        run = await fired(api, schedule["id"], "2025-01-31T13:30:00+00:00")
        assert (run["status"], run["message"]) == ("finished", "")
        written = files.root / folder / "orders-2025-02-01-023000.csv"
        assert written.read_text() == "n,word\n1,x\n2,x\n3,x\n4,x\n"
        history = (await ana.history())["history"][0]
        assert (history["uuid"], history["data"]["rows"]) == (str(run["statement_id"]), 1)
        # The next run uses the query as it is then.
        await save(ana, uuid=document["uuid"], version=document["version"], statement="SELECT :word AS w, :least AS l")
        run = await fired(api, schedule["id"], "2025-02-01T13:30:00+00:00")
        assert run["status"] == "finished", run["message"]
        written = files.root / folder / "orders-2025-02-02-023000.csv"
        assert written.read_text() == "w,l\nx,1\n"

    async def test_the_rows_of_a_statement_go_into_a_table(self, api: Api, root: Caller, ana: Caller):
        into = {"connector": "postgresql", "table": "scheduled_rows", "if_exists": "replace"}
        schedule = await scheduled(
            root,
            "into table",
            owner=ana.username,
            connector="duckdb",
            statement="SELECT range AS n FROM range(?)",
            parameters=[3],
            into=into,
        )
        for due in ("2025-01-31T13:30:00+00:00", "2025-02-01T13:30:00+00:00"):
            run = await fired(api, schedule["id"], due)
            assert (run["status"], run["message"]) == ("finished", "")
        rows = await ana.result("postgresql", "SELECT count(*), max(n) FROM scheduled_rows")
        assert rows["data"] == [[3, 2]]

    @pytest.mark.platform(115)
    async def test_runs_have_the_rights_of_the_owner_at_that_time(
        self, api: Api, root: Caller, ana: Caller, bob: Caller
    ):
        document = await save(ana, name="Shared", statement="SELECT 1 AS n", connector="duckdb")
        members = {"owner": bob.username, "document": document["uuid"]}
        refused = await root.post_json(
            "taskserver/schedules/new", schedule={"name": "foreign", "kind": "statement", "interval_s": 3600, **members}
        )
        assert verdict(refused) == (400, -1, "invalid_parameter")
        granted = await share(ana, document["uuid"], {"user": bob.username, "permission": "run"})
        assert granted.status_code == 200, granted.text
        schedule = await scheduled(root, "foreign", **members)
        run = await fired(api, schedule["id"], "2025-01-31T13:30:00+00:00")
        assert (run["status"], run["message"]) == ("finished", "")
        owner = await api.database.value("select user_id from statements where id = $1", UUID(str(run["statement_id"])))
        assert owner == run["owner_id"]
        revoked = await share(ana, document["uuid"], {"user": bob.username, "permission": "none"})
        assert revoked.status_code == 200
        run = await fired(api, schedule["id"], "2025-02-01T13:30:00+00:00")
        assert (run["status"], run["statement_id"]) == ("failed", None)
        assert "does not exist" in run["message"]

    async def test_no_other_connector_of_the_dialect_takes_the_place_of_one_that_is_closed(
        self, api: Api, root: Caller
    ):
        """The connector `hive` is open to the group `analysts` only, and `other` has the dialect `hive` too."""
        cora = await api.user("cora", groups=("analysts",))
        document = await save(cora, name="Closed", statement="rows 3", connector="hive")
        members = {"owner": cora.username, "interval_s": 3600, "cron": None, "timezone": "UTC"}
        into = {"connector": "hive", "table": "t"}
        reads = await scheduled(root, "reads", document=document["uuid"], **members)
        writes = await scheduled(root, "writes", connector="duckdb", statement="SELECT 1 AS n", into=into, **members)
        await api.database.execute(
            "delete from group_members m using users u where u.id = m.user_id and u.username = $1", cora.username
        )
        for one in (reads, writes):
            changed = await root.post_json("taskserver/schedules/update", schedule={"id": one["id"], "name": "new"})
            run = await fired(api, one["id"], "2025-01-31T13:30:00+00:00")
            assert (run["status"], run["statement_id"]) == ("failed", None)
            assert run["message"] == "The owner of the schedule no longer has permission to use its connector."
            # A change of another field does not choose another connector for the rows.
            assert changed.status_code == (200 if one is reads else 400), changed.text

    async def test_an_unknown_connector_of_the_table_is_refused_and_a_dialect_becomes_a_key(
        self, api: Api, root: Caller, ana: Caller
    ):
        given = {"name": "dialect", "kind": "statement", "connector": "duckdb", "statement": "SELECT 1 AS n"}
        given |= {"interval_s": 3600, "owner": ana.username}
        for name, status in (("nowhere", 400), ("hive", 200)):
            into = {"connector": name, "table": "t"}
            answer = await root.post_json("taskserver/schedules/new", schedule={**given, "into": into})
            assert answer.status_code == status, answer.text
        stored = await api.database.value("select \"into\" from schedules where name = 'dialect'")
        assert (stored["destination"]["connector"], stored["given"]) == ("other", into)

    @pytest.mark.parametrize("is_deleted", [False, True])
    async def test_a_recorded_statement_is_found_again_after_its_saved_query_has_changed(
        self, api: Api, root: Caller, ana: Caller, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
    ):
        document = await save(ana, name="Changing", statement="SELECT 1 AS n", connector="duckdb")
        schedule = await scheduled(root, f"found {is_deleted}", owner=ana.username, document=document["uuid"])
        beat = api.services.scheduling.beat
        with monkeypatch.context() as patch:
            patch.setattr(beat.runs, "record_statement", AsyncMock(side_effect=errors.DatabaseUnavailable))
            run = await fired(api, schedule["id"], "2025-01-31T13:30:00+00:00")
        assert (run["status"], run["statement_id"]) == ("", None)
        if is_deleted:
            answer = await ana.post("documents/delete", uuid=document["uuid"])
            assert answer.status_code == 200, answer.text
        else:
            await save(ana, uuid=document["uuid"], version=document["version"], statement="SELECT 2 AS n")
        await beat.fire()
        found = "select * from schedule_runs where fire_id = $1"
        again = await api.database.row(found, run["fire_id"])
        assert again is not None
        key = "select statement_id from idempotency_keys where key = $1"
        assert again["statement_id"] == await api.database.value(key, run["fire_id"])
        assert again["status"] != "failed"

    @pytest.mark.platform(116)
    async def test_a_saved_query_needs_a_connector_that_the_owner_may_use(self, api: Api, root: Caller, ana: Caller):
        cora = await api.user("cora", groups=("analysts",))
        bare = await save(ana, name="Bare", statement="SELECT 1 AS n")
        closed = await save(cora, name="Closed", statement="rows 3", connector="hive")
        await share(cora, closed["uuid"], {"user": ana.username, "permission": "run"})
        given = {"kind": "statement", "interval_s": 3600, "owner": ana.username}
        for document, code in ((bare, "missing_parameter"), (closed, "invalid_parameter")):
            schedule = {"name": document["uuid"], "document": document["uuid"], **given}
            answer = await root.post_json("taskserver/schedules/new", schedule=schedule)
            assert verdict(answer) == (400, -1, code)
            answer = await root.post_json("taskserver/schedules/new", schedule={**schedule, "connector": "duckdb"})
            assert answer.status_code == 200, answer.text

    async def test_a_saved_query_without_connector_fails_the_run(self, api: Api, root: Caller, ana: Caller):
        document = await save(ana, name="Bare", statement="SELECT 1 AS n", connector="duckdb")
        schedule = await scheduled(root, "bare", owner=ana.username, document=document["uuid"])
        await save(ana, uuid=document["uuid"], version=document["version"], connector="")
        run = await fired(api, schedule["id"], "2025-01-31T13:30:00+00:00")
        assert (run["status"], run["statement_id"]) == ("failed", None)
        assert run["message"] == "Neither the schedule nor its saved query names a connector."


@pytest.mark.platform(115)
async def test_a_schedule_that_writes_files_requires_their_scope(root: Caller):
    writer, _ = await program_of(root, scopes=["admin", "query", "files:write"])
    other, _ = await program_of(root, scopes=["admin", "query"])
    given = {"kind": "statement", "connector": "duckdb", "statement": "SELECT 1 AS n", "interval_s": 3600}
    given["into"] = {"path": "file:///scoped.csv"}
    schedule = await scheduled(writer, "scoped", **{**given, "cron": None, "timezone": "UTC"})
    one = {"id": schedule["id"]}
    for call, sent in (
        ("new", {**given, "name": "other"}),
        ("update", {**one, "statement": "SELECT 2 AS n"}),
        ("run", one),
    ):
        answer = await other.post_json(f"taskserver/schedules/{call}", schedule=sent)
        assert verdict(answer) == (403, -1, "insufficient_scope")


@pytest.mark.platform(116)
@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"statement": "SELECT 1", "document": "6f1c2b3a-0000-4000-8000-000000000000"}, "conflicting_parameters"),
        ({}, "missing_parameter"),
        ({"document": "6f1c2b3a-0000-4000-8000-000000000000"}, "invalid_parameter"),
        ({"statement": "SELECT 1", "parameters": [{"type": "odd", "value": 1}]}, "invalid_parameter"),
        ({"statement": "SELECT 1", "into": {"format": "csv"}}, "missing_parameter"),
        ({"statement": "SELECT 1", "into": {"path": "file:///x.csv", "table": "t"}}, "missing_parameter"),
    ],
    ids=["both", "neither", "unknown", "parameters", "path", "table"],
)
async def test_bad_members_are_refused(root: Caller, members: dict[str, Any], code: str):
    given = {"name": "bad", "kind": "statement", "connector": "duckdb", "interval_s": 3600, **members}
    assert verdict(await root.post_json("taskserver/schedules/new", schedule=given)) == (400, -1, code)
