"""From a connector to its engine: one function for each interface, listed in `BUILDERS` at the end.

A new interface is a function and a row here, its options a model in `connectors/options.py`, its listing a row in
`connectors/types.py`. A new dialect of `hiveserver2` is a row of `HS2_OPTIONS` there and of `VARIANTS` of the engine;
urls of the interface `sqlalchemy` are in `connectors/sqlalchemy.py`. What the importer can do for a dialect is in the
tables of `imports/model.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from queryserver.connectors.model import Connector, SettingValue
from queryserver.connectors.options import (
    HS2_OPTIONS,
    DuckdbOptions,
    Hs2Options,
    Model,
    OptionRules,
    OptionsRefused,
    PhoenixOptions,
    Problem,
    SqliteOptions,
    TrinoOptions,
    read_options,
)
from queryserver.engines.protocol import Engine
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import DriverNotInstalled, interface_not_supported
from queryserver.platform.addresses import AddressRules, address_rules, database_name
from queryserver.platform.limits import disk_floor
from queryserver.platform.settings.editor import EngineTlsSettings
from queryserver.platform.settings.tree import Settings

if TYPE_CHECKING:
    from queryserver.engines.duckdb.engine import FilePlace
    from queryserver.engines.postgresql.engine import OwnDatabase


class EngineBuilder:
    """Makes the engines of one server. Engines of one file share `files`; below `disk_floor` statements are refused."""

    def __init__(self, settings: Settings, *, addresses: AddressRules | None = None) -> None:
        """`addresses`: the rules for all that engines connect to; by default those of the settings."""
        self.settings = settings
        self.policy = settings.desktop.connector_policy
        self.addresses = addresses or address_rules(settings)
        self.databases_dir = self.policy.local_database_dir
        """Directory of the files of duckdb and sqlite; None: only `:memory:`."""
        self.cell_max_bytes = settings.editor.cell_max_bytes
        """Largest value of a result: adapters refuse larger ones before they are in memory, where the engine can."""
        self.service_dsn = settings.desktop.database.dsn
        self.disk_floor = disk_floor(settings)
        self.files: dict[Path, FilePlace] = {}

    @cached_property
    def own_database(self) -> "OwnDatabase | None":
        """The service's own database, which no connector may use; its adapter is imported at the first use."""
        from queryserver.engines.postgresql.engine import OwnDatabase

        return OwnDatabase(self.service_dsn) if self.service_dsn else None

    def build(self, connector: Connector) -> Engine:
        """The engine of a connector; connects to nothing.

        Raises ConfigurationError for an interface, driver or option that this server cannot run, OptionsRefused where
        single options are the reason; for a stored connector interface_not_supported and DriverNotInstalled where
        nothing else is wrong.
        """
        interface = connector.interface
        place = f"notebook.interpreters.{connector.key}."
        build = BUILDERS.get(interface)
        if build is None and connector.is_stored:
            raise interface_not_supported(f"Connectors of {connector.dialect} with {interface} do not run here.")
        if build is None:
            raise ConfigurationError([f"{place}interface: {interface} cannot be run here."])
        try:
            return build(connector, self)
        except InvalidPath as error:
            raise OptionsRefused(connector.key, [Problem("path", error.message.rstrip("."))]) from error
        except OptionsRefused:
            raise
        except ConfigurationError as error:
            # Adapters know the option, not the connector.
            found = [one if one.startswith(place) else f"{place}{one}" for one in error.problems]
            raise ConfigurationError(found) from error

    def options(self, model: type[Model], connector: Connector) -> Model:
        """The connector's options. Raises OptionsRefused with every problem."""
        return read_options(model, connector.key, connector.options, self.rules(connector))

    def rules(self, connector: Connector) -> OptionRules:
        return OptionRules(
            self.policy, self.addresses, is_stored=connector.is_stored, is_own_database=self._is_own_database
        )

    def is_named_as_own_database(self, name: str) -> bool:
        return bool(self.service_dsn) and name == database_name(self.service_dsn or "")

    def _is_own_database(self, host: str, port: int, name: str) -> bool:
        """Calls no resolver: each connection is checked, too."""
        is_server = (host.lower(), port) in self.addresses.service_database
        return self.is_named_as_own_database(name) and (is_server or self.addresses.is_literal_server(host, port))


def _duckdb(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.duckdb.engine import TEMPORARY_MAX_BYTES, DuckdbEngine

    options = builder.options(DuckdbOptions, connector)
    temporary = options.max_temp_directory_size
    return DuckdbEngine(
        path=options.path,
        root=builder.databases_dir,
        memory_limit=options.memory_limit,
        threads=options.threads,
        read_only=connector.read_only or options.read_only,
        files=builder.files,
        cell_max_bytes=builder.cell_max_bytes,
        temporary_max_bytes=TEMPORARY_MAX_BYTES if temporary is None else temporary,
        floor=builder.disk_floor,
    )


def _sqlite(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.sqlite.engine import SqliteEngine

    options = builder.options(SqliteOptions, connector)
    return SqliteEngine(
        path=options.path,
        root=builder.databases_dir,
        read_only=connector.read_only or options.read_only,
        cell_max_bytes=builder.cell_max_bytes,
    )


def _trino(connector: Connector, builder: EngineBuilder) -> Engine:
    """A coordinator of Trino, or of Presto when that is the connector's dialect."""
    from queryserver.engines.trino.engine import TrinoEngine
    from queryserver.engines.trino.protocol import PRESTO, TRINO, TrinoAddress, TrinoAuthentication

    options = builder.options(TrinoOptions, connector)
    address = TrinoAddress(
        url=options.url,
        catalog=options.catalog,
        schema=options.schema_,
        username=options.username,
        password=options.password,
        authentication=TrinoAuthentication(options.auth_mechanism),
        has_impersonation=options.has_impersonation,
        ssl_validate=options.ssl_validate,
        ssl_ca=options.ssl_ca,
        session_properties=MappingProxyType(dict(options.session_properties)),
        client_tags=options.client_tags,
        source=options.source or "queryserver",
        time_zone=options.timezone,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    variant = PRESTO if connector.dialect == PRESTO.dialect else TRINO
    return TrinoEngine(address, variant, read_only=connector.read_only)


def _phoenix(connector: Connector, builder: EngineBuilder) -> Engine:
    from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixAuthentication
    from queryserver.engines.phoenix.engine import PhoenixEngine

    options = builder.options(PhoenixOptions, connector)
    if options.auth_mechanism == PhoenixAuthentication.SPNEGO:
        _require_kerberos(connector, "SPNEGO needs the extra `kerberos` of this server")
    address = PhoenixAddress(
        url=options.url,
        username=options.username,
        password=options.password,
        authentication=PhoenixAuthentication(options.auth_mechanism),
        ssl_validate=options.ssl_validate,
        ssl_ca=options.ssl_ca,
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return PhoenixEngine(address, read_only=connector.read_only)


def _require_kerberos(connector: Connector, text: str) -> None:
    if find_spec("gssapi") is not None:
        return
    problem = Problem("auth_mechanism", text)
    if connector.is_stored:
        raise DriverNotInstalled(problem.sentence)
    raise OptionsRefused(connector.key, [problem])


def _hiveserver2(connector: Connector, builder: EngineBuilder) -> Engine:
    """Hive, Impala, Spark SQL and HPL/SQL. Without options the sections of the settings stand for them."""
    from queryserver.engines.hiveserver2.engine import Hs2Engine
    from queryserver.engines.hiveserver2.variants import VARIANTS, Hs2Address, Limits, Mechanism, Member, Tls

    model = HS2_OPTIONS.get(connector.dialect)
    if model is None:
        known = ", ".join(sorted(HS2_OPTIONS))
        raise ConfigurationError([f"notebook.interpreters.{connector.key}.dialect: must be one of {known}."])
    settings = builder.settings
    own = connector.options or _older_options(connector.dialect, settings)
    given = {**section_defaults(connector.dialect, settings), **own}
    connector = replace(connector, options=MappingProxyType(given))
    options = builder.options(model, connector)
    is_http = options.transport_mode == "http"
    mechanism = options.auth_mechanism
    if not mechanism and is_http and settings.desktop.use_thrift_http_jwt:
        mechanism = "JWT"
    mechanism = mechanism or ("NONE" if options.use_sasl or is_http else "NOSASL")
    if problems := _hs2_contradictions(options, mechanism, is_http=is_http):
        raise OptionsRefused(connector.key, problems)
    if mechanism == Mechanism.GSSAPI:
        _require_kerberos(connector, "the driver of GSSAPI is not installed: pip install queryserver[kerberos]")
    usual_service: str = model.model_fields["kerberos_service_name"].default
    address = Hs2Address(
        members=tuple(Member(host, port) for host, port in options.server_host),
        mechanism=Mechanism(mechanism),
        http_path=options.http_path if is_http else None,
        username=options.username,
        password=options.password,
        impersonation=options.impersonation_enabled,
        kerberos_service=options.kerberos_service_name or usual_service,
        kerberos_host=options.kerberos_host,
        tls=Tls(validate=options.ssl_validate, ca=options.ssl_ca) if options.use_ssl else None,
        database=options.database,
        session_conf=MappingProxyType(dict(options.session_conf)),
        query_timeout_s=options.query_timeout_s,
        session_timeout_s=options.session_timeout_s,
        limits=Limits(connect_s=options.connect_timeout_s),
        cell_max_bytes=builder.cell_max_bytes,
        rules=builder.addresses,
    )
    return Hs2Engine(address, VARIANTS[connector.dialect], read_only=connector.read_only)


def _hs2_contradictions(options: Hs2Options, mechanism: str, *, is_http: bool) -> list[Problem]:
    found = list[Problem]()
    if mechanism == "JWT" and not (options.use_ssl or options.allow_insecure_http):
        found.append(Problem("use_ssl", "must be true with JWT, unless allow_insecure_http is"))
    if mechanism == "JWT" and not is_http:
        found.append(Problem("auth_mechanism", "JWT needs transport_mode http"))
    if mechanism == "GSSAPI" and is_http:
        found.append(Problem("auth_mechanism", "GSSAPI needs transport_mode binary"))
    return found


def section_defaults(dialect: str, settings: Settings) -> Mapping[str, SettingValue]:
    """The defaults of options that sections of the settings name, for connectors with options, too."""
    if dialect == "impala":
        names = ("query_timeout_s", "session_timeout_s", "close_queries")
        return {name: getattr(settings.impala, name) for name in names}
    return {"close_queries": settings.beeswax.close_queries} if dialect in {"hive", "hplsql"} else {}


def _older_options(dialect: str, settings: Settings) -> Mapping[str, SettingValue]:
    """The options of a connector without any: older settings files have a section for each engine instead."""
    if dialect == "impala":
        impala = settings.impala
        return {
            "server_host": impala.server_host,
            "server_port": impala.server_port,
            "impersonation_enabled": impala.impersonation_enabled,
            "transport_mode": "http" if impala.use_thrift_http else "binary",
            "username": impala.auth_username,
            "password": impala.auth_password.get_secret_value(),
            # An older file has no mechanism for Impala: a password means LDAP.
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
    from queryserver.connectors.sqlalchemy import build

    return build(connector, builder)


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
"""By interface."""
