"""The headers and the first part of a response's body are written to the socket in one call."""

import asyncio

import pytest
from tests.timing import settle

from queryserver.api.connections.admission import ConnectionLimits
from queryserver.api.connections.http_connection import CountedTransport, UnreadResponses

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Socket(asyncio.Transport):
    """A transport that records the bytes of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
def transport(socket: Socket) -> CountedTransport:
    unread = UnreadResponses(ConnectionLimits(600, 600, in_all=1, per_address=1, unsent_bytes=1000))
    return CountedTransport(socket, unread, lambda _: None)


async def test_headers_and_body_are_sent_in_one_write(transport: CountedTransport, socket: Socket):
    for body in (b"one", b"HTTP/1.1 is the text of this one"):
        transport.write(HEAD)
        transport.write(body)
    transport.write(b"more")
    assert socket.sent == [HEAD + b"one", HEAD + b"HTTP/1.1 is the text of this one", b"more"]
    assert transport.written_bytes() == sum(map(len, socket.sent))
    await settle()
    assert len(socket.sent) == 3


async def test_headers_without_body_are_sent_in_the_same_loop_iteration(transport: CountedTransport, socket: Socket):
    transport.write(HEAD)
    assert transport.written_bytes() == 0
    await asyncio.sleep(0)
    assert (socket.sent, transport.written_bytes()) == ([HEAD], len(HEAD))


async def test_close_sends_pending_headers(transport: CountedTransport, socket: Socket):
    transport.write(HEAD)
    transport.close()
    assert (socket.sent, socket.closed) == ([HEAD], True)
    transport.write(HEAD)
    await settle()
    assert socket.sent == [HEAD]


async def test_abort_discards_pending_headers(transport: CountedTransport, socket: Socket):
    transport.write(HEAD)
    transport.abort()
    await settle()
    assert socket.sent == []
