"""Builds the engine of a connector, with one function per interface, listed in `BUILDERS` at the end.

A new interface needs a folder in `engines` (`engines/protocol.py`), a function and a row here, an option model in
`connectors/options.py`, and a row in `connectors/catalog.txt`. A new dialect of `hiveserver2` needs a row in
`HS2_OPTIONS` and in the engine's `VARIANTS`. `connectors/urls.py` parses the URLs of the interface `sqlalchemy`.
docs/engines.md, "Add an engine", lists what else a dialect needs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, cast

from queryserver import errors
from queryserver.connectors import options, urls
from queryserver.connectors.model import Connector, SettingValue
from queryserver.engines.connections import client_tls
from queryserver.engines.duckdb.engine import duckdb_processes
from queryserver.engines.protocol import Engine
from queryserver.engines.sqlite.engine import sqlite_processes
from queryserver.engines.storage_watch import StorageLimits, sample_is_full
from queryserver.platform.addresses import AddressRules, address_rules, database_name, database_servers
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_LOGIN, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.platform.machine_limits import disk_floor
from queryserver.platform.settings.editor import EngineTlsSettings
from queryserver.platform.settings.tree import Settings, SettingsFinding
from queryserver.platform.threads import Tasks

if TYPE_CHECKING:
    from queryserver.engines.postgresql.engine import OwnDatabase


class EngineBuilder:
    """Builds a server's engines. Close the builder after its engines.

    Local databases share processes. Their statements fail if the free disk space falls below `disk_floor`.
    """

    def __init__(self, settings: Settings, *, addresses: AddressRules | None = None) -> None:
        """`addresses` are the rules for all connections of the engines. By default, the settings determine them."""
        self.settings = settings
        self.policy = settings.desktop.connector_policy
        self.addresses = addresses or address_rules(settings)
        self.databases_dir = self.policy.local_database_dir
        """The directory of DuckDB and SQLite files; None permits only `:memory:`."""
        self.cell_max_bytes = settings.editor.cell_max_bytes
        """The maximum size of a result value.

        Adapters reject larger values, if possible before loading them into memory.
        """
        self.service_dsn = settings.desktop.database.dsn
        self.disk_floor = disk_floor(settings)
        self.duckdb_processes = duckdb_processes()
        self.sqlite_processes = sqlite_processes()
        self._tasks = Tasks()
        """Background tasks shared by engines."""

    @cached_property
    def own_database(self) -> "OwnDatabase | None":
        """The service's own database, which connectors may not use. Its adapter is imported on first use."""
        from queryserver.engines.postgresql.engine import OwnDatabase

        return OwnDatabase(self.service_dsn, self._tasks) if self.service_dsn else None

    async def aclose(self) -> None:
        """Stop the engines' background tasks."""
        await self._tasks.aclose()

    def build(self, connector: Connector) -> Engine:
        """Build a connector's engine without connecting to anything.

        Raises ConfigurationError for an interface, driver or option that this server cannot run, or OptionsRefused if
        individual options are invalid. For stored connectors, also raises interface_not_supported, and
        DriverNotInstalled if nothing else is wrong.
        """
        interface = connector.interface
        prefix = f"notebook.interpreters.{connector.key}."
        build = BUILDERS.get(interface)
        if build is None and connector.is_stored:
            raise errors.interface_not_supported(
                f"This server cannot run connectors of {connector.dialect} with interface {interface}."
            )
        if build is None:
            raise errors.ConfigurationError([f"{prefix}interface: this server cannot run {interface}."])
        try:
            return build(connector, self)
        except errors.InvalidPath as error:
            raise options.OptionsRefused(connector.key, [options.Problem("path", error.message.rstrip("."))]) from error
        except options.OptionsRefused:
            raise
        except errors.ConfigurationError as error:
            # Adapters name the option in their messages, but do not know the connector.
            found = [one if one.startswith(prefix) else f"{prefix}{one}" for one in error.problems]
            raise errors.ConfigurationError(found) from error

    def read_options(self, model: type[options.Model], connector: Connector) -> options.Model:
        """Validate the connector's options and return them. Raises OptionsRefused, which lists every problem."""
        return options.read_options(model, connector.key, connector.options, self.rules(connector))

    def rules(self, connector: Connector) -> options.OptionRules:
        return options.OptionRules(
            self.policy, self.addresses, is_stored=connector.is_stored, is_own_database=self._is_own_database
        )

    def storage_limits(self, max_database_size: int | None) -> StorageLimits:
        """Return the limits of a local database's files. `max_database_size` is the connector's own quota."""
        quota = max_database_size or self.policy.local_database_max_bytes
        return StorageLimits(quota_bytes=quota, floor=self.disk_floor)

    def is_named_as_own_database(self, name: str) -> bool:
        return bool(self.service_dsn) and name == database_name(self.service_dsn or "")

    def _is_own_database(self, host: str, port: int, name: str) -> bool:
        """Compare host names without resolving them, because every connection is checked as well."""
        is_server = (host.lower(), port) in self.addresses.service_database
        return self.is_named_as_own_database(name) and (
            is_server or self.addresses.is_database_server_address(host, port)
        )


def _duckdb(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.duckdb.engine import DuckdbEngine
    from queryserver.engines.duckdb.limits import MEMORY_LIMIT, TEMPORARY_MAX_BYTES, DuckdbLimits, DuckdbResources

    opts = builder.read_options(options.DuckdbOptions, connector)
    temporary = opts.max_temp_directory_size
    return DuckdbEngine(
        path=opts.path,
        root=builder.databases_dir,
        read_only=connector.read_only or opts.read_only,
        processes=builder.duckdb_processes,
        resources=DuckdbResources(memory_limit=opts.memory_limit or MEMORY_LIMIT, threads=opts.threads),
        limits=DuckdbLimits(
            cell_max_bytes=builder.cell_max_bytes,
            temporary_max_bytes=TEMPORARY_MAX_BYTES if temporary is None else temporary,
            storage=builder.storage_limits(opts.max_database_size),
        ),
    )


def _sqlite(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.sqlite.engine import SqliteEngine

    opts = builder.read_options(options.SqliteOptions, connector)
    return SqliteEngine(
        processes=builder.sqlite_processes,
        path=opts.path,
        root=builder.databases_dir,
        read_only=connector.read_only or opts.read_only,
        cell_max_bytes=builder.cell_max_bytes,
        storage=builder.storage_limits(opts.max_database_size),
    )


def _trino(connector: Connector, builder: EngineBuilder) -> Engine:
    """Build the engine for Trino, or for Presto if that is the connector's dialect."""
    from queryserver.engines.trino.engine import TrinoEngine
    from queryserver.engines.trino.protocol import PRESTO, TRINO, TrinoAddress, TrinoAuthentication

    opts = builder.read_options(options.TrinoOptions, connector)
    address = TrinoAddress(
        url=opts.url,
        catalog=opts.catalog,
        schema=opts.schema_,
        username=opts.username,
        password=opts.password,
        authentication=TrinoAuthentication(opts.auth_mechanism),
        has_impersonation=opts.has_impersonation,
        ssl_validate=opts.ssl_validate,
        ssl_ca=opts.ssl_ca,
        session_properties=MappingProxyType(dict(opts.session_properties)),
        client_tags=opts.client_tags,
        source=opts.source or "queryserver",
        time_zone=opts.timezone,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    variant = PRESTO if connector.dialect == PRESTO.dialect else TRINO
    return TrinoEngine(address, variant, read_only=connector.read_only)


def _phoenix(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixAuthentication
    from queryserver.engines.phoenix.engine import PhoenixEngine

    opts = builder.read_options(options.PhoenixOptions, connector)
    if opts.auth_mechanism == PhoenixAuthentication.SPNEGO:
        _require_kerberos(connector, "the `kerberos` extra is not installed: pip install queryserver[kerberos]")
    address = PhoenixAddress(
        url=opts.url,
        username=opts.username,
        password=opts.password,
        authentication=PhoenixAuthentication(opts.auth_mechanism),
        ssl_validate=opts.ssl_validate,
        ssl_ca=opts.ssl_ca,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return PhoenixEngine(address, read_only=connector.read_only)


def _require_kerberos(connector: Connector, text: str) -> None:
    if find_spec("gssapi") is not None:
        return
    problem = options.Problem("auth_mechanism", text)
    if connector.is_stored:
        raise errors.DriverNotInstalled(problem.sentence)
    raise options.OptionsRefused(connector.key, [problem])


def _hiveserver2(connector: Connector, builder: EngineBuilder) -> Engine:
    """Build the engine for Hive, Impala, Spark SQL or HPL/SQL.

    If the connector has no options, the settings sections apply.
    """
    from queryserver.engines.hiveserver2.engine import Hs2Engine
    from queryserver.engines.hiveserver2.variants import VARIANTS, Hs2Address, Limits, Mechanism, Member, Tls

    model = options.HS2_OPTIONS.get(connector.dialect)
    if model is None:
        known = ", ".join(sorted(options.HS2_OPTIONS))
        raise errors.ConfigurationError([f"notebook.interpreters.{connector.key}.dialect: must be one of {known}."])
    settings = builder.settings
    own = connector.options or _older_options(connector.dialect, settings)
    every = {**section_defaults(connector.dialect, settings), **own}
    connector = replace(connector, options=MappingProxyType(every))
    opts = builder.read_options(model, connector)
    is_http = opts.transport_mode == "http"
    mechanism = opts.auth_mechanism
    if not mechanism and is_http and settings.desktop.use_thrift_http_jwt:
        mechanism = "JWT"
    mechanism = mechanism or ("NONE" if opts.use_sasl or is_http else "NOSASL")
    if problems := _hs2_contradictions(opts, mechanism, is_http=is_http):
        raise options.OptionsRefused(connector.key, problems)
    if mechanism == Mechanism.GSSAPI:
        _require_kerberos(connector, "the `kerberos` extra is not installed: pip install queryserver[kerberos]")
    usual_service: str = model.model_fields["kerberos_service_name"].default
    address = Hs2Address(
        members=tuple(Member(host, port) for host, port in opts.server_host),
        mechanism=Mechanism(mechanism),
        http_path=opts.http_path if is_http else None,
        username=opts.username,
        password=opts.password,
        impersonation=opts.impersonation_enabled,
        kerberos_service=opts.kerberos_service_name or usual_service,
        kerberos_host=opts.kerberos_host,
        tls=Tls(validate=opts.ssl_validate, ca=opts.ssl_ca) if opts.use_ssl else None,
        database=opts.database,
        session_conf=MappingProxyType(dict(opts.session_conf)),
        query_timeout_s=opts.query_timeout_s,
        session_timeout_s=opts.session_timeout_s,
        tags_statements=opts.statement_tags,
        limits=Limits(connect_s=opts.connect_timeout_s),
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return Hs2Engine(address, VARIANTS[connector.dialect], read_only=connector.read_only)


def _hs2_contradictions(opts: options.Hs2Options, mechanism: str, *, is_http: bool) -> list[options.Problem]:
    found = list[options.Problem]()
    if mechanism == "JWT" and not (opts.use_ssl or opts.allow_insecure_http):
        found.append(options.Problem("use_ssl", "must be true with JWT unless allow_insecure_http is true"))
    if mechanism == "JWT" and not is_http:
        found.append(options.Problem("auth_mechanism", "JWT requires transport_mode http"))
    if mechanism == "GSSAPI" and is_http:
        found.append(options.Problem("auth_mechanism", "GSSAPI requires transport_mode binary"))
    return found


def section_defaults(dialect: str, settings: Settings) -> Mapping[str, SettingValue]:
    """Return the default options from the settings sections, which also apply to connectors that have options of
    their own.
    """
    if dialect == "impala":
        names = ("query_timeout_s", "session_timeout_s", "close_queries")
        return {name: getattr(settings.impala, name) for name in names}
    return {"close_queries": settings.beeswax.close_queries} if dialect in {"hive", "hplsql"} else {}


def _older_options(dialect: str, settings: Settings) -> Mapping[str, SettingValue]:
    """Return options for a connector that has none, because older settings files have a section per engine instead."""
    if dialect == "impala":
        impala = settings.impala
        return {
            "server_host": impala.server_host,
            "server_port": impala.server_port,
            "impersonation_enabled": impala.impersonation_enabled,
            "transport_mode": "http" if impala.use_thrift_http else "binary",
            "username": impala.auth_username,
            "password": impala.auth_password.get_secret_value(),
            # Older files have no mechanism for Impala; a password means LDAP.
            "auth_mechanism": "LDAP" if impala.auth_password.get_secret_value() else "",
            "connect_timeout_s": impala.server_conn_timeout,
            **_tls_options(impala.ssl),
        }
    if dialect == "sparksql":
        spark = settings.spark
        return {"server_host": spark.sql_server_host, "server_port": spark.sql_server_port, "use_sasl": spark.use_sasl}
    hive = settings.beeswax
    return {
        "server_host": hive.hive_server_host,
        "server_port": hive.hive_server_port,
        "transport_mode": hive.transport_mode,
        "http_path": hive.http_path,
        "auth_mechanism": hive.auth_mechanism,
        "use_sasl": hive.use_sasl,
        "username": hive.auth_username,
        "password": hive.auth_password.get_secret_value(),
        "connect_timeout_s": hive.server_conn_timeout,
        **_tls_options(hive.ssl),
    }


def _tls_options(tls: EngineTlsSettings) -> Mapping[str, SettingValue]:
    try:
        authorities = tls.cacerts.read_text(encoding="ascii") if tls.cacerts else ""
    except (OSError, UnicodeError):
        authorities = f"unreadable: {tls.cacerts.name}" if tls.cacerts else ""
    return {"use_ssl": tls.enabled, "ssl_validate": tls.validate_certificate, "ssl_ca": authorities}


def _sqlalchemy(connector: Connector, builder: EngineBuilder) -> Engine:
    """Build the engine with the native adapter for the URL's dialect or, if there is none, with the generic adapter."""
    opts = builder.read_options(urls.UrlOptions, connector)
    url = opts.url
    if url.dialect == "postgresql":
        return _postgresql(connector, opts, builder)
    if url.dialect == "mysql":
        return _mysql(connector, opts, builder)
    if url.dialect in {"trino", "phoenix"}:
        return _by_native_client(connector, opts, builder)
    return _by_any_driver(connector, url, builder)


def connector_address_rules(connector: Connector, builder: EngineBuilder) -> AddressRules:
    """Return the address rules for a connector's hosts. Raises ConfigurationError."""
    url = postgresql_url(connector, builder)
    return builder.addresses if url is None else url.rules(builder.rules(connector)).addresses


def postgresql_url(connector: Connector, builder: EngineBuilder) -> urls.DriverUrl | None:
    """Return a valid connector's URL; None if the connector does not use the PostgreSQL adapter."""
    if connector.interface != "sqlalchemy":
        return None
    url = builder.read_options(urls.UrlOptions, connector).url
    return url if url.dialect == "postgresql" else None


def _postgresql(connector: Connector, connection: urls.UrlOptions, builder: EngineBuilder) -> Engine:
    from queryserver.engines.postgresql.engine import KeepAlive, PostgresqlAddress, PostgresqlEngine, UserLogins

    url = connection.url
    opts = cast("urls.PostgresqlUrlOptions", url.options)
    keep_alive = KeepAlive(
        idle_s=opts.keepalives_idle, interval_s=opts.keepalives_interval, count=opts.keepalives_count
    )
    # `sslmode` is passed to libpq, except for modes that verify certificates, for which libpq would use this server's
    # CA files.
    verified = client_tls(url.host, check_name=opts.sslmode == "verify-full") if "verify" in opts.sslmode else None
    address = PostgresqlAddress(
        host=url.host or "localhost",
        port=url.port or urls.PORTS["postgresql"],
        database=url.path,
        user=url.username,
        password=url.password,
        ssl=verified or opts.sslmode,
        application_name=opts.application_name,
        connect_timeout_s=opts.connect_timeout,
        server_state=opts.target_session_attrs,
        keep_alive=None if opts.keepalives == "0" else keep_alive,
        cell_max_bytes=builder.cell_max_bytes,
        rules=url.rules(builder.rules(connector)).addresses,
        own_database=builder.own_database,
        own_servers=builder.addresses,
    )
    # Users of the sample database in the embedded PostgreSQL have separate logins.
    logins, canceled = None, None
    own = builder.settings.sources.sample_admin_dsn
    dsn = own.get_secret_value() if own is not None else builder.service_dsn
    if dsn and builder.settings.desktop.database.embedded and not connector.is_stored:
        samples = [("127.0.0.1", port, SAMPLE_DATABASE, SAMPLE_ROLE) for _, port in database_servers(dsn)]
        if (url.host, url.port, url.path, url.username) in samples:
            role_of = f"{SAMPLE_ROLE}_{{:d}}".format
            logins = UserLogins(
                dsn, group=SAMPLE_OWNER, login_group=SAMPLE_LOGIN, database=SAMPLE_DATABASE, role_of=role_of
            )
            canceled = sample_is_full
    return PostgresqlEngine(
        address, read_only=connector.read_only, tags=connection.statement_tags, user_logins=logins, canceled=canceled
    )


def _mysql(connector: Connector, connection: urls.UrlOptions, builder: EngineBuilder) -> Engine:
    from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine

    url = connection.url
    opts = cast("urls.MysqlUrlOptions", url.options)
    mode, tls = opts.ssl_mode, None
    if mode != "DISABLED":
        tls = client_tls(url.host, validate=mode != "REQUIRED", check_name=mode == "VERIFY_IDENTITY")
    address = MysqlAddress(
        host=url.host or "localhost",
        port=url.port or urls.PORTS["mysql"],
        database=url.path or None,
        user=url.username,
        password=url.password,
        ssl=tls,
        connect_timeout_s=opts.connect_timeout,
        read_timeout_s=opts.read_timeout,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return MysqlEngine(address, tags=connection.statement_tags, read_only=connector.read_only)


def _by_native_client(connector: Connector, opts: urls.UrlOptions, builder: EngineBuilder) -> Engine:
    """Build the engine for a `trino://` or `phoenix://` URL with the builder of that name (Contract platform 5.10)."""
    url = opts.url
    is_trino = url.dialect == "trino"
    is_private = is_trino and (bool(url.password) or url.port == 443)
    host = f"[{url.host}]" if ":" in url.host else url.host or "localhost"
    port = url.port or (443 if is_private else urls.PORTS[url.dialect])
    meant: dict[str, SettingValue] = {
        "url": f"{'https' if is_private else 'http'}://{host}:{port}{'' if is_trino else '/'}",
        "username": url.username or "",
        "password": url.password or "",
        "auth_mechanism": "BASIC" if url.password else "NONE",
    }
    if is_trino:
        meant["catalog"], _, meant["schema"] = url.path.partition("/")
        meant["has_impersonation"] = opts.has_impersonation
        further = cast("urls.TrinoUrlOptions", url.options)
        meant |= {"client_tags": further.client_tags, "source": further.source, "timezone": further.timezone}
    try:
        native = replace(connector, interface=url.dialect, options=MappingProxyType(meant))
        return BUILDERS[url.dialect](native, builder)
    except options.OptionsRefused as refused:
        found = [options.Problem("url", f"its {one.setting} {one.text}", one.kind) for one in refused.found]
        raise options.OptionsRefused(connector.key, found) from refused


def _by_any_driver(connector: Connector, url: urls.DriverUrl, builder: EngineBuilder) -> Engine:
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
        # A configured connector fails in each session instead, so that the server starts even without the driver.
        address.require_driver()
    return SqlalchemyEngine(address, dialect=connector.dialect, read_only=connector.read_only)


Builder: TypeAlias = Callable[[Connector, EngineBuilder], Engine]

BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "duckdb": _duckdb,
        "hiveserver2": _hiveserver2,
        "phoenix": _phoenix,
        "sqlalchemy": _sqlalchemy,
        "sqlite": _sqlite,
        "trino": _trino,
    }
)
"""Builders by interface."""

_GROUP = "sqlalchemy.dialects"
NATIVE_DIALECTS = frozenset({"postgresql", "mysql", "trino", "phoenix"})
"""URL dialects with an adapter in this server. These adapters ignore proxies in the environment."""


def is_installed(driver: str, rules: AddressRules) -> bool:
    """Return whether the dialect `driver`, such as `oracle+oracledb`, and the package it needs can be imported.

    Imports both, which may be slow. `rules` apply to connections during the import.
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
    except (ArgumentError, errors.DriverNotInstalled):
        return False
    return not dialect.is_async


def proxied_drivers(settings: Settings, environ: Mapping[str, str]) -> Iterator[SettingsFinding]:
    """Warn if a proxy in the environment may affect allowed, installed drivers. Imports nothing.

    SQLAlchemy's own dialects are exempt, as their drivers do not use HTTP. Environment variables are interpreted as in
    urllib and requests: names are case-insensitive, and `no_proxy=*` disables all proxies.
    """
    opts = {name.lower(): text for name, text in environ.items() if text}
    if opts.keys().isdisjoint({"http_proxy", "https_proxy", "all_proxy"}) or opts.get("no_proxy") == "*":
        return
    installed = {one.name.partition(".")[0] for one in entry_points(group=_GROUP)} - NATIVE_DIALECTS
    drivers = [
        name for name in settings.desktop.connector_policy.allowed_drivers if urls.driver_of(name)[1] in installed
    ]
    if drivers:
        text = (
            f"allows {', '.join(drivers)}: these drivers may connect through the proxy set in the server's environment,"
            " and the address rules do not apply behind a proxy."
        )
        yield SettingsFinding.warning("desktop.connector_policy.allowed_drivers", text)
