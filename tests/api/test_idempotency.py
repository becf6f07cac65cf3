"""Repeated submissions with an idempotency key, and concurrent calls (Contract editor 4.4, 6.1, 13)."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Caller, verdict

SAME = ("history_id", "history_uuid", "handle")


async def submit(
    ana: Caller, key: str, *, statement: str = "rows 1", path: str = "mysql", **fields: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    return await ana.send("POST", f"editor/execute/{path}", data={"statement": statement, **fields}, headers=headers)


def ids(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {name: answer.json()[name] for name in SAME}


@pytest.mark.item(44)
async def test_same_key_returns_the_same_operation(ana: Caller):
    first = await submit(ana, "k")
    assert "idempotency-replayed" not in first.headers
    again = await submit(ana, "k", wait="30")
    assert again.headers["idempotency-replayed"] == "true"
    assert ids(again) | {"handle": None} == ids(first) | {"handle": None}
    names = ("guid", "secret", "session_id", "session_guid")
    assert [again.json()["handle"][name] for name in names] == [first.json()["handle"][name] for name in names]
    assert again.json()["query_status"]["state"] == "available"
    assert (await ana.history())["count"] == 1


@pytest.mark.item(44)
async def test_concurrent_calls_with_one_key_create_one_operation(ana: Caller):
    statement = f"text {ana.username}"
    answers = await asyncio.gather(*(submit(ana, "k", statement=statement, wait=30) for _ in range(12)))
    assert len({answer.json()["history_uuid"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 11
    assert ana.api.fakes["mysql"].executions.count(statement) == 1


@pytest.mark.item(44)
async def test_client_request_id_field_acts_as_the_header(ana: Caller):
    first = await submit(ana, "k", wait="30")
    by_field = await ana.post("editor/execute/mysql", statement="rows 1", client_request_id="k")
    assert ids(by_field) == ids(first)
    both = await submit(ana, "k", client_request_id="k")
    assert ids(both) == ids(first)
    differing = await submit(ana, "k", client_request_id="other")
    assert verdict(differing) == (400, -1, "conflicting_parameters")


@pytest.mark.item(44)
async def test_encoding_path_and_wait_are_not_compared(ana: Caller):
    first = await submit(ana, "k", wait="30")
    key = {"Idempotency-Key": "k"}
    snippet = {"type": "mysql", "statement": "rows 1"}
    others = [
        await ana.send("POST", "query/MYSQL", json={"statement": "rows 1", "wait": 1}, headers=key),
        await ana.send("POST", "editor/execute", data={"snippet": json.dumps(snippet)}, headers=key),
    ]
    assert [ids(answer) for answer in others] == [ids(first)] * 2


@pytest.mark.item(45)
@pytest.mark.parametrize(
    "change",
    [
        {"statement": "rows 2"},
        {"statement": "rows 1 "},
        {"path": "hive"},
        {"database": "main"},
        {"limit": "5"},
        {"timeout": "5"},
    ],
)
async def test_same_key_with_a_different_request_is_refused_and_runs_nothing(ana: Caller, change: dict[str, str]):
    await submit(ana, "k", wait="30")
    assert verdict(await submit(ana, "k", **change)) == (409, -1, "idempotency_conflict")
    assert (await ana.history())["count"] == 1


@pytest.mark.item(45)
async def test_idempotency_keys_of_users_are_independent(ana: Caller, bob: Caller):
    hers, his = await submit(ana, "k", statement="rows 1"), await submit(bob, "k", statement="rows 2", wait="30")
    assert his.json()["status"] == 0
    assert ids(hers)["history_uuid"] != ids(his)["history_uuid"]


async def test_failed_call_does_not_use_up_the_key(ana: Caller):
    assert verdict(await submit(ana, "k", path="nope"))[0] == 404
    assert verdict(await submit(ana, "k", statement="--"))[0] == 400
    assert "idempotency-replayed" not in (await submit(ana, "k")).headers


async def test_failed_statement_is_replayed_unchanged(ana: Caller):
    first = await submit(ana, "k", statement="fail nicely", wait="30")
    again = await submit(ana, "k", statement="fail nicely")
    assert again.json() == first.json()
    assert again.json()["code"] == "engine_error"


async def test_replays_do_not_count_toward_limits(small_api: ApiOpener):
    async with small_api(max_statements_per_user=1) as api:
        ana = await api.user()
        first = await submit(ana, "k", statement="sleep 30")
        again = await submit(ana, "k", statement="sleep 30")
        assert again.json()["history_uuid"] == first.json()["history_uuid"]
        assert verdict(await submit(ana, "l", statement="sleep 30")) == (429, -1, "too_many_statements")


@pytest.mark.parametrize("key", [b"", b"a" * 256, b"a\tb", "é".encode(), b"\xff"])
async def test_key_must_be_printable_ascii(ana: Caller, key: bytes):
    fields = {"statement": "rows 1"}
    answer = await ana.send("POST", "editor/execute/mysql", data=fields, headers={b"Idempotency-Key": key})
    assert verdict(answer) == (400, -1, "invalid_parameter")
    assert "Idempotency-Key" in answer.json()["message"]


async def test_continued_script_is_compared_by_its_operation(ana: Caller):
    first = (await ana.run("mysql", "rows 1; rows 2"))["history_uuid"]
    second = await ana.send(
        "POST", "editor/execute/mysql", data={"operationId": first, "wait": 30}, headers={"Idempotency-Key": "k"}
    )
    again = await ana.send(
        "POST", "editor/execute/mysql", data={"operationId": first}, headers={"Idempotency-Key": "k"}
    )
    assert ids(again) == ids(second)
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.item(44)
async def test_replay_works_after_its_session_was_closed(ana: Caller):
    session = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
    first = await submit(ana, "k", session_id=str(session), wait="30")
    await ana.post_ok("editor/close_session", session=json.dumps({"type": "mysql", "id": session}))
    again = await submit(ana, "k", session_id=str(session))
    assert again.headers["idempotency-replayed"] == "true"
    assert ids(again) == ids(first)


async def test_waiting_replay_returns_directly_without_a_free_stream_slot(small_api: ApiOpener):
    async with small_api(max_streams_per_user=1) as api:
        ana = await api.user()
        first = await submit(ana, "k", statement="sleep 30")
        path = f"/api/v1/editor/events/{first.json()['history_uuid']}"
        async with api.http.stream("GET", path, headers=ana.headers):
            again = await submit(ana, "k", statement="sleep 30", wait="30")
            refused = await submit(ana, "l", wait="30")
            unknown = await submit(ana, "m", path="nope", wait="30")
        assert again.json()["history_uuid"] == first.json()["history_uuid"]
        assert verdict(refused) == (429, -1, "too_many_streams")
        assert verdict(unknown) == (404, -1, "dialect_not_found")
        assert (await ana.history())["count"] == 1


@pytest.mark.item(69)
async def test_statement_limit_holds_under_concurrent_calls(small_api: ApiOpener):
    async with small_api(max_statements_per_user=3) as api:
        ana = await api.user()
        answers = await asyncio.gather(*(ana.post("editor/execute/mysql", statement="sleep 30") for _ in range(20)))
        assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 17}
        assert (await ana.history())["count"] == 3


@pytest.mark.item(69)
async def test_session_limit_holds_under_concurrent_calls(small_api: ApiOpener):
    async with small_api(max_sessions_per_user=3) as api:
        ana = await api.user()
        session = '{"type": "mysql"}'
        answers = await asyncio.gather(*(ana.post("editor/create_session", session=session) for _ in range(12)))
        assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 9}


@pytest.mark.item(21)
async def test_start_over_during_other_fetches_keeps_the_cursor_consistent(ana: Caller):
    operation = (await ana.run("mysql", "rows 1000"))["history_uuid"]
    calls = [ana.page(operation, rows=10, startOver="true" if number == 5 else "false") for number in range(10)]
    pages = await asyncio.gather(*calls)
    assert all(page["data"] == [[page["start_row"] + n] for n in range(10)] for page in pages)
    assert all(page["start_row"] % 10 == 0 for page in pages)
    assert (await ana.page(operation, rows=10))["start_row"] <= 100


async def test_fetch_during_close_returns_rows_or_closed(ana: Caller):
    for _ in range(5):
        operation = (await ana.run("mysql", "rows 2000 wide 100"))["history_uuid"]
        fetches = [ana.on(operation, "fetch_result_data", rows=2000) for _ in range(4)]
        *bodies, closed = await asyncio.gather(*fetches, ana.on(operation, "close_statement"))
        assert closed["result"]["status"] == 0
        for body in bodies:
            assert body["status"] == -3 or len(body["result"]["data"]) in {0, 2000}


async def test_concurrent_closes_take_effect_once(ana: Caller):
    operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
    bodies = await asyncio.gather(*(ana.on(operation, "close_statement") for _ in range(6)))
    assert {body["status"] for body in bodies} == {0}
    assert 0 in {body["result"]["status"] for body in bodies}
    assert (await ana.ended(operation))["code"] == "closed"


async def test_cancel_during_execution_leaves_a_terminal_state(ana: Caller):
    for _ in range(10):
        body = await ana.execute("mysql", "sleep 0.01 then rows 1")
        await ana.on(body["history_uuid"], "cancel_statement")
        assert await ana.state(body["history_uuid"]) in {"canceled", "available"}
