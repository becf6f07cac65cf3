"""Runs the embedded PostgreSQL in a state directory until the program reads a line or is killed."""

import asyncio
import sys
from pathlib import Path

from queryserver.platform.embedded.postgres import EmbeddedPostgres


async def main(state_dir: Path) -> None:
    """Start the server, print the administrator's DSN, and wait for an input line."""
    async with EmbeddedPostgres.start(state_dir) as server:
        print(server.admin_dsn(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(Path(sys.argv[1])))
