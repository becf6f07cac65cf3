"""Configured connectors, and the engine that each of them means."""

from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.domain.connector import Connector, ConnectorLimits
from queryserver.domain.errors import ConfigurationError, InvalidPath
from queryserver.interfaces.engine import Engine
from queryserver.settings import Settings
from queryserver.settings.connectors import InterpreterSettings

_IMPALA_TIMEOUT_S = 600
_URL_OPTIONS = {
    "postgresql": {"sslmode", "connect_timeout", "application_name"},
    "mysql": {"charset", "connect_timeout"},
}


def configured_connectors(settings: Settings) -> list[Connector]:
    """The interpreters of the settings file, in file order."""
    return [_connector(settings, key, table) for key, table in settings.notebook.interpreters.items()]


def build_engine(connector: Connector, databases_dir: Path | None) -> Engine:
    """The engine of a connector. A driver is imported only when a connector wants it.

    Raises ConfigurationError for an interface, driver or option that this server cannot run.
    """
    builders = {
        "duckdb": lambda: _duckdb(connector, databases_dir),
        "sqlite": lambda: _sqlite(connector, databases_dir),
        "sqlalchemy": lambda: _by_url(connector),
    }
    build = builders.get(connector.interface)
    if build is None:
        raise _problem(connector, "interface", f"{connector.interface} cannot be run here")
    try:
        return build()
    except InvalidPath as error:
        raise _problem(connector, "options.path", error.message) from error


def _connector(settings: Settings, key: str, table: InterpreterSettings) -> Connector:
    editor, dialect = settings.editor, (table.dialect or key).lower()
    timeout_s = table.statement_timeout_s or (_IMPALA_TIMEOUT_S if dialect == "impala" else editor.statement_timeout_s)
    return Connector(
        key=key,
        dialect=dialect,
        interface=table.interface,
        nice_name=table.name or key,
        limits=ConnectorLimits(
            statement_timeout=timedelta(seconds=timeout_s),
            session_idle=timedelta(seconds=table.session_idle_s or editor.session_idle_s),
            metadata_timeout=timedelta(seconds=table.metadata_timeout_s or editor.metadata_timeout_s),
            sample_timeout=timedelta(seconds=table.sample_timeout_s or editor.sample_timeout_s),
            shared_session=editor.shared_session if table.shared_session is None else table.shared_session,
            sample_views=editor.sample_views if table.sample_views is None else table.sample_views,
        ),
        options=MappingProxyType(dict(table.options)),
        groups=None if table.groups is None else frozenset(table.groups),
        read_only=table.read_only,
    )


def _duckdb(connector: Connector, databases_dir: Path | None) -> Engine:
    from queryserver.engines.duckdb.engine import DuckdbEngine  # noqa: PLC0415 40 MB that not every server needs

    options = connector.options
    return DuckdbEngine(
        path=str(options.get("path", ":memory:")),
        root=databases_dir,
        memory_limit=str(options.get("memory_limit", "1GB")),
        threads=int(options.get("threads", 2)),
        read_only=connector.read_only or bool(options.get("read_only", False)),
    )


def _sqlite(connector: Connector, databases_dir: Path | None) -> Engine:
    from queryserver.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 as above

    options = connector.options
    return SqliteEngine(
        path=str(options.get("path", ":memory:")),
        root=databases_dir,
        read_only=connector.read_only or bool(options.get("read_only", False)),
    )


def _by_url(connector: Connector) -> Engine:
    url = urlsplit(str(connector.options.get("url", "")))
    driver = url.scheme.partition("+")[0].lower()
    driver = {"postgres": "postgresql"}.get(driver, driver)
    if driver not in _URL_OPTIONS:
        raise _problem(connector, "options.url", f"the driver {url.scheme or '(none)'} cannot be run here")
    for name, _value in parse_qsl(url.query):
        if name not in _URL_OPTIONS[driver]:
            raise _problem(connector, "options.url", f"the option {name} is not allowed")
    build = _postgresql if driver == "postgresql" else _mysql
    return build(url, read_only=connector.read_only)


def _postgresql(url: SplitResult, *, read_only: bool) -> Engine:
    from queryserver.engines.postgresql import PostgresqlAddress, PostgresqlEngine  # noqa: PLC0415 as above

    options = dict(parse_qsl(url.query))
    return PostgresqlEngine(
        PostgresqlAddress(
            host=url.hostname or "localhost",
            port=url.port or 5432,
            database=unquote(url.path.lstrip("/")),
            user=_own_login(url.username),
            password=_own_login(url.password),
            ssl=options.get("sslmode", "prefer"),
            application_name=options.get("application_name", "queryserver"),
            connect_timeout_s=int(options.get("connect_timeout", 10)),
        ),
        read_only=read_only,
    )


def _mysql(url: SplitResult, *, read_only: bool) -> Engine:
    from queryserver.engines.mysql import MysqlAddress, MysqlEngine  # noqa: PLC0415 as above

    options = dict(parse_qsl(url.query))
    return MysqlEngine(
        MysqlAddress(
            host=url.hostname or "localhost",
            port=url.port or 3306,
            database=unquote(url.path.lstrip("/")) or None,
            user=_own_login(url.username),
            password=_own_login(url.password),
            connect_timeout_s=int(options.get("connect_timeout", 10)),
        ),
        read_only=read_only,
    )


def _own_login(part: str | None) -> str | None:
    """None for `${USER}` and `${PASSWORD}`: callers give theirs through create_session."""
    if part is None:
        return None
    text = unquote(part)
    return None if text in {"${USER}", "${PASSWORD}"} else text


def _problem(connector: Connector, key: str, text: str) -> ConfigurationError:
    return ConfigurationError([f"notebook.interpreters.{connector.key}.{key}: {text}."])
