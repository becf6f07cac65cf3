"""The connectors of the settings and the stored ones as data sources, and whether they are valid and can run here."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import structlog

from queryserver.container.drivers import InstalledDrivers
from queryserver.container.interfaces.builders import build_engine, section_defaults
from queryserver.container.interfaces.context import BuildContext
from queryserver.db.connectors import ConnectorRepository
from queryserver.domain.connector import Connector, ConnectorLimits
from queryserver.domain.connector_instances import ConnectorInstance, SettingValue, connector_right
from queryserver.domain.connector_types import ConnectorType, Runs
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.errors.files import InvalidPath
from queryserver.domain.errors.statements import ConnectorRefused, DriverNotInstalled
from queryserver.engines.local_files import MEMORY, require_folder
from queryserver.services.connector_options import (
    AtlasOptions,
    GeneralOptions,
    HdfsOptions,
    OptionsRefused,
    flag_of,
    read_options,
)
from queryserver.services.connector_urls import driver_of
from queryserver.settings import Settings
from queryserver.settings.connectors import InterpreterSettings

log = structlog.get_logger(__name__)

_IMPALA_TIMEOUT_S = 600
_HS2_DIALECTS = frozenset({"hive", "hplsql", "sparksql", "impala"})
_NATIVE = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""Dialects of urls that adapters of this server speak by themselves."""
_OF_KERBEROS = frozenset({"GSSAPI", "SPNEGO"})
_PLACE = re.compile(r"notebook\.interpreters\.[^.]+\.(?:options\.)?")

EMBEDDED = frozenset({"duckdb", "sqlite"})
"""Interfaces whose database is a file of this machine."""


def configured_connectors(settings: Settings) -> list[Connector]:
    """The interpreters of the settings file, in file order."""
    return [_configured(settings, key, table) for key, table in settings.notebook.interpreters.items()]


def _configured(settings: Settings, key: str, table: InterpreterSettings) -> Connector:
    dialect = (table.dialect or key).lower()
    return Connector(
        key=key,
        dialect=dialect,
        interface=table.interface,
        nice_name=table.name or key,
        limits=_limits(dialect, settings, table),
        options=MappingProxyType(dict(table.options)),
        groups=None if table.groups is None else frozenset(table.groups),
        read_only=table.read_only,
        close_queries=_closes_queries(dialect, table.options, settings),
    )


async def read_stored(records: ConnectorRepository, settings: Settings) -> tuple[int, Sequence[Connector]]:
    """The valid ones of the stored connectors, and the number of their state. Raises DatabaseUnavailable."""
    stored = await records.all()
    found = list[Connector]()
    for instance in stored.instances:
        try:
            found.append(_stored(instance, settings))
        except ConfigurationError as error:
            log.warning("stored connector is not understood", connector=instance.id, problems=error.problems)
    return stored.version, found


def _stored(instance: ConnectorInstance, settings: Settings) -> Connector:
    """Whether it can run here is for `build_engine` to say. Raises OptionsRefused."""
    return replace(
        drafted_connector(str(instance.id), instance.dialect, instance.interface, instance.settings, settings),
        nice_name=instance.nice_name,
        right=connector_right(instance.id),
        version=instance.version,
    )


def drafted_connector(
    key: str, dialect: str, interface: str, values: Mapping[str, SettingValue], settings: Settings
) -> Connector:
    """A data source of these settings that no user may use. Raises OptionsRefused for the settings of all types."""
    lifted = {name: value for name, value in values.items() if name in GeneralOptions.model_fields}
    own = {name: value for name, value in values.items() if name not in lifted}
    general = read_options(GeneralOptions, key, lifted)
    return Connector(
        key=key,
        dialect=dialect,
        interface=interface,
        nice_name=key,
        limits=_limits(dialect, settings, general),
        options=MappingProxyType(own),
        groups=frozenset(),
        read_only=general.read_only,
        close_queries=_closes_queries(dialect, own, settings),
        right=connector_right(0),
    )


def _limits(dialect: str, settings: Settings, given: InterpreterSettings | GeneralOptions) -> ConnectorLimits:
    """What holds for a connector: what it says itself, else the section `editor` (Contract editor 13)."""
    editor = settings.editor
    statement_s = _IMPALA_TIMEOUT_S if dialect == "impala" else editor.statement_timeout_s
    return ConnectorLimits(
        statement_timeout=timedelta(seconds=given.statement_timeout_s or statement_s),
        session_idle=timedelta(seconds=given.session_idle_s or editor.session_idle_s),
        metadata_timeout=timedelta(seconds=given.metadata_timeout_s or editor.metadata_timeout_s),
        sample_timeout=timedelta(seconds=given.sample_timeout_s or editor.sample_timeout_s),
        shared_session=editor.shared_session if given.shared_session is None else given.shared_session,
        sample_views=editor.sample_views if given.sample_views is None else given.sample_views,
    )


def _closes_queries(dialect: str, options: Mapping[str, SettingValue], settings: Settings) -> bool:
    """As the connector says itself, else the section of its engine (Contract editor 13)."""
    usual = section_defaults(dialect, settings).get("close_queries", False)
    return dialect in _HS2_DIALECTS and bool(flag_of(options.get("close_queries", usual)))


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


def by_setting(problems: Sequence[str]) -> Mapping[str, list[str]]:
    """Adapters say `<setting>: <text>`, before it may stand the place of the connector in the settings."""
    found = dict[str, list[str]]()
    for problem in problems:
        setting, _, text = _PLACE.sub("", problem).partition(": ")
        found.setdefault(setting, []).append(f"{text[:1].upper()}{text[1:]}")
    return found


def rest_options(connector: Connector, context: BuildContext) -> HdfsOptions | AtlasOptions:
    """The options of a server that is tested and searched, and takes no statements. Raises OptionsRefused."""
    model = HdfsOptions if connector.dialect == "hdfs" else AtlasOptions
    return context.options(model, connector)


def require_database_folder(connector: Connector, context: BuildContext) -> None:
    """Raises InvalidPath when the file of an embedded engine lies in a folder that does not exist. Blocks."""
    if connector.interface in EMBEDDED:
        require_folder(context.databases_dir, str(connector.options.get("path") or MEMORY).strip())


class BuilderChecks:
    """See `interfaces.connectors.ConnectorChecks`: the very builders that make engines check settings."""

    def __init__(self, settings: Settings, context: BuildContext) -> None:
        self._settings = settings
        self._context = context
        self._drivers = InstalledDrivers(context.addresses)

    async def require_valid(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> None:
        """The engine that comes out is closed again; it connects to nothing."""
        with refusals(), suppress(DriverNotInstalled):
            connector = drafted_connector("new", row.dialect, row.interface, settings, self._settings)
            if row.runs is Runs.TEST:
                rest_options(connector, self._context)
            elif row.takes_statements:
                # Adapters are imported at their first use, and paths are looked at on the disk.
                await asyncio.to_thread(require_database_folder, connector, self._context)
                engine = await asyncio.to_thread(build_engine, connector, self._context)
                await engine.close()

    async def is_runnable(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> bool:
        """Whether what it needs is installed and allowed."""
        if not row.takes_statements or row.interface != "sqlalchemy":
            wanted = str(settings.get("auth_mechanism", "")).strip().upper()
            return row.takes_statements and (wanted not in _OF_KERBEROS or self._drivers.has_kerberos)
        driver, dialect = driver_of(str(settings.get("url", "")).partition("://")[0].strip())
        allowed = self._context.policy.allowed_drivers
        return driver in {name.lower() for name in allowed} and (dialect in _NATIVE or await self._drivers.has(driver))
