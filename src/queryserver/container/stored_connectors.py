"""Connectors that are kept in the service database, as data sources."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import structlog

from queryserver.container.connectors import usual_limits
from queryserver.container.interfaces.options import Options
from queryserver.container.interfaces.problems import OptionsRefused
from queryserver.db.connectors import ConnectorRepository
from queryserver.domain.connector import Connector, ConnectorLimits
from queryserver.domain.connector_instances import ConnectorInstance, SettingValue, connector_right
from queryserver.domain.errors import ConfigurationError
from queryserver.settings import Settings

log = structlog.get_logger(__name__)

_SECONDS = ("statement_timeout_s", "metadata_timeout_s", "sample_timeout_s", "session_idle_s")
_FLAGS = ("shared_session", "sample_views", "read_only")


async def read_stored(records: ConnectorRepository, settings: Settings) -> tuple[int, Sequence[Connector]]:
    """All that can be understood, and the number of their state. Raises DatabaseUnavailable."""
    stored = await records.all()
    found = list[Connector]()
    for instance in stored.instances:
        try:
            found.append(stored_connector(instance, settings))
        except ConfigurationError as error:
            log.warning("stored connector is not understood", connector=instance.id, problems=error.problems)
    return stored.version, found


def stored_connector(instance: ConnectorInstance, settings: Settings) -> Connector:
    """The data source that an instance means; whether it can run here is for `build_engine` to say.

    Raises ConfigurationError for a bad value among the settings that every interface has.
    """
    return replace(
        drafted_connector(str(instance.id), instance.dialect, instance.interface, instance.settings, settings),
        nice_name=instance.nice_name,
        right=connector_right(instance.id),
        version=instance.version,
    )


def drafted_connector(
    key: str, dialect: str, interface: str, values: Mapping[str, SettingValue], settings: Settings
) -> Connector:
    """A data source of these settings, for nobody but administrators. Raises ConfigurationError."""
    own = {name: value for name, value in values.items() if name not in (*_SECONDS, *_FLAGS)}
    connector = Connector(
        key=key,
        dialect=dialect,
        interface=interface,
        nice_name=key,
        limits=usual_limits(dialect, settings.editor),
        options=MappingProxyType(dict(values)),
        groups=frozenset(),
        right=connector_right(0),
    )
    options = Options(connector)
    limits = _limits(options, connector.limits, set(values))
    read_only = options.flag("read_only")
    if options.problems:
        raise OptionsRefused(key, options.problems)
    return replace(connector, limits=limits, options=MappingProxyType(own), read_only=read_only)


def _limits(options: Options, usual: ConnectorLimits, given: set[str]) -> ConnectorLimits:
    def seconds(name: str, default: timedelta) -> timedelta:
        return timedelta(seconds=options.whole(name, 1, least=1)) if name in given else default

    return ConnectorLimits(
        statement_timeout=seconds("statement_timeout_s", usual.statement_timeout),
        session_idle=seconds("session_idle_s", usual.session_idle),
        metadata_timeout=seconds("metadata_timeout_s", usual.metadata_timeout),
        sample_timeout=seconds("sample_timeout_s", usual.sample_timeout),
        shared_session=options.flag("shared_session", default=usual.shared_session),
        sample_views=options.flag("sample_views", default=usual.sample_views),
    )
