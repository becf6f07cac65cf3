"""Calls at the same moment (Contract editor 4.4, 6.1, 13)."""

import asyncio
from collections import Counter

import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Caller


@pytest.mark.item(69)
async def test_the_limit_of_statements_holds_under_concurrent_calls(small_api: ApiOpener):
    async with small_api(max_statements_per_user=3) as api:
        ana = await api.user()
        answers = await asyncio.gather(*(ana.post("editor/execute/mysql", statement="sleep 30") for _ in range(20)))
        assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 17}
        assert (await ana.history())["count"] == 3


@pytest.mark.item(69)
async def test_the_limit_of_sessions_holds_under_concurrent_calls(small_api: ApiOpener):
    async with small_api(max_sessions_per_user=3) as api:
        ana = await api.user()
        session = '{"type": "mysql"}'
        answers = await asyncio.gather(*(ana.post("editor/create_session", session=session) for _ in range(12)))
        assert Counter(answer.status_code for answer in answers) == {200: 3, 429: 9}


@pytest.mark.item(21)
async def test_start_over_among_other_fetches_keeps_the_cursor_whole(ana: Caller):
    operation = (await ana.run("mysql", "rows 1000"))["history_uuid"]
    calls = [ana.page(operation, rows=10, startOver="true" if number == 5 else "false") for number in range(10)]
    pages = await asyncio.gather(*calls)
    assert all(page["data"] == [[page["start_row"] + n] for n in range(10)] for page in pages)
    assert all(page["start_row"] % 10 == 0 for page in pages)
    assert (await ana.page(operation, rows=10))["start_row"] <= 100


async def test_a_fetch_beside_a_close_gives_rows_or_says_closed(ana: Caller):
    for _ in range(5):
        operation = (await ana.run("mysql", "rows 2000 wide 100"))["history_uuid"]
        fetches = [ana.on(operation, "fetch_result_data", rows=2000) for _ in range(4)]
        *bodies, closed = await asyncio.gather(*fetches, ana.on(operation, "close_statement"))
        assert closed["result"]["status"] == 0
        for body in bodies:
            assert body["status"] == -3 or len(body["result"]["data"]) in {0, 2000}


async def test_close_by_many_is_done_once(ana: Caller):
    operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
    bodies = await asyncio.gather(*(ana.on(operation, "close_statement") for _ in range(6)))
    assert {body["status"] for body in bodies} == {0}
    assert 0 in {body["result"]["status"] for body in bodies}
    assert (await ana.ended(operation))["code"] == "closed"


async def test_cancel_beside_execute_leaves_a_terminal_state(ana: Caller):
    for _ in range(10):
        body = await ana.execute("mysql", "sleep 0.01 then rows 1")
        await ana.on(body["history_uuid"], "cancel_statement")
        assert await ana.state(body["history_uuid"]) in {"canceled", "available"}
