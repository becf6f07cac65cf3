"""Configured connectors, and the engine that each of them means."""

from datetime import timedelta
from types import MappingProxyType

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.problems import OptionsRefused, Problem
from queryserver.container.interfaces.registry import builder_of
from queryserver.domain.connector import Connector, ConnectorLimits
from queryserver.domain.errors import ConfigurationError, InvalidPath, interface_not_supported
from queryserver.interfaces.engine import Engine
from queryserver.settings import Settings
from queryserver.settings.connectors import InterpreterSettings
from queryserver.settings.editor import EditorSettings

_IMPALA_TIMEOUT_S = 600


def configured_connectors(settings: Settings) -> list[Connector]:
    """The interpreters of the settings file, in file order."""
    return [_connector(settings, key, table) for key, table in settings.notebook.interpreters.items()]


def usual_limits(dialect: str, editor: EditorSettings) -> ConnectorLimits:
    """What holds for a connector that says nothing else (Contract editor 13)."""
    timeout_s = _IMPALA_TIMEOUT_S if dialect == "impala" else editor.statement_timeout_s
    return ConnectorLimits(
        statement_timeout=timedelta(seconds=timeout_s),
        session_idle=timedelta(seconds=editor.session_idle_s),
        metadata_timeout=timedelta(seconds=editor.metadata_timeout_s),
        sample_timeout=timedelta(seconds=editor.sample_timeout_s),
        shared_session=editor.shared_session,
        sample_views=editor.sample_views,
    )


def build_engine(connector: Connector, context: BuildContext) -> Engine:
    """The engine of a connector; connects to nothing.

    Raises ConfigurationError for an interface, driver or option that this server cannot run, OptionsRefused where
    single options are the reason; for a stored one interface_not_supported and DriverNotInstalled where nothing else is
    wrong.
    """
    builder = builder_of(connector.interface)
    if builder is None and connector.is_stored:
        raise interface_not_supported(f"Connectors of {connector.dialect} with {connector.interface} do not run here.")
    if builder is None:
        place = f"notebook.interpreters.{connector.key}.interface"
        raise ConfigurationError([f"{place}: {connector.interface} cannot be run here."])
    try:
        return builder.build(connector, context)
    except InvalidPath as error:
        raise OptionsRefused(connector.key, [Problem("path", error.message.rstrip("."))]) from error
    except OptionsRefused:
        raise
    except ConfigurationError as error:
        raise ConfigurationError([_with_key(connector, problem) for problem in error.problems]) from error


def _connector(settings: Settings, key: str, table: InterpreterSettings) -> Connector:
    dialect = (table.dialect or key).lower()
    usual = usual_limits(dialect, settings.editor)
    return Connector(
        key=key,
        dialect=dialect,
        interface=table.interface,
        nice_name=table.name or key,
        limits=ConnectorLimits(
            statement_timeout=_seconds(table.statement_timeout_s) or usual.statement_timeout,
            session_idle=_seconds(table.session_idle_s) or usual.session_idle,
            metadata_timeout=_seconds(table.metadata_timeout_s) or usual.metadata_timeout,
            sample_timeout=_seconds(table.sample_timeout_s) or usual.sample_timeout,
            shared_session=usual.shared_session if table.shared_session is None else table.shared_session,
            sample_views=usual.sample_views if table.sample_views is None else table.sample_views,
        ),
        options=MappingProxyType(dict(table.options)),
        groups=None if table.groups is None else frozenset(table.groups),
        read_only=table.read_only,
    )


def _seconds(given: int | None) -> timedelta | None:
    return None if given is None else timedelta(seconds=given)


def _with_key(connector: Connector, problem: str) -> str:
    """Adapters know the option, not the connector."""
    place = f"notebook.interpreters.{connector.key}."
    return problem if problem.startswith(place) else f"{place}{problem}"
