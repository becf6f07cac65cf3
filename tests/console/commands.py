"""Commands of an operator for the server under test."""

import asyncio
import os

from tests.e2e.harness import PROGRAM, ServerProcess

_WITHIN_S = 60


async def command(server: ServerProcess, *arguments: str, entered: str = "") -> str:
    """Run `queryserver ARGUMENTS` in the server's data directory; return its output. Fails if the command fails."""
    environment = os.environ | {"QUERYSERVER__DESKTOP__DATA_DIR": str(server.stdout_file.parent / "data")}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    process = await asyncio.create_subprocess_exec(str(PROGRAM), *arguments, env=environment, **pipes)
    output, complaints = await asyncio.wait_for(process.communicate(entered.encode()), _WITHIN_S)
    assert process.returncode == 0, complaints.decode()
    return output.decode()


async def create_user(server: ServerProcess, name: str, password: str) -> None:
    await command(server, "create-user", name, "--password-stdin", entered=f"{password}\n")
