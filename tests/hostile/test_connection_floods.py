"""Clients open thousands of connections to a server process. The server closes them, and calls of other clients still
work.
"""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.harness import ServerProcess, running_server

MANY = 3000
_OTHER_DESCRIPTORS = 500
_PER_ADDRESS = 1500
_HEAD_S = 10
_ENDS_WITHIN_S = 90
_MIB = 1024 * 1024


class Silent(asyncio.Protocol):
    """A connection that sends only what the test writes. It records the received bytes, and adds itself to `ended` when
    it is closed.
    """

    def __init__(self, ended: set[asyncio.Protocol]) -> None:
        self.received = b""
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._ended.add(self)


@pytest.fixture
def many() -> Iterator[int]:
    """The number of connections that this process may open, after its limit on open files has been raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MANY + _OTHER_DESCRIPTORS
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < 2000 + _OTHER_DESCRIPTORS:
        pytest.skip(f"{hard} open files are too few for 2000 connections")
    yield allowed - _OTHER_DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def flooded(server: ServerProcess, number: int) -> AsyncIterator[tuple[list[Silent], set[asyncio.Protocol]]]:
    """Open `number` connections. Yield them, and the set of connections that have been closed.

    Every second connection sends a header one byte at a time.
    """
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    ended: set[asyncio.Protocol] = set()
    loop = asyncio.get_running_loop()
    opened: list[tuple[asyncio.Transport, Silent]] = []
    for _ in range(number // 100):
        made = (loop.create_connection(lambda: Silent(ended), host, int(port)) for _ in range(100))
        opened += await asyncio.gather(*made)

    async def drip() -> None:
        for transport, _ in opened[::2]:
            transport.write(b"GET /desktop/debug/is_alive HTTP/1.1\r\nX-Slow: ")
        while True:
            for transport, _ in opened[::2]:
                if not transport.is_closing():
                    transport.write(b"a")
            await asyncio.sleep(0.5)

    dripping = asyncio.create_task(drip())
    try:
        yield [protocol for _, protocol in opened], ended
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        for transport, _ in opened:
            transport.abort()


async def is_served(server: ServerProcess, address: str) -> bool:
    """Return whether a new connection from this loopback address gets a response."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(transport=transport, base_url=server.base_url, timeout=30) as http:
        with suppress(httpx.TransportError):
            return (await http.get("/desktop/debug/is_alive")).status_code == 200
    return False


async def test_thousands_of_connections_from_one_address_leave_room_for_others(
    database_dsn: str, tmp_path: Path, many: int
) -> None:
    settings = {
        "QUERYSERVER__DESKTOP__REQUEST_HEAD_TIMEOUT_S": str(_HEAD_S),
        "QUERYSERVER__DESKTOP__MAX_CONNECTIONS": "4000",
        "QUERYSERVER__DESKTOP__MAX_CONNECTIONS_PER_ADDRESS": str(_PER_ADDRESS),
    }
    async with running_server(tmp_path / "data", database_dsn=database_dsn, settings=settings) as server:
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        async with flooded(server, many) as (connections, ended):
            assert await is_served(server, "127.0.0.2")
            assert process.memory_info().rss - before < 200 * _MIB
            async with asyncio.timeout(_ENDS_WITHIN_S):
                while len(ended) < len(connections):
                    assert await is_served(server, "127.0.0.2")
                    await asyncio.sleep(0.2)
            # The server refused connections above its limit. Accepted connections that sent slowly received a 408
            # response.
            received = b"".join(one.received for one in connections)
            assert b"HTTP/1.1 408" in received
            assert b"HTTP/1.1 429" in received
        assert await is_served(server, "127.0.0.1")
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as http:
            page = (await http.get("/metrics")).text
        cut = next(line for line in page.splitlines() if "connections_cut_total" in line and "head_timeout" in line)
        assert float(cut.split()[-1]) > _PER_ADDRESS / 2
