"""What processes use: their processor time and their memory."""

from collections.abc import Iterable
from pathlib import Path

import psutil


def processor_s(pids: Iterable[int]) -> float:
    """Seconds of processor of these processes and all their children so far, those that have ended included."""
    used = [process.cpu_times() for process in _trees(pids)]
    return sum(one.user + one.system + one.children_user + one.children_system for one in used)


def shared_once_mib(pids: Iterable[int]) -> float:
    """Memory of these processes and their children; of a page that n processes share, each has the nth part (PSS)."""
    return sum(process.memory_full_info().pss for process in _trees(pids)) / 2**20


def resident_mib(pids: Iterable[int]) -> float:
    """Memory of these processes and their children with all pages that they share (RSS)."""
    return sum(process.memory_info().rss for process in _trees(pids)) / 2**20


def postgres_pid(state_dir: Path) -> int:
    """The main process of the private PostgreSQL of a state directory; all others are its children."""
    (file,) = state_dir.glob("postgresql/**/postmaster.pid")
    return int(file.read_text().split()[0])


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    parents = [psutil.Process(pid) for pid in pids]
    return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]
