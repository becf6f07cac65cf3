"""Large results as Arrow: in windows, several at a time (issue 20, 3)."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator

import pytest
from tests.cases import each
from tests.client.conftest import QUICK, Server
from tests.client.proxies import Cut, Proxy, proxy

from queryserver_client import Connection, QueryserverError, arrow, connect, result, windows

MIXED = "SELECT i AS n, 'row ' || i AS t, i / 7.0 AS f FROM range({}) AS r(i)"
CONVERTED = "SELECT union_value(n := i) AS u, i AS n FROM range({}) AS r(i)"
"""A column that is stored in another type than a download has, so the file is made, and its size not known before."""
ROWS = 100_000


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_BYTES", 100_000)
    monkeypatch.setattr(result, "_MANY_CELLS", ROWS)
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 50_000)


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server.url) as made:
        yield made


async def test_windows_hold_each_row_once_and_come_over_several_connections(server: Server, line: Proxy):
    async with connect(line.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        before = line.answered_bytes
        table = await found.arrow()
        sent = line.answered_bytes - before
    assert table.column("n").to_pylist() == list(range(ROWS))
    assert table.column("t").to_pylist() == [f"row {n}" for n in range(ROWS)]
    table.validate(full=True)
    assert line.connections == windows.AT_ONCE
    assert sent < table.nbytes, "packed, and nothing twice"


async def test_windows_that_are_cut_are_continued(server: Server, line: Proxy):
    token = await server.token()
    async with connect(server.url, token=token) as direct:
        found = await direct.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        whole = await found.arrow()
    for _ in range(4):
        cuts = [Cut(of_answers=random.randrange(300_000)) for _ in range(8)]
        async with connect(line.url, token=token, retries=QUICK) as db:
            line.cuts = deque(cuts)
            assert (await (await db.statement(found.operation_id).result()).arrow()).equals(whole), cuts


@each("select", (CONVERTED.format(ROWS), "SELECT i AS n FROM range(1000) AS r(i)"))
async def test_a_file_that_is_made_or_small_is_read_once(server: Server, line: Proxy, select: str):
    before = line.connections
    async with connect(line.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", select, limit=ROWS)
        table = await found.arrow()
    assert table.num_rows == found.row_count
    assert line.connections - before == 1


async def test_no_window_is_left_behind_by_a_reader_that_stops(db: Connection):
    found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
    batches = found.batches()
    assert (await anext(batches)).num_rows
    assert under_way()
    await batches.aclose()
    assert not under_way()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_slowly(found), 0.2)
    assert not under_way()
    assert (await found.arrow()).num_rows == ROWS


async def test_a_result_that_goes_away_meanwhile_is_an_error(server: Server, db: Connection):
    found = await db.query("duckdb", MIXED.format(4 * ROWS), limit=4 * ROWS)
    with pytest.raises(QueryserverError):
        await _closed_meanwhile(found)
    assert not under_way()


def under_way() -> list[str]:
    """Windows that are being read."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == windows._TASK]


async def _slowly(found: result.Result) -> None:
    async for _ in found.batches():
        await asyncio.sleep(0.05)


async def _closed_meanwhile(found: result.Result) -> None:
    async for _ in found.batches():
        await found.close()
