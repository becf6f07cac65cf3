"""Scripts whose statements are all run by one call (Contract editor 5.5)."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.api.dialects import DUCKDB, POSTGRESQL, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict
from tests.timing import until

from queryserver.statements.overview import OverviewFilter

FIELD = Path(__file__).parents[1] / "field" / "sql"


def steps(body: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the number and state of each statement that has started."""
    return [(one["statement_id"], one["state"]) for one in body["query_status"]["statements"]]


class TestWarning:
    @pytest.mark.item(81)
    async def test_running_one_statement_of_a_script_warns_in_response_and_log(self, ana: Caller):
        first = await ana.run("duckdb", "SELECT 1; SELECT 2; SELECT 3")
        assert first["warning"].startswith("Only statement 1 of 3 of this script is run.")
        assert "run_all=true" in first["warning"]
        log = await ana.on(first["history_uuid"], "get_logs")
        assert first["warning"] in log["logs"].splitlines()
        assert "statements" not in first["query_status"]
        last = await ana.post_ok(
            "editor/execute/duckdb", operationId=first["history_uuid"], statement="SELECT 1; SELECT 2", wait=30
        )
        assert "warning" not in last

    @pytest.mark.item(81)
    @pytest.mark.parametrize("fields", [{}, {"run_all": "true"}])
    async def test_single_statement_causes_no_warning(self, ana: Caller, fields: dict[str, str]):
        assert "warning" not in await ana.run("duckdb", "SELECT 1;", **fields)

    @pytest.mark.item(81)
    async def test_failing_first_statement_also_warns(self, ana: Caller):
        failed = await ana.run("duckdb", "SELECT nope; SELECT 2")
        assert (failed["status"], failed["warning"][:24]) == (1, "Only statement 1 of 2 of")


class TestRunAll:
    @pytest.mark.item(82)
    @every_dialect
    async def test_all_statements_share_a_session_and_the_operation_has_the_last_result(
        self, ana: Caller, dialect: Dialect
    ):
        script = (
            "CREATE TEMPORARY TABLE kept (n integer);\nINSERT INTO kept VALUES (1), (2);\n"
            "SELECT n FROM kept ORDER BY n;\nINSERT INTO kept VALUES (3);\nSELECT count(*) AS c FROM kept;\n"
            "DROP TABLE kept;"
        )
        body = await ana.run(dialect, script, run_all="true", rows=10)
        assert (body["status"], body["query_status"]["state"]) == (0, "available")
        assert steps(body) == [
            (0, "success"), (1, "success"), (2, "available"), (3, "success"), (4, "available"), (5, "success"),
        ]  # fmt: skip
        assert body["result"]["data"] == [[3]]
        assert body["query_status"]["rows"] == 1
        handle = body["handle"]
        assert (handle["statement_id"], handle["statements_count"], handle["has_more_statements"]) == (5, 6, False)
        assert (handle["start"], handle["end"]) == ({"row": 0, "column": 0}, {"row": 5, "column": 15})
        operation = body["history_uuid"]
        assert (await ana.page(operation))["data"] == []  # the cursor is already past the rows in the response
        assert (await ana.page(operation, start_row=0))["data"] == [[3]]
        assert (await ana.page(operation, statement_id=2))["data"] == [[1], [2]]
        assert (await ana.page(operation, statement_id=3))["meta"] == []

    @pytest.mark.item(82)
    async def test_each_statement_reports_its_outcome_and_position(self, ana: Caller):
        body = await ana.run("mysql", "ddl;\nchange 3; rows 7;\nddl", run_all="true")
        ddl, change, rows, last = body["query_status"]["statements"]
        assert (change["modified_row_count"], change["has_result_set"], change["rows"]) == (3, False, 0)
        assert (rows["has_result_set"], rows["rows"], rows["status"]) == (True, 7, "available")
        assert [one["start"] for one in (ddl, change, rows, last)] == [
            {"row": 0, "column": 0}, {"row": 1, "column": 0}, {"row": 1, "column": 9}, {"row": 2, "column": 0},
        ]  # fmt: skip
        assert last["end"] == {"row": 2, "column": 3}
        for one in (ddl, change, rows, last):
            assert None not in (one["started"], one["ended"])
            assert one["elapsed_ms"] >= 0
            assert (one["message"], one["line"], one["column"]) == ("", None, None)
            assert "code" not in one
        page = await ana.page(rows["operationId"])
        assert len(page["data"]) == 7

    @pytest.mark.item(82)
    async def test_script_without_results_ends_in_success(self, ana: Caller):
        body = await ana.run("mysql", "ddl; change 3", run_all="true")
        status = body["query_status"]
        assert (status["state"], status["status"], status["has_result_set"]) == ("success", "available", False)
        assert status["modified_row_count"] == 3
        page = await ana.page(body["history_uuid"])
        assert (page["data"], page["has_more"], page["rows_total"]) == ([], False, 0)

    @pytest.mark.item(83)
    @every_dialect
    async def test_first_failure_ends_the_script_and_earlier_results_stay_readable(self, ana: Caller, dialect: Dialect):
        script = "SELECT 1 AS one;\n\nSELECT 2 AS two;\nSELECT *\nFROM no_such_table;\nSELECT 4 AS four"
        body = await ana.run(dialect, script, run_all="true")
        assert (body["status"], body["code"], body["statement_id"]) == (1, "engine_error", 2)
        assert dialect.bad_table in body["message"]
        assert steps(body) == [(0, "available"), (1, "available"), (2, "failed")]
        failed = body["query_status"]["statements"][2]
        assert (failed["code"], failed["message"]) == ("engine_error", body["message"])
        assert (failed["line"], failed["column"]) == (body["line"], body["column"])
        if dialect in (DUCKDB, POSTGRESQL):
            assert (body["line"], body["column"]) == (2, 6)
        operation = body["history_uuid"]
        assert (await ana.ended(operation))["statement_id"] == 2
        fetched = await ana.on(operation, "fetch_result_data")
        assert (fetched["status"], fetched["code"]) == (1, "engine_error")
        assert (await ana.page(operation, statement_id=0))["data"] == [[1]]
        assert (await ana.page(operation, statement_id=1))["data"] == [[2]]
        of_failed = await ana.on(operation, "fetch_result_data", statement_id=2)
        assert (of_failed["status"], of_failed["handle"]["statement_id"]) == (1, 2)
        never_run = await ana.on(operation, "fetch_result_data", statement_id=3)
        assert (never_run["status"], never_run["history_uuid"]) == (1, operation)
        file = await ana.get(f"editor/download/{operation}", statement_id=1)
        assert (file.status_code, file.text) == (200, "two\r\n2\r\n")

    @pytest.mark.item(82)
    async def test_metadata_size_and_files_belong_to_the_chosen_statement(self, ana: Caller):
        body = await ana.run("duckdb", "SELECT 1 AS a; SELECT 'x' AS b, 2 AS c; BEGIN; COMMIT", run_all="true")
        operation = body["history_uuid"]
        for fields, expected in (({}, ["b", "c"]), ({"statement_id": 0}, ["a"]), ({"statement_id": 1}, ["b", "c"])):
            meta = (await ana.on(operation, "fetch_result_metadata", **fields))["result"]["meta"]
            assert [one["name"] for one in meta] == expected
            size = (await ana.on(operation, "fetch_result_size", **fields))["result"]
            assert size["rows"] == 1
        assert (await ana.get(f"editor/download/{operation}")).text == "b,c\r\nx,2\r\n"
        assert (await ana.get(f"editor/download/{operation}", statement_id=0)).text == "a\r\n1\r\n"
        empty = await ana.get(f"editor/download/{operation}", statement_id=2)
        assert verdict(empty) == (409, 1, "no_result_set")

    @pytest.mark.item(82)
    @pytest.mark.parametrize("statement_id", [2, 99])
    async def test_statement_outside_the_script_is_refused(self, ana: Caller, statement_id: int):
        operation = (await ana.run("duckdb", "SELECT 1; SELECT 2", run_all="true"))["history_uuid"]
        refused = await ana.refused("editor/fetch_result_data", operationId=operation, statement_id=statement_id)
        assert refused == (400, -1, "invalid_parameter")

    @pytest.mark.item(82)
    async def test_single_statement_is_an_ordinary_operation_with_one_listed_statement(self, ana: Caller):
        body = await ana.run("duckdb", "SELECT 7 AS n", run_all="true")
        [only] = body["query_status"]["statements"]
        assert (only["operationId"], only["statement_id"], only["state"]) == (body["history_uuid"], 0, "available")
        assert (await ana.page(body["history_uuid"], statement_id=0))["data"] == [[7]]
        assert await ana.refused("editor/fetch_result_data", operationId=body["history_uuid"], statement_id=1) == (
            400,
            -1,
            "invalid_parameter",
        )

    @pytest.mark.item(84)
    async def test_history_has_one_entry_with_the_script(self, api: Api):
        user = await api.user()
        body = await user.run("duckdb", "SELECT 1;\nSELECT 2", run_all="true")
        history = await user.history()
        [entry] = history["history"]
        assert (history["count"], entry["uuid"]) == (1, body["history_uuid"])
        assert (entry["data"]["statement"], entry["data"]["status"]) == ("SELECT 1;\nSELECT 2", "available")

    @pytest.mark.item(84)
    async def test_one_log_covers_all_statements(self, ana: Caller):
        operation = (await ana.run("mysql", "rows 1; ddl; fail no", run_all="true"))["history_uuid"]
        log = await ana.on(operation, "get_logs")
        lines = log["logs"].splitlines()
        assert [line for line in lines if line.startswith("Statement ")] == [
            "Statement 1 of 3.", "Statement 2 of 3.", "Statement 3 of 3.",
        ]  # fmt: skip
        assert lines[-1] == "no"
        assert log["next_from"] == len(lines)
        later = await ana.on(operation, "get_logs", **{"from": lines.index("Statement 2 of 3.")})
        assert later["logs"].splitlines() == lines[lines.index("Statement 2 of 3.") :]

    @pytest.mark.item(84)
    async def test_watch_and_events_follow_the_script(self, ana: Caller):
        operation = (await ana.run("mysql", "ddl; rows 3", run_all="true"))["history_uuid"]
        watched = await ana.post_ok(f"editor/watch/{operation}")
        assert (watched["isSuccess"], len(watched["query_status"]["statements"])) == (True, 2)
        stream = (await ana.get(f"editor/events/{operation}")).text
        assert "event: end" in stream
        assert '"statement_id":1' in stream

    @pytest.mark.item(84)
    async def test_events_report_each_statement(self, ana: Caller):
        operation = (await ana.execute("mysql", "ddl; sleep 2 then rows 1", run_all="true"))["history_uuid"]
        stream = (await ana.get(f"editor/events/{operation}")).text
        seen = [
            tuple(one["state"] for one in json.loads(line.removeprefix("data: "))["query_status"]["statements"])
            for line in stream.splitlines()
            if line.startswith("data: ") and "query_status" in line
        ]
        assert ("success", "running") in seen
        assert seen[-1] == ("success", "available")

    @pytest.mark.item(85)
    async def test_cancel_stops_the_statement_and_starts_no_further_statement(self, ana: Caller):
        operation = (await ana.execute("mysql", "rows 2; sleep 60; change 1", run_all="true"))["history_uuid"]

        async def second_runs() -> bool:
            body = await ana.on(operation, "check_status")
            assert body["query_status"]["state"] in {"waiting", "running"}
            begun = body["query_status"]["statements"]
            return len(begun) == 2 and begun[1]["state"] == "running"

        await until(second_runs)
        assert (await ana.page(operation))["has_more"] is True
        assert (await ana.page(operation, statement_id=0))["data"] == [[0], [1]]
        await ana.on(operation, "cancel_statement")
        body = await ana.ended(operation)
        assert (body["status"], body["code"]) == (1, "canceled")
        assert steps(body) == [(0, "available"), (1, "canceled")]
        assert (await ana.page(operation, statement_id=0, start_row=0))["data"] == [[0], [1]]

    @pytest.mark.item(85)
    async def test_time_limit_covers_the_whole_script(self, ana: Caller):
        body = await ana.run("mysql", "rows 1; sleep 60; rows 1", run_all="true", timeout=2)
        assert (body["status"], body["code"]) == (-4, "statement_timeout")
        assert steps(body) == [(0, "available"), (1, "timed_out")]

    @pytest.mark.item(85)
    async def test_close_frees_the_results_of_all_statements(self, ana: Caller):
        operation = (await ana.run("mysql", "rows 1; rows 2", run_all="true"))["history_uuid"]
        closed = await ana.on(operation, "close_statement")
        assert closed["result"]["status"] == 0
        assert (await ana.on(operation, "check_status"))["code"] == "closed"
        for statement_id in (0, 1):
            fetched = await ana.on(operation, "fetch_result_data", statement_id=statement_id)
            assert (fetched["status"], fetched["code"]) == (-3, "closed")

    @pytest.mark.item(86)
    async def test_one_idempotency_key_runs_the_script_once(self, api: Api, ana: Caller):
        before = len(api.fakes["mysql"].executions)
        first, second = [
            await ana.run("mysql", "ddl; rows 4", run_all="true", client_request_id="script-1") for _ in range(2)
        ]
        assert first["history_uuid"] == second["history_uuid"]
        assert steps(second) == [(0, "success"), (1, "available")]
        assert len(api.fakes["mysql"].executions) == before + 2
        refused = await ana.refused(
            "editor/execute/mysql", statement="ddl; rows 4", client_request_id="script-1", wait=30
        )
        assert refused == (409, -1, "idempotency_conflict")

    @pytest.mark.item(87)
    async def test_operation_id_with_run_all_runs_the_remaining_statements(self, ana: Caller):
        script = "text a; text b; text c"
        first = await ana.run("mysql", script)
        rest = await ana.post_ok("editor/execute/mysql", operationId=first["history_uuid"], run_all="true", wait=30)
        assert steps(rest) == [(1, "available"), (2, "available")]
        assert (await ana.page(rest["history_uuid"]))["data"] == [["c"]]
        over = await ana.refused("editor/execute/mysql", operationId=rest["history_uuid"], run_all="true")
        assert over == (409, -1, "no_more_statements")

    @pytest.mark.item(87)
    async def test_failed_script_can_continue_after_or_at_the_failed_statement(self, ana: Caller):
        failed = await ana.run("mysql", "text a; fail b; text c; text d", run_all="true")
        operation = failed["history_uuid"]
        after = await ana.post_ok("editor/execute/mysql", operationId=operation, run_all="true", wait=30)
        assert steps(after) == [(2, "available"), (3, "available")]
        edited = await ana.post_ok(
            "editor/execute/mysql",
            operationId=operation,
            statement="text a; text b; text c; text d",
            run_all="true",
            wait=30,
        )
        assert steps(edited) == [(1, "available"), (2, "available"), (3, "available")]

    @pytest.mark.item(82)
    async def test_script_session_closes_but_a_named_session_stays_open(self, ana: Caller):
        created = await ana.post_ok("editor/create_session", session='{"type": "mysql"}')
        session = created["session"]["id"]
        body = await ana.run("mysql", "set x 5; fail now", run_all="true", session_id=session)
        assert (body["status"], body["statement_id"]) == (1, 1)
        seen = await ana.run("mysql", "get x; set x 6; get x", run_all="true", session_id=session)
        assert seen["query_status"]["state"] == "available"
        assert (await ana.page(seen["history_uuid"], statement_id=0))["data"] == [["5"]]
        assert (await ana.page(seen["history_uuid"]))["data"] == [["6"]]

    @pytest.mark.item(82)
    @pytest.mark.parametrize("path", ["editor/execute", "editor/execute/mysql", "query/mysql"])
    async def test_every_form_of_the_call_accepts_run_all(self, ana: Caller, path: str):
        body = await ana.post_ok(path, statement="ddl; rows 1", snippet='{"type": "mysql"}', run_all="true", wait=30)
        assert steps(body) == [(0, "success"), (1, "available")]

    @pytest.mark.item(82)
    async def test_run_all_false_runs_one_statement_and_invalid_words_are_refused(self, ana: Caller):
        body = await ana.run("mysql", "ddl; rows 1", run_all="false")
        assert "warning" in body
        refused = await ana.refused("editor/execute/mysql", statement="ddl", run_all="perhaps")
        assert refused == (400, -1, "invalid_parameter")

    @pytest.mark.item(82)
    async def test_script_above_the_statement_limit_is_refused_before_anything_runs(self, api: Api):
        user = await api.user()
        most = api.services.settings.editor.script_max_statements
        refused = await user.refused("editor/execute/mysql", statement="ddl;" * (most + 1), run_all="true")
        assert refused == (400, -1, "invalid_parameter")
        assert (await user.history())["count"] == 0

    @pytest.mark.item(82)
    async def test_parameters_fill_the_placeholders_of_their_statements(self, ana: Caller):
        script = "SELECT ? AS a; SELECT 1 WHERE ? > ?; SELECT ? AS d"
        body = await ana.run("duckdb", script, run_all="true", parameters='["x", 3, 2, "y"]')
        assert body["status"] == 0, body
        operation = body["history_uuid"]
        assert [(await ana.page(operation, statement_id=k))["data"] for k in range(3)] == [[["x"]], [[1]], [["y"]]]
        named = await ana.run("duckdb", "SELECT :a AS a; SELECT :b, :a", run_all="true", parameters='{"a": 1, "b": 2}')
        assert (await ana.page(named["history_uuid"]))["data"] == [[2, 1]]

    @pytest.mark.item(73)
    async def test_postgresql_rule_with_several_statements_is_created(self, ana: Caller):
        script = (FIELD / "06_postgresql_create_rule.sql").read_text()
        script += "INSERT INTO rl_a VALUES (7); SELECT i FROM rl_b ORDER BY i; DROP TABLE rl_a; DROP TABLE rl_b"
        body = await ana.run("postgresql", script, run_all="true")
        assert body["status"] == 0, body
        assert (await ana.page(body["history_uuid"]))["data"] == [[7], [8]]

    @pytest.mark.item(82)
    async def test_other_users_find_neither_the_script_nor_its_statements(self, api: Api, ana: Caller):
        body = await ana.run("mysql", "rows 1; rows 2", run_all="true")
        ben = await api.user()
        for operation in (body["history_uuid"], body["query_status"]["statements"][0]["operationId"]):
            assert await ben.refused("editor/check_status", operationId=operation) == (404, 2, "operation_not_found")
            assert await ben.refused("editor/fetch_result_data", operationId=operation, statement_id=0) == (
                404, 2, "operation_not_found",
            )  # fmt: skip

    @pytest.mark.item(85)
    async def test_script_canceled_while_waiting_for_its_session_never_reaches_the_engine(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        before = (await ana.execute("mysql", "sleep 60", session_id=session))["history_uuid"]
        await ana.running(before)
        waiting = await ana.execute("mysql", "text never seen; ddl", session_id=session, run_all="true")
        operation = waiting["history_uuid"]
        assert steps(waiting) == [(0, "waiting")]
        assert (await ana.on(operation, "cancel_statement"))["query_status"]["state"] == "canceled"
        body = await ana.ended(operation)
        assert (body["code"], steps(body)) == ("canceled", [(0, "canceled")])
        assert "text never seen" not in ana.api.fakes["mysql"].executions
        await ana.on(before, "cancel_statement")

    @pytest.mark.item(85)
    async def test_cancel_between_statements_keeps_earlier_results(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        script = "sleep 1 then rows 2; text after the cancel"
        operation = (await ana.execute("mysql", script, session_id=session, run_all="true"))["history_uuid"]
        await ana.running(operation)
        between = (await ana.execute("mysql", "sleep 60", session_id=session))["history_uuid"]

        async def second_waits() -> bool:
            return steps(await ana.on(operation, "check_status")) == [(0, "available"), (1, "waiting")]

        await until(second_waits)
        assert (await ana.on(operation, "cancel_statement"))["query_status"]["state"] == "canceled"
        await ana.on(between, "cancel_statement")
        assert steps(await ana.ended(operation)) == [(0, "available"), (1, "canceled")]
        await ana.api.services.statements.retention.expire()
        assert (await ana.page(operation, statement_id=0))["data"] == [[0], [1]]
        assert "text after the cancel" not in ana.api.fakes["mysql"].executions

    @pytest.mark.item(85)
    @pytest.mark.parametrize("script", ["rows 2; fail now", "rows 2; sleep 60"])
    async def test_close_frees_the_results_of_a_failed_or_running_script(self, ana: Caller, script: str):
        operation = (await ana.execute("mysql", script, run_all="true"))["history_uuid"]

        async def second_began() -> bool:
            return len(steps(await ana.on(operation, "check_status"))) == 2

        await until(second_began)
        await ana.on(operation, "close_statement")
        assert (await ana.on(operation, "fetch_result_data", statement_id=0))["code"] == "closed"

    @pytest.mark.item(85)
    async def test_canceling_one_statement_cancels_the_script(self, ana: Caller):
        body = await ana.execute("mysql", "sleep 60; ddl", run_all="true")
        await ana.running(body["history_uuid"])
        part = (await ana.on(body["history_uuid"], "check_status"))["query_status"]["statements"][0]["operationId"]
        await ana.on(part, "cancel_statement")
        assert (await ana.ended(body["history_uuid"]))["code"] == "canceled"

    @pytest.mark.item(82)
    async def test_long_script_runs_in_order(self, ana: Caller):
        texts = [f"text {number:03} {'x' * 90}" for number in range(300)]
        body = await ana.execute("mysql", ";\n".join(texts), run_all="true")
        operation = body["history_uuid"]
        assert body["handle"]["end"] == {"row": 299, "column": 99}
        body = await ana.ended(operation)
        while body["query_status"]["state"] in {"waiting", "running"}:
            body = await ana.ended(operation)
        assert steps(body) == [(number, "available") for number in range(300)]
        assert [one["start"]["row"] for one in body["query_status"]["statements"]] == list(range(300))
        for number in (0, 150, 299):
            assert (await ana.page(operation, statement_id=number))["data"] == [[texts[number].removeprefix("text ")]]

    @pytest.mark.item(82)
    async def test_concurrent_scripts_of_one_user_keep_their_sessions(self, api: Api):
        user = await api.user()
        script = "set x {0}; get x; sleep 0; get x; get x"
        bodies = await asyncio.gather(
            *(user.run("mysql", script.format(number), run_all="true") for number in range(16))
        )
        for number, body in enumerate(bodies):
            assert body["status"] == 0, body
            assert (await user.page(body["history_uuid"]))["data"] == [[str(number)]]

    @pytest.mark.item(85)
    async def test_all_script_results_expire_together(self, api: Api, ana: Caller):
        operation = (await ana.run("mysql", "rows 1; rows 2; ddl", run_all="true"))["history_uuid"]
        ends = await api.database.fetch(
            "select expires_at from statements where (id = $1 or operation_id = $1) and state = 'available'",
            UUID(operation),
        )
        assert (len(ends), len({row["expires_at"] for row in ends})) == (3, 1)
        await api.database.execute(
            "update statements set expires_at = now() where id = $1 or operation_id = $1", UUID(operation)
        )
        await api.services.statements.retention.expire()
        for fields in ({}, {"statement_id": 0}, {"statement_id": 1}):
            assert (await ana.on(operation, "fetch_result_data", **fields))["code"] == "expired"
        assert (await ana.on(operation, "check_status"))["code"] == "expired"

    @pytest.mark.item(84)
    async def test_administrators_see_one_statement_per_script(self, api: Api):
        user = await api.user()
        operation = (await user.run("mysql", "rows 1; ddl; rows 2", run_all="true"))["history_uuid"]
        chosen = OverviewFilter(user=user.username)
        entries, _ = await api.services.statements.administration.page(chosen, limit=10)
        assert [str(entry.id) for entry in entries] == [operation]
        assert entries[0].server != "script"

    @pytest.mark.item(88)
    async def test_operation_ends_after_an_older_program_ended_its_statement(self, api: Api, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 60; ddl", run_all="true"))["history_uuid"]
        await ana.running(operation)
        await api.database.execute(
            "update statements set state = 'success', ended_at = now() where operation_id = $1", UUID(operation)
        )
        await api.running.statements.runner.owned.end_broken_scripts()
        body = await ana.ended(operation)
        assert (body["code"], body["query_status"]["state"]) == ("outcome_unknown", "failed")

    @pytest.mark.item(83)
    async def test_script_on_a_read_only_connector_ends_at_the_first_change(self, ana: Caller):
        body = await ana.run("replica", "SELECT 1; delete from t; SELECT 2", run_all="true")
        assert (body["status"], body["code"], body["statement_id"]) == (1, "rejected", 1)
        assert body["message"] == "This connector is read-only, but the statement begins with DELETE."
        assert steps(body) == [(0, "available"), (1, "failed")]
        assert (await ana.page(body["history_uuid"], statement_id=0))["data"] == [[1]]

    @pytest.mark.item(83)
    async def test_leading_change_on_a_read_only_connector_is_refused_immediately(self, ana: Caller):
        body = await ana.execute("replica", "delete from t; SELECT 2", run_all="true")
        assert (body["status"], body["code"], steps(body)) == (1, "rejected", [(0, "failed")])

    @pytest.mark.item(85)
    async def test_cancel_at_any_moment_ends_the_script_and_leaves_nothing_running(self, api: Api):
        user = await api.user()

        async def canceled(number: int) -> tuple[str, list[str]]:
            script = "; ".join(["rows 1"] * 8)
            operation = (await user.execute("mysql", script, run_all="true"))["history_uuid"]
            await asyncio.sleep(number * 0.01)
            await user.on(operation, "cancel_statement")
            body = await user.ended(operation)
            return body["query_status"]["state"], [state for _, state in steps(body)]

        for first in range(0, 24, 8):
            for state, begun in await asyncio.gather(*(canceled(number) for number in range(first, first + 8))):
                assert set(begun[:-1]) <= {"available"}
                if state == "available":
                    assert begun == ["available"] * 8
                else:
                    assert state == "canceled"
                    assert begun[-1] in {"canceled", "available"}
        active = """select count(*) from statements join users on users.id = user_id
            where username = $1 and state in ('waiting', 'running')"""
        assert await api.database.value(active, user.username) == 0
