"""Responses to HEAD over a real socket: the body is neither sent nor counted by the server (Contract platform 1.1)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import uvicorn
from fastapi import APIRouter, FastAPI, Response
from starlette.middleware import Middleware

from queryserver.api.middlewares import PathForm, RequestIds
from queryserver.api.responses import stream

pytestmark = pytest.mark.platform(4)


@dataclass
class Source:
    """Generates the chunks of a large file and counts them."""

    made: int = 0
    closed: bool = False

    async def pieces(self) -> AsyncGenerator[bytes]:
        try:
            for _ in range(1000):
                self.made += 1
                yield b"piece"
        finally:
            self.closed = True


@asynccontextmanager
async def served(source: Source) -> AsyncIterator[int]:
    """Yield the port of a server that has a small response and a large one."""
    router = APIRouter()

    @router.get("/api/v1/small")
    async def small() -> Response:
        return Response(b'{"status":0}', media_type="application/json")

    @router.get("/api/v1/long")
    async def long() -> Response:
        return await stream(source.pieces(), media_type="text/csv")

    app = FastAPI(middleware=[Middleware(RequestIds), Middleware(PathForm, "")])
    app.include_router(router)
    running = uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_config=None, access_log=False)
    )
    task = asyncio.create_task(running.serve())
    try:
        for _ in range(500):
            if running.started:
                break
            await asyncio.sleep(0.01)
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        await task


async def answers(port: int, *calls: str) -> list[list[str]]:
    """Send the calls one after another on one connection; return the header lines of each response.

    A body is read only after a GET.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heads: list[list[str]] = []
    try:
        async with asyncio.timeout(60):
            for call in calls:
                writer.write(f"{call} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
                if call.startswith("GET"):
                    length = next(line for line in head if line.startswith("content-length:"))
                    await reader.readexactly(int(length.partition(":")[2]))
                heads.append(head)
    finally:
        writer.close()
        await writer.wait_closed()
    return heads


async def test_connection_is_reused_after_head(caplog: pytest.LogCaptureFixture):
    async with served(Source()) as port:
        head, get, _ = await answers(port, "HEAD /api/v1/small", "GET /api/v1/small", "HEAD /api/v1/small/")
    assert head[0] == get[0] == "http/1.1 200 ok"
    assert "content-length: 12" in head
    assert "Content-Length" not in caplog.text


async def test_head_of_file_does_not_generate_it():
    source = Source()
    async with served(source) as port:
        long, small = await answers(port, "HEAD /api/v1/long", "GET /api/v1/small")
    assert long[0] == small[0] == "http/1.1 200 ok"
    assert "content-type: text/csv; charset=utf-8" in long
    assert source.closed
    assert source.made == 1
