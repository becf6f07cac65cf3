"""What a Query Server and the HBase behind it are at work on, asked of their own threads."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import psutil

_OPERATIONS = ("PrepareAndExecuteRequest.accept", "FetchRequest.accept")
_HANDLER = '"RpcServer.default'
_MASTER = "HMaster"
_SCAN = "org.apache.phoenix.coprocessor"


@dataclass(frozen=True, slots=True)
class Work:
    """Statements by the place where somebody is at work on them."""

    query_server: int
    region_server: int


async def work_of(port: int) -> Work:
    """Of the Query Server that listens on `port` of this machine."""
    listeners = {
        one.laddr.port: psutil.Process(one.pid)
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN and one.pid
    }
    query_server = listeners[port]
    peers = [
        listeners[one.raddr.port] for one in query_server.net_connections() if one.raddr and one.raddr.port in listeners
    ]
    hbase = next(peer for peer in peers if _MASTER in " ".join(peer.cmdline()))
    requests, handlers = await asyncio.gather(_threads(query_server), _threads(hbase))
    return Work(
        sum(any(name in thread for name in _OPERATIONS) for thread in requests),
        sum(thread.startswith(_HANDLER) and _SCAN in thread for thread in handlers),
    )


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
