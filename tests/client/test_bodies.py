"""Large bodies are read from the connection of their response."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client.conftest import QUICK, Server
from tests.client.proxies import proxy
from tests.engines.certificates import Authority

from queryserver_client import bodies, connect, windows
from queryserver_client.bodies import raw_body

BODY = bytes(range(256)) * 8000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
ROWS = 200_000
SQL = f"SELECT i AS n, md5(i::VARCHAR) AS t FROM range({ROWS}) AS r(i)"
Answer = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]


@pytest.fixture
def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that were read from connections. A stream is never replaced by windows."""
    monkeypatch.setattr(windows, "_FAST_S", 600)
    read, sizes = bodies._next, list[int]()

    async def counted(stream: Any, response: httpx.Response, max_bytes: int) -> bytes:
        piece = await read(stream, response, max_bytes)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(bodies, "_next", counted)
    return sizes


@asynccontextmanager
async def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """Serve one scripted answer for each connection, and yield the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            await answer(writer)
            writer.close()
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.append(task)
        task.add_done_callback(lambda _: writer.transport.abort())

    tasks = list[asyncio.Task[None]]()
    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read(url: str, *, silence_s: float = 60, http: httpx.AsyncClient | None = None) -> bytes:
    http = http or httpx.AsyncClient(trust_env=False)
    async with http, http.stream("GET", url, timeout=httpx.Timeout(60, read=silence_s)) as found:
        return b"".join([chunk async for chunk in raw_body(found)])


@pytest.mark.parametrize("together", [0, 1, 1000, 100_000, len(BODY)])
async def test_body_is_complete_whatever_arrives_with_the_headers(direct_reads: list[int], together: int):
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(BODY) + BODY[:together])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(BODY[together:] + b"bytes that do not belong to the body")
        await writer.drain()

    async with answering(answer) as url:
        assert await read(url) == BODY
    assert direct_reads


@pytest.mark.parametrize("size", [0, 10, 1000])
async def test_small_body_and_body_of_unknown_size_are_left_to_httpx(direct_reads: list[int], size: int):
    async def small(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % size + BODY[:size])

    async def chunked(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY)
        writer.write(b"\r\n0\r\n\r\n")

    async with answering(small) as url:
        assert await read(url) == BODY[:size]
    async with answering(chunked) as url:
        assert await read(url) == BODY
    assert not direct_reads


async def test_body_of_another_transport_is_left_to_httpx(direct_reads: list[int]):
    headers = {"Content-Length": str(len(BODY))}
    other = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=httpx.ByteStream(BODY)))
    assert await read("http://server", http=httpx.AsyncClient(transport=other)) == BODY
    assert not direct_reads


async def test_body_is_read_from_the_encrypted_connection(direct_reads: list[int], tmp_path: Path):
    """The server requires a client certificate."""
    authority = Authority()
    files = authority.certify("127.0.0.1").write(tmp_path)
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate)
    accepting.verify_mode = ssl.CERT_REQUIRED
    accepting.load_cert_chain(*files)
    trusting = ssl.create_default_context(cadata=authority.certificate)
    trusting.load_cert_chain(*files)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(BODY) + BODY)
        await writer.drain()

    async with answering(answer, accepting) as url:
        assert await read(url, http=httpx.AsyncClient(verify=trusting, trust_env=False)) == BODY
    assert direct_reads


async def test_failures_while_reading_are_those_of_httpx():
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(BODY) + BODY[:-1])

    async def aborted(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(BODY) + BODY[:-1])
        await writer.drain()
        writer.transport.abort()

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(BODY) + BODY[:-1])
        await asyncio.Event().wait()

    for answer, error in ((cut, httpx.RemoteProtocolError), (aborted, httpx.TransportError)):
        async with answering(answer) as url:
            with pytest.raises(error):
                await read(url)
    async with answering(silent) as url:
        with pytest.raises(httpx.ReadTimeout):
            await read(url, silence_s=0.3)


async def test_reader_that_stops_closes_the_connection():
    has_begun, is_closed = asyncio.Event(), asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(HEAD % (len(BODY) * 1_000_000))
            while True:
                has_begun.set()
                writer.write(BODY)
                await writer.drain()
        finally:
            is_closed.set()

    async with answering(endless) as url:
        reading = asyncio.create_task(read(url))
        async with asyncio.timeout(60):
            await has_begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await is_closed.wait()


async def test_result_is_read_from_the_connection(server: Server, direct_reads: list[int]):
    async with connect(server.url, token=await server.token(), retries=QUICK) as db:
        found = await db.query("duckdb", SQL, limit=ROWS)
        for _ in range(2):  # the first connection cannot be used again
            table = await found.arrow()
            assert table.column("n").to_pylist() == list(range(ROWS))
    assert sum(direct_reads) > 2**20


async def test_result_is_read_through_the_proxy_of_the_environment(
    server: Server, direct_reads: list[int], monkeypatch: pytest.MonkeyPatch
):
    """The host name does not exist, so that only a request to the proxy succeeds."""
    async with proxy(server.url) as line:
        monkeypatch.setenv("HTTP_PROXY", line.url)
        async with connect("http://server.invalid", token=await server.token(), retries=QUICK) as db:
            found = await db.query("duckdb", SQL, limit=ROWS)
            assert (await found.arrow()).num_rows == ROWS
    assert sum(direct_reads) > 2**20
    assert line.answered_bytes > sum(direct_reads)
