"""Interface `sqlalchemy`: `driver://user:password@host:port/database?option=value`.

Urls of engines that have an adapter of their own go there; any other installed SQLAlchemy dialect is served by the
generic adapter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import cast

from queryserver.connectors.engine_builders import BUILDERS, EngineBuilder
from queryserver.connectors.model import Connector, SettingValue
from queryserver.connectors.options import OptionsRefused, Problem
from queryserver.connectors.urls import (
    PORTS,
    DriverUrl,
    MysqlUrlOptions,
    PostgresqlUrlOptions,
    TrinoUrlOptions,
    UrlOptions,
    driver_of,
)
from queryserver.engines.connections import client_tls
from queryserver.engines.protocol import Engine
from queryserver.errors.statements import DriverNotInstalled
from queryserver.platform.addresses import AddressRules, database_servers
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.platform.settings.tree import Settings, SettingsFinding


def build(connector: Connector, builder: EngineBuilder) -> Engine:
    options = builder.options(UrlOptions, connector)
    url = options.url
    if url.dialect == "postgresql":
        return _postgresql(connector, url, builder)
    if url.dialect == "mysql":
        return _mysql(connector, url, builder)
    if url.dialect in {"trino", "phoenix"}:
        return _by_native_client(connector, options, builder)
    return _by_any_driver(connector, url, builder)


def postgresql_url(connector: Connector, builder: EngineBuilder) -> DriverUrl | None:
    """The url of a valid connector that the adapter for PostgreSQL serves; None: another one does."""
    if connector.interface != "sqlalchemy":
        return None
    url = builder.options(UrlOptions, connector).url
    return url if url.dialect == "postgresql" else None


def _postgresql(connector: Connector, url: DriverUrl, builder: EngineBuilder) -> Engine:
    from queryserver.engines.postgresql.engine import KeepAlive, PostgresqlAddress, PostgresqlEngine, UserLogins

    given = cast("PostgresqlUrlOptions", url.options)
    keep_alive = KeepAlive(
        idle_s=given.keepalives_idle, interval_s=given.keepalives_interval, count=given.keepalives_count
    )
    # libpq's own modes, but for those that check certificates: the driver would read authorities of this server.
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
        cell_max_bytes=builder.cell_max_bytes,
        rules=url.rules(builder.rules(connector)).addresses,
        own_database=builder.own_database,
        own_servers=builder.addresses,
    )
    # The users of the sample database in the private PostgreSQL do not share a login.
    logins, dsn = None, builder.service_dsn
    if dsn and builder.settings.desktop.database.embedded and not connector.is_stored:
        samples = [("127.0.0.1", port, SAMPLE_DATABASE, SAMPLE_ROLE) for _, port in database_servers(dsn)]
        if (url.host, url.port, url.path, url.username) in samples:
            role_of = f"{SAMPLE_ROLE}_{{:d}}".format
            logins = UserLogins(dsn, group=SAMPLE_OWNER, database=SAMPLE_DATABASE, role_of=role_of)
    return PostgresqlEngine(address, read_only=connector.read_only, user_logins=logins)


def _mysql(connector: Connector, url: DriverUrl, builder: EngineBuilder) -> Engine:
    from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine

    given = cast("MysqlUrlOptions", url.options)
    mode, tls = given.ssl_mode, None
    if mode != "DISABLED":
        tls = client_tls(url.host, validate=mode != "REQUIRED", check_name=mode == "VERIFY_IDENTITY")
    address = MysqlAddress(
        host=url.host or "localhost",
        port=url.port or PORTS["mysql"],
        database=url.path or None,
        user=url.username,
        password=url.password,
        ssl=tls,
        connect_timeout_s=given.connect_timeout,
        read_timeout_s=given.read_timeout,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return MysqlEngine(address, read_only=connector.read_only)


def _by_native_client(connector: Connector, options: UrlOptions, builder: EngineBuilder) -> Engine:
    """`trino://` and `phoenix://` mean what the interfaces of those names do (Contract platform 5.10)."""
    url = options.url
    is_trino = url.dialect == "trino"
    is_private = is_trino and (bool(url.password) or url.port == 443)
    host = f"[{url.host}]" if ":" in url.host else url.host or "localhost"
    port = url.port or (443 if is_private else PORTS[url.dialect])
    meant: dict[str, SettingValue] = {
        "url": f"{'https' if is_private else 'http'}://{host}:{port}{'' if is_trino else '/'}",
        "username": url.username or "",
        "password": url.password or "",
        "auth_mechanism": "BASIC" if url.password else "NONE",
    }
    if is_trino:
        meant["catalog"], _, meant["schema"] = url.path.partition("/")
        meant["has_impersonation"] = options.has_impersonation
        given = cast("TrinoUrlOptions", url.options)
        meant |= {"client_tags": given.client_tags, "source": given.source, "timezone": given.timezone}
    try:
        native = replace(connector, interface=url.dialect, options=MappingProxyType(meant))
        return BUILDERS[url.dialect](native, builder)
    except OptionsRefused as refused:
        found = [Problem("url", f"its {one.setting} {one.text}", one.kind) for one in refused.found]
        raise OptionsRefused(connector.key, found) from refused


def _by_any_driver(connector: Connector, url: DriverUrl, builder: EngineBuilder) -> Engine:
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
        rules=builder.addresses,
    )
    if connector.is_stored:
        # A connector of the settings fails in each session instead: a server starts without the driver.
        address.require_driver()
    return SqlalchemyEngine(address, dialect=connector.dialect, read_only=connector.read_only)


_GROUP = "sqlalchemy.dialects"
NATIVE_DIALECTS = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""Dialects of urls that adapters of this server serve; they take no proxy from the environment."""


def is_installed(driver: str, rules: AddressRules) -> bool:
    """Whether the dialect `driver`, such as `oracle+oracledb`, and the package that it needs can be imported.

    It is imported, which takes long for some; `rules` hold for what it connects to meanwhile.
    """
    import sqlalchemy as sa
    from sqlalchemy import dialects
    from sqlalchemy.exc import ArgumentError

    from queryserver.engines.sqlalchemy.engine import driver_of

    found = {one.name for one in entry_points(group=_GROUP)}
    if driver.replace("+", ".") not in found and driver.partition("+")[0] not in {*found, *dialects.__all__}:
        return False
    try:
        dialect, _ = driver_of(sa.make_url(f"{driver}://"), rules)
    except (ArgumentError, DriverNotInstalled):
        return False
    return not dialect.is_async


def proxied_drivers(settings: Settings, environ: Mapping[str, str]) -> Iterator[SettingsFinding]:
    """A warning where a proxy of the environment meets allowed drivers of installed packages; nothing is imported.

    The dialects that come with SQLAlchemy do not count: their drivers speak no HTTP. The environment is read as urllib
    and requests do: names in any case, and `no_proxy=*` switches all proxies off.
    """
    given = {name.lower(): text for name, text in environ.items() if text}
    if given.keys().isdisjoint({"http_proxy", "https_proxy", "all_proxy"}) or given.get("no_proxy") == "*":
        return
    installed = {one.name.partition(".")[0] for one in entry_points(group=_GROUP)} - NATIVE_DIALECTS
    drivers = [name for name in settings.desktop.connector_policy.allowed_drivers if driver_of(name)[1] in installed]
    if drivers:
        text = (
            f"names {', '.join(drivers)}: such drivers may go through the proxy that the environment of this server"
            " names, and no rule for addresses reaches behind it."
        )
        yield SettingsFinding.warning("desktop.connector_policy.allowed_drivers", text)
