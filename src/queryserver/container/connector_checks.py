"""Whether connectors are valid and can run here: asked of the very builders that make engines."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

from queryserver.container.drivers import InstalledDrivers
from queryserver.container.interfaces import rest
from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.problems import OptionsRefused
from queryserver.container.interfaces.registry import builder_of
from queryserver.container.interfaces.urls import driver_of
from queryserver.container.stored_connectors import drafted_connector
from queryserver.domain.connector import Connector
from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_types import ConnectorType, Runs
from queryserver.domain.errors import ConfigurationError, ConnectorRefused, DriverNotInstalled, InvalidPath
from queryserver.engines.local_files import MEMORY, require_folder
from queryserver.interfaces.engine import Engine
from queryserver.settings import Settings

_NATIVE = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""Dialects of urls that adapters of this server speak by themselves."""

EMBEDDED = frozenset({"duckdb", "sqlite"})
"""Interfaces whose database is a file of this machine."""

_OF_KERBEROS = frozenset({"GSSAPI", "SPNEGO"})
_PLACE = re.compile(r"notebook\.interpreters\.[^.]+\.(?:options\.)?")


@contextmanager
def refusals() -> Generator[None]:
    """Around the building of an engine. Raises ConnectorRefused for what its settings were refused for."""
    try:
        yield
    except InvalidPath as error:
        raise ConnectorRefused({"path": [error.message]}) from error
    except OptionsRefused as refused:
        raise refused.refusal() from refused
    except ConfigurationError as error:
        raise ConnectorRefused(by_setting(error.problems)) from error


class BuilderChecks:
    """See `interfaces.connectors.ConnectorChecks`."""

    def __init__(self, settings: Settings, context: BuildContext) -> None:
        self._settings = settings
        self._context = context
        self._drivers = InstalledDrivers(context.addresses)

    async def require_valid(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> None:
        """See the Protocol. The engine that comes out is closed again; it connects to nothing."""
        with refusals(), suppress(DriverNotInstalled):
            connector = drafted_connector("new", row.dialect, row.interface, settings, self._settings)
            if row.runs is Runs.TEST:
                rest.require_valid(connector, self._context)
            elif row.takes_statements:
                # Adapters are imported at their first use, and paths are looked at on the disk.
                engine = await asyncio.to_thread(self._built, connector)
                await engine.close()

    async def is_runnable(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> bool:
        """See the Protocol."""
        if not row.takes_statements or row.interface != "sqlalchemy":
            wanted = str(settings.get("auth_mechanism", "")).strip().upper()
            return row.takes_statements and (wanted not in _OF_KERBEROS or self._drivers.has_kerberos)
        driver, dialect = driver_of(str(settings.get("url", "")).partition("://")[0].strip())
        allowed = self._context.policy.allowed_drivers
        return driver in {name.lower() for name in allowed} and (dialect in _NATIVE or await self._drivers.has(driver))

    def _built(self, connector: Connector) -> Engine:
        builder = builder_of(connector.interface)
        if builder is None:
            raise ConfigurationError([f"interface: {connector.interface} cannot be run here."])
        require_database_folder(connector, self._context)
        return builder.build(connector, self._context)


def require_database_folder(connector: Connector, context: BuildContext) -> None:
    """Raises InvalidPath when the file of an embedded engine lies in a folder that does not exist. Blocks."""
    if connector.interface in EMBEDDED:
        require_folder(context.databases_dir, str(connector.options.get("path") or MEMORY).strip())


def by_setting(problems: Sequence[str]) -> Mapping[str, list[str]]:
    """Adapters say `<setting>: <text>`, before it may stand the place of the connector in the settings."""
    found = dict[str, list[str]]()
    for problem in problems:
        setting, _, text = _PLACE.sub("", problem).partition(": ")
        found.setdefault(setting, []).append(f"{text[:1].upper()}{text[1:]}")
    return found
