"""Connectors as data sources: read from the settings file and from stored instances, and checked before storing."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import structlog

from queryserver.connectors.engine_builders import EngineBuilder, section_defaults
from queryserver.connectors.model import Connector, ConnectorLimits, SettingValue, connector_right
from queryserver.connectors.options import (
    HS2_OPTIONS,
    AtlasOptions,
    GeneralOptions,
    HdfsOptions,
    OptionsRefused,
    flag_of,
    read_options,
)
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sqlalchemy import NATIVE_DIALECTS, is_installed
from queryserver.connectors.types import ConnectorType, Runs
from queryserver.connectors.urls import driver_of
from queryserver.engines.connections import MEMORY, require_folder
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import ConnectorRefused, DriverNotInstalled
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_IMPALA_TIMEOUT_S = 600
_PLACE = re.compile(r"notebook\.interpreters\.[^.]+\.(?:options\.)?")

EMBEDDED = frozenset({"duckdb", "sqlite"})
"""Interfaces whose database is a file of this machine."""


def configured_connectors(settings: Settings) -> list[Connector]:
    """The interpreters of the settings file, in file order."""
    found = list[Connector]()
    for key, table in settings.notebook.interpreters.items():
        dialect = (table.dialect or key).lower()
        found.append(
            Connector(
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
        )
    return found


async def read_stored(records: ConnectorRepository, settings: Settings) -> tuple[int, Sequence[Connector]]:
    """The valid ones of the stored connectors, and the number of their state; whether each runs here is not known yet.

    Raises DatabaseUnavailable.
    """
    stored = await records.all()
    found = list[Connector]()
    for one in stored.instances:
        try:
            connector = draft_connector(str(one.id), one.dialect, one.interface, one.settings, settings)
        except ConfigurationError as error:
            log.warning("stored connector is not understood", connector=one.id, problems=error.problems)
        else:
            right = connector_right(one.id)
            found.append(replace(connector, nice_name=one.nice_name, right=right, version=one.version))
    return stored.version, found


def draft_connector(
    key: str, dialect: str, interface: str, values: Mapping[str, SettingValue], settings: Settings
) -> Connector:
    """A data source of these settings that no user may use. Raises OptionsRefused for the settings of all types."""
    general = {name: value for name, value in values.items() if name in GeneralOptions.model_fields}
    own = {name: value for name, value in values.items() if name not in general}
    options = read_options(GeneralOptions, key, general)
    return Connector(
        key=key,
        dialect=dialect,
        interface=interface,
        nice_name=key,
        limits=_limits(dialect, settings, options),
        options=MappingProxyType(own),
        groups=frozenset(),
        read_only=options.read_only,
        close_queries=_closes_queries(dialect, own, settings),
        right=connector_right(0),
    )


def _limits(dialect: str, settings: Settings, given: InterpreterSettings | GeneralOptions) -> ConnectorLimits:
    """The limits of the connector itself, else those of the section `editor` (Contract editor 13)."""
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
    """By the option of the connector, else by the section of its engine (Contract editor 13)."""
    default = section_defaults(dialect, settings).get("close_queries", False)
    return dialect in HS2_OPTIONS and bool(flag_of(options.get("close_queries", default)))


class ConnectorChecks:
    """Validates settings with the builders that make engines, without connecting to anything."""

    def __init__(self, builder: EngineBuilder) -> None:
        self._builder = builder
        self._installed = dict[str, bool]()
        """By driver: what is installed later is seen after a restart."""

    async def require_valid(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> None:
        """Raises ConnectorRefused, or the subclass that fits, with a text for each setting that is wrong.

        `settings` are complete and of the types that `row` wants. A missing driver is no error of
        the settings.
        """
        builder = self._builder
        with option_errors(), suppress(DriverNotInstalled):
            connector = draft_connector("new", row.dialect, row.interface, settings, builder.settings)
            if row.runs is Runs.TEST:
                rest_options(connector, builder)
            elif row.takes_statements:
                # Adapters are imported at their first use, and folders are searched on the disk.
                await asyncio.to_thread(require_folder_of, connector, builder.databases_dir)
                engine = await asyncio.to_thread(builder.build, connector)
                await engine.close()

    async def is_runnable(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> bool:
        """Whether this server has what it needs to run statements with these settings."""
        if not row.takes_statements or row.interface != "sqlalchemy":
            is_kerberos = str(settings.get("auth_mechanism", "")).strip().upper() in {"GSSAPI", "SPNEGO"}
            return row.takes_statements and (not is_kerberos or find_spec("gssapi") is not None)
        driver, dialect = driver_of(str(settings.get("url", "")).partition("://")[0].strip())
        if driver not in {name.lower() for name in self._builder.policy.allowed_drivers}:
            return False
        if dialect not in NATIVE_DIALECTS and driver not in self._installed:
            self._installed[driver] = await asyncio.to_thread(is_installed, driver, self._builder.addresses)
        return dialect in NATIVE_DIALECTS or self._installed[driver]


def rest_options(connector: Connector, builder: EngineBuilder) -> HdfsOptions | AtlasOptions:
    """The options of a server that is tested and searched, and takes no statements. Raises OptionsRefused."""
    return builder.options(HdfsOptions if connector.dialect == "hdfs" else AtlasOptions, connector)


def require_folder_of(connector: Connector, databases_dir: Path | None) -> None:
    """Raises InvalidPath when the file of an embedded engine lies in a folder that does not exist. Blocks."""
    if connector.interface in EMBEDDED:
        require_folder(databases_dir, str(connector.options.get("path") or MEMORY).strip())


@contextmanager
def option_errors() -> Generator[None]:
    """Around the building of an engine: errors of its settings become ConnectorRefused, with texts by setting."""
    try:
        yield
    except InvalidPath as error:
        raise ConnectorRefused({"path": [error.message]}) from error
    except OptionsRefused as refused:
        raise refused.refusal() from refused
    except ConfigurationError as error:
        raise ConnectorRefused(by_setting(error.problems)) from error


def by_setting(problems: Sequence[str]) -> Mapping[str, list[str]]:
    """The texts of adapters by setting: `<setting>: <text>`, perhaps behind the connector's place in the settings."""
    found = dict[str, list[str]]()
    for problem in problems:
        setting, _, text = _PLACE.sub("", problem).partition(": ")
        found.setdefault(setting, []).append(f"{text[:1].upper()}{text[1:]}")
    return found
