"""The embedded Valkey ends together with the process that started it, at whatever moment that process is killed."""

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

_HOLDER = """
import asyncio, os, signal, sys
from pathlib import Path
from queryserver.platform.embedded import companions

start, started = asyncio.create_subprocess_exec, []

async def starts(*command, **options):
    if len(started) == int(sys.argv[2]):
        die()
    started.append(await start(*command, **options))
    return started[-1]

def die():
    print(*(one.pid for one in started), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    await companions.ValkeyServer(Path(sys.argv[1])).start()
    die()

asyncio.create_subprocess_exec = starts
asyncio.run(main())
"""


@pytest.mark.parametrize("starts", [1, 2], ids=["before its guard is there", "when it answers"])
async def test_killed_owner_leaves_no_valkey_processes(starts: int, tmp_path_factory) -> None:
    directory: Path = tmp_path_factory.mktemp("v")
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HOLDER, str(directory), str(starts)), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await holder.communicate()
    pids = [int(one) for one in said.split()]
    assert (holder.returncode, len(pids)) == (-signal.SIGKILL, starts)
    try:
        async with asyncio.timeout(30):
            while any(map(runs, pids)):  # noqa: ASYNC110 no event reports this state
                await asyncio.sleep(0.05)
    finally:
        for pid in filter(runs, pids):
            psutil.Process(pid).kill()


def runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
