"""Builds the services that concern the server itself: client configuration, configuration check and logs."""

from collections.abc import Iterable
from dataclasses import dataclass

from queryserver.administration.client_configuration import ClientConfiguration, sanitized_html
from queryserver.administration.configuration_check import ConfigurationCheck
from queryserver.administration.examination import Doctor, FleetCheck
from queryserver.administration.readiness import Readiness
from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.files.access import Stores
from queryserver.platform.database import Database
from queryserver.platform.logs import ServerLogs
from queryserver.platform.settings.tree import Settings, SettingsFinding
from queryserver.results.stores import RESULTS
from queryserver.statements.overview import HistoryReader


@dataclass(frozen=True, slots=True)
class ConfigurationServices:
    """Services that report about this server to clients and administrators."""

    clients: ClientConfiguration
    banner: str
    """The configured banner as sanitized HTML."""
    check: ConfigurationCheck
    doctor: Doctor
    logs: ServerLogs


def configuration_services(
    settings: Settings,
    database: Database,
    connectors: Connectors,
    stores: Stores,
    documents: Documents,
    readiness: Readiness,
    fleet: FleetCheck,
) -> ConfigurationServices:
    """Build the services. They need no background work."""

    async def check_results(_settings: Settings) -> Iterable[SettingsFinding]:
        # The readiness check already tests the result store regularly, so no additional object is written.
        is_good = (await readiness.checks())["result_store"].ok
        return [] if is_good else [SettingsFinding.error(RESULTS, "cannot be written to.")]

    return ConfigurationServices(
        clients=ClientConfiguration(settings, connectors, stores, documents, HistoryReader(database)),
        banner=sanitized_html(settings.desktop.custom.banner_top_html),
        check=ConfigurationCheck(settings, check_results),
        doctor=Doctor(settings, fleet),
        logs=ServerLogs(settings.desktop.logging.file),
    )
