"""Limits on what a data source expects a statement to read (Contract editor 4.10)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.test_api_token_statements import program_of
from tests.fakes.estimates import ROW_BYTES, ROW_COST, SCANNED_ROW_BYTES, FakeEstimatingEngine
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.settings.editor import InterpreterSettings

_DEFAULT_ROWS, _CONNECTOR_ROWS = 50, 10
"""What the limit of `editor` and that of the connector `limited` permit, in rows of the scripted engine."""


@pytest.fixture(scope="module")
async def api(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Api]:
    editor: dict[str, Any] = {
        "max_estimated_bytes": _DEFAULT_ROWS * ROW_BYTES,
        "group_limits": {
            "analysts": {"max_estimated_bytes": 60 * ROW_BYTES},
            "engineers": {"max_estimated_bytes": 80 * ROW_BYTES},
            "services": {"max_estimated_bytes": 0},
            "writers": {"budget_engine_s_per_day": 0},
        },
    }
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(tmp_path_factory.mktemp("guard"), dsn, users_url, **editor)
        table = settings.notebook.interpreters
        options: dict[str, Any] = {"estimates": True}
        table["measured"] = InterpreterSettings(interface="fake", options=options)
        table["slow"] = InterpreterSettings(interface="fake", options=options, metadata_timeout_s=1)
        table["limited"] = InterpreterSettings(
            interface="fake", options=options, max_estimated_bytes=_CONNECTOR_ROWS * ROW_BYTES
        )
        table["guarded"] = InterpreterSettings(interface="fake", options=options, read_only=True)
        table["costly"] = InterpreterSettings(interface="fake", options=options, max_estimated_cost=25)
        async with open_api(settings) as opened:
            yield opened


def engine(api: Api, key: str = "measured") -> FakeEstimatingEngine:
    found = api.fakes[key]
    assert isinstance(found, FakeEstimatingEngine)
    return found


async def refusal(caller: Caller, rows: int, connector: str = "measured", **fields: Any) -> str:
    """Run `rows <n>`, which must be refused before it is sent. Return the message."""
    body = await caller.run(connector, f"rows {rows}", **fields)
    assert (body["status"], body["code"]) == (1, "estimate_exceeded"), body
    status = body["query_status"]
    assert (status["state"], status["started"], status["message"]) == ("failed", None, body["message"])
    assert f"rows {rows}" not in engine(caller.api, connector).executions
    assert f"reads {rows * ROW_BYTES} bytes" in body["message"] or connector == "costly"
    return body["message"]


async def runs(caller: Caller, rows: int, connector: str = "measured", **fields: Any) -> dict[str, Any]:
    body = await caller.run(connector, f"rows {rows}", **fields)
    assert body["query_status"]["state"] == "available", body
    return body


class TestLimits:
    @pytest.mark.item(115)
    async def test_the_limit_of_the_call_is_named_with_the_estimate(self, ana: Caller):
        message = await refusal(ana, 20, max_estimated_bytes=19 * ROW_BYTES)
        assert "20000 bytes (19.5 KiB)" in message
        assert "19000 bytes (18.6 KiB) of this call, `max_estimated_bytes`" in message
        assert "Narrow the query" in message
        assert "send a higher limit" in message
        await runs(ana, 19, max_estimated_bytes=19 * ROW_BYTES)

    async def test_engine_receives_the_lowest_limit(self, api: Api, ana: Caller):
        await runs(ana, 1, max_estimated_bytes=19 * ROW_BYTES)
        assert engine(api).contexts[-1].max_scanned_bytes == 19 * ROW_BYTES
        await runs(ana, 1)
        assert engine(api).contexts[-1].max_scanned_bytes == _DEFAULT_ROWS * ROW_BYTES
        await runs(ana, 1, "limited")
        assert engine(api, "limited").contexts[-1].max_scanned_bytes == _CONNECTOR_ROWS * ROW_BYTES

    @pytest.mark.item(115)
    async def test_the_limit_of_an_api_token_applies_to_its_calls(self, ana: Caller):
        program, token = await program_of(ana, max_estimated_bytes=5 * ROW_BYTES)
        assert "of the API token program" in await refusal(program, 6)
        await runs(program, 5)
        await runs(ana, 6)
        [listed] = [one for one in (await ana.get("token/api_tokens")).json()["tokens"] if one["id"] == token]
        assert listed["max_estimated_bytes"] == 5 * ROW_BYTES

    async def test_a_token_with_the_scope_admin_cannot_have_a_limit(self, api: Api):
        boss = await api.user("boss", admin=True)
        fields = {"name": "a", "scopes": ["admin"], "max_estimated_bytes": 1}
        assert verdict(await boss.post_json("token/api_tokens/new", **fields)) == (400, -1, "invalid_parameter")

    @pytest.mark.item(115)
    @pytest.mark.parametrize(
        ("groups", "rows", "setting"),
        [
            ((), _DEFAULT_ROWS, "editor.max_estimated_bytes"),
            (("writers",), _DEFAULT_ROWS, "editor.max_estimated_bytes"),
            (("analysts",), 60, "editor.group_limits.analysts.max_estimated_bytes"),
            (("engineers", "analysts"), 80, "editor.group_limits.engineers.max_estimated_bytes"),
        ],
    )
    async def test_a_user_has_the_highest_limit_of_the_groups(
        self, api: Api, groups: tuple[str, ...], rows: int, setting: str
    ):
        user = await api.user("user", groups=groups)
        await runs(user, rows)
        assert f"`{setting}`" in await refusal(user, rows + 1)

    async def test_a_group_may_have_no_limit(self, api: Api):
        service = await api.user("service", groups=("services", "analysts"))
        assert "estimated_bytes" not in (await runs(service, 1000))["query_status"]

    @pytest.mark.item(115)
    async def test_the_limit_of_the_connector_applies(self, ana: Caller):
        assert "of the connector limited" in await refusal(ana, _CONNECTOR_ROWS + 1, "limited")
        await runs(ana, _CONNECTOR_ROWS, "limited")

    async def test_the_cost_of_a_plan_is_limited(self, ana: Caller):
        message = await refusal(ana, 11, "costly")
        assert "cost of 28, above the limit of 25 of the connector costly, `max_estimated_cost`" in message
        await runs(ana, 10, "costly")

    @pytest.mark.item(115)
    async def test_of_several_limits_the_lowest_decides(self, ana: Caller):
        program, _ = await program_of(ana, max_estimated_bytes=8 * ROW_BYTES)
        assert "this call" in await refusal(program, 9, "limited", max_estimated_bytes=7 * ROW_BYTES)
        assert "API token" in await refusal(program, 9, "limited", max_estimated_bytes=9 * ROW_BYTES)
        assert "connector" in await refusal(ana, 11, "limited", max_estimated_bytes=11 * ROW_BYTES)


class TestStatements:
    @pytest.mark.item(116)
    async def test_bound_values_are_estimated(self, ana: Caller):
        body = await ana.run("measured", "rows ?", parameters=json.dumps([51]))
        assert body["code"] == "estimate_exceeded"
        assert engine(ana.api).estimates[-1] == "rows 51"

    @pytest.mark.item(116)
    async def test_the_first_of_many_rows_of_values_counts_for_each(self, ana: Caller):
        fields = {"parameter_rows": json.dumps([[6], [1], [1], [1], [1]]), "max_estimated_bytes": 29 * ROW_BYTES}
        body = await ana.run("measured", "rows ?", **fields)
        assert (body["code"], body["query_status"]["estimated_bytes"]) == ("estimate_exceeded", 30 * ROW_BYTES)

    @pytest.mark.item(116)
    async def test_each_statement_of_a_script_is_estimated_when_it_is_its_turn(self, ana: Caller):
        script = "rows 3; rows 4; rows 99; rows 5"
        body = await ana.run("measured", script, run_all="true")
        assert (body["code"], body["statement_id"]) == ("estimate_exceeded", 2)
        parts = body["query_status"]["statements"]
        assert [one["estimated_bytes"] for one in parts] == [3 * ROW_BYTES, 4 * ROW_BYTES, 99 * ROW_BYTES]
        assert [one["state"] for one in parts] == ["available", "available", "failed"]

    async def test_the_limit_of_a_call_holds_for_the_statements_that_continue_its_script(self, ana: Caller):
        first = await ana.run("measured", "rows 3; rows 4", max_estimated_bytes=3 * ROW_BYTES)
        following = {"operationId": first["history_uuid"], "wait": 60}
        assert (await ana.post_ok("editor/execute/measured", **following))["code"] == "estimate_exceeded"
        raised = {**following, "max_estimated_bytes": 4 * ROW_BYTES}
        assert (await ana.post_ok("editor/execute/measured", **raised))["status"] == 0

    @pytest.mark.item(116)
    async def test_answers_from_stored_results_are_not_estimated(self, ana: Caller):
        text = "SELECT 'Hello World!'"
        await ana.run("measured", text)
        before = len(engine(ana.api).estimates)
        again = await ana.run("measured", text, max_age_s=3600)
        assert again["query_status"]["reused_from"]
        assert len(engine(ana.api).estimates) == before

    @pytest.mark.item(116)
    async def test_without_a_limit_nothing_is_estimated(self, api: Api):
        service = await api.user("service", groups=("services",))
        await service.run("measured", "rows 1")
        before = list(engine(api).estimates)
        await service.run("measured", "rows 2")
        assert engine(api).estimates == before


class TestNoEstimate:
    @pytest.mark.item(117)
    @pytest.mark.parametrize(
        ("statement", "reason"),
        [("ddl", "cannot estimate this statement"), ("fail oh no", "could not estimate the statement (cannot plan")],
    )
    async def test_what_cannot_be_estimated_runs_and_the_log_says_so(self, ana: Caller, statement: str, reason: str):
        body = await ana.run("measured", statement)
        assert statement in engine(ana.api).executions
        assert body.get("message", "") in {"", "oh no"}
        logs = (await ana.on(body["history_uuid"], "get_logs"))["logs"]
        assert reason in logs
        assert "The limits on estimates do not apply to it." in logs

    @pytest.mark.item(117)
    async def test_a_slow_estimate_does_not_delay_the_statement_for_ever(self, ana: Caller):
        await ana.run("slow", "ddl")
        engine(ana.api, "slow").estimate_s = 60
        body = await runs(ana, 1, "slow")
        assert "did not estimate the statement within 1 s" in (await ana.on(body["history_uuid"], "get_logs"))["logs"]

    async def test_a_statement_can_be_canceled_while_it_is_estimated(self, ana: Caller):
        await ana.run("costly", "ddl")
        engine(ana.api, "costly").estimate_s = 60
        try:
            operation = (await ana.execute("costly", "rows 2"))["history_uuid"]
            await ana.on(operation, "cancel_statement")
            status = (await ana.ended(operation))["query_status"]
            assert (status["state"], status["started"]) == ("canceled", None)
        finally:
            engine(ana.api, "costly").estimate_s = 0

    @pytest.mark.item(117)
    async def test_a_call_with_a_limit_needs_a_data_source_that_estimates(self, ana: Caller):
        answer = await ana.post("editor/execute/mysql", statement="rows 1", max_estimated_bytes=1)
        assert verdict(answer) == (501, 5, "not_supported")
        assert (await ana.history())["count"] == 0

    async def test_other_limits_do_not_stop_a_data_source_that_never_estimates(self, ana: Caller):
        program, _ = await program_of(ana, max_estimated_bytes=1)
        body = await program.run("mysql", "rows 1")
        assert body["status"] == 0
        assert "does not estimate statements" in (await ana.on(body["history_uuid"], "get_logs"))["logs"]

    @pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", str(2**63)])
    async def test_bad_limits_are_refused(self, ana: Caller, value: str):
        answer = await ana.post("editor/execute/measured", statement="rows 1", max_estimated_bytes=value)
        assert verdict(answer) == (400, -1, "invalid_parameter")


class TestShown:
    @pytest.mark.item(118)
    async def test_status_and_log_show_the_estimate(self, ana: Caller):
        body = await runs(ana, 7)
        assert body["query_status"]["estimated_bytes"] == 7 * ROW_BYTES
        assert "scanned_bytes" not in body["query_status"]
        status = (await ana.on(body["history_uuid"], "check_status"))["query_status"]
        assert status["estimated_bytes"] == 7 * ROW_BYTES
        logs = (await ana.on(body["history_uuid"], "get_logs"))["logs"]
        assert "Estimate of the data source: reads 7000 bytes (6.8 KiB), 7 rows, cost 18." in logs

    @pytest.mark.item(118)
    async def test_a_running_statement_shows_its_estimate(self, ana: Caller):
        operation = (await ana.execute("measured", "work then rows 3"))["history_uuid"]
        await ana.running(operation)
        status = (await ana.on(operation, "check_status"))["query_status"]
        assert (status["state"], status["estimated_bytes"]) == ("running", 3 * ROW_BYTES)
        await ana.on(operation, "cancel_statement")

    async def test_what_the_data_source_has_read_is_shown(self, ana: Caller):
        await runs(ana, 1)
        engine(ana.api).reports_scans = True
        try:
            assert (await runs(ana, 8))["query_status"]["scanned_bytes"] == 8 * SCANNED_ROW_BYTES
        finally:
            engine(ana.api).reports_scans = False

    @pytest.mark.item(118)
    async def test_users_of_a_grant_do_not_see_the_estimate(self, api: Api, ana: Caller):
        bob = await api.user("bob")
        body = await runs(ana, 7)
        shared = await ana.post_json("editor/share_result", operationId=body["history_uuid"], users=[bob.username])
        assert shared.status_code == 200, shared.text
        status = (await bob.get(f"editor/results/{body['history_uuid']}")).json()["query_status"]
        assert "estimated_bytes" not in status

    @pytest.mark.item(118)
    async def test_explain_shows_bytes_and_cost(self, ana: Caller):
        await runs(ana, 1)
        body = await ana.post_ok("editor/explain/measured", statement="rows 9")
        assert (body["estimated_bytes"], body["estimated_cost"]) == (9 * ROW_BYTES, 9 * ROW_COST)

    async def test_explain_on_a_read_only_connector_must_only_read(self, api: Api, ana: Caller):
        await ana.post_ok("editor/explain/measured", statement="rows 9")
        await ana.post_ok("editor/explain/guarded", statement="rows 9")
        contexts = (engine(api).contexts, engine(api, "guarded").contexts)
        assert [found[-1].read_only for found in contexts] == [False, True]

    async def test_an_estimate_above_64_bits_is_shown_as_the_largest_number(self, ana: Caller):
        statement = f"rows {10**19}"
        explained = await ana.post_ok("editor/explain/measured", statement=statement)
        refused = await ana.run("measured", statement, max_estimated_bytes=1)
        assert explained["estimated_bytes"] == refused["query_status"]["estimated_bytes"] == 2**63 - 1

    async def test_an_explained_statement_without_an_estimate_has_none(self, ana: Caller):
        body = await ana.post_ok("editor/explain/measured", statement="text a")
        assert "estimated_bytes" not in body


class TestPostgresql:
    """The estimates of a real planner."""

    @pytest.mark.item(115)
    async def test_a_large_table_is_refused_and_a_small_query_runs(self, ana: Caller):
        table = f"guarded_{ana.username}"
        made = f"CREATE TABLE {table} AS SELECT n, repeat('x', 100) AS t FROM generate_series(1, 20000) AS n"
        assert (await ana.run(POSTGRESQL, made))["status"] == 0
        try:
            assert (await ana.run(POSTGRESQL, f"ANALYZE {table}"))["status"] == 0
            refused = await ana.run(POSTGRESQL, f"SELECT count(*) FROM {table}")
            assert refused["code"] == "estimate_exceeded", refused
            assert refused["query_status"]["estimated_bytes"] > 20000 * 100
            small = await ana.run(POSTGRESQL, "SELECT 1", rows=1)
            assert small["result"]["data"] == [[1]]
            explained = await ana.post_ok(f"editor/explain/{POSTGRESQL}", statement=f"SELECT count(*) FROM {table}")
            assert explained["estimated_bytes"] == refused["query_status"]["estimated_bytes"]
            assert explained["estimated_cost"] > 0
        finally:
            await ana.run(POSTGRESQL, f"DROP TABLE {table}")

    @pytest.mark.item(116)
    async def test_the_estimate_of_a_bound_statement_uses_its_values(self, ana: Caller):
        statement = "SELECT count(*) FROM generate_series(1, ?)"
        body = await ana.run(POSTGRESQL, statement, parameters=json.dumps([10]), rows=1)
        assert body["result"]["data"] == [[10]]
        assert "Estimate of the data source" in (await ana.on(body["history_uuid"], "get_logs"))["logs"]
