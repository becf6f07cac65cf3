"""Creates connectors from the settings file and from stored instances, and validates them before they are stored."""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import structlog
from pydantic import ValidationError

from queryserver import errors
from queryserver.connectors import options
from queryserver.connectors.engine_builders import EngineBuilder, section_defaults
from queryserver.connectors.model import Connector, ConnectorLimits, ResultSharing, SettingValue, connector_right
from queryserver.connectors.repository import ConnectorRepository
from queryserver.engines.connections import MEMORY, require_folder
from queryserver.platform.settings.editor import GeneralSettings
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_IMPALA_TIMEOUT_S = 600
_PLACE = re.compile(r"notebook\.interpreters\.[^.]+\.(?:options\.)?")

EMBEDDED = frozenset({"duckdb", "sqlite"})
"""Interfaces whose database is a file on this machine."""


def configured_connectors(settings: Settings) -> list[Connector]:
    """Return the settings file's interpreters, in file order."""
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
                strict_settings=table.strict_settings,
                retries_reads=table.retry == "read_only",
                close_queries=_closes_queries(dialect, table.options, settings),
                share_results=_sharing(table),
            )
        )
    return found


async def read_stored(records: ConnectorRepository, settings: Settings) -> tuple[int, Sequence[Connector]]:
    """Read the stored connectors with valid settings, and their state number.

    This server may be unable to run some of them. Raises DatabaseUnavailable.
    """
    version, stored = await records.all()
    found = list[Connector]()
    for one in stored:
        try:
            connector = draft_connector(str(one.id), one.dialect, one.interface, one.settings, settings)
        except errors.ConfigurationError as error:
            log.warning("stored connector is invalid", connector=one.id, problems=error.problems)
        else:
            right = connector_right(one.id)
            found.append(replace(connector, nice_name=one.nice_name, right=right, version=one.version))
    return version, found


def draft_connector(
    key: str, dialect: str, interface: str, values: Mapping[str, SettingValue], settings: Settings
) -> Connector:
    """Create a connector from settings. No user may use it yet.

    Raises ConfigurationError for invalid settings common to all types.
    """
    general = {name: value for name, value in values.items() if name in GeneralSettings.model_fields}
    own = {name: value for name, value in values.items() if name not in general}
    try:
        general = GeneralSettings.model_validate(general)
    except ValidationError as error:  # only for configured settings; stored settings have been validated
        raise errors.ConfigurationError([f"{key}: {one['loc'][0]}: {one['msg']}." for one in error.errors()]) from None
    return Connector(
        key=key,
        dialect=dialect,
        interface=interface,
        nice_name=key,
        limits=_limits(dialect, settings, general),
        options=MappingProxyType(own),
        groups=frozenset(),
        read_only=general.read_only,
        strict_settings=general.strict_settings,
        retries_reads=general.retry == "read_only",
        close_queries=_closes_queries(dialect, own, settings),
        share_results=_sharing(general),
        right=connector_right(0),
    )


def _limits(dialect: str, settings: Settings, general: GeneralSettings) -> ConnectorLimits:
    """Return the connector's limits, which default to those in the section `editor` (Contract editor 13)."""
    editor = settings.editor
    statement_s = _IMPALA_TIMEOUT_S if dialect == "impala" else editor.statement_timeout_s
    return ConnectorLimits(
        statement_timeout=timedelta(seconds=general.statement_timeout_s or statement_s),
        session_idle=timedelta(seconds=general.session_idle_s or editor.session_idle_s),
        metadata_timeout=timedelta(seconds=general.metadata_timeout_s or editor.metadata_timeout_s),
        sample_timeout=timedelta(seconds=general.sample_timeout_s or editor.sample_timeout_s),
        shared_session=editor.shared_session if general.shared_session is None else general.shared_session,
        sample_views=editor.sample_views if general.sample_views is None else general.sample_views,
        reuse_max_age=timedelta(seconds=general.reuse_max_age_s),
        max_estimated_bytes=general.max_estimated_bytes,
        max_estimated_cost=general.max_estimated_cost,
    )


def _sharing(general: GeneralSettings) -> ResultSharing | None:
    return None if general.share_results is None else ResultSharing(general.share_results)


def _closes_queries(dialect: str, general: Mapping[str, SettingValue], settings: Settings) -> bool:
    """Return the connector's `close_queries` option, which defaults to its engine section (Contract editor 13)."""
    default = section_defaults(dialect, settings).get("close_queries", False)
    return dialect in options.HS2_OPTIONS and bool(options.parse_flag(general.get("close_queries", default)))


def rest_options(connector: Connector, builder: EngineBuilder) -> options.HdfsOptions | options.AtlasOptions:
    """Read the options of a server that can be tested and searched but accepts no statements. Raises OptionsRefused."""
    return builder.read_options(options.HdfsOptions if connector.dialect == "hdfs" else options.AtlasOptions, connector)


def require_folder_of(connector: Connector, databases_dir: Path | None) -> None:
    """Raise InvalidPath if the folder of an embedded engine's file does not exist. Blocks."""
    if connector.interface in EMBEDDED:
        require_folder(databases_dir, str(connector.options.get("path") or MEMORY).strip())


@contextmanager
def option_errors() -> Generator[None]:
    """Translate errors about settings, raised while an engine is built, into ConnectorRefused with texts by setting."""
    try:
        yield
    except errors.InvalidPath as error:
        raise errors.ConnectorRefused({"path": [error.message]}) from error
    except options.OptionsRefused as refused:
        raise refused.refusal() from refused
    except errors.ConfigurationError as error:
        raise errors.ConnectorRefused(by_setting(error.problems)) from error


def by_setting(problems: Sequence[str]) -> Mapping[str, list[str]]:
    """Group adapter messages by setting.

    The messages have the form `<setting>: <text>`, possibly with the connector's key as prefix.
    """
    found = dict[str, list[str]]()
    for problem in problems:
        setting, _, text = _PLACE.sub("", problem).partition(": ")
        found.setdefault(setting, []).append(f"{text[:1].upper()}{text[1:]}")
    return found
