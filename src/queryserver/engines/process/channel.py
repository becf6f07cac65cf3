"""Frames over a Unix socket between the server and an engine process.

A frame consists of a JSON object and bytes; the server may also pass open descriptors. The server does not trust a
process's frames: sizes are limited, only JSON and Arrow are parsed, and only the process accepts descriptors.
"""

import array
import asyncio
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

_HEAD = struct.Struct("<IQB")
"""The JSON size, the content size and the number of descriptors."""
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MAX_CONTENT_BYTES = 1024 * 1024 * 1024
MAX_DESCRIPTORS = 64
"""The kernel's limit is 253 per message."""

Content = bytes | bytearray | memoryview | pa.Buffer


class ChannelClosed(Exception):
    """Raised if the peer has closed the channel or sent an invalid frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    message: Mapping[str, Any]
    content: pa.Buffer = field(repr=False)
    descriptors: Sequence[int] = ()
    """The receiver must close the descriptors."""

    @property
    def kind(self) -> str:
        return str(self.message.get("kind", ""))


def _head(message: Mapping[str, Any], contents: Sequence[Content], descriptors: Sequence[int]) -> bytes:
    body = orjson.dumps(message)
    size = sum(memoryview(content).nbytes for content in contents)
    return _HEAD.pack(len(body), size, len(descriptors)) + body


def _read_head(
    head: bytes | bytearray, *, may_have_descriptors: bool, max_content_bytes: int = MAX_CONTENT_BYTES
) -> tuple[int, int, int]:
    message_bytes, content_bytes, descriptors = _HEAD.unpack(head)
    if message_bytes > MAX_MESSAGE_BYTES or content_bytes > max_content_bytes:
        raise ChannelClosed
    if descriptors > (MAX_DESCRIPTORS if may_have_descriptors else 0):
        raise ChannelClosed
    return message_bytes, content_bytes, descriptors


def _message(body: bytes | bytearray) -> Mapping[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ChannelClosed from None
    if not isinstance(message, dict):
        raise ChannelClosed
    return message


class AsyncChannel:
    """The server's end of a channel. One task may receive at a time; any number of tasks may send.

    If a send or receive fails or is canceled partway, the channel is closed, because the stream is out of sync.
    """

    def __init__(self, end: socket.socket, *, max_content_bytes: int = MAX_CONTENT_BYTES) -> None:
        """`max_content_bytes` limits the content of received frames."""
        end.setblocking(False)
        self._socket = end
        self._max_content_bytes = max_content_bytes
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._calls = 0
        self.is_closed = False

    async def send(self, message: Mapping[str, Any], *contents: Content, descriptors: Sequence[int] = ()) -> None:
        """Send a frame. Raises ChannelClosed."""
        head = _head(message, contents, descriptors)
        async with self._sending, self._closing_on_failure():
            if descriptors:
                head = head[await self._send_descriptors(head, descriptors) :]
            await self._loop.sock_sendall(self._socket, head)
            for content in contents:
                await self._loop.sock_sendall(self._socket, memoryview(content).cast("B"))

    async def receive(self) -> Frame:
        """Receive a frame. Raises ChannelClosed."""
        async with self._closing_on_failure():
            head = await self._received(memoryview(bytearray(_HEAD.size)))
            message_bytes, content_bytes, _ = _read_head(
                bytes(head), may_have_descriptors=False, max_content_bytes=self._max_content_bytes
            )
            body = await self._received(memoryview(bytearray(message_bytes)))
            content = pa.allocate_buffer(content_bytes)
            await self._received(memoryview(content))
            return Frame(_message(bytes(body)), content)

    async def finished(self) -> None:
        """Stop sending, and wait until the peer has closed its end. Data that still arrives is discarded."""
        buffer = bytearray(64 * 1024)
        with suppress(ChannelClosed):
            async with self._closing_on_failure():
                self._socket.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv_into(self._socket, buffer):
                    pass

    def close(self) -> None:
        """Close the channel. Tasks waiting in `receive` or `send` get ChannelClosed. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            with suppress(OSError):  # wakes waiting tasks
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_socket()

    @asynccontextmanager
    async def _closing_on_failure(self) -> AsyncGenerator[None]:
        if self.is_closed:
            raise ChannelClosed
        self._calls += 1
        try:
            yield
        except (OSError, ChannelClosed):
            self.close()
            raise ChannelClosed from None
        except BaseException:
            self.close()
            raise
        finally:
            self._calls -= 1
            self._close_socket()

    def _close_socket(self) -> None:
        """Close the descriptor once the last call has ended.

        If it were closed earlier, the event loop could watch a new file with the same descriptor number.
        """
        if self.is_closed and not self._calls:
            self._socket.close()

    async def _received(self, buffer: memoryview) -> memoryview:
        done = 0
        while done < len(buffer):
            count = await self._loop.sock_recv_into(self._socket, buffer[done:])
            if not count:
                raise ChannelClosed
            done += count
        return buffer

    async def _send_descriptors(self, head: bytes, descriptors: Sequence[int]) -> int:
        """Send descriptors with the first bytes of a frame. Return the number of bytes sent."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while True:
            try:
                return self._socket.sendmsg([head], rights)
            except BlockingIOError:
                writable = asyncio.Event()
                self._loop.add_writer(self._socket, writable.set)
                try:
                    await writable.wait()
                finally:
                    self._loop.remove_writer(self._socket)


class Channel:
    """The process's end of a channel, with blocking calls.

    One thread may receive at a time; any number of threads may send.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any], *contents: Content) -> None:
        """Send a frame. Raises ChannelClosed."""
        head = _head(message, contents, ())
        with self._sending:
            try:
                self._socket.sendall(head)
                for content in contents:
                    self._socket.sendall(content)
            except OSError:
                raise ChannelClosed from None

    def receive(self) -> Frame:
        """Receive a frame. Raises ChannelClosed."""
        try:
            head, descriptors = self._received_head()
            message_bytes, content_bytes, count = _read_head(head, may_have_descriptors=True)
            if count != len(descriptors):
                raise ChannelClosed
            body = self._received(memoryview(bytearray(message_bytes)))
            content = pa.allocate_buffer(content_bytes)
            self._received(memoryview(content))
        except OSError:
            raise ChannelClosed from None
        return Frame(_message(bytes(body)), content, descriptors)

    def close(self) -> None:
        """Close the channel. Idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _received_head(self) -> tuple[bytes, Sequence[int]]:
        head, descriptors = b"", list[int]()
        while len(head) < _HEAD.size:
            part, received, _, _ = socket.recv_fds(self._socket, _HEAD.size - len(head), MAX_DESCRIPTORS)
            if not part:
                raise ChannelClosed
            head += part
            descriptors += received
        return head, descriptors

    def _received(self, buffer: memoryview) -> memoryview:
        done = 0
        while done < len(buffer):
            count = self._socket.recv_into(buffer[done:])
            if not count:
                raise ChannelClosed
            done += count
        return buffer
