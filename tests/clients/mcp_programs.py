"""The inspector and the conformance suite of the Model Context Protocol, from npm."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from tests.engines.node import node_packages, program

ENGINE = "mcp"
_RECIPE = Path(__file__).parent / "mcp"
_NODE_VERSION = 22
_RUN_S = 120
_HOP_BY_HOP = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive"})


def packages() -> Path:
    """Return the folder `node_modules` that contains both programs."""
    return node_packages(ENGINE, _RECIPE, cache="clients-mcp")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    code: int
    out: str
    err: str


async def inspect(url: str, token: str, era: str, folder: Path, *arguments: str) -> Outcome:
    """Run the inspector's command line on a server. `era` is `modern` (2026-07-28) or `legacy` (2025-11-25)."""
    settings = folder / f"{era}.json"
    server = {
        "type": "streamable-http", "url": url, "headers": {"Authorization": f"Bearer {token}"}, "protocolEra": era
    }  # fmt: skip
    settings.write_text(json.dumps({"mcpServers": {"queryserver": server}}))
    cli = (await asyncio.to_thread(packages)) / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    return await _run(folder, cli, "--cli", "--config", str(settings), "--server", "queryserver", *arguments)


async def check_conformance(url: str, scenario: str, folder: Path) -> Outcome:
    """Run a scenario of the conformance suite. Exit code 0 means that all its checks passed."""
    suite = (await asyncio.to_thread(packages)) / "@modelcontextprotocol/conformance/dist/index.js"
    return await _run(folder, suite, "server", "--url", url, "--scenario", scenario)


async def _run(folder: Path, script: Path, *arguments: str) -> Outcome:
    node = program(ENGINE, "node", major=_NODE_VERSION)
    process = await asyncio.create_subprocess_exec(
        node,
        str(script),
        *arguments,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_RUN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Outcome(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def with_token(base_url: str, token: str) -> AsyncIterator[str]:
    """Run a relay that adds the bearer token, because the conformance suite sends no credentials; yield its URL."""
    async with httpx.AsyncClient(base_url=base_url, timeout=90) as http:

        async def relay(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
            request = Request(dict(scope), receive)
            headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
            outgoing = http.build_request(
                request.method,
                request.url.path,
                headers=[*headers, ("Authorization", f"Bearer {token}")],
                content=await request.body(),
            )
            answer = await http.send(outgoing, stream=True)
            kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
            response: Response = StreamingResponse(answer.aiter_raw(), answer.status_code, kept)
            try:
                await response(scope, receive, send)  # pyright: ignore[reportArgumentType] a plain ASGI scope
            finally:
                await answer.aclose()

        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            server = uvicorn.Server(uvicorn.Config(relay, lifespan="off", log_config=None))
            task = asyncio.create_task(server.serve([listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task
