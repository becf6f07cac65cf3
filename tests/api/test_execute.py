"""The three forms of the execute call (Contract editor 4)."""

import asyncio
import json
import re
import time
from typing import Any

import httpx
import pytest
from tests.api.answers import TIMES
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, POSTGRESQL, Dialect, every_dialect, literal
from tests.api.driving import Api, Caller, verdict

UNLIKE = {"guid", "secret", "session_id", "session_guid"}

ODD_TEXTS = [
    "a\"b'c\nd\te\\f\\ng%h&i+j é 😀",
    "-- no /* comment */ ; here",
    "\r\n \r \u2028 \u00a0 trailing\t",
    "\\",
    "%41%00&x=1+2",
    "\u0001\u007f\ufeff\uffff",
]


def equal_part(body: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a response that are the same for identical calls."""
    handle = {key: value for key, value in body["handle"].items() if key not in UNLIKE}
    return {"status": body["status"], "handle": handle, "query_status": without_times(body["query_status"])}


def without_times(status: dict[str, Any]) -> dict[str, Any]:
    """Return `query_status` without its timing fields."""
    return {key: value for key, value in status.items() if key not in {*TIMES, "expires_at"}}


class TestHandle:
    @pytest.mark.item(9)
    @every_dialect
    async def test_handle_has_every_key_with_its_type(self, ana: Caller, dialect: Dialect):
        handle = (await ana.execute(dialect, "SELECT 1 AS a"))["handle"]
        assert handle["statement"] == "SELECT 1 AS a"
        assert handle["session_type"] == dialect.name
        assert (handle["start"], handle["end"]) == ({"row": 0, "column": 0}, {"row": 0, "column": 12})
        assert re.fullmatch(r"[A-Za-z0-9+/]{22}==", handle["guid"])
        assert re.fullmatch(r"[A-Za-z0-9+/]{22}==", handle["secret"])
        assert re.fullmatch(r"[0-9a-f]{16}:[0-9a-f]{16}", handle["session_guid"])
        assert type(handle["session_id"]) is int
        assert (handle["operation_type"], handle["log_context"], handle["modified_row_count"]) == (0, None, None)
        assert handle["has_result_set"] is True

    @pytest.mark.item(9)
    async def test_operation_ids_are_random_uuids(self, ana: Caller):
        bodies = [await ana.execute("mysql", "rows 1") for _ in range(2)]
        ids = {body["history_uuid"] for body in bodies}
        assert len(ids) == 2
        assert all(
            re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", one) for one in ids
        )


class TestEncodings:
    @pytest.mark.item(3)
    @pytest.mark.platform(2)
    @every_dialect
    async def test_form_multipart_and_json_are_equivalent(self, ana: Caller, dialect: Dialect):
        fields = {"statement": "SELECT 1 AS a, 'x' AS b", "wait": 30, "limit": 10}
        path = f"editor/execute/{dialect}"
        answers = [
            await ana.send("POST", path, data=fields),
            await ana.send("POST", path, files={name: (None, str(value)) for name, value in fields.items()}),
            await ana.send("POST", path, json=fields),
            await ana.send("POST", path, json={name: str(value) for name, value in fields.items()}),
        ]
        bodies = [answer.json() for answer in answers]
        assert [equal_part(body) for body in bodies] == [equal_part(bodies[0])] * 4
        pages = [await ana.page(body["history_uuid"]) for body in bodies]
        assert [page["data"] for page in pages] == [[[1, "x"]]] * 4

    @pytest.mark.item(3)
    async def test_body_without_a_content_type_is_a_form(self, ana: Caller):
        request = ana.api.http.build_request(
            "POST", "/api/v1/editor/execute/mysql", content=b"statement=rows+1&wait=30"
        )
        assert "content-type" not in request.headers
        answer = await ana.send("POST", "editor/execute/mysql", content=b"statement=rows+1&wait=30")
        assert answer.json()["query_status"]["state"] == "available"

    @pytest.mark.item(3)
    @pytest.mark.platform(8)
    @pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/jsonx", "*/*", "x"])
    async def test_unsupported_content_type_is_refused(self, ana: Caller, kind: str):
        answer = await ana.send(
            "POST", "editor/execute/mysql", content=b'{"statement": "rows 1"}', headers={"Content-Type": kind}
        )
        assert verdict(answer) == (415, -1, "unsupported_media_type")

    @pytest.mark.item(3)
    @pytest.mark.parametrize("kind", ["Application/JSON", "application/json; charset=utf-8", "application/json;x"])
    async def test_content_type_is_matched_ignoring_case_and_parameters(self, ana: Caller, kind: str):
        answer = await ana.send(
            "POST", "editor/execute/mysql", content=b'{"statement": "rows 1"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 200

    @pytest.mark.item(4)
    @pytest.mark.platform(2)
    @every_dialect
    async def test_snippet_is_accepted_as_text_and_as_an_object(self, ana: Caller, dialect: Dialect):
        snippet = {"type": dialect.name, "statement": "SELECT 1 AS a"}
        bodies = [
            (await ana.post("editor/execute", snippet=json.dumps(snippet), wait=30)).json(),
            (await ana.post_json("editor/execute", snippet=json.dumps(snippet), wait=30)).json(),
            (await ana.post_json("editor/execute", snippet=snippet, wait=30)).json(),
            (await ana.post_json("editor/execute", snippet=snippet, notebook=None, wait=30)).json(),
        ]
        assert [equal_part(body) for body in bodies] == [equal_part(bodies[0])] * 4
        assert bodies[0]["handle"]["session_type"] == dialect.name

    @pytest.mark.item(4)
    @pytest.mark.parametrize("snippet", ["{", "nope", '{"a": 1, "a": 2}', "[" * 65 + "]" * 65, '{"a": NaN}'])
    async def test_malformed_snippet_is_refused(self, ana: Caller, snippet: str):
        refused = await ana.refused("editor/execute/mysql", statement="rows 1", snippet=snippet)
        assert refused == (400, -1, "invalid_json")
        answer = await ana.post_json("editor/execute/mysql", statement="rows 1", snippet=snippet)
        assert verdict(answer) == (400, -1, "invalid_json")

    @pytest.mark.item(5)
    @pytest.mark.parametrize("text", ODD_TEXTS)
    @every_dialect
    async def test_statement_reaches_the_engine_unchanged(self, ana: Caller, dialect: Dialect, text: str):
        statement = f"SELECT {literal(text)} AS t"
        for encoding in ("data", "json", "files"):
            fields: Any = {"statement": statement, "wait": "30"}
            if encoding == "files":
                fields = {name: (None, value.encode()) for name, value in fields.items()}
            body = (await ana.send("POST", f"editor/execute/{dialect}", **{encoding: fields})).json()
            assert body["handle"]["statement"] == statement
            assert (await ana.page(body["history_uuid"]))["data"] == [[text]]


class TestStatement:
    @pytest.mark.item(6)
    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, "missing_parameter"),
            ({"statement": ""}, "missing_parameter"),
            ({"statement": " \n\t "}, "missing_parameter"),
            ({"statement": None}, "missing_parameter"),
            ({"snippet": {"statement": "  "}}, "missing_parameter"),
            ({"statement": "-- nothing"}, "invalid_parameter"),
            ({"statement": "/* nothing */ ;; \n -- more"}, "invalid_parameter"),
            ({"statement": ";"}, "invalid_parameter"),
            ({"statement": 5}, "invalid_parameter"),
            ({"statement": ["SELECT 1"]}, "invalid_parameter"),
            ({"statement": {"a": 1}}, "invalid_parameter"),
            ({"statement": True}, "invalid_parameter"),
        ],
    )
    @every_dialect
    async def test_call_without_a_statement_is_refused_and_not_recorded(self, ana, dialect, fields, code):
        answer = await ana.post_json(f"editor/execute/{dialect}", **fields)
        assert verdict(answer) == (400, -1, code)
        assert "statement" in answer.json()["message"]
        assert (await ana.history())["count"] == 0

    async def test_snippet_statement_is_used_only_without_the_field(self, ana: Caller):
        snippet = json.dumps({"statement": "rows 2", "type": "mysql"})
        body = await ana.run("sqlite", "rows 1", snippet=snippet)
        assert (body["handle"]["statement"], body["handle"]["session_type"]) == ("rows 1", "mysql")
        body = await ana.post_ok("editor/execute/sqlite", snippet=snippet)
        assert (body["handle"]["statement"], body["handle"]["session_type"]) == ("rows 2", "mysql")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("wait", "61"),
            ("wait", "-1"),
            ("wait", "x"),
            ("wait", "nan"),
            ("wait", "1e999"),
            ("timeout", "0"),
            ("timeout", "86401"),
            ("timeout", "1.5"),
            ("limit", "0"),
            ("limit", "-1"),
            ("limit", "x"),
            ("session_id", "x"),
            ("client_request_id", "é"),
            ("client_request_id", "a" * 256),
        ],
    )
    async def test_out_of_range_fields_are_refused_by_name(self, ana: Caller, field: str, value: str):
        answer = await ana.post("editor/execute/mysql", statement="rows 1", **{field: value})
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert field in answer.json()["message"]
        assert (await ana.history())["count"] == 0

    @pytest.mark.item(89)
    async def test_engine_settings_outside_the_allow_list_are_ignored_and_logged_by_name(self, ana: Caller):
        given = {
            "hive.tez.input.format": "planted-value",
            "search_path": "planted-value",
            "work_mem": "1234kB",
            "with\nline": "planted-value",
        }
        answer = await ana.post_json(
            "editor/execute/postgresql",
            statement="SELECT current_setting('work_mem'), current_setting('search_path')",
            snippet={"properties": {"settings": [{"key": key, "value": value} for key, value in given.items()]}},
            wait=30,
        )
        operation = answer.json()["history_uuid"]
        assert (await ana.page(operation))["data"] == [["1234kB", '"$user", public']]
        lines = (await ana.on(operation, "get_logs"))["logs"].split("\n")
        warning = "WARN  : Settings that are not passed on to the engine: hive.tez.input.format, search_path, ?."
        assert (lines.count(warning), lines.index(warning)) == (1, 1)
        assert "planted-value" not in "".join(lines)

    @pytest.mark.item(89)
    @pytest.mark.parametrize(
        "name",
        [
            "hive.server2.proxy.user", "impala.doas.user", "hive.exec.pre.hooks", "hive.aux.jars.path", "role",
            "session_authorization", "hive.security.authorization.enabled", "use:database", "set:hiveconf:a",
            "hadoop.job.ugi",
        ],
    )  # fmt: skip
    async def test_engine_settings_that_change_rights_or_load_code_are_refused(self, ana: Caller, name: str):
        answer = await self._with_setting(ana, "postgresql", name)
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert name in answer.json()["message"]

    @pytest.mark.item(89)
    async def test_strict_connector_refuses_all_settings_outside_the_allow_list(self, ana: Caller):
        answer = await self._with_setting(ana, "frozen", "hive.tez.input.format")
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert "hive.tez.input.format" in answer.json()["message"]
        assert (await self._with_setting(ana, "frozen", "work_mem")).status_code == 200

    @staticmethod
    async def _with_setting(ana: Caller, connector: str, name: str) -> httpx.Response:
        properties = {"settings": [{"key": name, "value": "x"}]}
        return await ana.post_json(
            f"editor/execute/{connector}", statement="rows 1", snippet={"properties": properties}
        )

    async def test_allowed_setting_reaches_the_engine(self, ana: Caller):
        properties = {"settings": [{"key": "work_mem", "value": "1234kB"}]}
        answer = await ana.post_json(
            "editor/execute/postgresql", statement="SHOW work_mem", snippet={"properties": properties}, wait=30
        )
        assert (await ana.page(answer.json()["history_uuid"]))["data"] == [["1234kB"]]

    @every_dialect
    async def test_unknown_database_fails_the_statement_with_the_engines_message(self, ana: Caller, dialect: Dialect):
        body = await ana.run(dialect, "SELECT 1", database="no_such_db")
        assert (body["status"], body["code"]) == (1, "engine_error")
        assert "no_such_db" in body["message"]


class TestConnectors:
    @pytest.mark.item(8)
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("hive", "hive2"),
            ("HIVE", "hive2"),
            ("beeswax", "hive2"),
            ("beeswax-7070", "7070"),
            ("hive2", "hive2"),
            ("7070", "7070"),
            ("hive-7070", "7070"),
            ("Hive-7070", "7070"),
            ("mysql", "mysql"),
        ],
    )
    async def test_every_form_of_a_connector_name_selects_it(self, ana: Caller, name: str, key: str):
        statement = f"text {name} {ana.username}"
        for path in (f"editor/execute/{name}", f"query/{name}"):
            assert (await ana.post_ok(path, statement=statement, wait=30))["status"] == 0
        for snippet in ({"type": name}, {"type": "sqlite", "connector": {"type": name}}, {"connector": {"id": name}}):
            answer = await ana.post_json("editor/execute/sqlite", statement=statement, snippet=snippet, wait=30)
            assert answer.json()["status"] == 0
        assert ana.api.fakes[key].executions.count(statement) == 5
        assert sum(fake.executions.count(statement) for fake in ana.api.fakes.values()) == 5

    @pytest.mark.item(8)
    async def test_configured_key_may_differ_from_the_dialect(self, ana: Caller):
        body = await ana.run("warehouse", "SELECT current_database()")
        assert (body["status"], body["handle"]["session_type"]) == (0, "postgresql")

    @pytest.mark.item(8)
    async def test_default_interpreter_runs_statements_without_a_connector(self, ana: Caller):
        for fields in ({}, {"snippet": "{}"}, {"snippet": '{"type": ""}'}):
            body = await ana.post_ok("editor/execute", statement="SELECT 1", **fields)
            assert body["handle"]["session_type"] == "duckdb"

    @pytest.mark.item(8)
    async def test_unknown_and_forbidden_connectors_look_the_same(self, ana: Caller):
        for path in ("editor/execute", "query"):
            unknown, forbidden, mismatch = [
                await ana.post(f"{path}/{name}", statement="rows 1") for name in ("nope", "closed", "mysql-7070")
            ]
            assert verdict(unknown) == verdict(forbidden) == verdict(mismatch) == (404, -1, "dialect_not_found")
            usable = " Configured: duckdb, sqlite, postgresql, warehouse, replica, hive2, 7070, mysql, together, shelf,"
            usable += " down, frozen, login."  # `vault` and `closed` are restricted to other groups
            assert unknown.json()["message"] == f"The connector nope is not configured.{usable}"
            assert forbidden.json()["message"] == f"The connector closed is not configured.{usable}"
        assert (await ana.history())["count"] == 0

    @pytest.mark.item(8)
    async def test_group_membership_grants_a_connector(self, api: Api):
        analyst = await api.user(groups=("analysts",))
        assert (await analyst.run("closed", "rows 1"))["status"] == 0
        admin = await api.user(admin=True)
        assert (await admin.run("closed", "rows 1"))["status"] == 0

    @pytest.mark.item(70)
    async def test_unavailable_engine_fails_the_statement_but_not_the_call(self, ana: Caller):
        fake = ana.api.fakes["down"]
        fake.reachable = False
        body = await ana.run("down", "rows 1")
        assert (body["status"], body["code"], body["query_status"]["state"]) == (1, "engine_unavailable", "failed")
        fake.reachable = True
        assert (await ana.run("down", "rows 1"))["status"] == 0

    async def test_change_on_a_read_only_connector_is_rejected_immediately(self, ana: Caller):
        body = await ana.execute("frozen", "INSERT INTO t VALUES (1)")
        assert (body["status"], body["code"], body["query_status"]["state"]) == (1, "rejected", "failed")
        assert (await ana.ended(body["history_uuid"]))["code"] == "rejected"
        assert not [one for one in ana.api.fakes["frozen"].executions if "INSERT" in one]


class TestTime:
    @pytest.mark.item(10)
    @every_dialect
    async def test_execute_returns_before_the_statement_completes(self, ana: Caller, dialect: Dialect):
        body = await ana.execute(dialect, dialect.slow)
        assert body["query_status"]["state"] == "waiting"
        assert await ana.state(body["history_uuid"]) in {"waiting", "running"}
        await ana.on(body["history_uuid"], "cancel_statement")

    @pytest.mark.item(12)
    @every_dialect
    async def test_execute_with_wait_returns_the_outcome(self, ana: Caller, dialect: Dialect):
        body = await ana.execute(dialect, "SELECT 1 AS a", wait=60)
        assert (body["status"], body["query_status"]["state"], body["query_status"]["rows"]) == (0, "available", 1)

    @pytest.mark.item(12)
    async def test_execute_returns_when_wait_expires_before_completion(self, ana: Caller):
        began = time.monotonic()
        body = await ana.execute(POSTGRESQL, POSTGRESQL.slow, wait=0.7)
        assert time.monotonic() - began >= 0.7
        assert body["status"] == 0
        assert await ana.state(body["history_uuid"]) in {"waiting", "running"}
        await ana.on(body["history_uuid"], "cancel_statement")

    @pytest.mark.item(13)
    async def test_check_status_with_wait_returns_at_completion(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 0.5 then rows 1"))["history_uuid"]
        async with asyncio.timeout(50):
            assert (await ana.on(operation, "check_status", wait=60))["query_status"]["state"] == "available"

    @pytest.mark.item(13)
    @pytest.mark.parametrize("wait", ["61", "x", "-0.1", "inf"])
    async def test_out_of_range_wait_is_refused(self, ana: Caller, wait: str):
        operation = (await ana.execute("mysql", "rows 1"))["history_uuid"]
        refused = await ana.refused("editor/check_status", operationId=operation, wait=wait)
        assert refused == (400, -1, "invalid_parameter")

    @pytest.mark.item(35)
    @every_dialect
    async def test_time_limit_stops_the_statement(self, ana: Caller, dialect: Dialect):
        body = await ana.run(dialect, dialect.slow, timeout=1)
        assert (body["status"], body["code"], body["query_status"]["state"]) == (-4, "statement_timeout", "timed_out")
        assert body["message"] == "The statement exceeded its time limit of 1 s."
        assert body["query_status"]["status"] == "failed"
        assert (await ana.history())["history"][0]["data"]["status"] == "failed"
        # The session accepts the next statement only when the engine has stopped the canceled one.
        assert (await ana.run(dialect, "SELECT 1"))["status"] == 0


class TestOutcome:
    @pytest.mark.item(14)
    @every_dialect
    async def test_statement_without_a_result_set_is_available(self, ana: Caller, dialect: Dialect):
        body = await ana.run(dialect, "CREATE TEMPORARY TABLE t (a INTEGER)")
        operation = body["history_uuid"]
        status = (await ana.ended(operation))["query_status"]
        assert (status["status"], status["has_result_set"], status["state"]) == ("available", False, "success")
        page = await ana.page(operation)
        assert (page["meta"], page["data"], page["has_more"], page["rows_total"]) == ([], [], False, 0)
        assert (await ana.on(operation, "fetch_result_size"))["result"] == {
            "rows": 0,
            "size": 0,
            "message": "",
            "truncated": False,
        }

    async def test_modified_rows_are_counted(self, ana: Caller):
        body = await ana.run("mysql", "change 3")
        assert body["handle"]["modified_row_count"] == body["query_status"]["modified_row_count"] == 3

    @pytest.mark.item(15, 16)
    @every_dialect
    async def test_misspelled_table_fails_with_the_engines_message(self, ana: Caller, dialect: Dialect):
        body = await ana.execute(dialect, "SELECT * FROM no_such_table")
        assert body["status"] == 0
        operation = body["history_uuid"]
        failed = await ana.ended(operation)
        assert (failed["status"], failed["code"]) == (1, "engine_error")
        assert dialect.bad_table in failed["message"].splitlines()[0]
        assert (failed["history_uuid"], failed["history_id"]) == (operation, body["history_id"])
        assert failed["handle"]["guid"] == body["handle"]["guid"]
        shown = without_times(failed["query_status"])
        assert shown | {"message": ""} == {
            "status": "failed",
            "has_result_set": False,
            "state": "failed",
            "message": "",
            "rows": 0,
            "truncated": False,
            "truncated_reason": None,
            "truncated_by": None,
            "modified_row_count": None,
        }
        for call in ("fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            assert await ana.on(operation, call) == failed

    @pytest.mark.item(15)
    @every_dialect
    async def test_execute_with_wait_reports_a_failure_directly(self, ana: Caller, dialect: Dialect):
        body = await ana.execute(dialect, "SELECT * FROM no_such_table", wait=30)
        assert body == await ana.ended(body["history_uuid"])


class TestFirstRows:
    @every_dialect
    async def test_first_rows_match_a_fetch_and_later_fetches_continue_after_them(self, ana: Caller, dialect: Dialect):
        calls = [
            (f"editor/execute/{dialect}", {}),
            (f"query/{dialect}", {}),
            ("editor/execute", {"snippet": json.dumps({"type": dialect.name})}),
        ]
        for path, fields in calls:
            body = await ana.post_ok(path, statement=dialect.rows(3), wait=60, rows=2, **fields)
            assert (body["status"], body["query_status"]["state"]) == (0, "available")
            operation = body["history_uuid"]
            assert body["result"]["data"] == [[0], [1]]
            assert body["result"] == await ana.page(operation, start_row=0, rows=2)
            assert (await ana.page(operation))["data"] == [[2]]

    async def test_first_rows_have_the_requested_format(self, ana: Caller):
        body = await ana.run(DUCKDB, "SELECT '<b>' AS a", rows=1, escape="true")
        assert (body["result"]["isEscaped"], body["result"]["data"]) == (True, [["&lt;b&gt;"]])

    async def test_statement_without_a_result_set_gives_an_empty_table(self, ana: Caller):
        result = (await ana.run("mysql", "ddl", rows=5))["result"]
        assert (result["meta"], result["data"], result["has_more"], result["rows_total"]) == ([], [], False, 0)

    async def test_first_rows_require_the_parameter_and_a_result(self, ana: Caller):
        assert "result" not in await ana.run("mysql", "rows 3")
        assert "result" not in await ana.run("mysql", "rows 3", rows=0)
        assert "result" not in await ana.run("mysql", "fail x", rows=3)
        body = await ana.execute("mysql", "sleep 30", rows=3, wait=0.1)
        assert (body["status"], "result" in body) == (0, False)
        await ana.on(body["history_uuid"], "cancel_statement")
        for rows in ("-1", "x"):
            refused = await ana.refused("editor/execute/mysql", statement="rows 1", rows=rows)
            assert refused == (400, -1, "invalid_parameter")

    @pytest.mark.parametrize("limit", ["1000001", "9" * 30])
    async def test_limit_above_the_maximum_is_capped(self, small_api: ApiOpener, limit: str):
        async with small_api(default_limit=5, result_max_rows=20) as api:
            ana = await api.user()
            status = (await ana.run("mysql", "rows 30", limit=limit))["query_status"]
            assert (status["rows"], status["truncated_by"]) == (20, "result_max_rows")

    async def test_many_rows_are_streamed(self, ana: Caller):
        body = await ana.run("mysql", "rows 1000 wide 1000", rows=1000)
        assert body["result"]["data"] == [[str(n).rjust(1000)] for n in range(1000)]
        assert body["handle"]["statement"] == "rows 1000 wide 1000"

    async def test_execute_succeeds_if_its_rows_are_too_large_to_return(self, small_api: ApiOpener):
        async with small_api(batch_max_bytes=64 * 1024) as api:
            ana = await api.user()
            body = await ana.run("mysql", "rows 2 wide 100000", rows=1)
            assert (body["status"], body["query_status"]["state"], "result" in body) == (0, "available", False)
            answer = await ana.post("editor/fetch_result_data", operationId=body["history_uuid"], rows=1)
            assert verdict(answer)[2] == "row_too_large"

    async def test_replay_returns_the_same_rows(self, ana: Caller):
        fields = {"client_request_id": "k", "rows": 2}
        first = await ana.run("mysql", "rows 5", **fields)
        assert (await ana.page(first["history_uuid"], rows=2))["data"] == [[2], [3]]
        again = await ana.execute("mysql", "rows 5", **fields)
        assert again["history_uuid"] == first["history_uuid"]
        assert again["result"] == first["result"]
        assert (await ana.page(first["history_uuid"], rows=2))["data"] == [[2], [3]]


class TestLimits:
    @pytest.mark.item(69)
    async def test_statement_above_the_users_limit_is_refused_and_not_recorded(self, small_api: ApiOpener):
        async with small_api(max_statements_per_user=2) as api:
            ana, bob = await api.user(), await api.user()
            running = [(await ana.execute("mysql", "sleep 30"))["history_uuid"] for _ in range(2)]
            answer = await ana.post("editor/execute/mysql", statement="rows 1")
            assert verdict(answer) == (429, -1, "too_many_statements")
            assert "(`editor.max_statements_per_user`)" in answer.json()["message"]
            assert (await ana.history())["count"] == 2
            assert (await bob.run("mysql", "rows 1"))["status"] == 0
            await ana.on(running[0], "cancel_statement")
            assert (await ana.run("mysql", "rows 1"))["status"] == 0

    @pytest.mark.item(69)
    async def test_oversized_statement_is_refused(self, small_api: ApiOpener):
        async with small_api(statement_max_bytes=1000, request_body_max_bytes=4000) as api:
            ana = await api.user()
            assert (await ana.run("mysql", "text " + "é" * 495))["status"] == 0
            for statement in ("text " + "é" * 500, "x" * 1001):
                answer = await ana.post("editor/execute/mysql", statement=statement)
                assert verdict(answer) == (413, -1, "payload_too_large")
                assert "(`editor.statement_max_bytes`)" in answer.json()["message"]

    async def test_statement_above_the_spool_quota_is_refused_and_not_recorded(self, small_api: ApiOpener):
        async with small_api(spool_max_bytes_per_user=100_000) as api:
            ana = await api.user()
            operation = (await ana.run(DUCKDB, DUCKDB.rows(40_000), limit=40_000))["history_uuid"]
            answer = await ana.post("editor/execute/mysql", statement="rows 1")
            assert verdict(answer) == (429, -1, "quota_exceeded")
            assert "(`editor.spool_max_bytes_per_user`)" in answer.json()["message"]
            assert (await ana.history())["count"] == 1
            await ana.on(operation, "close_statement")
            assert (await ana.run("mysql", "rows 1"))["status"] == 0

    async def test_wait_above_the_users_stream_limit_is_refused_and_not_recorded(self, small_api: ApiOpener):
        async with small_api(max_streams_per_user=1) as api:
            ana, bob = await api.user(), await api.user()
            operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
            async with api.http.stream("GET", f"/api/v1/editor/events/{operation}", headers=ana.headers) as events:
                assert events.status_code == 200
                busy = (429, -1, "too_many_streams")
                assert await ana.refused("editor/execute/mysql", statement="rows 1", wait=1) == busy
                assert await ana.refused("editor/check_status", operationId=operation, wait=1) == busy
                answer = await ana.get(f"editor/events/{operation}")
                assert verdict(answer) == busy
                assert "(`editor.max_streams_per_user`)" in answer.json()["message"]
                assert (await ana.history())["count"] == 1
                assert (await ana.execute("mysql", "rows 1"))["status"] == 0
                assert (await bob.run("mysql", "rows 1"))["status"] == 0
            assert (await ana.run("mysql", "rows 1"))["status"] == 0
