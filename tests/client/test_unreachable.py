"""What a user sees of a server that is dead, silent, or has another scheme, and of rejected credentials (issue 38)."""

import asyncio
import os
import signal
import ssl
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from tests.client.conftest import Server
from tests.client.shell import Make
from tests.client.test_qs_prompt import terminal
from tests.engines.certificates import Authority

from queryserver_client import (
    ApiError,
    AuthenticationError,
    ConnectionLost,
    Retries,
    connect,
    connect_sync,
    dbapi,
    transport,
)

Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(respond: Respond | None = None, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Accept connections on a port of its own, without responding by default; yield the port."""
    accepted: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        if respond is not None:
            await respond(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in accepted:
            writer.transport.abort()


def tls_context(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority().certify("127.0.0.1").write(directory))
    return context


async def test_call_without_tls_to_tls_port_is_reported_immediately_with_address_to_use(tmp_path: Path):
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(close, tls_context(tmp_path)) as port:
        db = connect(f"http://127.0.0.1:{port}", token="none", retries=Retries(total_s=600))
        with pytest.raises(ConnectionLost, match=r"requires TLS; use an https:// address") as caught:
            await asyncio.wait_for(db.query("duckdb", "SELECT 1"), 20)
        await db.close()
    assert (caught.value.attempts, caught.value.is_sent) == (1, False)


async def test_refusal_of_proxy_in_front_of_tls_is_reported_with_address_to_use(monkeypatch: pytest.MonkeyPatch):
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nTLS!")
        await writer.drain()

    async def requires_tls(_url: str) -> bool:
        return True

    async with listening(refuse) as port, connect(f"http://127.0.0.1:{port}", token="none") as db:
        with pytest.raises(ApiError, match=f"http://127.0.0.1:{port}: HTTP 400: TLS!"):
            await db.transport.call("GET", "x")
        monkeypatch.setattr(transport, "requires_tls", requires_tls)
        with pytest.raises(ConnectionLost, match="requires TLS"):
            await db.transport.call("GET", "x")


async def test_silent_server_is_logged_with_its_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert transport._SILENT_LOGGED_AFTER_S < 5
    monkeypatch.setattr(transport, "_SILENT_LOGGED_AFTER_S", 0.1)
    async with listening() as port:
        url = f"http://127.0.0.1:{port}"
        async with connect(url, token="none", timeout_s=0.6, retries=Retries(unreached_s=0.3)) as db:
            with pytest.raises(ConnectionLost, match=r"no response within 0\.6 s \(\d attempts in \d s\)"):
                await db.transport.call("GET", "x")
    [record] = caplog.records  # once, not once per attempt
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"{url}: no response after 0.1 s, waiting for up to 0.6 s, retrying for up to 0.3 s"


async def test_cleanup_at_unresponsive_server_is_short():
    answers: list[httpx.Response | None] = [httpx.Response(200, json={}), None, httpx.Response(200, json={})]

    def answer(_: httpx.Request) -> httpx.Response:
        if (response := answers.pop(0)) is None:
            raise httpx.ConnectError("refused")
        return response

    scripted = httpx.MockTransport(answer)
    async with connect("http://server", token="none", retries=Retries(total_s=0), http_transport=scripted) as db:
        await db.transport.call("GET", "x")
        assert db.transport.cleanup_s(15) == 15
        with pytest.raises(ConnectionLost):
            await db.transport.call("GET", "x")
        assert db.transport.cleanup_s(15) == 2
        await db.transport.call("GET", "x")
        assert db.transport.cleanup_s(15) == 15


async def test_traceback_has_each_message_once_and_no_frames_of_http_library(server: Server):
    def wrong_password() -> str:
        try:
            with connect_sync(server.url, user="reader", password="wrong") as db:
                db.query("duckdb", "SELECT 1")
        except AuthenticationError:
            return traceback.format_exc()
        return ""

    def unreachable() -> str:
        db = dbapi.connect("http://127.0.0.1:9", "duckdb", token="none", retries=Retries(total_s=0))
        with closing(db), pytest.raises(dbapi.OperationalError) as caught:
            db.execute("SELECT 1")
        assert isinstance(caught.value.client_error, ConnectionLost)
        return "".join(traceback.format_exception(caught.value))

    for shown, message in (
        (await asyncio.to_thread(wrong_password), "No active account"),
        (await asyncio.to_thread(unreachable), "Connection refused"),
    ):
        assert shown.count(message) == 1, shown
        assert "direct cause" not in shown
        assert "httpx" not in shown
        assert shown.count("\n  File ") <= 10


async def test_wrong_password_is_a_single_line_on_stderr(server: Server, make: Make):
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_USER="reader", QUERYSERVER_PASSWORD="wrong")
    ended = await qs("sql", "duckdb", "SELECT 1")
    assert (ended.code, ended.err.count("\n")) == (3, 1), ended.err
    assert ended.err.startswith("qs: the server rejected the credentials: ")


async def test_dead_server_is_reported_once_within_5_seconds_and_ctrl_c_ends_the_command(make: Make):
    async with listening() as port:
        qs = make(QUERYSERVER_URL=f"http://127.0.0.1:{port}", QUERYSERVER_TOKEN="none")
        began = time.monotonic()
        async with terminal(qs, "ps") as shown:
            await shown.shows(f"qs: http://127.0.0.1:{port}: no response after 4 s")
            await shown.shows("retrying")
            assert time.monotonic() - began < 10  # 5 s, plus the time in which a busy machine starts a process
            began = time.monotonic()
            os.kill(shown.pid, signal.SIGINT)
            assert await shown.end() == 130
            assert time.monotonic() - began < 5
            assert shown.text.count("qs: ") == 2  # and "qs: interrupted"
