"""Connections are cut at any byte. No statement is lost or executed twice, and all files are complete (issue 20, 3)."""

import asyncio
import random
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.client.conftest import QUICK, Server
from tests.client.proxies import Cut, Proxy, proxy
from tests.client.shell import Make

from queryserver_client import ConnectionLost, Retries, connect, dbapi

MIXED = "SELECT i AS n, 'row ' || i AS t, i / 7.0 AS f FROM range({}) AS r(i)"
WHOLE_ANSWER = 2600
"""More bytes than the whole response to execute, including headers."""
WHOLE_REQUEST = 700


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server.url) as made:
        yield made


@pytest.fixture
async def token(server: Server) -> str:
    return await server.token()


async def run_once(server: Server, line: Proxy, token: str, *cuts: Cut) -> None:
    """Run a unique statement over connections that are cut in this way. It must return its row, and the engine must
    receive it exactly once.
    """
    word = uuid.uuid4().hex
    line.cuts = deque(cuts)
    async with connect(line.url, token=token, retries=QUICK) as db:
        assert await (await db.query("mysql", f"text {word}")).rows() == [(word,)]
    assert server.engine.executions.count(f"text {word}") == 1


def places(end: int, step: int) -> range:
    """Return positions for cuts between 0 and `end`. Their offset is random, so each run tries other positions."""
    return range(random.randrange(step), end, step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("of_answers", [0, 1, 30, 300, 900, 1500, 2000])
async def test_statement_runs_once_if_response_is_interrupted(server: Server, line: Proxy, token: str, of_answers: int):
    await run_once(server, line, token, Cut(of_answers=of_answers))


@pytest.mark.parametrize("of_requests", [0, 1, 100, 300, 400, 500])
async def test_interrupted_request_runs_statement_once(server: Server, line: Proxy, token: str, of_requests: int):
    await run_once(server, line, token, Cut(of_requests=of_requests))


async def test_consecutive_interruptions_run_statement_once(server: Server, line: Proxy, token: str):
    cuts = [Cut(of_answers=500), Cut(of_requests=200), Cut(of_answers=0), Cut(of_answers=1500)]
    await run_once(server, line, token, *cuts)
    assert line.connections >= 5


@pytest.mark.slow
async def test_connection_cut_at_any_byte_runs_statement_once(server: Server, line: Proxy, token: str):
    for of_answers in places(WHOLE_ANSWER, 13):
        await run_once(server, line, token, Cut(of_answers=of_answers))
    for of_requests in places(WHOLE_REQUEST, 7):
        await run_once(server, line, token, Cut(of_requests=of_requests))


async def test_pages_and_arrow_are_complete_despite_interruptions(server: Server, line: Proxy, token: str):
    async with connect(server.url, token=token) as direct:
        result = await direct.query("duckdb", MIXED.format(30_000), limit=100_000)
        rows, table = await result.rows(), await result.arrow()
    for _ in range(5):
        cuts = [Cut(of_answers=random.randrange(800_000)) for _ in range(4)]
        async with connect(line.url, token=token, retries=QUICK) as db:
            line.cuts = deque(cuts)
            again = await db.statement(result.operation_id).result()
            assert await again.rows() == rows, cuts
            assert (await again.arrow()).equals(table), cuts


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "feather"])
async def test_interrupted_download_is_resumed(server: Server, line: Proxy, token: str, target: Path, suffix: str):
    async with connect(server.url, token=token) as direct:
        result = await direct.query("duckdb", MIXED.format(20_000), limit=100_000)
        whole = (await result.download(target / f"whole.{suffix}")).read_bytes()
    async with connect(line.url, token=token, retries=QUICK) as db:
        before, connections = line.answered_bytes, line.connections
        line.cuts = deque([Cut(of_answers=len(whole) // 3), Cut(of_answers=len(whole) // 2)])
        saved = await (await db.statement(result.operation_id).result()).download(target / f"cut.{suffix}")
    assert saved.read_bytes() == whole
    assert line.connections - connections == 3
    assert line.answered_bytes - before < len(whole) * 1.3, "bytes that were there were sent again"
    assert f"cut.{suffix}" in names(target)
    assert not [name for name in names(target) if name.endswith(".part")]


async def test_failed_download_keeps_existing_file(server: Server, line: Proxy, token: str, target: Path):
    (target / "old.csv").write_text("old")
    async with connect(line.url, token=token, retries=Retries(total_s=0)) as db:
        result = await db.query("duckdb", MIXED.format(20_000), limit=100_000)
        async with connect(line.url, token=token, retries=Retries(total_s=0)) as fresh:
            line.cuts = deque([Cut(of_answers=100_000)] * 9)
            again = await fresh.statement(result.operation_id).result()
            with pytest.raises(ConnectionLost, match="interrupted after"):
                await again.download(target / "old.csv")
    assert names(target) == ["old.csv"]
    assert (target / "old.csv").read_text() == "old"


@pytest.mark.slow
async def test_arrow_stream_cut_at_any_byte_is_complete(server: Server, line: Proxy, token: str):
    async with connect(server.url, token=token) as direct:
        result = await direct.query("duckdb", "SELECT i AS n, 'row ' || i AS t FROM range(20) AS r(i)")
        table = await result.arrow()
    for of_answers in places(3500, 17):
        async with connect(line.url, token=token, retries=QUICK) as db:
            line.cuts = deque([Cut(of_answers=of_answers)])
            again = await db.statement(result.operation_id).result()
            assert (await again.arrow()).equals(table), of_answers


async def test_unreachable_server_raises_clear_error():
    async with connect("http://127.0.0.1:9", token="t", retries=Retries(total_s=0.3)) as db:
        with pytest.raises(ConnectionLost, match="attempts"):
            await db.query("duckdb", "SELECT 1")


WHOLE_SESSION = 9_000
"""More bytes than all responses in the lifetime of a session."""


def insert_by_dbapi(url: str, token: str, table: str, number: int) -> None:
    with dbapi.connect(url, "duckdb", token=token, retries=QUICK) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (?)", (number,))


def insert_by_sqlalchemy(url: str, token: str, table: str, number: int) -> None:
    engine = sa.create_engine(f"queryserver://:{token}@{url.removeprefix('http://')}/duckdb?scheme=http")
    with engine.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (:n)"), {"n": number})
    engine.dispose()


@pytest.mark.parametrize("insert", [insert_by_dbapi, insert_by_sqlalchemy])
@pytest.mark.parametrize("step", [1100, pytest.param(97, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_interrupted_transaction_is_committed_once(
    server: Server, line: Proxy, token: str, insert: Callable[[str, str, str, int], None], step: int
):
    table = f"cut_{uuid.uuid4().hex[:12]}"
    cuts = [Cut(of_answers=at) for at in places(WHOLE_SESSION, step)]
    cuts += [Cut(of_requests=at) for at in places(WHOLE_SESSION // 2, step)]
    async with connect(server.url, token=token) as direct:
        await direct.query("duckdb", f"CREATE TABLE {table} (n INTEGER)")
        for number, cut in enumerate(cuts):
            line.cuts = deque([cut])
            await asyncio.to_thread(insert, line.url, token, table, number)
        rows = await (await direct.query("duckdb", f"SELECT n FROM {table} ORDER BY n")).rows()
    assert rows == [(number,) for number in range(len(cuts))], cuts


@pytest.mark.parametrize(("way", "end"), [("of_requests", WHOLE_REQUEST), ("of_answers", WHOLE_ANSWER)])
async def test_interrupted_command_runs_its_statement_once(
    server: Server, line: Proxy, token: str, make: Make, way: str, end: int
):
    qs = make(QUERYSERVER_URL=line.url, QUERYSERVER_TOKEN=token)
    for at in places(end, end // 3):
        word = uuid.uuid4().hex
        line.cuts = deque([Cut(**{way: at})])
        ended = await qs("sql", "mysql", f"text {word}")
        assert (ended.code, [list(one.values()) for one in ended.records]) == (0, [[word]]), ended.err
        assert server.engine.executions.count(f"text {word}") == 1
