"""Sessions that callers open and close, and the owners of operations (Contract editor 1.6, 9)."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from structlog.testing import capture_logs
from tests.api.conftest import ApiOpener, make_settings
from tests.api.dialects import POSTGRESQL, Dialect, every_dialect
from tests.api.driving import Api, Caller, open_api, until, verdict

from queryserver.platform.settings.editor import BeeswaxSettings, ImpalaSettings, InterpreterSettings


async def opened(ana: Caller, dialect: object, properties: list[Any] | None = None) -> dict[str, Any]:
    """Open a session, which must succeed; return the `session` of the response."""
    session = {"type": str(dialect), **({"properties": properties} if properties is not None else {})}
    body = await ana.post_ok("editor/create_session", session=json.dumps(session))
    assert body["status"] == 0, body
    return body["session"]


async def closed(ana: Caller, **session: Any) -> dict[str, Any]:
    """Close a session, which must succeed; return the `session` of the response."""
    body = await ana.post_ok("editor/close_session", session=json.dumps(session))
    return body["session"]


def settings(**values: str) -> list[dict[str, Any]]:
    return [{"key": "settings", "value": [{"key": key, "value": value} for key, value in values.items()]}]


class TestCreate:
    @pytest.mark.item(57)
    @every_dialect
    async def test_every_dialect_returns_all_session_keys(self, ana: Caller, dialect: Dialect):
        session = await opened(ana, dialect)
        assert (session["type"], session["properties"], session["configuration"]) == (dialect.name, [], {})
        assert (session["reuse_session"], session["http_addr"]) == (False, None)
        body = await ana.run(dialect, "SELECT 1", session_id=session["id"])
        assert body["status"] == 0
        assert (body["handle"]["session_id"], body["handle"]["session_guid"]) == (session["id"], session["session_id"])

    @pytest.mark.item(57)
    async def test_session_settings_apply_to_its_statements(self, ana: Caller):
        session = await opened(ana, POSTGRESQL, settings(work_mem="1234kB"))
        assert session["configuration"] == {"work_mem": "1234kB"}
        assert session["properties"] == settings(work_mem="1234kB")
        for _ in range(2):
            body = await ana.run(POSTGRESQL, "SHOW work_mem", session_id=session["id"])
            assert (await ana.page(body["history_uuid"]))["data"] == [["1234kB"]]
        assert (await ana.result(POSTGRESQL, "SHOW work_mem"))["data"] != [["1234kB"]]

    @pytest.mark.item(57)
    @every_dialect
    async def test_temporary_objects_live_as_long_as_the_session(self, ana: Caller, dialect: Dialect):
        session = (await opened(ana, dialect))["id"]
        table = f"kept_{ana.username}"
        for statement in (f"CREATE TEMPORARY TABLE {table} (a INTEGER)", f"INSERT INTO {table} VALUES (7)"):
            assert (await ana.run(dialect, statement, session_id=session))["status"] == 0
        body = await ana.run(dialect, f"SELECT a FROM {table}", session_id=session)
        assert (await ana.page(body["history_uuid"]))["data"] == [[7]]

    @pytest.mark.item(57)
    async def test_notebook_may_name_the_session(self, ana: Caller):
        session = (await opened(ana, "mysql"))["id"]
        await ana.run("mysql", "set x 5", session_id=session)
        notebook = {"sessions": [{"type": "sqlite", "id": 1}, {"type": "MySQL", "id": session}]}
        answer = await ana.post_json("editor/execute/mysql", statement="get x", notebook=notebook, wait=30)
        assert answer.json()["handle"]["session_id"] == session
        assert (await ana.page(answer.json()["history_uuid"]))["data"] == [["5"]]

    async def test_statements_of_one_session_run_in_order(self, ana: Caller):
        session = (await opened(ana, "mysql"))["id"]

        async def has_begun(operation: str) -> bool:
            return await ana.state(operation) != "waiting"

        for seconds in (0.2, 2, 20):  # a short first statement may end too early on a busy machine
            statements = [f"sleep {seconds}", *(f"set x {number}" for number in range(5)), "get x"]
            operations: list[str] = []
            for statement in statements:
                operations.append((await ana.execute("mysql", statement, session_id=session))["history_uuid"])
                # A statement of another test may occupy the slot, so the first statement may have to wait.
                await until(partial(has_begun, operations[0]))
            states = {await ana.state(one) for one in operations[1:]}
            if first_runs := await ana.state(operations[0]) == "running":
                assert states == {"waiting"}
            ends = [(await ana.ended(one))["query_status"]["state"] for one in operations]
            assert ends == ["success"] * 6 + ["available"]
            assert (await ana.page(operations[-1]))["data"] == [["4"]]
            if first_runs:
                return
        pytest.fail("the first statement always ended before the others were sent")

    @pytest.mark.item(89)
    async def test_session_settings_outside_the_allow_list_are_ignored(self, ana: Caller):
        given = settings(work_mem="1234kB", search_path="x", **{"hive.tez.input.format": "y"})
        session = await opened(ana, POSTGRESQL, given)
        shown = "SELECT current_setting('work_mem'), current_setting('search_path')"
        page = await ana.page((await ana.run(POSTGRESQL, shown, session_id=session["id"]))["history_uuid"])
        assert page["data"] == [["1234kB", '"$user", public']]

    @pytest.mark.parametrize(
        ("session", "code"),
        [
            (None, "missing_parameter"),
            ({}, "missing_parameter"),
            ({"type": ""}, "missing_parameter"),
            ({"type": "postgresql", "properties": settings(role="x")}, "invalid_parameter"),
            ({"type": 5}, "invalid_parameter"),
            ({"type": "mysql", "properties": {}}, "invalid_parameter"),
            ({"type": "mysql", "properties": [1]}, "invalid_parameter"),
            ([], "invalid_parameter"),
            ("{", "invalid_json"),
        ],
    )
    async def test_invalid_request_opens_no_session(self, ana: Caller, session: Any, code: str):
        answer = await ana.post_json("editor/create_session", session=session)
        assert verdict(answer) == (400, -1, code)
        assert await self._open_sessions(ana) == 0

    async def test_unknown_and_forbidden_connectors_look_the_same(self, ana: Caller):
        for name in ("nope", "closed"):
            refused = await ana.post("editor/create_session", session=json.dumps({"type": name}))
            assert verdict(refused) == (404, -1, "dialect_not_found")

    async def test_unavailable_engine_opens_no_session(self, ana: Caller):
        fake = ana.api.fakes["down"]
        fake.reachable = False
        answer = await ana.post("editor/create_session", session='{"type": "down"}')
        fake.reachable = True
        assert verdict(answer) == (503, -1, "engine_unavailable")
        assert await self._open_sessions(ana) == 0

    @pytest.mark.item(69)
    async def test_session_above_the_users_limit_is_refused(self, small_api: ApiOpener):
        async with small_api(max_sessions_per_user=2) as api:
            ana, bob = await api.user(), await api.user()
            first, _ = await opened(ana, "mysql"), await opened(ana, "sqlite")
            refused = await ana.post("editor/create_session", session='{"type": "mysql"}')
            assert verdict(refused) == (429, -1, "too_many_sessions")
            assert "(`editor.max_sessions_per_user`)" in refused.json()["message"]
            assert await self._open_sessions(ana) == 2
            await opened(bob, "mysql")
            await closed(ana, type="mysql", id=first["id"])
            await opened(ana, "mysql")

    @staticmethod
    async def _open_sessions(ana: Caller) -> int:
        return await ana.api.database.value(
            "select count(*) from sessions join users on users.id = user_id"
            " where username_key = $1 and closed_at is null",
            ana.username,
        )


class TestClose:
    @every_dialect
    async def test_close_describes_the_closed_session(self, ana: Caller, dialect: Dialect):
        session = await opened(ana, dialect)
        assert await closed(ana, type=dialect.name, id=session["id"]) == {
            "status": 0,
            "message": "Session successfully closed.",
            "session": {"id": session["id"], "application": dialect.name, "status": 4},
        }

    async def test_close_twice_is_harmless(self, ana: Caller):
        session = await opened(ana, "mysql")
        await closed(ana, type="mysql", id=session["id"])
        assert (await closed(ana, type="mysql", id=session["id"]))["session"] is None

    async def test_close_without_an_id_closes_all_sessions_of_the_connector(self, ana: Caller):
        kept = await opened(ana, "sqlite")
        gone = [await opened(ana, "mysql") for _ in range(2)]
        assert (await closed(ana, type="mysql"))["session"]["application"] == "mysql"
        assert (await closed(ana, type="mysql"))["session"] is None
        for session in gone:
            assert (await ana.run("mysql", "rows 1", session_id=session["id"]))["code"] == "session_lost"
        assert (await ana.run("sqlite", "SELECT 1", session_id=kept["id"]))["status"] == 0

    async def test_close_cancels_the_statements_of_the_session_and_keeps_results(self, ana: Caller):
        session = (await opened(ana, "mysql"))["id"]
        done = (await ana.run("mysql", "rows 3", session_id=session))["history_uuid"]
        running, waiting = [
            (await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"] for _ in range(2)
        ]
        await ana.running(running)
        async with asyncio.timeout(25):
            await closed(ana, type="mysql", id=session)
            assert (await ana.ended(running))["code"] == "canceled"
            assert (await ana.ended(waiting))["code"] == "canceled"
        assert (await ana.page(done))["data"] == [[0], [1], [2]]

    async def test_close_queries_setting_closes_the_results_of_the_session(self, closing: Api):
        ana, bob = await closing.user("ana"), await closing.user("bob")
        first, second, plain = [(await opened(ana, one))["id"] for one in ("hive2", "hive2", "mysql")]
        theirs = (await opened(bob, "hive2"))["id"]
        done = [(await ana.run("hive2", "rows 3", session_id=first))["history_uuid"] for _ in range(2)]
        kept = [
            (await caller.run(dialect, "rows 3", **fields))["history_uuid"]
            for caller, dialect, fields in (
                (ana, "hive2", {"session_id": second}),
                (ana, "hive2", {}),
                (bob, "hive2", {"session_id": theirs}),
                (ana, "mysql", {"session_id": plain}),
            )
        ]
        changed = (await ana.run("hive2", "ddl", session_id=first))["history_uuid"]
        await closed(ana, type="hive2", id=first)
        await closed(ana, type="mysql", id=plain)
        assert [await ana.state(one) for one in done] == ["closed", "closed"]
        assert await ana.state(changed) == "success"
        body = await ana.on(done[0], "fetch_result_data")
        assert (body["status"], body["code"]) == (-3, "closed")
        callers = (ana, ana, bob, ana)
        assert [await caller.state(one) for caller, one in zip(callers, kept, strict=True)] == ["available"] * 4
        assert (await closed(ana, type="hive"))["session"]["id"] == second
        assert [await caller.state(one) for caller, one in zip(callers, kept, strict=True)] == [
            "closed", "available", "available", "available",
        ]  # fmt: skip

    @pytest.mark.parametrize("names_it", [True, False])
    async def test_close_also_closes_results_of_a_session_closed_for_idleness(self, closing, *, names_it):
        """A close call can also be repeated if it failed after it had closed the session."""
        ana, bob = await closing.user("ana"), await closing.user("bob")
        session = (await opened(ana, "hive2"))["id"]
        done = (await ana.run("hive2", "rows 3", session_id=session))["history_uuid"]
        await closing.services.statements.sessions.runner.close_session(session)
        assert await ana.state(done) == "available"
        foreign = json.dumps({"type": "hive2", "id": session})
        assert (await bob.refused("editor/close_session", session=foreign))[2] == "session_not_found"
        assert await ana.state(done) == "available"
        unnamed = (await ana.run("hive2", "rows 3"))["history_uuid"]
        which = {"id": session} if names_it else {}
        assert (await closed(ana, type="hive2", **which))["session"] is None
        assert [await ana.state(one) for one in (done, unnamed)] == ["closed", "available"]

    async def test_impala_and_each_connector_have_separate_close_queries_settings(self, closing: Api):
        ana = await closing.user("ana")
        for key, state in (("impala", "available"), ("tidy", "closed"), ("hive2", "closed"), ("keeping", "available")):
            session = (await opened(ana, key))["id"]
            done = (await ana.run(key, "rows 3", session_id=session))["history_uuid"]
            await closed(ana, type=key, id=session)
            assert await ana.state(done) == state, key

    @pytest.fixture
    async def closing(self, tmp_path: Path, database_dsn: str, users_url: str):
        """A server that closes statements with their session on `[beeswax]` connectors, but not on `[impala]`
        connectors.
        """
        usual = make_settings(tmp_path, database_dsn, users_url)
        interpreters = {
            **usual.notebook.interpreters,
            "impala": InterpreterSettings(interface="fake"),
            "tidy": InterpreterSettings(interface="fake", dialect="impala", options={"close_queries": "true"}),
            "keeping": InterpreterSettings(interface="fake", dialect="hive", options={"close_queries": False}),
        }
        changed = usual.model_copy(
            update={
                "beeswax": BeeswaxSettings(close_queries=True),
                "impala": ImpalaSettings(close_queries=False),
                "notebook": usual.notebook.model_copy(update={"interpreters": interpreters}),
            }
        )
        async with open_api(changed) as api:
            yield api

    @pytest.mark.item(57)
    async def test_other_users_session_is_not_found(self, ana: Caller, bob: Caller):
        session = (await opened(ana, "mysql"))["id"]
        missing = (404, -1, "session_not_found")
        assert await bob.refused("editor/execute/mysql", statement="rows 1", session_id=session) == missing
        assert (
            await bob.refused("editor/close_session", session=json.dumps({"type": "mysql", "id": session})) == missing
        )
        assert await bob.refused("editor/close_session", session=json.dumps({"type": "mysql", "id": 2**40})) == missing
        assert (await ana.run("mysql", "rows 1", session_id=session))["status"] == 0
        assert (await bob.history())["count"] == 0

    @pytest.mark.parametrize("session_id", [0, -1, 2**40, 2**63 - 1])
    async def test_unknown_session_is_not_found(self, ana: Caller, session_id: int):
        missing = (404, -1, "session_not_found")
        assert await ana.refused("editor/execute/mysql", statement="rows 1", session_id=session_id) == missing
        body = json.dumps({"type": "mysql", "id": session_id})
        assert await ana.refused("editor/close_session", session=body) == missing
        assert (await ana.history())["count"] == 0

    async def test_session_of_another_connector_is_not_found(self, ana: Caller):
        session = (await opened(ana, "mysql"))["id"]
        assert (await ana.refused("editor/execute/sqlite", statement="SELECT 1", session_id=session))[
            2
        ] == "session_not_found"


class TestCredentials:
    @pytest.mark.item(59)
    async def test_source_without_credentials_requests_them(self, ana: Caller):
        body = await ana.post_ok("editor/execute/login", statement="SELECT 1")
        assert (body["status"], body["code"]) == (401, "credentials_required")
        assert (await ana.history())["count"] == 0
        body = await ana.post_ok("editor/create_session", session='{"type": "login"}')
        assert (body["status"], body["code"]) == (401, "credentials_required")

    @pytest.mark.item(59)
    async def test_credentials_are_valid_until_the_session_ends(self, ana: Caller, bob: Caller):
        session = await opened(ana, "login", self._properties("planted-secret"))
        assert session["properties"] == self._properties("")
        assert (await ana.run("login", "SELECT 1", session_id=session["id"]))["status"] == 0
        assert (await ana.run("login", "SELECT 1"))["status"] == 0
        assert (await bob.post_ok("editor/execute/login", statement="SELECT 1"))["status"] == 401
        await closed(ana, type="login", id=session["id"])
        assert (await ana.post_ok("editor/execute/login", statement="SELECT 1"))["status"] == 401

    @pytest.mark.item(59)
    async def test_unreadable_credentials_are_requested_again(self, api: Api, ana: Caller):
        """Credentials become unreadable if the key with which they were encrypted is removed."""
        session = await opened(ana, "login", self._properties("planted-secret"))
        await api.database.execute("update sessions set sealed_credentials = 'x' where id = $1", session["id"])
        for path, fields in (
            ("editor/execute/login", {"statement": "SELECT 1"}),
            ("editor/autocomplete", {"snippet": '{"type": "login"}'}),
        ):
            body = await ana.post_ok(path, **fields)
            assert (body["status"], body["code"]) == (401, "credentials_required")
        await closed(ana, type="login", id=session["id"])

    @pytest.mark.item(58, 59)
    async def test_password_never_appears_in_responses_logs_or_tables(self, api: Api, ana: Caller):
        with capture_logs() as logs:
            for password in ("wrong-planted-secret", "planted-secret"):
                answer = await ana.post(
                    "editor/create_session",
                    session=json.dumps({"type": "login", "properties": self._properties(password)}),
                )
                assert answer.status_code == 200
                assert "planted-secret" not in answer.text
            assert answer.json()["status"] == 0
            session = answer.json()["session"]["id"]
            for statement in ("SELECT 1", "SELECT * FROM no_such_table"):
                operation = (await ana.run("login", statement, session_id=session))["history_uuid"]
                for call in ("check_status", "get_logs"):
                    assert "planted-secret" not in (await ana.post(f"editor/{call}", operationId=operation)).text
            assert "planted-secret" not in (await ana.get("editor/get_history")).text
            await closed(ana, type="login", id=session)
        assert "planted-secret" not in repr(logs)
        for table in ("sessions", "statements", "statement_logs"):
            rows = await api.database.fetch(f"select * from {table}")
            assert "planted-secret" not in repr([dict(row) for row in rows])

    @pytest.mark.item(59)
    async def test_refused_credentials_never_return_http_401(self, ana: Caller):
        session = json.dumps({"type": "login", "properties": self._properties("wrong")})
        body = await ana.post_ok("editor/create_session", session=session)
        assert (body["status"], body["code"]) == (401, "credentials_required")

    @staticmethod
    def _properties(password: str) -> list[dict[str, str]]:
        return [{"name": "user", "value": "api_tests"}, {"name": "password", "value": password}]


class TestShared:
    """With `shared_session`, all statements of a user that specify no session use the same session (Contract editor
    9.3).
    """

    async def test_statements_in_a_shared_session_see_earlier_settings(self, ana: Caller):
        first = await ana.run("together", "set x 5")
        second = await ana.run("together", "get x")
        assert (await ana.page(second["history_uuid"]))["data"] == [["5"]]
        assert first["handle"]["session_id"] == second["handle"]["session_id"]
        assert first["handle"]["session_guid"] == second["handle"]["session_guid"]

    async def test_users_do_not_share_sessions_with_each_other(self, api: Api, ana: Caller):
        await ana.run("together", "set y 5")
        body = await (await api.user("ben")).run("together", "get y")
        assert (body["status"], body["code"]) == (1, "engine_error")

    async def test_statements_in_a_shared_session_run_in_order(self, ana: Caller):
        statements = ["sleep 0.3", *(f"set x {number}" for number in range(5)), "get x"]
        operations = [(await ana.execute("together", statement))["history_uuid"] for statement in statements]
        for one in operations:
            await ana.ended(one)
        assert (await ana.page(operations[-1]))["data"] == [["4"]]

    async def test_other_connectors_use_a_session_per_statement(self, ana: Caller):
        await ana.run("mysql", "set z 5")
        assert (await ana.run("mysql", "get z"))["status"] == 1


MISSING = (404, -1, "session_not_found")


async def test_statement_in_a_closed_session_is_recorded_and_fails(ana: Caller, bob: Caller):
    session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
    await ana.post_ok("editor/close_session", session=json.dumps({"type": "mysql", "id": session}))
    lost = await ana.run("mysql", "rows 1", session_id=session)
    assert lost["code"] == "session_lost"
    assert lost["message"].startswith("Invalid session Id")
    assert await bob.refused("editor/execute/mysql", statement="rows 1", session_id=session) == MISSING


async def test_script_session_cannot_be_named(ana: Caller):
    first = await ana.run("mysql", "rows 1; rows 2")
    kept = first["handle"]["session_id"]
    assert await ana.refused("editor/execute/mysql", statement="rows 1", session_id=kept) == MISSING
    second = await ana.run("mysql", "", operationId=first["history_uuid"])
    assert second["handle"]["session_id"] == kept


POSTS = (
    "check_status",
    "fetch_result_data",
    "fetch_result_metadata",
    "fetch_result_size",
    "get_logs",
    "cancel_statement",
    "close_statement",
)


def without(answer: httpx.Response, *ids: str) -> str:
    """Return the response body, in which a placeholder replaces the ids that the caller sent."""
    text = answer.text
    for one in ids:
        text = text.replace(json.dumps(one)[1:-1], "ID")
    return text


class TestStrangers:
    @pytest.mark.item(42)
    @pytest.mark.parametrize("call", POSTS)
    async def test_other_users_id_looks_like_an_unknown_id(self, ana: Caller, bob: Caller, call: str):
        theirs, unknown = (await ana.run("mysql", "rows 1"))["history_uuid"], str(uuid4())
        answers = {one: await bob.post(f"editor/{call}", operationId=one) for one in (theirs, unknown, "malformed")}
        assert {verdict(answer) for answer in answers.values()} == {(404, 2, "operation_not_found")}
        assert len({without(answer, one) for one, answer in answers.items()}) == 1
        assert await ana.state(theirs) == "available"

    @pytest.mark.item(42)
    @pytest.mark.parametrize("call", POSTS)
    async def test_guid_and_secret_grant_no_access(self, ana: Caller, bob: Caller, call: str):
        body = await ana.run("mysql", "rows 1")
        guid = body["handle"]["guid"]
        for handle in ({"guid": guid, "secret": body["handle"]["secret"]}, body["handle"]):
            theirs = await bob.post_json(f"editor/{call}", snippet={"result": {"handle": handle}})
            assert verdict(theirs) == (404, 2, "operation_not_found")
            assert body["history_uuid"] not in theirs.text
        unknown_guid = "AAAAAAAAAAAAAAAAAAAAAA=="
        unknown = await bob.post_json(f"editor/{call}", snippet={"result": {"handle": {"guid": unknown_guid}}})
        assert without(unknown, unknown_guid) == without(theirs, guid)
        assert await ana.state(body["history_uuid"]) == "available"

    @pytest.mark.item(42)
    @pytest.mark.parametrize("path", ["GET editor/download/", "GET editor/events/", "POST editor/watch/"])
    async def test_paths_with_another_users_id_are_also_refused(self, ana: Caller, bob: Caller, path: str):
        method, _, start = path.partition(" ")
        theirs, unknown = (await ana.run("mysql", "rows 1"))["history_uuid"], str(uuid4())
        answers = {one: await bob.send(method, start + one) for one in (theirs, unknown, "malformed")}
        assert {verdict(answer) for answer in answers.values()} == {(404, 2, "operation_not_found")}
        assert len({without(answer, one) for one, answer in answers.items()}) == 1

    @pytest.mark.item(42)
    async def test_other_users_script_cannot_be_continued(self, ana: Caller, bob: Caller):
        first = await ana.run("mysql", "set x 1; get x")
        refused = await bob.refused("editor/execute/mysql", operationId=first["history_uuid"])
        assert refused == (404, 2, "operation_not_found")
        # bob does not know the guid of ana's operation, so it is not linked to a session. His statement runs in a
        # session of his own.
        snippet = {"type": "mysql", "statement": "set x 1; get x", "result": {"handle": first["handle"]}}
        body = (await bob.post_json("editor/execute", snippet=snippet, wait=30)).json()
        assert (body["handle"]["statement_id"], body["code"]) == (1, "engine_error")
        assert body["handle"]["session_id"] != first["handle"]["session_id"]


class TestAdministrators:
    @pytest.mark.item(43)
    async def test_administrators_may_follow_and_stop_but_not_read(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.execute("mysql", "sleep 30 then rows 1"))["history_uuid"]
        await ana.running(operation)
        assert (await admin.on(operation, "check_status"))["query_status"]["state"] == "running"
        assert (await admin.on(operation, "get_logs"))["status"] == 0
        assert (await admin.post_ok(f"editor/watch/{operation}"))["statement"] == "sleep 30 then rows 1"
        async with api.http.stream("GET", f"/api/v1/editor/events/{operation}", headers=admin.headers) as events:
            assert events.status_code == 200
        assert (await admin.on(operation, "cancel_statement"))["query_status"]["state"] == "canceled"

    @pytest.mark.item(43)
    async def test_results_are_only_for_the_owner(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        for call in ("fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            assert await admin.refused(f"editor/{call}", operationId=operation) == (404, 2, "operation_not_found")
        assert verdict(await admin.get(f"editor/download/{operation}")) == (404, 2, "operation_not_found")
        assert await admin.refused("editor/execute/mysql", operationId=operation) == (404, 2, "operation_not_found")
        assert (await admin.on(operation, "close_statement"))["result"]["status"] == 0
        assert await ana.state(operation) == "closed"

    @pytest.mark.item(43)
    async def test_fetch_of_a_failed_statement_by_an_administrator_returns_404(self, api: Api, ana: Caller):
        admin = await api.user(admin=True)
        operation = (await ana.run("mysql", "fail nicely"))["history_uuid"]
        refused = await admin.refused("editor/fetch_result_data", operationId=operation)
        assert refused == (404, 2, "operation_not_found")
        assert (await admin.on(operation, "check_status"))["code"] == "engine_error"


class TestRights:
    @pytest.mark.item(72)
    async def test_lost_right_closes_the_operations_of_the_connector(self, api: Api):
        analyst = await api.user(groups=("analysts",))
        operation = (await analyst.run("closed", "rows 1"))["history_uuid"]
        await api.database.execute(
            "delete from group_members where user_id = (select id from users where username_key = $1) "
            "and group_id = (select id from groups where name = 'analysts')",
            analyst.username,
        )
        denied = (403, -1, "permission_denied")
        for call in POSTS[:-2]:
            assert await analyst.refused(f"editor/{call}", operationId=operation) == denied
        assert verdict(await analyst.get(f"editor/download/{operation}")) == denied
        assert verdict(await analyst.get(f"editor/events/{operation}")) == denied
        assert verdict(await analyst.post(f"editor/watch/{operation}")) == denied
        assert (await analyst.refused("editor/execute/closed", statement="rows 1"))[2] == "dialect_not_found"
        # The operation still belongs to the analyst, who may therefore cancel and close it.
        for call in POSTS[-2:]:
            assert (await analyst.on(operation, call))["status"] == 0

    async def test_download_requires_its_right(self, api: Api, ana: Caller):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        await api.database.execute(
            "delete from group_members where user_id = (select id from users where username_key = $1)", ana.username
        )
        assert verdict(await ana.get(f"editor/download/{operation}")) == (403, -1, "download_disabled")
        assert (await ana.page(operation))["data"] == [[0]]
