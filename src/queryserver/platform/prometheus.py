"""The metrics endpoint, GET /metrics."""

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

# Both queries use partial indexes, which contain only active statements or stored results.
_ACTIVE = """
select dialect, state, count(*) as statements from statements
where state in ('waiting', 'running') and not is_script group by 1, 2
"""
_STORED_BYTES = "select coalesce(sum(size_bytes), 0)::bigint from statements where state = 'available'"


@contextmanager
def shared_counts() -> Generator[None]:
    """Make processes started inside the context share their metrics in a temporary directory, removed on exit."""
    with tempfile.TemporaryDirectory(prefix="queryserver-metrics-") as directory:
        os.environ[_VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


def counts_directory() -> Path | None:
    """Return the directory in which this server's workers store their metrics; None for a single process."""
    directory = os.environ.get(_VARIABLE)
    return Path(directory) if directory else None


class MergedMetrics:
    """Collects the metrics of all workers. Metrics without samples are listed without values."""

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
        """Drop the gauges of dead processes; keep their counters."""
        for file in self._directory.glob("gauge_live*_*.db"):
            number = file.stem.rpartition("_")[2]
            if number.isdecimal() and not _is_alive(int(number)):
                with suppress(FileNotFoundError):  # another worker has removed the file first
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
    """Builds the response to GET /metrics, including figures from the database. Enter `running()` to share gauges."""

    def __init__(
        self,
        registry: CollectorRegistry,
        metrics: Metrics,
        database: Database,
        threads: Executor,
        fleet: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        """`fleet` returns the numbers of waiting tasks and live workers. It raises DatabaseUnavailable."""
        self._metrics = metrics
        self._fleet = fleet
        self._database = database
        self._threads = threads
        self._facts: tuple[Sequence[Row], int, tuple[int, int]] | None = None
        """Across all servers: active statements by dialect and state, bytes of stored results, and `fleet` numbers."""
        self._facts_due_at = 0.0
        self._reading = asyncio.Lock()
        self._shown = CollectorRegistry()
        directory = counts_directory()
        self._shown.register(registry if directory is None else MergedMetrics(directory, registry))
        self._shown.register(self)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Share this process's gauges with the other workers while the context is open."""
        return background(self._report(), "metrics-of-the-pool")

    async def text(self) -> bytes:
        """Return the metrics of all worker processes in the Prometheus text format.

        If the database is unavailable, the figures read last are returned.
        """
        async with self._reading:
            if time.monotonic() >= self._facts_due_at:
                self._facts_due_at = time.monotonic() + _FACTS_EVERY_S
                try:
                    async with asyncio.timeout(_FACTS_WITHIN_S):
                        active = await self._database.fetch(_ACTIVE)
                        self._facts = active, await self._database.value(_STORED_BYTES), await self._fleet()
                except (DatabaseUnavailable, TimeoutError):
                    log.warning("database metrics are stale")
        self._count_pool()
        # In a thread, because it reads files of the other workers and formats several hundred series.
        return await asyncio.get_running_loop().run_in_executor(self._threads, generate_latest, self._shown)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the version, and the figures from the database for all servers."""
        version = GaugeMetricFamily("queryserver_build_info", "The version of this server.", labels=["version"])
        version.add_metric([__version__], 1)
        yield version
        active = GaugeMetricFamily(
            "queryserver_statements_active",
            "Waiting and running statements on all servers of this database.",
            labels=["dialect", "state"],
        )
        results = GaugeMetricFamily(
            "queryserver_results_bytes", "Bytes of available results of all servers of this database."
        )
        queued = GaugeMetricFamily("queryserver_tasks_queued", "Waiting tasks of all servers of this database.")
        workers = GaugeMetricFamily("queryserver_workers_alive", "Live workers of this database.")
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
