"""CPU time and memory of processes. Processes that exit during the measurement are ignored."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def processor_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds used so far by these processes and all their children, including exited children."""

    def used_s(process: psutil.Process) -> float:
        one = process.cpu_times()
        return one.user + one.system + one.children_user + one.children_system

    return _sum(pids, used_s)


def shared_once_mib(pids: Iterable[int]) -> float:
    """Return the proportional memory (PSS) of these processes and their children, in which a page shared by n processes
    counts as 1/n.
    """
    return _sum(pids, lambda process: process.memory_full_info().pss) / 2**20


def resident_mib(pids: Iterable[int]) -> float:
    """Return the resident memory (RSS) of these processes and their children, in which shared pages count in every
    process.
    """
    return _sum(pids, lambda process: process.memory_info().rss) / 2**20


def postgres_pid(state_dir: Path) -> int:
    """Return the PID of the main process of a state directory's private PostgreSQL; all its other processes are
    children.
    """
    (file,) = state_dir.glob("postgresql/**/postmaster.pid")
    return int(file.read_text().split()[0])


def _sum(pids: Iterable[int], measure: Callable[[psutil.Process], float]) -> float:
    found = 0.0
    for process in _trees(pids):
        with suppress(psutil.NoSuchProcess):
            found += measure(process)
    return found


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    parents = [psutil.Process(pid) for pid in pids]
    return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]
