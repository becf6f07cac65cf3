"""Runs the scripted server as a separate process: prints its two ports, and exits when its standard input closes."""

import asyncio
import sys

from tests.engines.scripted_hs2.server import ScriptedServer


async def main(transport: str) -> None:
    async with ScriptedServer(transport).serving() as server:
        print(server.port, server.page_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
