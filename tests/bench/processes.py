"""What processes use: their processor time and their memory. One that ends meanwhile is left out."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def processor_s(pids: Iterable[int]) -> float:
    """Seconds of processor of these processes and all their children so far, those that have ended included."""

    def used_s(process: psutil.Process) -> float:
        one = process.cpu_times()
        return one.user + one.system + one.children_user + one.children_system

    return _sum(pids, used_s)


def shared_once_mib(pids: Iterable[int]) -> float:
    """Memory of these processes and their children; of a page that n processes share, each has the nth part (PSS)."""
    return _sum(pids, lambda process: process.memory_full_info().pss) / 2**20


def resident_mib(pids: Iterable[int]) -> float:
    """Memory of these processes and their children with all pages that they share (RSS)."""
    return _sum(pids, lambda process: process.memory_info().rss) / 2**20


def postgres_pid(state_dir: Path) -> int:
    """The main process of the private PostgreSQL of a state directory; all others are its children."""
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
