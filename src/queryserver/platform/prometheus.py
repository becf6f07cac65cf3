"""The answer to GET /metrics."""

import asyncio
import os
import tempfile
import time
from collections import Counter as Sums
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, Row
from queryserver.platform.metrics import Metrics
from queryserver.platform.threads import background

log = structlog.get_logger(__name__)

_FACTS_EVERY_S = 10.0
_FACTS_WITHIN_S = 2.0
_POOL_EVERY_S = 5.0
_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# By partial indexes, which hold the active and the stored statements only.
_ACTIVE = """
select dialect, state, count(*) as statements from statements
where state in ('waiting', 'running') and not is_script group by 1, 2
"""
_STORED_BYTES = "select coalesce(sum(size_bytes), 0)::bigint from statements where state = 'available'"


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
                with suppress(FileNotFoundError):  # another worker was quicker
                    mark_process_dead(int(number), str(self._directory))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class MetricsPage:
    """The answer to GET /metrics, and a collector of the facts in the database. Use `running()`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        metrics: Metrics,
        database: Database,
        threads: Executor,
        fleet: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        """`fleet`: how many tasks wait and how many workers live. Raises DatabaseUnavailable."""
        self._metrics = metrics
        self._fleet = fleet
        self._database = database
        self._threads = threads
        self._facts: tuple[Sequence[Row], int, tuple[int, int]] | None = None
        """Active statements by dialect and state, the bytes of stored results, and the fleet, of all servers."""
        self._facts_due_at = 0.0
        self._reading = asyncio.Lock()
        self._shown = CollectorRegistry()
        directory = counts_directory()
        self._shown.register(registry if directory is None else Merged(directory, registry))
        self._shown.register(self)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Share the state of this process with the other workers, while inside."""
        return background(self._report(), "metrics-of-the-pool")

    async def text(self) -> bytes:
        """All counts in the text format of Prometheus, of all worker processes of this server together.

        With the database out of reach it has what was last known of it.
        """
        async with self._reading:
            if time.monotonic() >= self._facts_due_at:
                self._facts_due_at = time.monotonic() + _FACTS_EVERY_S
                try:
                    async with asyncio.timeout(_FACTS_WITHIN_S):
                        active = await self._database.fetch(_ACTIVE)
                        self._facts = active, await self._database.value(_STORED_BYTES), await self._fleet()
                except (DatabaseUnavailable, TimeoutError):
                    log.warning("metrics of the database are not up to date")
        self._count_pool()
        # Files of other workers are read here, and some hundred series written.
        return await asyncio.get_running_loop().run_in_executor(self._threads, generate_latest, self._shown)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The version, and the counts in the database, of all servers together."""
        version = GaugeMetricFamily("queryserver_build_info", "The version of this server.", labels=["version"])
        version.add_metric([__version__], 1)
        yield version
        active = GaugeMetricFamily(
            "queryserver_statements_active",
            "Statements that wait or run, on all servers of this database.",
            labels=["dialect", "state"],
        )
        results = GaugeMetricFamily(
            "queryserver_results_bytes", "Stored results that can be read, of all servers of this database."
        )
        queued = GaugeMetricFamily("queryserver_tasks_queued", "Tasks that wait, of all servers of this database.")
        workers = GaugeMetricFamily("queryserver_workers_alive", "Workers of this database that live.")
        if self._facts is not None:
            counts, results_bytes, (tasks_queued, workers_alive) = self._facts
            results.add_metric([], results_bytes)
            queued.add_metric([], tasks_queued)
            workers.add_metric([], workers_alive)
            sums = Sums[tuple[str, str]]()
            for row in counts:
                sums[self._metrics.dialect(row["dialect"]), row["state"]] += row["statements"]
            for labels, statements in sums.items():
                active.add_metric(labels, statements)
        yield from (active, results, queued, workers)

    def _count_pool(self) -> None:
        total, idle = self._database.connections
        self._metrics.connections.labels("used").set(total - idle)
        self._metrics.connections.labels("idle").set(idle)

    async def _report(self) -> None:
        while counts_directory() is not None:
            self._count_pool()
            await asyncio.sleep(_POOL_EVERY_S)
