"""Runs the embedded PostgreSQL in a state directory until this program reads a line from its input or is killed."""

import asyncio
import sys
from pathlib import Path

from queryserver.platform.embedded.postgres import EmbeddedPostgres


async def main(state_dir: Path) -> None:
    """Start the server, print the administrator's DSN, and wait for a line of input."""
    async with EmbeddedPostgres.start(state_dir) as server:
        print(server.admin_dsn(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(Path(sys.argv[1])))
