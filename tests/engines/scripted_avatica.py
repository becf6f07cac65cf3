"""A peer that speaks Avatica over a real socket, for behavior that tests cannot provoke in a real Query Server.

It supports two statements: `ROWS n` returns the integers below n; `SLOW` responds after half a minute unless it is
closed.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from queryserver.engines.phoenix.protocol import Message, number, octets, text

_PACKAGE = "org.apache.calcite.avatica.proto."
_SLOW_S = 30
_BIGINT = text(9, "n") + octets(20, number(1, 0) + text(2, "BIGINT") + number(3, 13))
_NO_RESULT_SET = (1 << 64) - 1


@dataclass(slots=True)
class Peer:
    """A running peer. Changed attributes apply to subsequent requests."""

    port: int = 0
    connections: set[str] = field(default_factory=set[str])
    statements: dict[int, asyncio.Event] = field(default_factory=dict[int, asyncio.Event])
    owners: dict[int, str] = field(default_factory=dict[int, str])
    """Maps each statement to its connection."""
    schemas: dict[str, str] = field(default_factory=dict[str, str])
    """Maps each connection to its schema, if it has one."""
    rows: dict[int, int] = field(default_factory=dict[int, int])
    asked: list[str] = field(default_factory=list[str])
    cookies: list[str] = field(default_factory=list[str])
    status: int = 200
    """HTTP status of responses. Any status except 200 is sent with an HTML page."""
    mute: frozenset[str] = frozenset()
    """Names of requests whose response arrives too late for any client."""
    refusal: tuple[str, str] | None = None
    """Class name and message of the Java exception with which the next statement fails."""

    async def answer(self, body: bytes) -> bytes:
        """Return the response body for a request body."""
        wire = Message(body)
        name = wire.text(1).rpartition("$")[2].removesuffix("Request")
        self.asked.append(name)
        if name in self.mute:
            await asyncio.sleep(10 * _SLOW_S)
        request = wire.message(2)
        if name != "OpenConnection" and request.text(1) not in self.connections:
            failure = "org.apache.calcite.avatica.NoSuchConnectionException"
            return _error(failure, "Connection not found: invalid id, closed, or expired")
        return await getattr(self, f"_{name.lower()}")(request)

    async def _openconnection(self, request: Message) -> bytes:
        self.connections.add(request.text(1))
        return _response("OpenConnection", b"")

    async def _connectionsync(self, request: Message) -> bytes:
        connection = request.text(1)
        if request.has(2) and (schema := request.message(2).text(6)):
            self.schemas[connection] = schema
        return _response("ConnectionSync", octets(1, text(6, self.schemas.get(connection, ""))))

    async def _closeconnection(self, request: Message) -> bytes:
        self.connections.discard(request.text(1))
        for statement, owner in self.owners.items():
            if owner == request.text(1):
                self.statements[statement].set()
        return _response("CloseConnection", b"")

    async def _createstatement(self, request: Message) -> bytes:
        statement = len(self.statements) + 1
        self.statements[statement] = asyncio.Event()
        self.owners[statement] = request.text(1)
        return _response("CreateStatement", text(1, request.text(1)) + number(2, statement))

    async def _closestatement(self, request: Message) -> bytes:
        self.statements[request.number(2)].set()
        return _response("CloseStatement", b"")

    async def _prepareandexecute(self, request: Message) -> bytes:
        statement, (word, _, count) = request.number(4), request.text(2).partition(" ")
        if self.refusal is not None:
            return _error(*self.refusal)
        if word == "SLOW":
            with suppress(TimeoutError):
                async with asyncio.timeout(_SLOW_S):
                    await self.statements[statement].wait()
        self.rows[statement] = int(count or 1)
        frame = self._frame(statement, 0, request.number(6))
        result = number(2, statement) + octets(4, octets(1, _BIGINT)) + octets(5, frame) + number(6, _NO_RESULT_SET)
        return _response("Execute", octets(1, result))

    async def _fetch(self, request: Message) -> bytes:
        return _response("Fetch", octets(1, self._frame(request.number(2), request.number(3), request.number(5))))

    def _frame(self, statement: int, offset: int, count: int) -> bytes:
        last = min(offset + count, self.rows[statement])
        # number_value is zigzag-encoded, so a nonnegative number is doubled.
        values = (number(1, 13) + number(4, 2 * value) for value in range(offset, last))
        rows = b"".join(octets(3, octets(1, octets(4, value))) for value in values)
        return number(1, offset) + number(2, last == self.rows[statement]) + rows


@asynccontextmanager
async def scripted_avatica() -> AsyncGenerator[Peer]:
    """Start a peer without faults."""
    peer = Peer()
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("fault proxy")  # a name that the fault suite does not count as a task of the adapter
        tasks.add(task)
        try:
            await _serve(peer, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _serve(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve an HTTP/1.1 connection."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        peer.cookies.append(headers.get("cookie", ""))
        answer = await peer.answer(body) if peer.status == 200 else b"<html>\n<p>no</p>"
        lines = (f"HTTP/1.1 {peer.status} x", f"Content-Length: {len(answer)}", "Set-Cookie: node=a1; Path=/", "", "")
        writer.write("\r\n".join(lines).encode() + answer)
        await writer.drain()


def _response(name: str, message: bytes) -> bytes:
    return text(1, f"{_PACKAGE}Responses${name}Response") + octets(2, message)


def _error(kind: str, said: str) -> bytes:
    trace = f"{kind}: {said}\n\tat org.apache.calcite.avatica.jdbc.JdbcMeta.propagate(JdbcMeta.java:700)"
    return _response("Error", text(1, trace) + number(7, 1) + text(2, f"{kind}: {said}") + text(5, "00000"))
