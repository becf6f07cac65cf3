"""The running statements of a Query Server and its HBase, counted in thread dumps."""

import asyncio
from asyncio.subprocess import DEVNULL
from pathlib import Path

import psutil

_OPERATIONS = ("PrepareAndExecuteRequest.accept", "FetchRequest.accept")
_HANDLER = '"RpcServer.default'
_MASTER = "HMaster"
_SCAN = "org.apache.phoenix.coprocessor"


async def statements_of(port: int) -> int:
    """Return how many statements the Query Server on the local port `port` is running."""
    threads = await _threads(psutil.Process(_listeners()[port]))
    return sum(any(name in thread for name in _OPERATIONS) for thread in threads)


async def scans_of(port: int) -> int:
    """Return how many Phoenix calls are running on the region server that the Query Server on the port `port` uses."""
    listeners = _listeners()
    called = {call.raddr.port for call in psutil.Process(listeners[port]).net_connections() if call.raddr}
    peers = [psutil.Process(listeners[one]) for one in called & listeners.keys()]
    hbase = next(peer for peer in peers if _MASTER in " ".join(peer.cmdline()))
    return sum(thread.startswith(_HANDLER) and _SCAN in thread for thread in await _threads(hbase))


def _listeners() -> dict[int, int]:
    """Map each local listening port to the PID of its process."""
    return {
        one.laddr.port: one.pid
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN and one.pid
    }


async def _threads(process: psutil.Process) -> list[str]:
    """Return the stack of each Java thread, read from the socket that a JVM opens for `jcmd` and then keeps open."""
    listener = Path(f"/proc/{process.pid}/root/tmp/.java_pid{process.pid}")
    async with asyncio.timeout(30):
        if not await asyncio.to_thread(listener.exists):
            command = (Path(process.exe()).with_name("jcmd"), str(process.pid), "VM.version")
            opened = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
            assert await opened.wait() == 0
        reader, writer = await asyncio.open_unix_connection(listener)
        try:
            # The request consists of version, command and three arguments, each terminated by a zero byte.
            writer.write(b"1\0threaddump\0\0\0\0")
            stacks = await reader.read(-1)
        finally:
            writer.close()
    return stacks.decode(errors="replace").split("\n\n")
