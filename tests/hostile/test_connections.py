"""Unauthenticated clients that misuse connections."""

import asyncio
import gc
import json
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send
from tests.engines.certificates import Authority

from queryserver.api.addresses import AddressSlots
from queryserver.api.connections.admission import ConnectionLimits
from queryserver.api.connections.http_connection import (
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    HttpConnection,
    UnreadResponses,
    guard_connections,
)
from queryserver.platform.metrics import ConnectionCounts, DisconnectReason
from queryserver.platform.networks import LOOPBACK

MIB = 1024 * 1024
HEAD = b"GET / HTTP/1.1\r\nHost: test\r\n"
REQUEST = HEAD + b"\r\n"
# Longer than any timeout that a test waits for. A test that hangs fails after this time.
ENDS_WITHIN_S = 60
SHORT_S = 0.6
LONG_S = 600.0


@dataclass
class Application:
    """An application that counts calls. It responds at once or when a test sets `go_on`, depending on the path."""

    calls: int = 0
    heads: list[Any] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        self.heads.append(scope["headers"])
        body = b"ok"
        match scope["path"]:
            case "/wait":
                await self.go_on.wait()
            case "/large":
                body = bytes(8 * MIB)
            case "/read":
                while (await receive()).get("more_body"):
                    pass
            case _:
                pass
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class LocalServer:
    """A server in this process."""

    app: Application
    port: int
    registry: CollectorRegistry

    @asynccontextmanager
    async def connection(
        self, *, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a client connection, with TLS if a context is given."""
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def count(self, name: str, **labels: str) -> float:
        """Return the value of a metric of connections."""
        return self.registry.get_sample_value(f"queryserver_http_connections{name}", labels) or 0


@asynccontextmanager
async def served(*, certificate: tuple[Path, ...] = (), **changes: Any) -> AsyncIterator[LocalServer]:
    """Start a server with generous limits, except for those in `changes`."""
    bounds: dict[str, Any] = {
        "request_head_s": LONG_S,
        "response_stall_s": LONG_S,
        "in_all": 1000,
        "per_address": 1000,
        "unsent_bytes": 1024 * MIB,
    }
    app, registry = Application(), CollectorRegistry()
    files = [str(file) for file in certificate] or [None, None]
    config = uvicorn.Config(
        app,
        port=0,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=int(LONG_S),
        ssl_certfile=files[0],
        ssl_keyfile=files[1],
    )
    guard_connections(config, ConnectionLimits(**{**bounds, **changes}), ConnectionCounts(registry))
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield LocalServer(app, server.servers[0].sockets[0].getsockname()[1], registry)
    finally:
        app.go_on.set()
        server.should_exit = True
        await task


async def run_to_completion(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes or resets the connection; return all received bytes."""
    received = bytearray()
    async with asyncio.timeout(ENDS_WITHIN_S):
        try:
            while piece := await reader.read(65536):
                received += piece
        except ConnectionError:
            pass
    return bytes(received)


async def drip(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Send `piece` repeatedly until the server closes the connection."""
    with suppress(ConnectionError):
        while not writer.transport.is_closing():
            writer.write(piece)
            await asyncio.sleep(SHORT_S / 10)


@asynccontextmanager
async def dripping(writer: asyncio.StreamWriter, piece: bytes) -> AsyncIterator[None]:
    """Send `piece` repeatedly until the context exits."""
    task = asyncio.create_task(drip(writer, piece))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read one complete response to REQUEST."""
    async with asyncio.timeout(ENDS_WITHIN_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await reader.readexactly(length)


def refusal(received: bytes) -> tuple[int, str]:
    """Return the status and code of a response with which the server refused the connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head[9:12]), json.loads(body)["code"]


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    for _ in range(ENDS_WITHIN_S * 100):
        if holds():
            return
        await asyncio.sleep(0.01)
    message = "this never came to hold"
    raise AssertionError(message)


async def until_open(server: LocalServer, number: int) -> None:
    """Wait until the server has exactly this many open connections."""
    await eventually(lambda: server.count("") == number)


class TestDeadlineOfTheHead:
    async def test_silent_connection_is_closed(self):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, _):
            assert await run_to_completion(reader) == b""
            await until_open(server, 0)
            assert server.count("_cut_total", reason="head_timeout") == 1

    @pytest.mark.parametrize("began", [b"GET /", HEAD, b"\r\n"], ids=["path", "header", "blank"])
    async def test_slowly_sent_bytes_do_not_extend_the_deadline(self, began: bytes):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(began)
            async with dripping(writer, b"\r\n" if began == b"\r\n" else b"a"):
                assert refusal(await run_to_completion(reader)) == (408, "request_timeout")
        assert server.app.calls == 0

    @pytest.mark.parametrize("began", [HEAD, b"\r\n"], ids=["header", "blank"])
    async def test_next_request_headers_have_same_deadline(self, began: bytes):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(REQUEST)
            assert await answer(reader)
            writer.write(began)
            async with dripping(writer, b"\r\n" if began == b"\r\n" else b"a"):
                assert refusal(await run_to_completion(reader)) == (408, "request_timeout")

    async def test_headers_started_during_a_call_get_a_deadline_after_it(self):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(REQUEST.replace(b"/ ", b"/wait ", 1) + HEAD)
            async with server.connection() as (other, _):
                await run_to_completion(other)
            server.app.go_on.set()
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")
            assert refusal(await run_to_completion(reader)) == (408, "request_timeout")

    async def test_unused_connection_stays_open_after_the_deadline(self):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(REQUEST)
            assert await answer(reader)
            async with server.connection() as (other, _):
                await run_to_completion(other)
            writer.write(REQUEST)
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_call_may_take_longer_than_the_header_deadline(self):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(REQUEST.replace(b"/ ", b"/wait ", 1))
            async with server.connection() as (other, _):
                await run_to_completion(other)
            server.app.go_on.set()
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_unread_body_remainder_must_arrive_in_time(self):
        async with served(request_head_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000000\r\n\r\n")
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")
            async with dripping(writer, b"a"):
                assert await run_to_completion(reader) == b""

    async def test_body_completed_after_response_leaves_connection_usable(self):
        async with served(request_head_s=LONG_S) as server, server.connection() as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\n")
            assert await answer(reader)
            writer.write(b"abc" + REQUEST)
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")


class TestSizeOfTheHead:
    @pytest.mark.parametrize(
        "rest",
        [
            b"GET /" + b"a" * 2 * MIB,
            HEAD + b"X-Long: " + b"a" * 2 * MIB,
            HEAD + b"a" * 2 * MIB,
            HEAD + b"X-One: a\r\n" * 20_000,
            HEAD + b"X-One: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        ],
    )
    async def test_headers_above_limit_are_refused(self, rest: bytes):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(rest)
            assert refusal(await run_to_completion(reader)) == (431, "headers_too_large")
            assert server.app.calls == 0

    async def test_trailers_count_as_headers(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(b"POST /read HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
            writer.write(b"X-One: a\r\n" * 20_000)
            await run_to_completion(reader)
            assert server.count("_cut_total", reason="head_too_large") == 1
            assert len(server.app.heads[0]) < 20_000

    async def test_headers_below_limit_are_served(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(HEAD + b"X-Long: " + b"a" * (MAX_HEAD_BYTES - 1000) + b"\r\n\r\n")
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_bodies_do_not_count_as_headers(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(b"POST /read HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(4):
                writer.write(b"%x\r\n" % MIB + bytes(MIB) + b"\r\n")
            writer.write(b"0\r\n\r\n")
            assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_malformed_request_gets_json_response(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            assert refusal(await run_to_completion(reader)) == (400, "invalid_request")


class TestPipelines:
    async def test_pipelined_requests_are_limited(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(REQUEST.replace(b"/ ", b"/wait ", 1) + REQUEST * 10_000)
            await run_to_completion(reader)
            assert server.count("_cut_total", reason="pipeline") == 1
        assert server.app.calls == 1

    async def test_few_pipelined_requests_are_served_in_order(self):
        async with served() as server, server.connection() as (reader, writer):
            writer.write(REQUEST * MAX_PIPELINED)
            for _ in range(MAX_PIPELINED):
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")


class TestNumbers:
    async def test_connections_per_address_are_limited(self):
        async with served(per_address=3) as server, AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(server.connection())
            await until_open(server, 3)
            async with server.connection() as (reader, writer):
                writer.write(REQUEST)
                received = await run_to_completion(reader)
                assert refusal(received) == (429, "too_many_connections")
                assert b"retry-after: " in received
            assert server.count("_refused_total", bound="address") == 1
            assert server.app.calls == 0
            await stack.aclose()
            await until_open(server, 0)
            async with server.connection() as (reader, writer):
                writer.write(REQUEST)
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_total_connections_are_limited(self):
        async with served(in_all=3) as server, AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(server.connection())
            await until_open(server, 3)
            async with server.connection() as (reader, _):
                received = await run_to_completion(reader)
                assert refusal(received) == (503, "too_many_connections")
                assert b"retry-after: " in received

    async def test_refused_connections_are_closed_even_if_clients_stay(self):
        async with served(in_all=1) as server, server.connection(), AsyncExitStack() as stack:
            await until_open(server, 1)
            refused = [await stack.enter_async_context(server.connection()) for _ in range(200)]
            received = await asyncio.gather(*(run_to_completion(reader) for reader, _ in refused))
            # During a flood, the server closes some connections without a response.
            assert b"" in received
            assert server.count("") == 1

    async def test_trusted_proxy_may_connect_for_many_clients(self):
        async with served(per_address=1, trusted_proxies=LOOPBACK) as server, AsyncExitStack() as stack:
            for _ in range(10):
                reader, writer = await stack.enter_async_context(server.connection())
                writer.write(REQUEST)
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_clients_in_their_proxys_network_are_counted_too(self):
        app = Application()
        shared = AddressSlots(app, [ip_network("2001:db8::1/128")], 1)
        transport = httpx.ASGITransport(shared, client=("2001:db8::1", 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            waiting = asyncio.create_task(http.get("/wait", headers={"x-forwarded-for": "2001:db8::7"}))
            await eventually(lambda: app.calls == 1)
            assert (await http.get("/", headers={"x-forwarded-for": "2001:db8::7"})).status_code == 429
            app.go_on.set()
            assert (await waiting).status_code == 200

    async def test_calls_through_proxy_are_counted_by_client(self):
        app = Application()
        shared = AddressSlots(app, LOOPBACK, 2)
        transport = httpx.ASGITransport(shared, client=("127.0.0.1", 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            hostile = {"x-forwarded-for": "192.0.2.7"}
            waiting = [asyncio.create_task(http.get("/wait", headers=hostile)) for _ in range(2)]
            await eventually(lambda: app.calls == 2)
            refused = await http.get("/", headers=hostile)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_connections")
            assert "retry-after" in refused.headers
            assert (await http.get("/", headers={"x-forwarded-for": "192.0.2.8"})).status_code == 200
            # The proxy's own health checks have no forwarded address, and are not counted.
            assert (await http.get("/")).status_code == 200
            app.go_on.set()
            assert {one.status_code for one in await asyncio.gather(*waiting)} == {200}
            assert (await http.get("/", headers=hostile)).status_code == 200


class TestSlowReaders:
    async def test_client_that_does_not_read_is_disconnected(self):
        async with served(response_stall_s=SHORT_S) as server, server.connection() as (_, writer):
            # The client must not read at all, but a stream reader would read ahead.
            writer.transport.pause_reading()
            writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
            await eventually(lambda: server.count("_cut_total", reason="stalled") == 1)
            await until_open(server, 0)

    async def test_reading_client_receives_everything(self):
        async with served(response_stall_s=SHORT_S) as server, server.connection() as (reader, writer):
            writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
            assert len(await answer(reader)) > 8 * MIB

    async def test_total_unread_responses_are_limited(self):
        async with served(unsent_bytes=20 * MIB) as server, AsyncExitStack() as stack:
            # Without a limit, all 400 MiB of responses would wait in memory.
            for _ in range(50):
                _, writer = await stack.enter_async_context(server.connection())
                writer.transport.pause_reading()
                writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
            await eventually(lambda: server.count("") < 7)
            async with server.connection() as (reader, writer):
                writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
                assert len(await answer(reader)) > 8 * MIB


class Unsent:
    """A connection to which `written` bytes have been written. The client has not read `unsent` of them."""

    def __init__(self, written: int, unsent: int) -> None:
        self.cuts: list[DisconnectReason] = []
        self._written = written
        self._unsent = unsent

    def written_bytes(self) -> int:
        return self._written

    def unsent_bytes(self) -> int:
        return 0 if self.cuts else self._unsent

    def cut_off(self, reason: DisconnectReason) -> None:
        self.cuts.append(reason)


async def test_largest_unsent_backlog_is_closed_before_slower_small_one():
    limits = ConnectionLimits(LONG_S, LONG_S, in_all=9, per_address=9, unsent_bytes=20 * MIB)
    unread = UnreadResponses(limits)
    slow, hostile = Unsent(MIB, MIB // 2), [Unsent(31 * MIB, 30 * MIB) for _ in range(2)]
    unread.wrote(slow, MIB)
    for one in hostile:
        unread.wrote(one, 31 * MIB)
    await eventually(lambda: all(one.cuts for one in hostile))
    assert not slow.cuts
    for one in (slow, *hostile):
        unread.forget(one)


async def test_reset_connection_leaves_nothing_behind():
    async with served() as server:
        async with server.connection() as (reader, writer):
            writer.write(REQUEST)
            assert await answer(reader)
            found = [one for one in gc.get_objects() if isinstance(one, HttpConnection)]
            remaining = weakref.WeakSet(found)
            assert remaining
            del found
            option = struct.pack("ii", 1, 0)  # makes closing this socket send a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        await until_open(server, 0)
        await asyncio.sleep(0)  # the count decreases before the current loop iteration ends
        gc.collect()
        assert not remaining


def asking(port: int, tls: ssl.SSLContext, headers: bytes = b"") -> ssl.SSLSocket:
    """Return a TLS client that has requested a large response and reads nothing of it.

    It is a plain socket, because a stream reader would read ahead below TLS.
    """
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    plain.settimeout(ENDS_WITHIN_S)
    plain.connect(("127.0.0.1", port))
    secured = tls.wrap_socket(plain, server_hostname="localhost")
    secured.sendall(HEAD.replace(b"/ ", b"/large ", 1) + headers + b"\r\n")
    return secured


def taken(client: ssl.SSLSocket) -> int:
    """Read until the connection ends; return the number of received bytes."""
    size = 0
    with suppress(OSError):
        while piece := client.recv(65536):
            size += len(piece)
    return size


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The certificate authority that signs the server's certificate."""
    return Authority()


@pytest.fixture
def certificate(authority: Authority, tmp_path: Path) -> tuple[Path, Path]:
    """The files of the server's certificate and key."""
    return authority.certify("localhost").write(tmp_path)


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    """A TLS context for clients that trust the certificate authority."""
    return ssl.create_default_context(cadata=authority.certificate)


class TestTls:
    async def test_calls_are_served(self, certificate, trusting):
        async with served(certificate=certificate) as server, server.connection(tls=trusting) as (reader, writer):
            for _ in range(2):
                writer.write(REQUEST)
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_handshake_that_never_starts_times_out(self, certificate):
        async with served(certificate=certificate, request_head_s=SHORT_S) as server:
            async with server.connection() as (reader, _):
                assert await run_to_completion(reader) == b""
            await until_open(server, 0)
            assert server.count("_cut_total", reason="handshake") == 1

    async def test_connections_without_handshake_count(self, certificate, trusting):
        async with served(certificate=certificate, in_all=3) as server, AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(server.connection())
            await until_open(server, 3)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await stack.enter_async_context(server.connection(tls=trusting))
            await stack.aclose()
            await until_open(server, 0)
            async with server.connection(tls=trusting) as (reader, writer):
                writer.write(REQUEST)
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    async def test_client_that_does_not_read_is_disconnected(self, certificate, trusting):
        async with served(certificate=certificate, response_stall_s=SHORT_S) as server:
            with await asyncio.to_thread(asking, server.port, trusting):
                await eventually(lambda: server.count("_cut_total", reason="stalled") == 1)
                await until_open(server, 0)

    async def test_client_that_ignores_last_response_is_disconnected(self, certificate, trusting):
        async with served(certificate=certificate, response_stall_s=SHORT_S) as server:
            with await asyncio.to_thread(asking, server.port, trusting, b"Connection: close\r\n"):
                await eventually(lambda: server.count("_cut_total", reason="stalled") == 1)
                await until_open(server, 0)

    async def test_tls_shutdown_waits_for_slow_client(self, certificate, trusting):
        async with served(certificate=certificate) as server:
            with await asyncio.to_thread(asking, server.port, trusting, b"Connection: close\r\n") as client:
                async with served(request_head_s=3 * SHORT_S) as other, other.connection() as (reader, _):
                    await run_to_completion(reader)
                assert await asyncio.to_thread(taken, client) > 8 * MIB

    async def test_slowly_sent_bytes_are_rejected_over_tls(self, certificate, trusting):
        async with (
            served(certificate=certificate, request_head_s=SHORT_S) as server,
            server.connection(tls=trusting) as (reader, writer),
        ):
            writer.write(HEAD)
            async with dripping(writer, b"a"):
                assert refusal(await run_to_completion(reader)) == (408, "request_timeout")
            await until_open(server, 0)
