"""Large results are read as Arrow in several concurrent windows (issue 20, 3)."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pyarrow as pa
import pytest
from tests.client.conftest import QUICK, Server
from tests.client.proxies import Cut, Proxy, proxy
from tests.timing import until

from queryserver_client import ApiError, Connection, ConnectionLost, QueryserverError, arrow, connect, result, windows
from queryserver_client.downloads import Download

MIXED = "SELECT i AS n, 'row ' || i AS t, i / 7.0 AS f FROM range({}) AS r(i)"
CONVERTED = "SELECT union_value(n := i) AS u, i AS n FROM range({}) AS r(i)"
"""The type of the column `u` differs between downloads and the stored result. Therefore the file must be generated, and
its size is not known in advance.
"""
ROWS = 100_000
_PIECE_BYTES = 20_000


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use windows for every stored file that is larger than the first piece and one window."""
    monkeypatch.setattr(windows, "_MEASURED_BYTES", 0)
    monkeypatch.setattr(windows, "_FAST_S", -1)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 100_000)
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 50_000)


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server.url) as made:
        yield made


async def test_windows_hold_each_row_once_and_use_several_connections(server: Server, line: Proxy):
    async with connect(line.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        table = await found.arrow()
    assert table.column("n").to_pylist() == list(range(ROWS))
    assert table.column("t").to_pylist() == [f"row {n}" for n in range(ROWS)]
    table.validate(full=True)
    assert line.connections == windows.AT_ONCE + 1, "the connection of the first part is closed"


@pytest.mark.parametrize("fast_s", [-1, 600])
async def test_interrupted_windows_and_streams_are_resumed(
    server: Server, line: Proxy, monkeypatch: pytest.MonkeyPatch, fast_s: float
):
    monkeypatch.setattr(windows, "_FAST_S", fast_s)
    token = await server.token()
    async with connect(server.url, token=token) as direct:
        found = await direct.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        whole = await found.arrow()
    for _ in range(4):
        cuts = [Cut(of_answers=random.randrange(300_000)) for _ in range(8)]
        async with connect(line.url, token=token, retries=QUICK) as db:
            line.cuts = deque(cuts)
            assert (await (await db.statement(found.operation_id).result()).arrow()).equals(whole), cuts


async def test_fast_stream_is_not_replaced_by_windows(server: Server, line: Proxy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "_FAST_S", 600)
    async with connect(line.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        assert (await found.arrow()).num_rows == ROWS
    assert line.connections == 1


@pytest.mark.parametrize("select", [CONVERTED.format(ROWS), "SELECT i AS n FROM range(1000) AS r(i)"])
async def test_generated_or_small_file_is_read_once(server: Server, line: Proxy, select: str):
    before = line.connections
    async with connect(line.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", select, limit=ROWS)
        table = await found.arrow()
    assert table.num_rows == found.row_count
    assert line.connections - before == 1


async def test_stopped_reader_leaves_no_open_request(db: Connection):
    found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
    batches = found.batches()
    assert (await anext(batches)).num_rows
    assert under_way()
    await batches.aclose()
    assert not under_way()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_slowly(found), 0.2)
    # Other generators, which were not waiting for rows, are closed in the next iterations of the loop.
    await until(lambda: not under_way())
    assert (await found.arrow()).num_rows == ROWS


async def test_result_deleted_during_the_read_is_an_error(server: Server, db: Connection):
    found = await db.query("duckdb", MIXED.format(4 * ROWS), limit=4 * ROWS)
    with pytest.raises(QueryserverError):
        await _closed_meanwhile(found)
    assert not under_way()


async def test_truncated_range_is_not_end_of_result(server: Server):
    """Simulates an intermediary that shortens the responses to range requests."""

    def shortened(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if "Range" not in request.headers:
            return response
        content = response.content[:50_000]
        start = int(request.headers["Range"][6:].split("-")[0])
        headers = {"ETag": response.headers["ETag"], "Content-Range": f"bytes {start}-{start + len(content) - 1}/9999"}
        return httpx.Response(206, headers=headers, content=content)

    async with changed(server, shortened) as db:
        found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
        with pytest.raises(ConnectionLost, match="a range of the file ended"):
            await found.arrow()


async def test_result_is_read_whole_if_ranges_are_unavailable(server: Server):
    def without_parts(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.status_code != 206:
            return response
        return httpx.Response(200, headers={"ETag": '"other"'}, content=b"another file")

    def weak(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if "ETag" in response.headers:
            response.headers["ETag"] = "W/" + response.headers["ETag"]
        return response

    def without_room(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.status_code != 206:
            return response
        return httpx.Response(429, json={"code": "too_many_streams"}, headers={"Retry-After": "60"})

    for change in (without_parts, weak, without_room):
        async with changed(server, change) as db:
            found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
            assert (await found.arrow()).column("n").to_pylist() == list(range(ROWS))


async def test_refusal_of_large_result_gives_reason(db: Connection):
    found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
    await found.close()
    with pytest.raises(ApiError) as refused:
        await found.arrow()
    assert refused.value.code == "closed"


async def test_highly_compressed_rows_are_not_all_in_memory_together(db: Connection):
    """One megabyte in transit can become one gigabyte of rows in memory."""
    rows = 1_000_000
    found = await db.query("duckdb", f"SELECT repeat('the same', 20) AS t FROM range({rows})", limit=rows)
    before, peak, read = pa.total_allocated_bytes(), 0, 0
    async for batch in found.batches():
        read += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert read == rows
    assert peak < 16 * 1024 * 1024


async def test_batches_before_a_failure_are_returned(db: Connection, monkeypatch: pytest.MonkeyPatch):
    found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
    whole = [chunk async for chunk in arrow_bytes(found)]

    async def cut() -> AsyncGenerator[bytes, None]:
        for chunk in whole[: len(whole) // 2]:
            yield chunk
        raise ConnectionLost("cut", is_sent=True)

    rows = 0
    with pytest.raises(ConnectionLost, match="cut"):  # noqa: PT012
        async for item in arrow.batches(cut()):
            rows += item.num_rows if isinstance(item, pa.RecordBatch) else 0
    assert rows > ROWS // 4


async def test_corrupt_data_is_a_client_error(db: Connection):
    found = await db.query("duckdb", MIXED.format(ROWS), limit=ROWS)
    content = bytearray(b"".join([chunk async for chunk in arrow_bytes(found)]))
    place = content.index(b"\x04\x22\x4d\x18", 5000)  # the magic number of a buffer that is compressed with lz4
    content[place : place + 4] = b"\0" * 4

    async def damaged() -> AsyncGenerator[bytes, None]:
        yield bytes(content)

    with pytest.raises(ConnectionLost, match="corrupt"):
        assert [item async for item in arrow.batches(damaged())]


Change = Callable[[httpx.Request, httpx.Response], httpx.Response]


class _InPieces(httpx.AsyncByteStream):
    """A body that arrives in several pieces, so that windows begin before its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), _PIECE_BYTES):
            yield self._content[start : start + _PIECE_BYTES]


class _Between(httpx.AsyncBaseTransport):
    """A transport that changes the responses to downloads."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if "/download/" not in request.url.path:
            return response
        content = await response.aread()
        changed = self._change(request, httpx.Response(response.status_code, headers=response.headers, content=content))
        return httpx.Response(changed.status_code, headers=changed.headers, stream=_InPieces(changed.content))

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def changed(server: Server, change: Change) -> AsyncGenerator[Connection]:
    """Yield a connection on which `change` is applied to the responses to downloads."""
    async with connect(server.url, token=await server.token(), retries=QUICK) as db:
        before, db.transport._http._transport = db.transport._http._transport, _Between(change)
        yield db
    await before.aclose()


def arrow_bytes(found: result.Result) -> AsyncGenerator[bytes, None]:
    return Download(found._transport, found._path, {"format": "arrow", "compression": "lz4"}).chunks()


def under_way() -> list[str]:
    """Return the names of all tasks that read windows."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == windows._TASK]


async def _slowly(found: result.Result) -> None:
    async for _ in found.batches():
        await asyncio.sleep(0.05)


async def _closed_meanwhile(found: result.Result) -> None:
    async for _ in found.batches():
        await found.close()
