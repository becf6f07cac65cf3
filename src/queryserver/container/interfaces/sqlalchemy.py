"""Interface `sqlalchemy`: `driver://user:password@host:port/database?option=value`.

Urls of engines that have an adapter of their own go there; any other installed SQLAlchemy dialect is served by the
generic adapter.
"""

import ssl
from dataclasses import replace
from types import MappingProxyType

from queryserver.container.interfaces.context import BuildContext, database_name, database_servers
from queryserver.container.interfaces.options import Options, options_of
from queryserver.container.interfaces.problems import Kind, OptionsRefused, Problem
from queryserver.container.interfaces.registry import builder_of
from queryserver.container.interfaces.urls import DriverUrl, driver_url, whole_in_url, word_in_url
from queryserver.domain.connector import Connector
from queryserver.domain.connector_catalogue import type_of
from queryserver.domain.sample_database import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE, sample_login
from queryserver.engines.mysql import MysqlAddress, MysqlEngine
from queryserver.engines.postgresql import KeepAlive, PostgresqlAddress, PostgresqlEngine, UserLogins
from queryserver.engines.tls import client_tls
from queryserver.interfaces.engine import Engine
from queryserver.network.addresses import AddressRules

_POSTGRESQL_SSL = "disable allow prefer require verify-ca verify-full"
_MYSQL_SSL = "DISABLED REQUIRED VERIFY_CA VERIFY_IDENTITY"
_PORTS = {"postgresql": 5432, "mysql": 3306, "trino": 8080, "phoenix": 8765}
_MOST_IDLE_S, _MOST_PROBES = 32767, 127  # of the kernel
_SERVER_STATES = "any primary standby read-write read-only prefer-standby"


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder."""
    with options_of(connector) as options:
        options.no_tunnel()
        url = driver_url(options, context.policy)
        options.goes_to("url", url.host, url.port or _PORTS.get(url.dialect, 0), rules_of(connector, url, context))
        _refuse_credentials(options, connector.dialect)
        acts_for_users = options.flag("has_impersonation")
        if acts_for_users and url.dialect != "trino":
            options.refuse("has_impersonation", "must be false: only trino acts for users")
        engine = _engine(connector, options, url, context)
    return engine or _by_native_client(connector, url, context, acts_for_users=acts_for_users)


def _refuse_credentials(options: Options, dialect: str) -> None:
    """A key that would be stored and never used is refused; the example of the catalogue is none."""
    row = type_of(dialect, "sqlalchemy")
    if options.secret("credentials_json") not in {"", row.defaults.get("credentials_json") if row else ""}:
        text = "must be empty: drivers get no key; the environment of this server may name one to them"
        options.refuse("credentials_json", text)


def _engine(connector: Connector, options: Options, url: DriverUrl, context: BuildContext) -> Engine | None:
    """None: another interface serves it."""
    if url.dialect == "postgresql":
        if connector.is_stored and _leads_to_own_database(url, context):
            options.refuse("url", "this is the service's own database", Kind.HOST)
        return PostgresqlEngine(
            _postgresql(connector, options, url, context),
            read_only=connector.read_only,
            user_logins=_user_logins(connector, url, context),
        )
    if url.dialect == "mysql":
        return MysqlEngine(_mysql(options, url, context), read_only=connector.read_only)
    return None


def _user_logins(connector: Connector, url: DriverUrl, context: BuildContext) -> UserLogins | None:
    """Of the sample database in the private PostgreSQL: its users do not share a login."""
    place = (url.host, url.port, url.path, url.username)
    if connector.is_stored or not context.embedded_database or context.service_dsn is None:
        return None
    if not any(
        place == ("127.0.0.1", port, SAMPLE_DATABASE, SAMPLE_ROLE) for _, port in database_servers(context.service_dsn)
    ):
        return None
    return UserLogins(context.service_dsn, group=SAMPLE_OWNER, database=SAMPLE_DATABASE, role_of=sample_login)


def postgresql_url(connector: Connector, context: BuildContext) -> DriverUrl | None:
    """The url of a connector that the adapter for PostgreSQL serves; None: another one does."""
    if connector.interface != "sqlalchemy":
        return None
    url = driver_url(Options(connector), context.policy)
    return url if url.dialect == "postgresql" else None


def is_named_as_own_database(url: DriverUrl, context: BuildContext) -> bool:
    """Whether the database has the name of the service's; by default a database has that of the login."""
    return bool(context.service_dsn) and (url.path or url.username or "") == database_name(context.service_dsn or "")


def _leads_to_own_database(url: DriverUrl, context: BuildContext) -> bool:
    """As far as its text tells without a resolver; each connection is checked, too."""
    if not is_named_as_own_database(url, context):
        return False
    host, port = (url.host or "localhost").lower(), url.port or _PORTS["postgresql"]
    return (host, port) in context.addresses.service_database or context.addresses.is_literal_server(host, port)


def rules_of(connector: Connector, url: DriverUrl, context: BuildContext) -> AddressRules:
    """Only the adapter for PostgreSQL can tell the service's database from others on its server."""
    is_allowed = url.dialect == "postgresql" and context.reaches_database_server(connector)
    return context.addresses.without_database_server() if is_allowed else context.addresses


def _postgresql(connector: Connector, options: Options, url: DriverUrl, context: BuildContext) -> PostgresqlAddress:
    return PostgresqlAddress(
        host=url.host or "localhost",
        port=url.port or 5432,
        database=url.path,
        user=url.username,
        password=url.password,
        ssl=_postgresql_tls(url.host, word_in_url(options, url, "sslmode", _POSTGRESQL_SSL, "prefer")),
        application_name=url.options.get("application_name", "queryserver"),
        connect_timeout_s=whole_in_url(options, url, "connect_timeout", 10),
        server_state=word_in_url(options, url, "target_session_attrs", _SERVER_STATES, "any"),
        keep_alive=_keep_alive(options, url),
        cell_max_bytes=context.cell_max_bytes,
        rules=rules_of(connector, url, context),
        own_database=context.own_database,
        own_servers=context.addresses,
    )


def _postgresql_tls(host: str, mode: str) -> str | ssl.SSLContext:
    """libpq's own words, but for those that check certificates: the driver would read authorities of ours."""
    if not mode.startswith("verify"):
        return mode
    return client_tls(host, check_name=mode == "verify-full")


def _keep_alive(options: Options, url: DriverUrl) -> KeepAlive | None:
    if word_in_url(options, url, "keepalives", "0 1", "1") == "0":
        return None
    return KeepAlive(
        idle_s=whole_in_url(options, url, "keepalives_idle", 60, most=_MOST_IDLE_S),
        interval_s=whole_in_url(options, url, "keepalives_interval", 15, most=_MOST_IDLE_S),
        count=whole_in_url(options, url, "keepalives_count", 4, most=_MOST_PROBES),
    )


def _mysql(options: Options, url: DriverUrl, context: BuildContext) -> MysqlAddress:
    # `charset` and `write_timeout` have no effect: texts are always UTF-8, and writing never waits for long.
    whole_in_url(options, url, "write_timeout", 1)
    return MysqlAddress(
        host=url.host or "localhost",
        port=url.port or 3306,
        database=url.path or None,
        user=url.username,
        password=url.password,
        ssl=_mysql_tls(url.host, word_in_url(options, url, "ssl_mode", _MYSQL_SSL, "DISABLED")),
        connect_timeout_s=whole_in_url(options, url, "connect_timeout", 10),
        read_timeout_s=whole_in_url(options, url, "read_timeout", 1) if "read_timeout" in url.options else None,
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )


def _mysql_tls(host: str, mode: str) -> ssl.SSLContext | None:
    if mode == "DISABLED":
        return None
    return client_tls(host, validate=mode != "REQUIRED", check_name=mode == "VERIFY_IDENTITY")


def _by_native_client(connector: Connector, url: DriverUrl, context: BuildContext, *, acts_for_users: bool) -> Engine:
    """`trino://` and `phoenix://` mean what the interfaces of those names do (Contract platform 5.10)."""
    builder = builder_of(url.dialect) if url.dialect in {"trino", "phoenix"} else None
    if builder is None:
        return _by_any_driver(connector, url, context)
    options = _trino_options(url, acts_for_users=acts_for_users) if url.dialect == "trino" else _phoenix_options(url)
    try:
        return builder.build(replace(connector, interface=url.dialect, options=MappingProxyType(options)), context)
    except OptionsRefused as refused:
        found = [Problem("url", f"its {one.setting} {one.text}", one.kind) for one in refused.found]
        raise OptionsRefused(connector.key, found) from refused


def _by_any_driver(connector: Connector, url: DriverUrl, context: BuildContext) -> Engine:
    """Imported late: SQLAlchemy's part for engines is not what most servers need."""
    import sqlalchemy as sa  # noqa: PLC0415 as above

    from queryserver.engines.sqlalchemy import SqlalchemyAddress, SqlalchemyEngine  # noqa: PLC0415 as above

    address = SqlalchemyAddress(
        url=sa.URL.create(
            url.driver,
            username=url.username,
            password=url.password,
            host=url.host or None,
            port=url.port,
            database=url.path or None,
            query=dict(url.options),
        ),
        wants_credentials=url.wants_credentials,
        rules=context.addresses,
    )
    if connector.is_stored:
        # One of the settings shows it in each session: a server starts without the driver.
        address.require_driver()
    return SqlalchemyEngine(address, dialect=connector.dialect, read_only=connector.read_only)


def _trino_options(url: DriverUrl, *, acts_for_users: bool) -> dict[str, str | int | float | bool]:
    catalog, _, schema = url.path.partition("/")
    is_private = bool(url.password) or url.port == 443
    scheme = "https" if is_private else "http"
    return {
        "url": f"{scheme}://{_place(url, 443 if is_private else 8080)}",
        "catalog": catalog,
        "schema": schema,
        "username": url.username or "",
        "password": url.password or "",
        "auth_mechanism": "BASIC" if url.password else "NONE",
        "has_impersonation": acts_for_users,
        "client_tags": url.options.get("client_tags", ""),
        "source": url.options.get("source", ""),
        "timezone": url.options.get("timezone", ""),
    }


def _phoenix_options(url: DriverUrl) -> dict[str, str | int | float | bool]:
    return {
        "url": f"http://{_place(url, 8765)}/",
        "username": url.username or "",
        "password": url.password or "",
        "auth_mechanism": "BASIC" if url.password else "NONE",
    }


def _place(url: DriverUrl, port: int) -> str:
    host = f"[{url.host}]" if ":" in url.host else url.host or "localhost"
    return f"{host}:{url.port or port}"
