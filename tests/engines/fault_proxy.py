"""A TCP proxy between an adapter and a real engine that breaks connections in realistic ways."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from tests.ports import free_port

_CHUNK_BYTES = 65_536
_FEW_BYTES = 7
_FRAGMENTED_BYTES = 20_000
_GARBAGE = bytes(range(255, -1, -1)) * 16
_RESET = struct.pack("ii", 1, 0)
_CLOSED_S = 10.0


class Fault(Enum):
    """The ways in which the proxy handles the server's response."""

    NONE = "passed on"
    RESET = "connection reset"
    CUT = "connection closed in the middle of an answer"
    GARBAGE = "something else answers, then closes"
    SILENCE = "nothing comes any more"
    FRAGMENTS = "a few bytes at a time"


@dataclass(eq=False)
class _Line:
    """A client's connection to the proxy."""

    client: asyncio.StreamWriter
    passed: int = 0
    """Number of response bytes forwarded since the fault was set."""
    is_dead: bool = False


class FaultProxy:
    """A proxy that listens on `port`. A fault applies to existing and new connections until another fault is set."""

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._target = (host, port)
        self._fault, self._after = Fault.NONE, 0
        self._listener: asyncio.Server | None = None
        self._lines = set[_Line]()
        self._tasks = set[asyncio.Task[None]]()
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def set_fault(self, fault: Fault, *, after_bytes: int = 0) -> None:
        """On each connection, forward `after_bytes` of the server's response, then apply `fault`."""
        self._fault, self._after = fault, after_bytes
        for line in self._lines:
            line.passed = 0

    async def listen(self) -> None:
        """Accept connections, without any fault. After `die`, listen on the same port again."""
        self.set_fault(Fault.NONE)
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def die(self) -> None:
        """Simulate a crashed server process: reset open connections and refuse new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for line in list(self._lines):
            _reset(line.client)
        await self._end_all()  # does not wait until the server has read what the clients have sent

    async def closed(self) -> None:
        """Wait until clients have closed all their connections. Raises TimeoutError if a connection stays open."""
        async with asyncio.timeout(_CLOSED_S):
            await self._all_closed.wait()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._listener is not None:
            self._listener.close()
        await self._end_all()

    async def _end_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(writer)
        self._lines.add(line)  # before the proxy connects to the server, so that `die` also resets this connection
        task = asyncio.create_task(self._serve(line, reader), name="fault proxy")
        self._tasks.add(task)
        self._all_closed.clear()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._all_closed.set()

    async def _serve(self, line: _Line, from_client: asyncio.StreamReader) -> None:
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                answers = group.create_task(self._pass_answers(line, from_server), name="fault proxy")
                await _pass_on(from_client, to_server)
                answers.cancel()
        except (OSError, ExceptionGroup):
            pass  # one of the sides has disconnected
        finally:
            self._lines.discard(line)
            if to_server is not None:
                to_server.close()
            line.client.close()

    async def _pass_answers(self, line: _Line, from_server: asyncio.StreamReader) -> None:
        """Forward the response until the server closes the connection. If the fault has cut off the client, wait until
        the client closes its side.
        """
        while chunk := await from_server.read(_CHUNK_BYTES):
            if line.is_dead:
                continue
            if self._fault in {Fault.NONE, Fault.FRAGMENTS}:
                await self._write(line, chunk)
                continue
            whole = chunk[: max(self._after - line.passed, 0)]
            await self._write(line, whole)
            if len(whole) < len(chunk):
                await self._break(line)
        if not line.is_dead:
            line.client.close()

    async def _write(self, line: _Line, chunk: bytes) -> None:
        line.passed += len(chunk)
        if self._fault is Fault.FRAGMENTS and line.passed < _FRAGMENTED_BYTES:
            for start in range(0, len(chunk), _FEW_BYTES):
                line.client.write(chunk[start : start + _FEW_BYTES])
                await line.client.drain()
                await asyncio.sleep(0)
        else:
            line.client.write(chunk)
        with suppress(OSError):
            await line.client.drain()

    async def _break(self, line: _Line) -> None:
        line.is_dead = True
        if self._fault is Fault.RESET:
            _reset(line.client)
        elif self._fault is not Fault.SILENCE:
            if self._fault is Fault.GARBAGE:
                line.client.write(_GARBAGE)
            line.client.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection so that the other side receives RST instead of FIN."""
    connected = writer.get_extra_info("socket")
    if connected is not None and connected.fileno() >= 0:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@asynccontextmanager
async def fault_proxy(host: str, port: int) -> AsyncGenerator[FaultProxy]:
    """Start a proxy for the server at `host` and `port`."""
    proxy = FaultProxy(host, port)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
