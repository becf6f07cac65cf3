"""What tells clients and administrators about this server."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from queryserver.container.checking import check_running
from queryserver.db.database import Database
from queryserver.db.statements.overview import HistoryFacts
from queryserver.domain.findings import Finding
from queryserver.formats.banners import harmless
from queryserver.services.client_configuration import ClientConfiguration
from queryserver.services.configuration_check import ConfigurationCheck
from queryserver.services.connectors import Connectors
from queryserver.services.everything import ConfigurationServices
from queryserver.services.readiness import Readiness
from queryserver.services.server_logs import ServerLogs
from queryserver.services.storage.stores import Stores
from queryserver.settings import Settings


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


def _regular_look(readiness: Readiness) -> Callable[[Settings], Awaitable[Iterable[Finding]]]:
    """The look at the result store that the server takes anyway, so that no further file is written."""

    async def look(settings: Settings) -> Iterable[Finding]:
        del settings
        if (await readiness.checks())["result_store"].ok:
            return []
        return [Finding.error("desktop.task_server.result_file_storage", "cannot be written to.")]

    return look
