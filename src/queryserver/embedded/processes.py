"""Which PostgreSQL processes belong to a cluster, whoever started them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ClusterProcesses:
    """The live processes of one cluster."""

    postmasters: tuple[int, ...]
    children: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.postmasters or self.children)


def processes_of(cluster_name: str) -> ClusterProcesses:
    """Each process carries the name of its cluster in its command line, which everybody may read.

    The number in `postmaster.pid` proves nothing: after a crash it may belong to another program.
    """
    named = {process.pid: process for process in _processes() if cluster_name in process.command}
    # A child that was forked this instant still has the command line of its parent.
    postmasters = tuple(
        pid for pid, process in named.items() if "/postgres -D " in process.command and process.parent not in named
    )
    children = tuple(
        pid
        for pid, process in named.items()
        if process.command.startswith("postgres: ") or process.parent in postmasters
    )
    return ClusterProcesses(postmasters, children)


def end_processes(cluster_name: str, *, fast_s: float, immediate_s: float) -> None:
    """End what an earlier server left running: by fast shutdown, then at once, then by force. Committed data are safe.

    Children get no SIGINT: to the checkpointer it is the postmaster's own word for "write the last record".
    """
    if processes_of(cluster_name).postmasters and _signal(cluster_name, signal.SIGINT, wait_s=fast_s):
        return
    if not _signal(cluster_name, signal.SIGQUIT, wait_s=immediate_s):
        _signal(cluster_name, signal.SIGKILL, wait_s=10)


def _signal(cluster_name: str, number: signal.Signals, *, wait_s: float) -> bool:
    """Send a signal to the postmaster, to all where there is none or by force; whether all are gone in time."""
    found = processes_of(cluster_name)
    everybody = number is signal.SIGKILL or not found.postmasters
    for pid in (*found.postmasters, *(found.children if everybody else ())):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    deadline = time.monotonic() + wait_s
    while processes_of(cluster_name) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_of(cluster_name)


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    command: str


def _processes() -> Iterator[_Process]:
    if not (_PROC / "self" / "cmdline").exists():
        yield from _processes_by_ps()
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield _Process(int(entry.name), int(after_name[1]), command)


def _processes_by_ps() -> Iterator[_Process]:
    """macOS has no /proc."""
    listing = subprocess.run(
        ["/bin/ps", "-axww", "-o", "pid=,ppid=,command="], check=True, capture_output=True, text=True, timeout=10
    )
    for line in listing.stdout.splitlines():
        pid, parent, *command = line.split(maxsplit=2)
        yield _Process(int(pid), int(parent), "".join(command))
