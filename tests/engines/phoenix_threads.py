"""What a Query Server and the HBase behind it are at work on, asked of their own threads."""

import asyncio
from pathlib import Path

import psutil

_OPERATIONS = ("PrepareAndExecuteRequest.accept", "FetchRequest.accept")
_HANDLER = '"RpcServer.default'
_MASTER = "HMaster"
_SCAN = "org.apache.phoenix.coprocessor"


async def statements_of(port: int) -> int:
    """How many statements the Query Server that listens on `port` of this machine is at work on."""
    threads = await _threads(_listeners()[port])
    return sum(any(name in thread for name in _OPERATIONS) for thread in threads)


async def scans_of(port: int) -> int:
    """How many calls of Phoenix the region server behind that Query Server is at work on."""
    listeners = _listeners()
    peers = {one.raddr.port for one in listeners[port].net_connections() if one.raddr} & listeners.keys()
    hbase = next(listeners[peer] for peer in peers if _MASTER in " ".join(listeners[peer].cmdline()))
    return sum(thread.startswith(_HANDLER) and _SCAN in thread for thread in await _threads(hbase))


def _listeners() -> dict[int, psutil.Process]:
    return {
        one.laddr.port: psutil.Process(one.pid)
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN and one.pid
    }


async def _threads(process: psutil.Process) -> list[str]:
    """The stack of each Java thread."""
    tool = Path(process.exe()).with_name("jcmd")
    asked = await asyncio.create_subprocess_exec(
        tool, str(process.pid), "Thread.print", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        told, _ = await asked.communicate()
    assert asked.returncode == 0
    return told.decode(errors="replace").split("\n\n")
