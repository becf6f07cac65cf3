"""What tells clients and administrators about this server."""

from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from queryserver.administration.client_configuration import ClientConfiguration, harmless
from queryserver.administration.configuration_check import ConfigurationCheck, check_running
from queryserver.administration.readiness import Readiness
from queryserver.administration.server_logs import ServerLogs
from queryserver.connectors.engines import Connectors
from queryserver.connectors.types import TYPES
from queryserver.files.model import Scheme
from queryserver.files.places import Stores
from queryserver.platform.database import Database
from queryserver.platform.deployment import ServiceFactsReader
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.prometheus import MetricsPage, PageParts, PrometheusMetrics
from queryserver.platform.settings.desktop import MetricsSettings
from queryserver.platform.settings.tree import Settings, SettingsFinding
from queryserver.statements.overview import HistoryFacts


@dataclass(frozen=True, slots=True)
class ConfigurationServices:
    """What tells clients and administrators about this server."""

    clients: ClientConfiguration
    banner: str
    """Harmless HTML."""
    check: ConfigurationCheck
    logs: ServerLogs


@dataclass(frozen=True, slots=True)
class ConfigurationGround:
    """What these services stand on."""

    settings: Settings
    database: Database
    connectors: Connectors
    stores: Stores
    readiness: Readiness


def configuration_services(ground: ConfigurationGround) -> ConfigurationServices:
    """All of them; nothing runs in the background."""
    settings = ground.settings
    find = partial(check_running, settings, _regular_look(ground.readiness))
    return ConfigurationServices(
        clients=ClientConfiguration(settings, ground.connectors, ground.stores, HistoryFacts(ground.database)),
        banner=harmless(settings.desktop.custom.banner_top_html),
        check=ConfigurationCheck(settings, find),
        logs=ServerLogs(settings.desktop.logging.file),
    )


def _regular_look(readiness: Readiness) -> Callable[[Settings], Awaitable[Iterable[SettingsFinding]]]:
    """The look at the result store that the server takes anyway, so that no further file is written."""

    async def look(settings: Settings) -> Iterable[SettingsFinding]:
        del settings
        if (await readiness.checks())["result_store"].ok:
            return []
        return [SettingsFinding.error("desktop.task_server.result_file_storage", "cannot be written to.")]

    return look


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
