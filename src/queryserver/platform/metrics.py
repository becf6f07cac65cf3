"""The metrics (Contract platform 9.3), and the metrics endpoint, GET /metrics. No label value may contain a user,
statement, path or host name."""

import asyncio
import os
import tempfile
import time
from collections import Counter as Sums
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, Row
from queryserver.platform.threads import background

OTHER = "other"
"""Replaces unknown label values, so that clients cannot create new time series."""

_QUERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_STATEMENT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)

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


class Metrics:
    """The metrics of all services. Each worker process keeps its own counts.

    Dialects that are not in `dialects` are counted together as `other`.
    """

    def __init__(self, registry: CollectorRegistry, *, dialects: Collection[str]) -> None:
        self._dialects = frozenset(dialects)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self.logins = counter(
            "queryserver_logins", "Login attempts by result and accepting login source.", ["result", "backend"]
        )
        self.logins_throttled = counter("queryserver_login_throttled", "Logins rejected after repeated failures.")
        self.tokens_issued = counter("queryserver_tokens_issued", "Tokens issued by this service.", ["type"])
        self.external_tokens = counter(
            "queryserver_external_jwt", "Verified tokens of external issuers by result.", ["result"]
        )
        self.key_fetches = counter("queryserver_jwks_fetch", "Requests for key sets of external issuers.", ["result"])
        self.index_objects = gauge(
            "queryserver_metadata_index_objects",
            "Objects in the metadata search index.",
            ["kind"],
            multiprocess_mode="mostrecent",
        )
        self.searches = histogram("queryserver_search_seconds", "Duration of a search in one source.", ["source"])
        ended = counter("queryserver_statements", "Statements that have ended.", ["dialect", "outcome"])
        seconds = histogram(
            "queryserver_statement_seconds",
            "Time from the start of a statement by a runner to its end.",
            ["dialect"],
            buckets=_STATEMENT_S,
        )
        # Cached, because looking up the child metric of a label takes longer than counting.
        self._ended_of, self._seconds_of = cache(ended.labels), cache(seconds.labels)
        self._failures = counter("queryserver_engine_errors", "Engine errors by error code.", ["dialect", "kind"])
        self._sessions = gauge(
            "queryserver_engine_sessions", "Open engine sessions, including those for metadata.", ["dialect"]
        )
        self.claims_lost = counter("queryserver_leases_lost", "Statements taken over by another process.")
        self.results_expired = counter("queryserver_results_expired", "Results deleted after their retention time.")
        self.storage_operations = counter(
            "queryserver_storage_operations", "Completed storage operations.", ["fs", "operation", "outcome"]
        )
        self.uploads = gauge("queryserver_uploads_active", "Uploads in progress.")
        self.queries = histogram(
            "queryserver_db_query_seconds", "Duration of one use of a service database connection.", buckets=_QUERY_S
        )
        self.connections = gauge(
            "queryserver_db_pool_connections", "Open and idle connections to the service database.", ["state"]
        )
        self.tasks_ended = counter("queryserver_tasks", "Tasks that have ended.", ["task", "outcome"])
        self.schedules_fired = counter(
            "queryserver_schedules_fired", "Schedule runs by outcome: submitted, skipped or failed.", ["outcome"]
        )
        self.emails = counter("queryserver_emails", "Attempts to send an email.", ["outcome"])
        self.webhooks = counter("queryserver_webhooks", "Attempts to call a webhook.", ["outcome"])

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """Count a statement that reached the terminal state `outcome`, `seconds` after a runner had started it."""
        known = self.dialect(dialect)
        self._ended_of(known, outcome).inc()
        self._seconds_of(known).observe(seconds)

    def engine_failed(self, dialect: str, kind: str) -> None:
        """Count a refusal or failure of an engine. `kind` is the error code."""
        self._failures.labels(self.dialect(dialect), kind).inc()

    def engine_sessions(self, dialect: str) -> Gauge:
        """Return the gauge of open engine sessions for the dialect."""
        return self._sessions.labels(self.dialect(dialect))

    def dialect(self, name: str) -> str:
        """Return the dialect as a label value: `other` if it is not among the known dialects."""
        return name if name in self._dialects else OTHER


NO_METRICS = Metrics(CollectorRegistry(), dialects=())
"""Metrics that are never exported: for commands, and for servers with `enable_prometheus = false`."""


DisconnectReason = Literal["head_timeout", "head_too_large", "malformed", "pipeline", "handshake", "stalled", "unsent"]
"""Why the server closed a connection."""


class ConnectionCounts:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.open = Gauge(
            "queryserver_http_connections", "Open connections.", registry=registry, multiprocess_mode="livesum"
        )
        self._refused = counter(
            "queryserver_http_connections_refused", "Connections refused because of a limit, by limit.", ["bound"]
        )
        self._cut = counter("queryserver_http_connections_cut", "Connections closed early, by reason.", ["reason"])

    def refused(self, bound: Literal["address", "total"]) -> None:
        self._refused.labels(bound).inc()

    def cut(self, reason: DisconnectReason) -> None:
        self._cut.labels(reason).inc()


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
        """The figures of all servers that were read last; None before the first read.

        They are the active statements by dialect and state, the bytes of stored results, and the result of `fleet`.
        """
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
        """Yield the server's version and the database figures of all servers."""
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
