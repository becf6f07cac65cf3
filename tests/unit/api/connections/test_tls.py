"""TLS between a transport and a protocol, without a network: the output of each side is passed to the other side."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.engines.certificates import Authority
from tests.timing import until

from queryserver.api.connections.admission import Admissions, ConnectionLimits, TlsConnection
from queryserver.platform.metrics import ConnectionCounts

MIB = 1024 * 1024


class Socket(asyncio.Transport):
    """The transport below the TLS layer, which records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5000)})
        self.sent = bytearray()
        self.is_closed = self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class Http(asyncio.Protocol):
    """A protocol that records the bytes it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Server:
    """The server side of one connection."""

    def __init__(self, context: ssl.SSLContext, *, in_all: int = 9, handshake_s: float = 600) -> None:
        self.socket, self.http = Socket(), Http()
        self.failures = 0
        self.registry = CollectorRegistry()
        limits = ConnectionLimits(600, 600, in_all=in_all, per_address=9, unsent_bytes=MIB)
        admissions = Admissions(limits, ConnectionCounts(self.registry))
        self.tls = TlsConnection(context, admissions, lambda _: self.http, handshake_s=handshake_s, failed=self._failed)
        self.tls.connection_made(self.socket)

    def _failed(self) -> None:
        self.failures += 1

    @property
    def open_connections(self) -> float | None:
        return self.registry.get_sample_value("queryserver_http_connections")


class Client:
    """The client side of one connection. `exchange` passes bytes between both sides and repeats a call until it
    succeeds.
    """

    def __init__(self, context: ssl.SSLContext, server: Server) -> None:
        self._server = server
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._received, self._to_send, server_hostname="localhost")

    def exchange(self, call: Callable[[], Any], *, piece: int = 10 * MIB) -> Any:
        for _ in range(20):
            try:
                result = call()
            except ssl.SSLWantReadError:
                self.send(piece=piece)
                self._received.write(bytes(self._server.socket.sent))
                self._server.socket.sent.clear()
            else:
                self.send(piece=piece)
                return result
        raise AssertionError("no end")

    def send(self, *, piece: int = 10 * MIB) -> None:
        while sent := self._to_send.read(piece):
            self._server.tls.data_received(sent)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def serving(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("localhost").write(tmp_path))
    return context


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def trusting(authority: Authority, request: pytest.FixtureRequest) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate)
    context.maximum_version = request.param
    return context


@pytest.mark.parametrize("piece", [1, 100, MIB])
async def test_handshake_may_arrive_in_chunks(serving, trusting, piece: int):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake, piece=piece)
    client.tls.write(b"GET ")
    client.send(piece=piece)
    assert server.http.received == [b"GET "]
    assert server.http.transport.get_extra_info("sslcontext") is serving
    assert server.http.transport.get_extra_info("peername") == ("192.0.2.1", 5000)


async def test_request_arriving_with_the_last_handshake_bytes_is_forwarded(serving, trusting):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake, piece=MIB)
    client.tls.write(b"one")
    client.tls.write(bytes(100_000))
    client.send()
    assert b"".join(server.http.received) == b"one" + bytes(100_000)
    assert len(server.http.received) == 1


async def test_large_response_arrives_unchanged(serving, trusting):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake)
    response = bytes(range(256)) * 8192
    server.tls.write(response)
    assert server.tls.get_write_buffer_size() > len(response)
    received = b""
    while len(received) < len(response):
        received += client.exchange(lambda: client.tls.read(MIB))
    assert received == response


async def test_close_notifies_the_client(serving, trusting):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake)
    server.tls.write(b"bye")
    server.tls.close()
    server.tls.close()
    server.tls.write(b"more")
    assert server.socket.is_closed
    assert client.exchange(lambda: client.tls.read(10)) == b"bye"
    assert client.exchange(lambda: client.tls.read(10)) == b""


async def test_client_close_notify_closes_the_connection(serving, trusting):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake)
    client.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.send()
    assert server.http.received == [b"last"]
    assert server.socket.is_closed
    server.tls.connection_lost(None)
    assert server.http.is_lost
    assert (server.open_connections, server.failures) == (0, 0)


@pytest.mark.parametrize("received", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", bytes(100)])
async def test_data_other_than_tls_closes_the_connection(serving, received: bytes):
    server = Server(serving)
    server.tls.data_received(received)
    assert server.socket.is_closed
    server.tls.connection_lost(None)
    assert (server.open_connections, server.failures) == (0, 1)


async def test_corrupt_record_closes_the_connection(serving, trusting):
    server = Server(serving)
    client = Client(trusting, server)
    client.exchange(client.tls.do_handshake)
    server.tls.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.socket.is_closed
    assert server.http.received == []


async def test_slow_handshake_is_aborted(serving, trusting):
    late, in_time = Server(serving, handshake_s=0.05), Server(serving, handshake_s=0.05)
    client = Client(trusting, in_time)
    client.exchange(client.tls.do_handshake)
    await until(lambda: late.socket.is_aborted)
    assert not in_time.socket.is_closed


async def test_connections_above_the_limit_are_aborted_before_the_handshake(serving):
    server = Server(serving, in_all=0)
    assert server.socket.is_aborted
    server.tls.connection_lost(None)
    assert (server.open_connections, server.failures) == (0, 0)
