"""cancel, close, expiry, and what never changes again (Contract editor 3, 7)."""

import asyncio
import time
from typing import Any

import asyncpg
import pytest
from tests.api.dialects import POSTGRESQL, Dialect, every_dialect
from tests.api.driving import Api, Caller
from tests.cases import each

CALLS = ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size")


async def finished(ana: Caller, dialect: object = "mysql", statement: str = "rows 10") -> str:
    body = await ana.run(dialect, statement)
    assert body["status"] == 0, body
    return body["history_uuid"]


async def expired(ana: Caller) -> str:
    """An operation whose retention time is over."""
    operation = await finished(ana)
    await ana.api.database.execute(
        "update statements set expires_at = now() - interval '1 second' where id = $1", operation
    )
    await ana.api.services.retention.expire()
    return operation


async def reports(ana: Caller, operation: str) -> set[tuple[int, str, str]]:
    """What all reading calls say about an operation without a result: it must be one and the same."""
    bodies = [await ana.on(operation, call) for call in CALLS]
    return {(body["status"], body["code"], body["query_status"]["state"]) for body in bodies}


class TestCancel:
    @pytest.mark.item(36)
    @every_dialect
    async def test_a_running_statement_stops(self, ana: Caller, dialect: Dialect):
        operation = (await ana.execute(dialect, dialect.slow))["history_uuid"]
        await ana.running(operation)
        body = await ana.on(operation, "cancel_statement")
        assert (body["status"], body["result"], body["query_status"]["state"]) == (0, {"status": 0}, "canceled")
        assert body["query_status"]["message"]
        assert await reports(ana, operation) == {(1, "canceled", "canceled")}

    @pytest.mark.item(36)
    async def test_the_engine_no_longer_runs_what_was_canceled(self, ana: Caller, users_url: str):
        statement = f"SELECT pg_sleep(30) AS {ana.username}"
        operation = (await ana.execute(POSTGRESQL, statement))["history_uuid"]
        await ana.running(operation)
        connection = await asyncpg.connect(users_url)
        look = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE $1 AND pid <> pg_backend_pid()"
        )
        assert await connection.fetchval(look, f"%{ana.username}") == 1
        await ana.on(operation, "cancel_statement")
        assert await connection.fetchval(look, f"%{ana.username}") == 0
        await connection.close()

    @pytest.mark.item(37)
    async def test_a_statement_that_was_not_sent_never_reaches_the_engine(self, ana: Caller):
        session = (await ana.told("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        first = (await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"]
        await ana.running(first)
        marked = f"text never {ana.username}"
        second = (await ana.execute("mysql", marked, session_id=session))["history_uuid"]
        began = time.monotonic()
        assert (await ana.on(second, "cancel_statement"))["query_status"]["state"] == "canceled"
        assert time.monotonic() - began < 4, "no engine has to confirm it, for which a cancel waits 5 s"
        assert await ana.state(first) == "running"
        await ana.on(first, "cancel_statement")
        assert (await ana.run("mysql", "rows 1", session_id=session))["status"] == 0
        assert marked not in ana.api.fakes["mysql"].executions

    @pytest.mark.item(37)
    @every_dialect
    async def test_cancel_of_a_finished_statement_has_no_effect(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, "SELECT 1")
        for _ in range(2):
            body = await ana.on(operation, "cancel_statement")
            assert (body["status"], body["result"], body["query_status"]["state"]) == (0, {"status": 0}, "available")
        assert (await ana.page(operation))["data"] == [[1]]

    async def test_cancel_twice_is_harmless(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        bodies = await asyncio.gather(*(ana.on(operation, "cancel_statement") for _ in range(4)))
        assert {body["query_status"]["state"] for body in bodies} == {"canceled"}

    async def test_the_notebook_may_name_what_is_ended(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        body = (await ana.post_json("editor/cancel_statement", notebook={"uuid": operation})).json()
        assert body["query_status"]["state"] == "canceled"
        body = (await ana.post_json("editor/close_statement", notebook={"uuid": operation})).json()
        assert body["result"]["status"] == -1


class TestClose:
    @pytest.mark.item(38)
    @every_dialect
    async def test_an_available_result_is_gone_at_once(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(10))
        assert await ana.on(operation, "close_statement") == {
            "status": 0,
            "result": {"status": 0},
            "message": "Query closed.",
        }
        assert await reports(ana, operation) == {(-3, "closed", "closed")}
        assert (await ana.on(operation, "get_logs"))["status"] == 0
        again = await ana.on(operation, "close_statement")
        assert (again["status"], again["result"]["status"], again["message"]) == (0, -1, "Query closed.")

    @pytest.mark.item(38)
    async def test_the_bytes_go_too(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 4000 wide 100")
        results = ana.api.services.settings.results_dir
        assert [path for path in results.rglob("*") if operation in str(path)]
        await ana.on(operation, "close_statement")
        await ana.api.services.retention.expire()
        assert not [path for path in results.rglob("*") if operation in str(path) and path.is_file()]

    @pytest.mark.item(39)
    @every_dialect
    async def test_a_running_statement_is_stopped(self, ana: Caller, dialect: Dialect):
        operation = (await ana.execute(dialect, dialect.slow))["history_uuid"]
        await ana.running(operation)
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"], body["message"]) == (0, {"status": 0}, "Query closed.")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"

    @each("statement", ["ddl", "fail nicely"])
    async def test_what_has_no_result_cannot_be_closed(self, ana: Caller, statement: str):
        operation = (await ana.run("mysql", statement))["history_uuid"]
        before = await ana.ended(operation)
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"]["status"], body["message"]) == (0, -1, "Query closed.")
        assert await ana.ended(operation) == before


class TestExpiry:
    @pytest.mark.item(40)
    async def test_after_its_time_a_result_has_expired(self, ana: Caller):
        operation = await expired(ana)
        assert await reports(ana, operation) == {(-3, "expired", "expired")}
        assert (await ana.ended(operation))["message"] == "Results have expired."
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"]["status"], body["message"]) == (0, -1, "Query already expired.")
        data = (await ana.history())["history"][0]["data"]
        assert (data["status"], data["state"]) == ("expired", "expired")
        assert (await ana.on(operation, "get_logs"))["progress"] == 100

    @pytest.mark.item(40)
    async def test_the_end_of_a_result_is_told(self, ana: Caller):
        operation = await finished(ana)
        told = (await ana.ended(operation))["query_status"]["expires_at"]
        assert told == (await ana.page(operation))["expires_at"]
        ahead = time.mktime(time.strptime(told, "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(time.gmtime())
        assert 86_000 < ahead <= 86_401


class TestTerminalStates:
    @pytest.mark.item(41)
    @each("state", ["failed", "canceled", "timed_out", "closed", "expired", "success"])
    async def test_they_never_change_again(self, ana: Caller, state: str):
        operation = await self._in_state(ana, state)
        before: dict[str, Any] = await ana.ended(operation)
        assert before["query_status"]["state"] == state
        for call in (*CALLS, "get_logs", "cancel_statement", "close_statement"):
            await ana.on(operation, call)
        await ana.post(f"editor/watch/{operation}")
        await ana.get(f"editor/download/{operation}")
        await ana.api.services.retention.expire()
        assert await ana.ended(operation) == before

    @staticmethod
    async def _in_state(ana: Caller, state: str) -> str:
        match state:
            case "failed":
                return (await ana.run("mysql", "fail nicely"))["history_uuid"]
            case "success":
                return (await ana.run("mysql", "ddl"))["history_uuid"]
            case "timed_out":
                return (await ana.run("mysql", "sleep 30", timeout=1))["history_uuid"]
            case "canceled":
                operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
                await ana.on(operation, "cancel_statement")
                return operation
            case "closed":
                operation = await finished(ana)
                await ana.on(operation, "close_statement")
                return operation
            case _:
                return await expired(ana)


class TestNames:
    """What every call on an operation says when none is named."""

    @each("call", [*CALLS, "get_logs", "cancel_statement", "close_statement"])
    async def test_no_name_is_a_missing_parameter(self, api: Api, call: str):
        ana = await api.user()
        for fields in ({}, {"operationId": ""}, {"snippet": "{}"}, {"notebook": "{}"}):
            answer = await ana.post(f"editor/{call}", **fields)
            assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")
            assert "operationId" in answer.json()["message"]

    @each("call", [*CALLS, "get_logs", "cancel_statement", "close_statement"])
    async def test_the_handle_of_the_full_form_names_it(self, ana: Caller, call: str):
        body = await ana.run("mysql", "rows 1")
        snippet = {"result": {"handle": {"guid": body["handle"]["guid"], "secret": "ignored"}}}
        answer = await ana.post_json(f"editor/{call}", snippet=snippet)
        assert (answer.status_code, answer.json()["status"]) == (200, 0)
