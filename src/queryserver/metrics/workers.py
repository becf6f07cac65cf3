"""The counts of several worker processes as one.

Each worker keeps its values in files of a directory that the parent made; whoever is asked reads them all. The library
decides by the environment, when it is imported, whether a process is one of several.
"""

import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def shared_counts() -> Generator[None]:
    """Processes that begin inside count together. The directory goes at the end."""
    with tempfile.TemporaryDirectory(prefix="queryserver-metrics-") as directory:
        os.environ[_VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


def counts_directory() -> Path | None:
    """Where the workers of this server count; None in a process that counts alone."""
    directory = os.environ.get(_VARIABLE)
    return Path(directory) if directory else None


class Merged:
    """A collector of the counts of all workers. Names that nobody has counted under yet come without values."""

    def __init__(self, directory: Path, own: CollectorRegistry) -> None:
        self._directory = directory
        self._own = own

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector`."""
        self._forget_dead()
        found = {one.name: one for one in MultiProcessCollector(CollectorRegistry(), str(self._directory)).collect()}
        for metric in self._own.collect():
            if metric.name not in found:
                found[metric.name] = Metric(metric.name, metric.documentation, metric.type)
        return found.values()

    def _forget_dead(self) -> None:
        """What a dead process has counted stays; what it had open is gone with it."""
        for file in self._directory.glob("gauge_live*_*.db"):
            number = file.stem.rpartition("_")[2]
            if number.isdecimal() and not _is_alive(int(number)):
                with suppress(FileNotFoundError):  # another worker, asked at the same time, was quicker
                    mark_process_dead(int(number), str(self._directory))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
