"""The calls get_logs, events, watch, cancel and close, and the expiry of results (Contract editor 3, 7, 8.1, 10.5)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel
from tests.api.answers import TIMES, require_shape
from tests.api.conftest import ApiOpener
from tests.api.dialects import POSTGRESQL, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict
from tests.timing import until

from queryserver.api.schemas import generated as wire

SHAPES: dict[str, tuple[type[BaseModel], ...]] = {
    "status": (wire.StatusResponse, wire.StatementFailure),
    "end": (wire.StatusResponse, wire.StatementFailure),
    "progress": (wire.ProgressEvent,),
    "log": (wire.LogEvent,),
}


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    id: int
    name: str
    body: dict[str, Any]


async def events(
    ana: Caller, operation: str, *, headers: dict[str, str] | None = None, **query: Any
) -> AsyncIterator[Event]:
    """Yield the events of an operation as they arrive. Each is checked against its model."""
    http = ana.api.http
    sent = {**ana.headers, **(headers or {})}
    async with http.stream("GET", f"/api/v1/editor/events/{operation}", headers=sent, params=query) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        lines = answer.aiter_lines()
        assert [await anext(lines), await anext(lines)] == ["retry: 2000", ""]
        async for line in lines:
            if line.startswith(":"):
                assert await anext(lines) == ""
                continue
            name, data, end = await anext(lines), await anext(lines), await anext(lines)
            assert end == ""
            event = Event(
                int(line.removeprefix("id: ")), name.removeprefix("event: "), json.loads(data.removeprefix("data: "))
            )
            require_shape(SHAPES[event.name], event.body)
            yield event


async def all_events(ana: Caller, operation: str, **more: Any) -> list[Event]:
    return [event async for event in events(ana, operation, **more)]


def logs_of(seen: list[Event]) -> str:
    return "\n".join(event.body["logs"] for event in seen if event.name == "log")


class TestLogs:
    @pytest.mark.item(51)
    @every_dialect
    async def test_whole_log_is_returned_by_default(self, ana: Caller, dialect: Dialect):
        operation = (await ana.run(dialect, "SELECT 1"))["history_uuid"]
        body = await ana.on(operation, "get_logs")
        assert (body["isFullLogs"], body["progress"], body["jobs"]) == (True, 100, [])
        assert body["logs"]
        assert body["next_from"] == len(body["logs"].split("\n"))
        assert not body["logs"].endswith("\n")
        assert (await ana.on(operation, "get_logs", full_log="old text")) == body

    @pytest.mark.item(51)
    async def test_from_returns_only_later_lines(self, ana: Caller):
        operation = await ana.seen_running("mysql", "sleep {}")
        first = await ana.on(operation, "get_logs")
        await ana.ended(operation)
        later = await ana.on(operation, "get_logs", **{"from": first["next_from"]})
        assert later["isFullLogs"] is False
        whole = await ana.on(operation, "get_logs")
        assert [line for line in (*first["logs"].split("\n"), *later["logs"].split("\n")) if line] == whole[
            "logs"
        ].split("\n")
        end = await ana.on(operation, "get_logs", **{"from": whole["next_from"]})
        assert (end["logs"], end["isFullLogs"], end["next_from"]) == ("", False, whole["next_from"])

    @pytest.mark.item(51)
    async def test_size_limits_the_number_of_lines(self, ana: Caller):
        operation = (await ana.run("mysql", "sleep 0.2 then rows 3"))["history_uuid"]
        whole = (await ana.on(operation, "get_logs"))["logs"].split("\n")
        assert len(whole) >= 2
        lines: list[str] = []
        while len(lines) < len(whole):
            page = await ana.on(operation, "get_logs", **{"from": len(lines), "size": 1})
            assert page["next_from"] == len(lines) + 1
            lines.append(page["logs"])
        assert lines == whole

    @pytest.mark.item(51)
    @every_dialect
    async def test_failed_operation_has_a_log(self, ana: Caller, dialect: Dialect):
        operation = (await ana.run(dialect, "SELECT * FROM no_such_table"))["history_uuid"]
        body = await ana.on(operation, "get_logs")
        assert body["status"] == 0
        assert dialect.bad_table in body["logs"]

    @pytest.mark.parametrize("length", [5, 20_000])
    async def test_failure_shows_the_whole_statement(self, ana: Caller, length: int):
        """A separate query reads the text of a long statement."""
        statement = f"fail {'x' * length}"
        operation = (await ana.run("mysql", statement))["history_uuid"]
        for call in ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            body = await ana.on(operation, call)
            assert (call, body["code"], body["handle"]["statement"]) == (call, "engine_error", statement)
        assert (await ana.post_ok(f"editor/watch/{operation}"))["handle"]["statement"] == statement

    @pytest.mark.item(51)
    async def test_log_lines_contain_no_line_breaks_or_control_characters(self, ana: Caller):
        operation = (await ana.run("mysql", "fail one\ntwo\r\nthree\x07 \x1b[31mred end"))["history_uuid"]
        whole = await ana.on(operation, "get_logs")
        assert whole["next_from"] == len(whole["logs"].split("\n"))
        assert [line for line in whole["logs"].split("\n") if not line.isprintable()] == []
        assert "one" in whole["logs"].split("\n")
        second = await ana.on(operation, "get_logs", **{"from": 1, "size": 1})
        assert second["logs"] == whole["logs"].split("\n")[1]

    async def test_progress_follows_the_state(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        first, second = [(await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"] for _ in range(2)]
        await ana.running(first)
        assert 0 < (await ana.on(first, "get_logs"))["progress"] < 100
        assert (await ana.on(second, "get_logs"))["progress"] == 0
        for operation in (second, first):
            await ana.on(operation, "cancel_statement")
            assert (await ana.on(operation, "get_logs"))["progress"] < 100

    async def test_first_log_line_is_available_immediately(self, ana: Caller):
        body = await ana.execute("mysql", "sleep 30")
        log = await ana.on(body["history_uuid"], "get_logs", size=1)
        line = f"{body['query_status']['submitted']} Submitted to mysql; waiting for a free slot."
        assert (log["logs"], log["next_from"]) == (line, 1)
        await ana.on(body["history_uuid"], "cancel_statement")
        assert (await ana.on(body["history_uuid"], "get_logs"))["logs"].startswith(f"{line}\n")

    @pytest.mark.parametrize(("field", "value"), [("from", "-1"), ("from", "x"), ("size", "0"), ("size", "x")])
    async def test_out_of_range_fields_are_refused_by_name(self, ana: Caller, field: str, value: str):
        operation = (await ana.execute("mysql", "rows 1"))["history_uuid"]
        answer = await ana.post("editor/get_logs", operationId=operation, **{field: value})
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert field in answer.json()["message"]

    @pytest.mark.parametrize("start", [2**31 - 1, 2**31, 2**63 - 1])
    async def test_start_far_past_the_end_returns_no_lines(self, ana: Caller, start: int):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        body = await ana.on(operation, "get_logs", **{"from": start, "size": 2**63 - 1})
        assert (body["logs"], body["next_from"]) == ("", start)
        seen = await all_events(ana, operation, log_from=start)
        assert [event.name for event in seen] == ["status", "end"]


class TestEvents:
    @pytest.mark.item(53)
    async def test_status_event_comes_first_and_end_event_last(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 1.2 then rows 3"))["history_uuid"]
        seen = await all_events(ana, operation)
        assert (seen[0].name, seen[-1].name) == ("status", "end")
        states = [event.body["query_status"]["state"] for event in seen if event.name == "status"]
        assert states[-1] == "available"
        assert states == sorted(set(states), key=["waiting", "running", "available"].index)
        assert seen[-1].body == await ana.ended(operation)
        assert [event.id for event in seen] == sorted({event.id for event in seen})
        assert logs_of(seen) == (await ana.on(operation, "get_logs"))["logs"]

    @pytest.mark.item(53)
    @every_dialect
    async def test_completed_operation_sends_status_log_and_end_immediately(self, ana: Caller, dialect: Dialect):
        for statement in ("SELECT 1", "SELECT * FROM no_such_table"):
            operation = (await ana.run(dialect, statement))["history_uuid"]
            seen = await all_events(ana, operation)
            assert [event.name for event in seen] == ["status", "log", "end"]
            assert seen[0].body == seen[2].body == await ana.ended(operation)

    @pytest.mark.item(53)
    async def test_reconnection_repeats_no_log_lines(self, ana: Caller):
        operation = await ana.seen_running("mysql", "sleep {} then rows 3")
        seen: list[Event] = []
        async with aclosing(events(ana, operation)) as stream:
            async for event in stream:
                seen.append(event)
                if event.name == "log":
                    break
        rest = await all_events(ana, operation, headers={"Last-Event-ID": str(seen[-1].id)})
        assert (rest[0].name, rest[-1].name) == ("status", "end")
        assert rest[0].id > seen[-1].id
        assert logs_of([*seen, *rest]) == (await ana.on(operation, "get_logs"))["logs"]

    @pytest.mark.item(53)
    async def test_log_from_skips_known_lines(self, ana: Caller):
        operation = (await ana.run("mysql", "sleep 0.2 then rows 3"))["history_uuid"]
        lines = (await ana.on(operation, "get_logs"))["logs"].split("\n")
        seen = await all_events(ana, operation, log_from=1)
        assert logs_of(seen) == "\n".join(lines[1:])
        assert next(event.body["from"] for event in seen if event.name == "log") == 1

    async def test_disconnected_client_frees_its_stream_slot(self, small_api: ApiOpener):
        async with small_api(max_streams_per_user=1) as api:
            ana = await api.user()
            operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
            for _ in range(3):
                async with aclosing(events(ana, operation)) as stream:
                    assert (await anext(stream)).name == "status"

    async def test_event_stream_ends_at_its_time_limit(self, small_api: ApiOpener):
        async with small_api(stream_max_s=1) as api:
            ana = await api.user()
            operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
            async with asyncio.timeout(25):
                assert "end" not in [event.name for event in await all_events(ana, operation)]

    @pytest.mark.parametrize("value", ["-1", "x"])
    async def test_errors_before_the_stream_are_json(self, ana: Caller, value: str):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        assert verdict(await ana.get(f"editor/events/{operation}", log_from=value)) == (400, -1, "invalid_parameter")

    @pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "9" * 5000, "9" * 18, "1.5", ""])
    async def test_malformed_last_event_id_is_ignored(self, ana: Caller, last: str):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        seen = await all_events(ana, operation, headers={"Last-Event-ID": last})
        assert (seen[0].name, seen[-1].name) == ("status", "end")


class TestTimes:
    async def test_queue_positions_alternate_between_users(self, ana: Caller, bob: Caller):
        started: list[list[str]] = []
        for user in (ana, bob):
            session = (await user.post_ok("editor/create_session", session='{"type": "shelf"}'))["session"]["id"]
            started.append(
                [(await user.execute("shelf", "sleep 30", session_id=session))["history_uuid"] for _ in range(3)]
            )
            await user.running(started[-1][0])
        # Users take turns. The first waiting statement of each user precedes the second waiting statement of any user.
        for user, operations, places in zip((ana, bob), started, ([None, 1, 3], [None, 2, 4]), strict=True):
            for operation, place in zip(operations, places, strict=True):
                status = (await user.on(operation, "check_status"))["query_status"]
                assert (status["queue_position"], status["started"] is None) == (place, place is not None)
                assert (await user.on(operation, "get_logs"))["queue_position"] == place
                assert (await user.post_ok(f"editor/watch/{operation}"))["query_status"]["queue_position"] == place
                async with aclosing(events(user, operation)) as seen:
                    assert (await anext(seen)).body["query_status"]["queue_position"] == place
            entries = (await user.history())["history"]
            assert [entry["data"]["queue_position"] for entry in reversed(entries)] == places
        for user, operations in zip((ana, bob), started, strict=True):
            for operation in reversed(operations):
                await user.on(operation, "cancel_statement")

    async def test_times_are_the_same_in_every_call(self, ana: Caller):
        body = await ana.execute("mysql", "sleep 0.2 then rows 1")
        assert body["query_status"].keys() >= set(TIMES)
        operation = body["history_uuid"]
        ended = (await ana.ended(operation))["query_status"]
        times = {name: ended[name] for name in TIMES}
        assert times["submitted"] == body["query_status"]["submitted"]
        assert times["submitted"] <= times["started"] <= times["ended"]
        assert times["elapsed_ms"] >= 200
        assert (times["queued_ms"] >= 0, times["queue_position"]) == (True, None)
        (entry,) = (await ana.history())["history"]
        shown = [
            await ana.on(operation, "get_logs"),
            (await ana.post_ok(f"editor/watch/{operation}"))["query_status"],
            (await ana.on(operation, "check_status"))["query_status"],
            entry["data"],
            (await all_events(ana, operation))[-1].body["query_status"],
        ]
        assert [{name: one[name] for name in TIMES} for one in shown] == [times] * len(shown)

    async def test_statement_that_was_never_sent_has_no_start_time(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        first, second = [(await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"] for _ in range(2)]
        await ana.on(second, "cancel_statement")
        status = (await ana.ended(second))["query_status"]
        assert (status["started"], status["elapsed_ms"], status["queue_position"]) == (None, 0, None)
        assert status["ended"] >= status["submitted"]
        await ana.on(first, "cancel_statement")


class TestWatch:
    @every_dialect
    async def test_watch_returns_check_status_with_the_log(self, ana: Caller, dialect: Dialect):
        body = await ana.run(dialect, "SELECT 1 AS a")
        operation = body["history_uuid"]
        watched = await ana.post_ok(f"editor/watch/{operation}")
        assert watched["query_status"] == (await ana.ended(operation))["query_status"]
        assert watched["log"] == (await ana.on(operation, "get_logs"))["logs"]
        assert (watched["id"], watched["operationId"]) == (body["history_id"], operation)
        assert (watched["statement"], watched["isSuccess"], watched["isFailure"]) == ("SELECT 1 AS a", True, False)
        assert (await ana.post_ok(watched["watch_url"]))["operationId"] == operation

    @pytest.mark.parametrize(
        ("statement", "success", "failure"), [("ddl", True, False), ("fail x", False, True), ("sleep 30", False, False)]
    )
    async def test_watch_distinguishes_success_from_failure(
        self, ana: Caller, statement: str, success: bool, failure: bool
    ):
        wait = 0.5 if statement.startswith("sleep") else 60
        operation = (await ana.execute("mysql", statement, wait=wait))["history_uuid"]
        watched = await ana.post_ok(f"editor/watch/{operation}")
        assert (watched["isSuccess"], watched["isFailure"]) == (success, failure)
        assert watched["status"] == (1 if failure else 0)
        await ana.on(operation, "close_statement")


CALLS = ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size")


async def finished(ana: Caller, dialect: object = "mysql", statement: str = "rows 10") -> str:
    body = await ana.run(dialect, statement)
    assert body["status"] == 0, body
    return body["history_uuid"]


async def expired(ana: Caller) -> str:
    """Run a statement and let its result expire; return its operation id."""
    operation = await finished(ana)
    await ana.api.database.execute(
        "update statements set expires_at = now() - interval '1 second' where id = $1", operation
    )
    await ana.api.services.statements.retention.expire()
    return operation


async def reports(ana: Caller, operation: str) -> set[tuple[int, str, str]]:
    """Return what the reading calls report for an operation without a result. If all of them agree, the set has one
    element.
    """
    bodies = [await ana.on(operation, call) for call in CALLS]
    return {(body["status"], body["code"], body["query_status"]["state"]) for body in bodies}


class TestCancel:
    @pytest.mark.item(36)
    @every_dialect
    async def test_cancel_stops_a_running_statement(self, ana: Caller, dialect: Dialect):
        operation = (await ana.execute(dialect, dialect.slow))["history_uuid"]
        await ana.running(operation)
        body = await ana.on(operation, "cancel_statement")
        assert (body["status"], body["result"], body["query_status"]["state"]) == (0, {"status": 0}, "canceled")
        assert body["query_status"]["message"]
        assert await reports(ana, operation) == {(1, "canceled", "canceled")}

    @pytest.mark.item(36)
    async def test_canceled_statement_stops_running_on_the_engine(self, ana: Caller, users_url: str):
        statement = f"SELECT pg_sleep(300) AS {ana.username}"
        operation = (await ana.execute(POSTGRESQL, statement))["history_uuid"]
        await ana.running(operation)
        connection = await asyncpg.connect(users_url)
        look = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE $1 AND pid <> pg_backend_pid()"
        )

        async def is_active() -> bool:
            return await connection.fetchval(look, f"%{ana.username}") == 1

        await until(is_active)
        body = await ana.on(operation, "cancel_statement")
        assert body["query_status"]["state"] == "canceled"
        assert await connection.fetchval(look, f"%{ana.username}") == 0
        await connection.close()

    @pytest.mark.item(37)
    async def test_statement_canceled_before_sending_never_reaches_the_engine(self, ana: Caller):
        session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
        first = (await ana.execute("mysql", "sleep 30", session_id=session))["history_uuid"]
        await ana.running(first)
        marked = f"text never {ana.username}"
        second = (await ana.execute("mysql", marked, session_id=session))["history_uuid"]
        began = time.monotonic()
        assert (await ana.on(second, "cancel_statement"))["query_status"]["state"] == "canceled"
        assert time.monotonic() - began < 20, "no engine has to confirm it, for which a cancel waits 30 s"
        assert await ana.state(first) == "running"
        await ana.on(first, "cancel_statement")
        assert (await ana.run("mysql", "rows 1", session_id=session))["status"] == 0
        assert marked not in ana.api.fakes["mysql"].executions

    @pytest.mark.item(37)
    @every_dialect
    async def test_cancel_has_no_effect_on_a_finished_statement(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, "SELECT 1")
        for _ in range(2):
            body = await ana.on(operation, "cancel_statement")
            assert (body["status"], body["result"], body["query_status"]["state"]) == (0, {"status": 0}, "available")
        assert (await ana.page(operation))["data"] == [[1]]

    async def test_cancel_twice_is_harmless(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        bodies = await asyncio.gather(*(ana.on(operation, "cancel_statement") for _ in range(4)))
        assert {body["query_status"]["state"] for body in bodies} == {"canceled"}

    async def test_notebook_may_name_the_operation_to_cancel_or_close(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        body = (await ana.post_json("editor/cancel_statement", notebook={"uuid": operation})).json()
        assert body["query_status"]["state"] == "canceled"
        body = (await ana.post_json("editor/close_statement", notebook={"uuid": operation})).json()
        assert body["result"]["status"] == -1


class TestClose:
    @pytest.mark.item(38)
    @every_dialect
    async def test_close_discards_an_available_result_immediately(self, ana: Caller, dialect: Dialect):
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
    async def test_close_deletes_the_result_files(self, small_api: ApiOpener):
        # The test needs its own database. An application that shares it would look for the files in its own directory.
        async with small_api() as api:
            ana = await api.user()
            operation = await finished(ana, "mysql", "rows 4000 wide 100")
            results = api.services.settings.results_dir
            assert [path for path in results.rglob("*") if operation in str(path)]
            await ana.on(operation, "close_statement")
            await api.services.statements.retention.expire()
            assert not [path for path in results.rglob("*") if operation in str(path) and path.is_file()]

    @pytest.mark.item(39)
    @every_dialect
    async def test_close_stops_a_running_statement(self, ana: Caller, dialect: Dialect):
        operation = (await ana.execute(dialect, dialect.slow))["history_uuid"]
        await ana.running(operation)
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"], body["message"]) == (0, {"status": 0}, "Query closed.")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"

    @pytest.mark.parametrize("statement", ["ddl", "fail nicely"])
    async def test_statement_without_a_result_cannot_be_closed(self, ana: Caller, statement: str):
        operation = (await ana.run("mysql", statement))["history_uuid"]
        before = await ana.ended(operation)
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"]["status"], body["message"]) == (0, -1, "Query closed.")
        assert await ana.ended(operation) == before


class TestExpiry:
    @pytest.mark.item(40)
    async def test_result_expires_after_its_retention_time(self, ana: Caller):
        operation = await expired(ana)
        assert await reports(ana, operation) == {(-3, "expired", "expired")}
        assert (await ana.ended(operation))["message"] == "Results have expired."
        body = await ana.on(operation, "close_statement")
        assert (body["status"], body["result"]["status"], body["message"]) == (0, -1, "Query already expired.")
        data = (await ana.history())["history"][0]["data"]
        assert (data["status"], data["state"]) == ("expired", "expired")
        assert (await ana.on(operation, "get_logs"))["progress"] == 100

    @pytest.mark.item(40)
    async def test_expiry_time_of_a_result_is_reported(self, ana: Caller):
        operation = await finished(ana)
        expires_at = (await ana.ended(operation))["query_status"]["expires_at"]
        assert expires_at == (await ana.page(operation))["expires_at"]
        ahead = time.mktime(time.strptime(expires_at, "%Y-%m-%dT%H:%M:%SZ")) - time.mktime(time.gmtime())
        assert 86_000 < ahead <= 86_401


class TestTerminalStates:
    @pytest.mark.item(41)
    @pytest.mark.parametrize("state", ["failed", "canceled", "timed_out", "closed", "expired", "success"])
    async def test_terminal_states_never_change(self, ana: Caller, state: str):
        operation = await self._in_state(ana, state)
        before: dict[str, Any] = await ana.ended(operation)
        assert before["query_status"]["state"] == state
        for call in (*CALLS, "get_logs", "cancel_statement", "close_statement"):
            await ana.on(operation, call)
        await ana.post(f"editor/watch/{operation}")
        await ana.get(f"editor/download/{operation}")
        await ana.api.services.statements.retention.expire()
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
    """How calls identify their operation, and the responses if they do not identify one."""

    @pytest.mark.parametrize("call", [*CALLS, "get_logs", "cancel_statement", "close_statement"])
    async def test_absent_operation_is_a_missing_parameter(self, api: Api, call: str):
        ana = await api.user()
        for fields in ({}, {"operationId": ""}, {"snippet": "{}"}, {"notebook": "{}"}):
            answer = await ana.post(f"editor/{call}", **fields)
            assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")
            assert "operationId" in answer.json()["message"]

    @pytest.mark.parametrize("call", [*CALLS, "get_logs", "cancel_statement", "close_statement"])
    async def test_handle_of_the_full_form_names_the_operation(self, ana: Caller, call: str):
        body = await ana.run("mysql", "rows 1")
        snippet = {"result": {"handle": {"guid": body["handle"]["guid"], "secret": "ignored"}}}
        answer = await ana.post_json(f"editor/{call}", snippet=snippet)
        assert (answer.status_code, answer.json()["status"]) == (200, 0)
