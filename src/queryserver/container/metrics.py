"""Settings to what is counted."""

from concurrent.futures import Executor

from prometheus_client import CollectorRegistry

from queryserver.db.database import Database
from queryserver.db.deployment import ServiceFactsReader
from queryserver.domain.files import Scheme
from queryserver.interfaces.metrics import UNMEASURED, Metrics
from queryserver.metrics.instruments import PrometheusMetrics
from queryserver.metrics.page import MetricsPage, PageParts
from queryserver.services.connector_catalogue import TYPES
from queryserver.settings.desktop import MetricsSettings


def metrics_of(settings: MetricsSettings, registry: CollectorRegistry) -> Metrics:
    """What services count with."""
    if not settings.enable_prometheus:
        return UNMEASURED
    return PrometheusMetrics(registry, dialects=[one.dialect for one in TYPES], schemes=list(Scheme))


def metrics_page(
    registry: CollectorRegistry, metrics: Metrics, database: Database, threads: Executor
) -> MetricsPage | None:
    """What answers `GET /metrics`; None where nothing is counted."""
    if not isinstance(metrics, PrometheusMetrics):
        return None
    parts = PageParts(registry, metrics, ServiceFactsReader(database), lambda: database.connections, threads)
    return MetricsPage(parts)
