"""Interface `sqlalchemy`: `driver://user:password@host:port/database?option=value`.

Urls of engines that have an adapter of their own go there; any other installed SQLAlchemy dialect is served by the
generic adapter.
"""

import ssl
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from queryserver.connectors.building import BUILDERS, BuildContext
from queryserver.connectors.model import Connector, SettingValue
from queryserver.connectors.options import OptionsRefused, Problem
from queryserver.connectors.urls import (
    PORTS,
    DriverUrl,
    MysqlUrlOptions,
    PostgresqlUrlOptions,
    TrinoUrlOptions,
    UrlOptions,
)
from queryserver.engines.connections import client_tls
from queryserver.engines.protocol import Engine
from queryserver.platform.embedded.system import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE, sample_login
from queryserver.platform.own_addresses import database_servers


def build(connector: Connector, context: BuildContext) -> Engine:
    """The engine of a url."""
    options = context.options(UrlOptions, connector)
    url = options.url
    if url.dialect == "postgresql":
        return _postgresql(connector, url, context)
    if url.dialect == "mysql":
        return _mysql(connector, url, context)
    if url.dialect in {"trino", "phoenix"}:
        return _by_native_client(connector, options, context)
    return _by_any_driver(connector, url, context)


def postgresql_url(connector: Connector, context: BuildContext) -> DriverUrl | None:
    """The url of a valid connector that the adapter for PostgreSQL serves; None: another one does."""
    if connector.interface != "sqlalchemy":
        return None
    url = context.options(UrlOptions, connector).url
    return url if url.dialect == "postgresql" else None


def _postgresql(connector: Connector, url: DriverUrl, context: BuildContext) -> Engine:
    from queryserver.engines.postgresql.engine import KeepAlive, PostgresqlAddress, PostgresqlEngine, UserLogins

    given = cast("PostgresqlUrlOptions", url.options)
    keep_alive = KeepAlive(
        idle_s=given.keepalives_idle, interval_s=given.keepalives_interval, count=given.keepalives_count
    )
    # libpq's own words, but for those that check certificates: the driver would read authorities of ours.
    verified = client_tls(url.host, check_name=given.sslmode == "verify-full") if "verify" in given.sslmode else None
    address = PostgresqlAddress(
        host=url.host or "localhost",
        port=url.port or PORTS["postgresql"],
        database=url.path,
        user=url.username,
        password=url.password,
        ssl=verified or given.sslmode,
        application_name=given.application_name,
        connect_timeout_s=given.connect_timeout,
        server_state=given.target_session_attrs,
        keep_alive=None if given.keepalives == "0" else keep_alive,
        cell_max_bytes=context.cell_max_bytes,
        rules=url.rules(context.rules(connector)).addresses,
        own_database=context.own_database,
        own_servers=context.addresses,
    )
    # The users of the sample database in the private PostgreSQL do not share a login.
    logins = None
    if _is_sample(connector, url, context) and context.service_dsn is not None:
        logins = UserLogins(context.service_dsn, group=SAMPLE_OWNER, database=SAMPLE_DATABASE, role_of=sample_login)
    return PostgresqlEngine(address, read_only=connector.read_only, user_logins=logins)


def _is_sample(connector: Connector, url: DriverUrl, context: BuildContext) -> bool:
    if connector.is_stored or not context.embedded_database:
        return False
    place = (url.host, url.port, url.path, url.username)
    return any(
        place == ("127.0.0.1", port, SAMPLE_DATABASE, SAMPLE_ROLE)
        for _, port in database_servers(context.service_dsn or "")
    )


def _mysql(connector: Connector, url: DriverUrl, context: BuildContext) -> Engine:
    from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine

    given = cast("MysqlUrlOptions", url.options)
    address = MysqlAddress(
        host=url.host or "localhost",
        port=url.port or PORTS["mysql"],
        database=url.path or None,
        user=url.username,
        password=url.password,
        ssl=_mysql_tls(url.host, given.ssl_mode),
        connect_timeout_s=given.connect_timeout,
        read_timeout_s=given.read_timeout,
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )
    return MysqlEngine(address, read_only=connector.read_only)


def _mysql_tls(host: str, mode: str) -> ssl.SSLContext | None:
    if mode == "DISABLED":
        return None
    return client_tls(host, validate=mode != "REQUIRED", check_name=mode == "VERIFY_IDENTITY")


def _by_native_client(connector: Connector, options: UrlOptions, context: BuildContext) -> Engine:
    """`trino://` and `phoenix://` mean what the interfaces of those names do (Contract platform 5.10)."""
    url = options.url
    meant = _trino_options(url, acts_for_users=options.has_impersonation) if url.dialect == "trino" else _login(url)
    is_private = url.dialect == "trino" and (bool(url.password) or url.port == 443)
    host = f"[{url.host}]" if ":" in url.host else url.host or "localhost"
    port = url.port or (443 if is_private else PORTS[url.dialect])
    server = f"{'https' if is_private else 'http'}://{host}:{port}"
    meant = MappingProxyType({"url": server if url.dialect == "trino" else f"{server}/", **meant})
    try:
        return BUILDERS[url.dialect](replace(connector, interface=url.dialect, options=meant), context)
    except OptionsRefused as refused:
        found = [Problem("url", f"its {one.setting} {one.text}", one.kind) for one in refused.found]
        raise OptionsRefused(connector.key, found) from refused


def _login(url: DriverUrl) -> dict[str, SettingValue]:
    mechanism = "BASIC" if url.password else "NONE"
    return {"username": url.username or "", "password": url.password or "", "auth_mechanism": mechanism}


def _trino_options(url: DriverUrl, *, acts_for_users: bool) -> Mapping[str, SettingValue]:
    catalog, _, schema = url.path.partition("/")
    given = cast("TrinoUrlOptions", url.options)
    return {
        **_login(url),
        "catalog": catalog,
        "schema": schema,
        "has_impersonation": acts_for_users,
        "client_tags": given.client_tags,
        "source": given.source,
        "timezone": given.timezone,
    }


def _by_any_driver(connector: Connector, url: DriverUrl, context: BuildContext) -> Engine:
    import sqlalchemy as sa

    from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress, SqlalchemyEngine

    address = SqlalchemyAddress(
        url=sa.URL.create(
            url.driver,
            username=url.username,
            password=url.password,
            host=url.host or None,
            port=url.port,
            database=url.path or None,
            query=dict(url.query),
        ),
        wants_credentials=url.wants_credentials,
        rules=context.addresses,
    )
    if connector.is_stored:
        # One of the settings shows it in each session: a server starts without the driver.
        address.require_driver()
    return SqlalchemyEngine(address, dialect=connector.dialect, read_only=connector.read_only)
