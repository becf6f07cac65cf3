"""The listener of the scripted server, its query page, and the faults that tests request."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from tests.engines.scripted_hs2.codec import Call, read_call, write_reply, write_unknown_method
from tests.engines.scripted_hs2.huge import send_huge_cell
from tests.engines.scripted_hs2.service import Service
from tests.engines.scripted_hs2.wire import Passwords, Peer, serve_bare, serve_http, serve_sasl

_SERVED = {"sasl": serve_sasl, "nosasl": serve_bare, "http": serve_http}
_UNTIL_S = 10.0


class Fault(StrEnum):
    """The behavior that replaces the normal reply to a call."""

    GARBAGE = "garbage"
    HALF = "half"
    """The call is executed, but only half of its response is sent."""
    HALF_ONCE = "half once"
    """Like HALF, but only for a single call."""
    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"
    HOLD = "hold"
    """The call is executed; its response is sent when `let_go` is set."""
    HUGE_CELL = "huge cell"
    """For FetchResults: the last string in the response has `huge_bytes` bytes."""
    EXPIRE = "expire"
    """The server discards all sessions and queries before it answers the call."""


@dataclass
class ScriptedServer:
    """A scripted server. `faults` maps call names to faults; each fault starts after `skip` more calls and then
    persists.

    Connections are always accepted immediately, but logins wait until `door` is set.
    """

    transport: str = "sasl"
    passwords: Passwords = field(default_factory=lambda: Passwords({}))
    service: Service = field(default_factory=Service)
    tls: ssl.SSLContext | None = None
    port: int = 0
    page_port: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    skip: dict[str, int] = field(default_factory=dict)
    door: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    huge_bytes: int = 900_000_000
    held: int = 0
    """The number of calls whose response has been held back so far."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["ScriptedServer"]:
        """Listen on free loopback ports until the context exits."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        page = await asyncio.start_server(self._serve_page, "127.0.0.1", 0)
        self.door.set()
        self.port, self.page_port = (one.sockets[0].getsockname()[1] for one in (listener, page))
        try:
            yield self
        finally:
            listener.close()
            page.close()
            self.door.set()
            self.let_go.set()
            self.drop_connections()
            await listener.wait_closed()
            await page.wait_closed()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._writers)

    async def until(self, has_come: Callable[[], bool]) -> None:
        """Wait for a condition that depends on connections or calls. Raises TimeoutError if it stays false."""
        async with asyncio.timeout(_UNTIL_S), self.changed:
            await self.changed.wait_for(has_come)

    def drop_connections(self) -> None:
        """Abort all connections, as a dying server does."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        peer = Peer(reader, writer)
        try:
            await self._wake_waiters()
            await self.door.wait()
            await _SERVED[self.transport](peer, self._answer, self.passwords)
        except (OSError, EOFError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            if self.transport != "http":
                await self.service.leave(peer)
            await self._wake_waiters()

    async def _answer(self, peer: Peer, raw: bytes) -> bytes | None:
        call = read_call(raw)
        fault = self._fault(call.name)
        if fault is Fault.EXPIRE:
            self.service.sessions.clear()
            self.service.operations.clear()
        elif fault not in {None, Fault.HOLD}:
            return await self._fail(peer, fault, call)
        reply = await self._reply(peer, call)
        if fault is Fault.HOLD:
            self.held += 1
            await self._wake_waiters()
            await self.let_go.wait()
        await self._wake_waiters()
        return reply

    async def _wake_waiters(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _reply(self, peer: Peer, call: Call) -> bytes:
        reply = await self.service.answer(peer, call)
        return write_unknown_method(call) if reply is None else write_reply(call, reply)

    def _fault(self, name: str) -> Fault | None:
        if name not in self.faults:
            return None
        if self.skip.get(name, 0) > 0:
            self.skip[name] -= 1
            return None
        if self.faults[name] is Fault.HALF_ONCE:
            del self.faults[name]
            return Fault.HALF
        return self.faults[name]

    async def _fail(self, peer: Peer, fault: Fault, call: Call) -> bytes | None:
        if fault is Fault.GARBAGE:
            return b"\x80\x01\x00\x02\xff\xff\xff\xff garbage \x00" + bytes(range(256))
        if fault is Fault.HANG:
            await peer.reader.read()
            return None
        if fault is Fault.HUGE_CELL:
            answer = await self.service.answer(peer, call)
            await send_huge_cell(peer, self.transport, call, answer, self.huge_bytes)
        elif fault is Fault.HALF:
            whole = await self._reply(peer, call)
            length = len(whole).to_bytes(4, "big") if self.transport == "sasl" else b""
            peer.writer.write(length + whole[: len(whole) // 2])
            await peer.writer.drain()
        elif fault is Fault.RESET:
            peer.writer.transport.abort()
        return None

    async def _serve_page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve those fields of Impala's `/queries?json` page that tests read."""
        await reader.readuntil(b"\r\n\r\n")
        flying = [
            {"stmt": one.statement, "options": dict(one.options)}
            for one in self.service.operations.values()
            if one.is_in_flight
        ]
        body = json.dumps({"in_flight_queries": flying}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
