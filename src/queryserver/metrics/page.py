"""The answer to `GET /metrics`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from queryserver import __version__
from queryserver.db.deployment import ServiceFactsReader
from queryserver.domain.errors.base import DatabaseUnavailable
from queryserver.interfaces.metrics import ServiceFacts
from queryserver.metrics.instruments import PrometheusMetrics
from queryserver.metrics.workers import Merged, counts_directory

log = structlog.get_logger(__name__)

_FACTS_EVERY_S = 10.0
_FACTS_WITHIN_S = 2.0
_POOL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class PageParts:
    """What the page is made of. `pool` tells open and idle connections of this process."""

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
        teller = asyncio.create_task(self._tell(), name="metrics-of-the-pool")
        try:
            yield
        finally:
            teller.cancel()
            await asyncio.gather(teller, return_exceptions=True)

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

    async def _tell(self) -> None:
        while counts_directory() is not None:
            self._look_at_pool()
            await asyncio.sleep(_POOL_EVERY_S)


class _Facts:
    """A collector of what the database tells about all servers together, and of the version."""

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
