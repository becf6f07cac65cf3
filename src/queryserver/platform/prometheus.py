"""The instruments, and the answer to GET /metrics."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from queryserver import __version__
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.deployment import ServiceFactsReader
from queryserver.platform.metrics import ExternalTokenResult, FetchResult, LoginResult, ServiceFacts

OTHER = "other"
"""Stands for values of labels that are not among the known ones: callers must not make series."""

_QUERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_STATEMENT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)


class PrometheusMetrics:
    """See `interfaces.metrics.Metrics`. In one of several worker processes, its part of them."""

    def __init__(self, registry: CollectorRegistry, *, dialects: Collection[str], schemes: Collection[str]) -> None:
        self._dialects, self._schemes = frozenset(dialects), frozenset(schemes)
        self._accounts = _Accounts(registry)
        self._statements = _Statements(registry)
        self._files = _Files(registry)
        # The instrument itself: each query of the service calls it.
        self.query = Histogram(
            "queryserver_db_query_seconds",
            "Time that a connection to the service database was used.",
            registry=registry,
            buckets=_QUERY_S,
        ).observe
        self._connections = Gauge(
            "queryserver_db_pool_connections",
            "Connections to the service database, by whether they are in use.",
            ["state"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._index = Gauge(
            "queryserver_metadata_index_objects",
            "Objects in the index of the metadata search.",
            ["kind"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._searches = Histogram(
            "queryserver_search_seconds", "Time that a source of the search took.", ["source"], registry=registry
        )

    def login(self, result: LoginResult, back_end: str) -> None:
        self._accounts.logins.labels(result, back_end or "none").inc()

    def login_throttled(self) -> None:
        self._accounts.throttled.inc()

    def token_issued(self, kind: str) -> None:
        self._accounts.issued.labels(kind).inc()

    def external_token(self, result: ExternalTokenResult) -> None:
        self._accounts.external.labels(result).inc()

    def keys_fetched(self, result: FetchResult) -> None:
        self._accounts.fetches.labels(result).inc()

    def index_objects(self, counts: Mapping[str, int]) -> None:
        for kind, count in counts.items():
            self._index.labels(kind).set(count)

    def searched(self, source: str, seconds: float) -> None:
        self._searches.labels(source).observe(seconds)

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        known = self.dialect(dialect)
        self._statements.ended.labels(known, outcome).inc()
        self._statements.seconds.labels(known).observe(seconds)

    def engine_failed(self, dialect: str, kind: str) -> None:
        self._statements.failures.labels(self.dialect(dialect), kind).inc()

    @contextmanager
    def engine_session(self, dialect: str) -> Generator[None]:
        with self._statements.sessions.labels(self.dialect(dialect)).track_inprogress():
            yield

    def lease_lost(self) -> None:
        self._statements.leases_lost.inc()

    def results_expired(self, results: int) -> None:
        self._statements.expired.inc(results)

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        known = scheme if scheme in self._schemes else OTHER
        self._files.operations.labels(known, operation, outcome).inc()

    @contextmanager
    def upload(self) -> Generator[None]:
        with self._files.uploads.track_inprogress():
            yield

    def pool(self, *, used: int, idle: int) -> None:
        """The connections of this process now."""
        self._connections.labels("used").set(used)
        self._connections.labels("idle").set(idle)

    def dialect(self, name: str) -> str:
        """The name as a label: that of the catalogue, or `other`."""
        return name if name in self._dialects else OTHER


class _Accounts:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.logins = Counter(
            "queryserver_logins",
            "Logins judged, by the back end that said yes.",
            ["result", "backend"],
            registry=registry,
        )
        self.throttled = Counter(
            "queryserver_login_throttled", "Logins refused because too many had failed.", registry=registry
        )
        self.issued = Counter("queryserver_tokens_issued", "Own tokens issued.", ["type"], registry=registry)
        self.external = Counter(
            "queryserver_external_jwt", "Tokens of other issuers judged.", ["result"], registry=registry
        )
        self.fetches = Counter("queryserver_jwks_fetch", "Key sets asked for.", ["result"], registry=registry)


class _Statements:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = Counter(
            "queryserver_statements", "Statements that have ended.", ["dialect", "outcome"], registry=registry
        )
        self.seconds = Histogram(
            "queryserver_statement_seconds",
            "Time from the beginning of the work on a statement to its end.",
            ["dialect"],
            registry=registry,
            buckets=_STATEMENT_S,
        )
        self.failures = Counter(
            "queryserver_engine_errors", "Refusals and failures of engines.", ["dialect", "kind"], registry=registry
        )
        self.sessions = Gauge(
            "queryserver_engine_sessions",
            "Engine sessions open now, those of looks at metadata included.",
            ["dialect"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.leases_lost = Counter(
            "queryserver_leases_lost", "Statements that another process took over.", registry=registry
        )
        self.expired = Counter("queryserver_results_expired", "Results whose time was over.", registry=registry)


class _Files:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.operations = Counter(
            "queryserver_storage_operations",
            "Calls on files that were answered.",
            ["fs", "operation", "outcome"],
            registry=registry,
        )
        self.uploads = Gauge(
            "queryserver_uploads_active", "Uploads on their way.", registry=registry, multiprocess_mode="livesum"
        )


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


log = structlog.get_logger(__name__)

_FACTS_EVERY_S = 10.0
_FACTS_WITHIN_S = 2.0
_POOL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class PageParts:
    """The sources of the page. `pool` gives open and idle connections of this process."""

    registry: CollectorRegistry
    metrics: PrometheusMetrics
    facts: ServiceFactsReader
    pool: Callable[[], tuple[int, int]]
    threads: Executor


class MetricsPage:
    """See `interfaces.metrics.MetricsText`. Use `running()`."""

    def __init__(self, parts: PageParts) -> None:
        self._parts = parts
        self._facts = _Facts(parts.metrics.dialect)
        self._asking = asyncio.Lock()
        self._next_look = 0.0
        self._shown = CollectorRegistry()
        directory = counts_directory()
        self._shown.register(parts.registry if directory is None else Merged(directory, parts.registry))
        self._shown.register(self._facts)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Tell the state of this process to the others, while inside."""
        reporter = asyncio.create_task(self._report(), name="metrics-of-the-pool")
        try:
            yield
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)

    async def text(self) -> bytes:
        """The whole page. With the database out of reach it has what was last known of it."""
        await self._look()
        self._look_at_pool()
        # Files of other workers are read here, and some hundred series written.
        return await asyncio.get_running_loop().run_in_executor(self._parts.threads, generate_latest, self._shown)

    async def _look(self) -> None:
        """Ask the database, at most every ten seconds however many ask us."""
        async with self._asking:
            if time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + _FACTS_EVERY_S
            try:
                async with asyncio.timeout(_FACTS_WITHIN_S):
                    self._facts.known = await self._parts.facts.read()
            except (DatabaseUnavailable, TimeoutError):
                log.warning("metrics of the database are not up to date")

    def _look_at_pool(self) -> None:
        total, idle = self._parts.pool()
        self._parts.metrics.pool(used=total - idle, idle=idle)

    async def _report(self) -> None:
        while counts_directory() is not None:
            self._look_at_pool()
            await asyncio.sleep(_POOL_EVERY_S)


class _Facts:
    """A collector of the counts in the database, of all servers together, and of the version."""

    def __init__(self, label: Callable[[str], str]) -> None:
        self._label = label
        self.known: ServiceFacts | None = None

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See `prometheus_client.registry.Collector`."""
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
        if self.known is not None:
            results.add_metric([], self.known.results_bytes)
            for labels, statements in self._counted(self.known).items():
                active.add_metric(labels, statements)
        yield from (active, results)

    def _counted(self, facts: ServiceFacts) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for (dialect, state), statements in facts.statements.items():
            label = (self._label(dialect), state)
            counts[label] = counts.get(label, 0) + statements
        return counts
