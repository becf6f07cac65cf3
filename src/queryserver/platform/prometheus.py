"""The instruments, and the answer to GET /metrics."""

import asyncio
import os
import tempfile
import time
from collections import Counter as Sums
from collections.abc import Collection, Generator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database
from queryserver.platform.deployment import ServiceFacts, read_service_facts
from queryserver.platform.metrics import Judgement, Metrics
from queryserver.platform.threads import background

log = structlog.get_logger(__name__)

OTHER = "other"
"""Stands for values of labels that are not among the known ones: callers must not make series."""

_QUERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_STATEMENT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)
_FACTS_EVERY_S = 10.0
_FACTS_WITHIN_S = 2.0
_POOL_EVERY_S = 5.0
_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class PrometheusMetrics(Metrics):
    """In one of several worker processes, its part of the counts."""

    def __init__(self, registry: CollectorRegistry, *, dialects: Collection[str], schemes: Collection[str]) -> None:
        self._dialects, self._schemes = frozenset(dialects), frozenset(schemes)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self._logins = counter(
            "queryserver_logins", "Logins judged, by the back end that said yes.", ["result", "backend"]
        )
        self._throttled = counter("queryserver_login_throttled", "Logins refused because too many had failed.")
        self._issued = counter("queryserver_tokens_issued", "Own tokens issued.", ["type"])
        self._external = counter("queryserver_external_jwt", "Tokens of other issuers judged.", ["result"])
        self._fetches = counter("queryserver_jwks_fetch", "Key sets asked for.", ["result"])
        self._index = gauge(
            "queryserver_metadata_index_objects",
            "Objects in the index of the metadata search.",
            ["kind"],
            multiprocess_mode="mostrecent",
        )
        self._searches = histogram("queryserver_search_seconds", "Time that a source of the search took.", ["source"])
        self._ended = counter("queryserver_statements", "Statements that have ended.", ["dialect", "outcome"])
        self._seconds = histogram(
            "queryserver_statement_seconds",
            "Time from the beginning of the work on a statement to its end.",
            ["dialect"],
            buckets=_STATEMENT_S,
        )
        self._failures = counter("queryserver_engine_errors", "Refusals and failures of engines.", ["dialect", "kind"])
        self._sessions = gauge(
            "queryserver_engine_sessions", "Engine sessions open now, those of looks at metadata included.", ["dialect"]
        )
        self._leases_lost = counter("queryserver_leases_lost", "Statements that another process took over.")
        self._expired = counter("queryserver_results_expired", "Results whose time was over.")
        self._operations = counter(
            "queryserver_storage_operations", "Calls on files that were answered.", ["fs", "operation", "outcome"]
        )
        self._uploads = gauge("queryserver_uploads_active", "Uploads on their way.")
        self._queries = histogram(
            "queryserver_db_query_seconds", "Time that a connection to the service database was used.", buckets=_QUERY_S
        )
        self._connections = gauge(
            "queryserver_db_pool_connections",
            "Connections to the service database, by whether they are in use.",
            ["state"],
        )

    def login(self, result: Judgement, back_end: str) -> None:
        self._logins.labels(result, back_end or "none").inc()

    def login_throttled(self) -> None:
        self._throttled.inc()

    def token_issued(self, kind: str) -> None:
        self._issued.labels(kind).inc()

    def external_token(self, result: Judgement) -> None:
        self._external.labels(result).inc()

    def keys_fetched(self, result: Literal["ok", "failed"]) -> None:
        self._fetches.labels(result).inc()

    def index_objects(self, counts: Mapping[str, int]) -> None:
        for kind, count in counts.items():
            self._index.labels(kind).set(count)

    def searched(self, source: str, seconds: float) -> None:
        self._searches.labels(source).observe(seconds)

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        known = self.dialect(dialect)
        self._ended.labels(known, outcome).inc()
        self._seconds.labels(known).observe(seconds)

    def engine_failed(self, dialect: str, kind: str) -> None:
        self._failures.labels(self.dialect(dialect), kind).inc()

    @contextmanager
    def engine_session(self, dialect: str) -> Generator[None]:
        with self._sessions.labels(self.dialect(dialect)).track_inprogress():
            yield

    def lease_lost(self) -> None:
        self._leases_lost.inc()

    def results_expired(self, results: int) -> None:
        self._expired.inc(results)

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        known = scheme if scheme in self._schemes else OTHER
        self._operations.labels(known, operation, outcome).inc()

    def upload(self) -> AbstractContextManager[None]:
        return self._uploads.track_inprogress()

    def query(self, seconds: float, /) -> None:
        self._queries.observe(seconds)

    def pool(self, *, used: int, idle: int) -> None:
        self._connections.labels("used").set(used)
        self._connections.labels("idle").set(idle)

    def dialect(self, name: str) -> str:
        """The name as a label: that of the catalogue, or `other`."""
        return name if name in self._dialects else OTHER


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
        self, registry: CollectorRegistry, metrics: PrometheusMetrics, database: Database, threads: Executor
    ) -> None:
        self._metrics = metrics
        self._database = database
        self._threads = threads
        self._facts: ServiceFacts | None = None
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
                        self._facts = await read_service_facts(self._database)
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
        if self._facts is not None:
            results.add_metric([], self._facts.results_bytes)
            sums = Sums[tuple[str, str]]()
            for (dialect, state), statements in self._facts.statements.items():
                sums[self._metrics.dialect(dialect), state] += statements
            for labels, statements in sums.items():
                active.add_metric(labels, statements)
        yield from (active, results)

    def _count_pool(self) -> None:
        total, idle = self._database.connections
        self._metrics.pool(used=total - idle, idle=idle)

    async def _report(self) -> None:
        while counts_directory() is not None:
            self._count_pool()
            await asyncio.sleep(_POOL_EVERY_S)
