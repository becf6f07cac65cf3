"""Starts the scripted server as a separate process, so that its memory and threads are separate from the client's."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_ROOT = Path(__file__).parents[3]
_STOP_S = 10


@dataclass(frozen=True, slots=True)
class ScriptedProcess:
    """A running scripted server and the ports on which it listens."""

    port: int
    page_port: int

    async def queries_in_flight(self) -> int:
        """Return the number of running queries, read from the server's page."""
        return len(await self.queries())

    async def queries(self) -> list[dict[str, Any]]:
        """Return the text and the options of each running query, as the server's page shows them."""
        async with httpx.AsyncClient(trust_env=False) as client:
            page = await client.get(f"http://127.0.0.1:{self.page_port}/queries?json")
        return page.json()["in_flight_queries"]


@contextmanager
def scripted_process(transport: str = "sasl") -> Generator[ScriptedProcess]:
    """Start the server and wait until it is ready; stop it on exit."""
    command = [sys.executable, "-m", "tests.engines.scripted_hs2", transport]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port, page_port = map(int, process.stdout.readline().split())
            yield ScriptedProcess(port, page_port)
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
