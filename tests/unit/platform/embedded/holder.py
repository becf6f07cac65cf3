"""A program that runs the private PostgreSQL of a directory until it is told, or made, to end."""

import asyncio
import sys
from pathlib import Path

from queryserver.platform.embedded.postgres import EmbeddedPostgres


async def main(state_dir: Path) -> None:
    """Print the DSN of the administrator and wait for a line."""
    async with EmbeddedPostgres.start(state_dir) as server:
        print(server.admin_dsn(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(Path(sys.argv[1])))
