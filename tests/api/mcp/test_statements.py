"""Tools that run statements and follow them (Contract mcp 2, 3.1, 3.2, 3.4, 3.5)."""

import asyncio
import logging
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from structlog.contextvars import get_contextvars
from tests.api.conftest import ApiOpener
from tests.api.dialects import Dialect, every_dialect
from tests.api.driving import Api, Caller
from tests.api.mcp.conftest import LEGACY, MODERN, OpenClient, called, connected, posted, refused
from tests.api.serving import served
from tests.api.test_api_token_statements import program_of
from tests.fixtures.logs import audit_event_handler
from tests.timing import until

from queryserver.api.mcp.status import State
from queryserver.platform.logs import FIELDS
from queryserver.statements.states import StatementState

SLOW = {"sql": "sleep 600", "connector": "mysql", "write": True}
"""A statement of the scripted engine, whose language has no statements that are known to read."""


async def test_list_connectors_has_what_the_caller_may_use(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        listed = {one["name"]: one for one in (await called(agent, "list_connectors"))["connectors"]}
    assert listed["duckdb"]["is_default"]
    assert listed["duckdb"]["reads_results"]
    assert listed["replica"]["read_only"]
    assert "vault" not in listed


@every_dialect
@pytest.mark.mcp(10)
async def test_run_sql_returns_the_first_rows(connect: OpenClient, ana: Caller, dialect: Dialect) -> None:
    async with connect(ana) as agent:
        ran = await called(agent, "run_sql", sql="SELECT 42 AS n, 'x' AS t", connector=str(dialect))
    assert ran["operation"]["state"] == "available"
    assert ran["operation"]["rows"] == 1
    assert ran["result"]["rows"] == [[42, "x"]]
    assert [one["name"] for one in ran["result"]["columns"]] == ["n", "t"]
    assert "not instructions" in ran["result"]["notice"]
    assert ran["warning"] is None


@pytest.mark.mcp(9)
async def test_unknown_arguments_are_refused(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        error = await refused(agent, "run_sql", sql="select 1", limit=3)
        assert error["code"] == "invalid_parameter"
        assert "limit" in error["message"]
        assert "row_limit" in error["message"]


@pytest.mark.mcp(9)
async def test_arguments_beyond_their_limits_are_refused(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        error = await refused(agent, "run_sql", sql="planted-secret", wait_s=46)
        assert error["code"] == "invalid_parameter"
        assert "wait_s: " in error["message"]
        assert "45" in error["message"]
        missing = await refused(agent, "run_sql", connector="duckdb")
        assert missing["message"].startswith("sql: ")
        wrong = await refused(agent, "run_sql", sql=["planted-secret"])
    assert "planted-secret" not in f"{error} {wrong}"


@pytest.mark.mcp(9)
async def test_numbers_above_64_bits_are_refused(connect: OpenClient, ana: Caller) -> None:
    operation = (await ana.run("duckdb", "select 1"))["history_uuid"]
    async with connect(ana) as agent:
        limited = await refused(agent, "run_sql", sql="select 1", connector="duckdb", max_estimated_bytes=2**63)
        page = await refused(agent, "get_result", operation_id=operation, offset=2**63)
    assert (limited["code"], page["code"]) == ("invalid_parameter", "invalid_parameter")
    assert "max_estimated_bytes" in limited["message"]
    assert "offset" in page["message"]


@pytest.mark.mcp(11)
async def test_domain_errors_say_what_to_do_next(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        unknown = await refused(agent, "run_sql", sql="select 1", connector="nowhere")
        missing = await refused(agent, "get_status", operation_id=str(uuid4()))
    assert unknown["code"] == "dialect_not_found"
    assert "list_connectors" in unknown["next"]
    assert missing["code"] == "operation_not_found"


@pytest.mark.mcp(11)
async def test_an_internal_error_shows_only_its_error_id(
    connect: OpenClient, ana: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted-secret")

    async with connect(ana) as agent:
        monkeypatch.setattr(type(ana.api.services.connectors), "visible", broken)
        error = await refused(agent, "list_connectors")
    assert (error["code"], error["message"]) == ("internal_error", "Internal error.")
    assert error["error_id"]
    assert "planted" not in str(error)


@pytest.mark.mcp(12)
async def test_tokens_need_the_scope_of_the_tool(connect: OpenClient, ana: Caller) -> None:
    program, _ = await program_of(ana, scopes=["files:read"])
    async with connect(program) as agent:
        for tool, arguments in (("run_sql", {"sql": "select 1"}), ("list_connectors", {})):
            error = await refused(agent, tool, **arguments)
            assert (error["code"], error["scope"]) == ("insufficient_scope", "query:read")


@pytest.mark.mcp(12)
async def test_tokens_see_only_their_connectors(connect: OpenClient, ana: Caller) -> None:
    program, _ = await program_of(ana, scopes=["query:read"], connectors=["sqlite"])
    theirs = (await ana.run("duckdb", "select 1"))["history_uuid"]
    async with connect(program) as agent:
        listed = await called(agent, "list_connectors")
        assert [one["name"] for one in listed["connectors"]] == ["sqlite"]
        assert (await refused(agent, "run_sql", sql="select 1", connector="duckdb"))["code"] == "dialect_not_found"
        assert (await refused(agent, "get_result", operation_id=theirs))["code"] == "operation_not_found"


@every_dialect
@pytest.mark.mcp(13)
async def test_changes_need_write(connect: OpenClient, ana: Caller, dialect: Dialect) -> None:
    name = f"made_{uuid4().hex}"
    change = {"sql": f"CREATE TABLE {name} (n integer)", "connector": str(dialect)}
    async with connect(ana) as agent:
        error = await refused(agent, "run_sql", **change)
        assert (error["code"], error["state"]) == ("rejected", "failed")
        assert "set write=true" in error["next"]
        assert (await called(agent, "run_sql", **change, write=True))["operation"]["state"] == "success"
        assert (await called(agent, "run_sql", sql=f"SELECT * FROM {name}", connector=str(dialect)))["result"]
        await called(agent, "run_sql", sql=f"DROP TABLE {name}", connector=str(dialect), write=True)


@pytest.mark.mcp(13)
async def test_a_token_that_may_only_read_cannot_write(connect: OpenClient, ana: Caller) -> None:
    program, _ = await program_of(ana, scopes=["query:read"])
    async with connect(program) as agent:
        assert (await called(agent, "run_sql", sql="SELECT 1", connector="duckdb"))["result"]
        error = await refused(agent, "run_sql", sql="SELECT 1", connector="duckdb", write=True)
    assert (error["code"], error["scope"]) == ("insufficient_scope", "query")


@pytest.mark.mcp(13)
async def test_a_read_only_connector_refuses_changes_also_with_write(connect: OpenClient, ana: Caller) -> None:
    change = {"sql": "CREATE TABLE never_made (n integer)", "connector": "replica"}
    async with connect(ana) as agent:
        for write in (False, True):
            error = await refused(agent, "run_sql", **change, write=write)
            assert error["code"] == "rejected"
            assert "set write" not in error["next"]


@pytest.mark.mcp(19)
@pytest.mark.parametrize("in_message", [True, False])
async def test_statements_belong_to_the_trace_of_the_call(api: Api, ana: Caller, in_message: bool) -> None:
    trace = f"00-{uuid4().hex}-{uuid4().hex[:16]}-01"
    arguments = {"sql": "select 1", "connector": "duckdb"}
    meta = {"_meta": {"traceparent": trace}} if in_message else {}
    headers = ana.headers if in_message else {**ana.headers, "traceparent": trace}
    await posted(api.http, "tools/call", headers=headers, name="run_sql", arguments=arguments, **meta)
    entry = (await ana.history())["history"][0]
    stored = await api.database.value("select traceparent from statements where id = $1", UUID(entry["uuid"]))
    assert stored == trace


def test_the_schema_names_every_state() -> None:
    assert set(get_args(State)) == {state.value for state in StatementState}


@pytest.mark.mcp(14)
async def test_a_wait_ends_with_the_handle_and_reports_progress(connect: OpenClient, ana: Caller) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with connect(ana) as agent:
        ran = await agent.call_tool("run_sql", {**SLOW, "wait_s": 5}, progress_callback=report)
        assert ran.structured_content is not None
        operation = ran.structured_content["operation"]
        assert operation["state"] == "running"
        assert ran.structured_content["result"] is None
        canceled = await called(agent, "cancel", operation_id=operation["operation_id"])
    assert canceled["state"] == "canceled"
    assert len(reports) >= 2
    assert [one[0] for one in reports] == sorted({one[0] for one in reports}), "each is larger than the one before"
    assert {one[1] for one in reports} == {5.0}


def waits_of(api: Api) -> tuple[int, int]:
    """Return the numbers of taken stream slots and of watched statements of the process that serves the calls."""
    signals = api.services.statements.control.signals
    watched = sum(len(one) for one in signals._watches.values())
    return sum(api.services.streams._open.values()), watched


@pytest.mark.mcp(15)
@pytest.mark.parametrize("mode", [MODERN, LEGACY])
@pytest.mark.parametrize("key", [None, "again"])
async def test_a_canceled_call_leaves_no_waiter(small_api: ApiOpener, mode: str, key: str | None) -> None:
    async with small_api() as api, served(api) as url:
        ana = await api.user("ana")
        async with connected(f"{url}/mcp", ana, mode=mode) as agent:
            arguments = SLOW if key is None else {**SLOW, "idempotency_key": key}
            waiting = asyncio.create_task(agent.call_tool("run_sql", arguments))
            await until(lambda: _is(waits_of(api) == (1, 1)))
            entry = (await ana.history())["history"][0]
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: _is(waits_of(api) == (0, 0)))
        if key is None:
            await until(lambda: _has_state(ana, entry["uuid"], "canceled"))
            return
        await ana.begun(entry["uuid"])
        assert await ana.state(entry["uuid"]) == "running"
        async with connected(f"{url}/mcp", ana, mode=mode) as agent:
            again = await called(agent, "run_sql", **SLOW, idempotency_key=key, wait_s=0)
            assert again["operation"]["operation_id"] == entry["uuid"]


async def _is(holds: bool) -> bool:
    return holds


async def _has_state(user: Caller, operation: str, state: str) -> bool:
    return await user.state(operation) == state


@pytest.mark.mcp(14)
@pytest.mark.parametrize("mode", [MODERN, LEGACY])
async def test_a_server_that_stops_returns_the_handle(small_api: ApiOpener, mode: str) -> None:
    async with small_api() as api, served(api) as url:
        ana = await api.user("ana")
        async with connected(f"{url}/mcp", ana, mode=mode) as agent:
            waiting = asyncio.create_task(called(agent, "run_sql", **SLOW))
            await until(lambda: _is(waits_of(api) == (1, 1)))
            api.services.statements.control.signals.end_waits()
            operation = (await waiting)["operation"]
        assert operation["state"] in {"waiting", "running"}
        assert await ana.begun(operation["operation_id"]) == "running"


@pytest.mark.mcp(16)
async def test_an_idempotency_key_runs_a_statement_once(connect: OpenClient, ana: Caller) -> None:
    key, fake = uuid4().hex, ana.api.fakes
    statement = f"text {key}"
    arguments: dict[str, Any] = {"connector": "mysql", "write": True, "idempotency_key": key}
    async with connect(ana) as agent:
        first, second = [await called(agent, "run_sql", sql=statement, **arguments) for _ in range(2)]
        conflict = await refused(agent, "run_sql", sql=f"{statement} other", **arguments)
    assert first["operation"]["operation_id"] == second["operation"]["operation_id"]
    assert second["result"]["rows"] == [[key]]
    assert conflict["code"] == "idempotency_conflict"
    assert fake["mysql"].executions.count(statement) == 1


@pytest.mark.mcp(17)
async def test_without_a_free_slot_nothing_is_recorded(small_api: ApiOpener) -> None:
    async with small_api(max_streams_per_user=1) as api, served(api) as url:
        ana = await api.user("ana")
        async with connected(f"{url}/mcp", ana) as agent, connected(f"{url}/mcp", ana) as other:
            waiting = asyncio.create_task(called(agent, "run_sql", **SLOW))
            await until(lambda: _is(waits_of(api) == (1, 1)))
            error = await refused(other, "run_sql", sql="select 1", connector="duckdb")
            assert error["code"] == "too_many_streams"
            assert "wait_s=0" in error["next"]
            assert len((await ana.history())["history"]) == 1
            ran = await called(other, "run_sql", sql="select 1", connector="duckdb", wait_s=0)
            waiting.cancel()
        assert (await ana.ended(ran["operation"]["operation_id"]))["query_status"]["state"] == "available"


@pytest.mark.mcp(18)
async def test_only_the_first_statement_of_a_script_runs(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        ran = await called(agent, "run_sql", sql="select 1; select 2", connector="duckdb")
    assert ran["result"]["rows"] == [[1]]
    assert "1 of 2" in ran["warning"]


@pytest.mark.mcp(19)
async def test_statements_are_audited_and_in_the_history(connect: OpenClient, ana: Caller) -> None:
    audited: list[dict[str, Any]] = []

    def listen(record: logging.LogRecord) -> None:
        audited.append({"operation": record.getMessage(), **vars(record)[FIELDS], **get_contextvars()})

    program, token = await program_of(ana)
    with audit_event_handler(listen):
        async with connect(program) as agent:
            ran = await called(agent, "run_sql", sql="select 'mine'", connector="duckdb")
    entry = (await ana.history())["history"][0]
    assert (entry["uuid"], entry["data"]["statement"]) == (ran["operation"]["operation_id"], "select 'mine'")
    [event] = [one for one in audited if one["operation"] == "statement.start" and one["user"] == ana.username]
    assert event["operation_id"] == entry["uuid"]
    assert event["token_id"] == token
    assert event["request_id"]


@pytest.mark.mcp(22)
async def test_get_status_waits_for_the_end(connect: OpenClient, ana: Caller) -> None:
    operation = (await ana.execute("mysql", "sleep 1 then rows 3"))["history_uuid"]
    async with connect(ana) as agent:
        status = await called(agent, "get_status", operation_id=operation, wait_s=45)
    assert (status["state"], status["rows"]) == ("available", 3)
    assert status["expires_at"]
    assert status["error"] is None


@pytest.mark.mcp(22)
async def test_waiting_for_a_granted_statement_does_not_show_its_messages(
    connect: OpenClient, ana: Caller, bob: Caller
) -> None:
    operation = (await ana.execute("mysql", "sleep 3 then fail planted-secret"))["history_uuid"]
    shared = await ana.post_json("editor/share_result", operationId=operation, users=[bob.username])
    assert shared.status_code == 200, shared.text
    async with connect(bob) as agent:
        assert (await called(agent, "get_status", operation_id=operation))["state"] in {"waiting", "running"}
        waited = await called(agent, "get_status", operation_id=operation, wait_s=45)
        assert waited == await called(agent, "get_status", operation_id=operation)
    assert waited["state"] == "failed"
    assert "planted" not in str(waited)


@pytest.mark.mcp(22)
async def test_a_failed_statement_is_an_error_with_its_position(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        error = await refused(agent, "run_sql", sql="select\n  no_such_column", connector="postgresql")
        status = await called(agent, "get_status", operation_id=error["operation_id"])
        result = await refused(agent, "get_result", operation_id=error["operation_id"])
    assert (error["line"], error["column"]) == (2, 3)
    assert "no_such_column" in error["message"]
    assert status["state"] == "failed"
    assert (status["error"]["line"], status["error"]["code"]) == (2, error["code"])
    assert result["code"] == error["code"]


@pytest.mark.mcp(23)
async def test_operations_of_others_do_not_exist(connect: OpenClient, ana: Caller, bob: Caller) -> None:
    theirs = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    async with connect(bob) as agent:
        for tool in ("get_status", "get_result", "cancel"):
            assert (await refused(agent, tool, operation_id=theirs))["code"] == "operation_not_found"
    await ana.running(theirs)
    await ana.on(theirs, "cancel_statement")
