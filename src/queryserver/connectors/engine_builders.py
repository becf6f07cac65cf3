"""What builders need besides the connector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

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
from queryserver.engines.connections import SharedFiles
from queryserver.engines.protocol import Engine
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import DriverNotInstalled, interface_not_supported
from queryserver.platform.addresses import AddressRules, address_rules, database_name
from queryserver.platform.limits import NO_FLOOR, DiskFloor, disk_floor
from queryserver.platform.settings.editor import (
    BeeswaxSettings,
    ConnectorPolicySettings,
    EngineTlsSettings,
    ImpalaSettings,
    SparkSettings,
)
from queryserver.platform.settings.tree import Settings

if TYPE_CHECKING:
    from queryserver.engines.postgresql.own_database import OwnDatabase


@dataclass(frozen=True)
class BuildContext:
    """Settings of the whole server that builders may use; in tests `BuildContext.of(Settings())`."""

    policy: ConnectorPolicySettings
    beeswax: BeeswaxSettings
    """For hive without options."""
    impala: ImpalaSettings
    """For impala without options."""
    spark: SparkSettings
    """For sparksql without options."""
    use_thrift_http_jwt: bool
    addresses: AddressRules
    """Every adapter that opens connections resolves through it."""
    cell_max_bytes: int
    """Largest value of a result: adapters refuse larger ones before they are in memory, where the engine can."""
    service_dsn: str | None = field(default=None, repr=False)
    """The service's own database, which no connector may use."""
    embedded_database: bool = False
    """Its server is the private PostgreSQL, which has the users' sample database, too."""
    disk_floor: DiskFloor = NO_FLOOR
    """Engines that write temporary files on this machine refuse statements below it."""
    files: SharedFiles = field(default_factory=SharedFiles)
    """What engines of one file agree by."""

    @cached_property
    def own_database(self) -> "OwnDatabase | None":
        """The service's own database, by which all connectors know it; its adapter is imported at the first use."""
        from queryserver.engines.postgresql.own_database import OwnDatabase

        return OwnDatabase(self.service_dsn) if self.service_dsn else None

    def rules(self, connector: Connector) -> OptionRules:
        """What the options of a connector are validated with."""
        return OptionRules(
            self.policy, self.addresses, is_stored=connector.is_stored, is_own_database=self._is_own_database
        )

    def options(self, model: type[Model], connector: Connector) -> Model:
        """The connector's options. Raises OptionsRefused with every problem."""
        return read_options(model, connector.key, connector.options, self.rules(connector))

    def is_named_as_own_database(self, name: str) -> bool:
        """Whether a PostgreSQL database has the name of the service's."""
        return bool(self.service_dsn) and name == database_name(self.service_dsn or "")

    def _is_own_database(self, host: str, port: int, name: str) -> bool:
        """Calls no resolver: each connection is checked, too."""
        is_server = (host.lower(), port) in self.addresses.service_database
        return self.is_named_as_own_database(name) and (is_server or self.addresses.is_literal_server(host, port))

    @property
    def databases_dir(self) -> Path | None:
        """Directory of the files of duckdb and sqlite; None: only `:memory:`."""
        return self.policy.local_database_dir

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The part of the settings that builders may use."""
        policy = settings.desktop.connector_policy
        return cls(
            policy=policy,
            beeswax=settings.beeswax,
            impala=settings.impala,
            spark=settings.spark,
            use_thrift_http_jwt=settings.desktop.use_thrift_http_jwt,
            cell_max_bytes=settings.editor.cell_max_bytes,
            disk_floor=disk_floor(settings),
            addresses=address_rules(settings),
            service_dsn=settings.desktop.database.dsn,
            embedded_database=settings.desktop.database.embedded,
        )


_SOURCE = "queryserver"
_HIVE_LIKE = frozenset({"hive", "hplsql"})

Builder = Callable[[Connector, BuildContext], Engine]


def build_engine(connector: Connector, context: BuildContext) -> Engine:
    """The engine of a connector; connects to nothing.

    Raises ConfigurationError for an interface, driver or option that this server cannot run, OptionsRefused where
    single options are the reason; for a stored one interface_not_supported and DriverNotInstalled where nothing else is
    wrong.
    """
    builder = BUILDERS.get(connector.interface)
    if builder is None and connector.is_stored:
        raise interface_not_supported(f"Connectors of {connector.dialect} with {connector.interface} do not run here.")
    place = f"notebook.interpreters.{connector.key}."
    if builder is None:
        raise ConfigurationError([f"{place}interface: {connector.interface} cannot be run here."])
    try:
        return builder(connector, context)
    except InvalidPath as error:
        raise OptionsRefused(connector.key, [Problem("path", error.message.rstrip("."))]) from error
    except OptionsRefused:
        raise
    except ConfigurationError as error:
        # Adapters know the option, not the connector.
        found = [one if one.startswith(place) else f"{place}{one}" for one in error.problems]
        raise ConfigurationError(found) from error


def _duckdb(connector: Connector, context: BuildContext) -> Engine:
    from queryserver.engines.connections import MEMORY
    from queryserver.engines.duckdb.connection import TEMPORARY_MAX_BYTES
    from queryserver.engines.duckdb.engine import FILE_MEMORY_LIMIT, SESSION_MEMORY_LIMIT, DuckdbEngine

    options = context.options(DuckdbOptions, connector)
    usual_limit = SESSION_MEMORY_LIMIT if options.path == MEMORY else FILE_MEMORY_LIMIT
    temporary = options.max_temp_directory_size
    return DuckdbEngine(
        path=options.path,
        root=context.databases_dir,
        memory_limit=options.memory_limit or usual_limit,
        threads=options.threads,
        read_only=connector.read_only or options.read_only,
        files=context.files,
        cell_max_bytes=context.cell_max_bytes,
        temporary_max_bytes=TEMPORARY_MAX_BYTES if temporary is None else temporary,
        floor=context.disk_floor,
    )


def _sqlite(connector: Connector, context: BuildContext) -> Engine:
    from queryserver.engines.sqlite.engine import SqliteEngine

    options = context.options(SqliteOptions, connector)
    return SqliteEngine(
        path=options.path,
        root=context.databases_dir,
        read_only=connector.read_only or options.read_only,
        cell_max_bytes=context.cell_max_bytes,
    )


def _trino(connector: Connector, context: BuildContext) -> Engine:
    """A coordinator of Trino, or of Presto when that is the connector's dialect."""
    from queryserver.engines.trino.engine import TrinoEngine
    from queryserver.engines.trino.protocol import PRESTO, TRINO, TrinoAddress, TrinoAuthentication

    options = context.options(TrinoOptions, connector)
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
        source=options.source or _SOURCE,
        time_zone=options.timezone,
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )
    variant = PRESTO if connector.dialect == PRESTO.dialect else TRINO
    return TrinoEngine(address, variant, read_only=connector.read_only)


def _phoenix(connector: Connector, context: BuildContext) -> Engine:
    from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixAuthentication
    from queryserver.engines.phoenix.engine import PhoenixEngine

    options = context.options(PhoenixOptions, connector)
    if options.auth_mechanism == PhoenixAuthentication.SPNEGO:
        _require_kerberos(connector, "SPNEGO needs the extra `kerberos` of this server")
    address = PhoenixAddress(
        url=options.url,
        username=options.username,
        password=options.password,
        authentication=PhoenixAuthentication(options.auth_mechanism),
        ssl_validate=options.ssl_validate,
        ssl_ca=options.ssl_ca,
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )
    return PhoenixEngine(address, read_only=connector.read_only)


def _require_kerberos(connector: Connector, text: str) -> None:
    if find_spec("gssapi") is not None:
        return
    problem = Problem("auth_mechanism", text)
    if connector.is_stored:
        raise DriverNotInstalled(problem.sentence)
    raise OptionsRefused(connector.key, [problem])


def _hiveserver2(connector: Connector, context: BuildContext) -> Engine:
    """Hive, Impala, Spark SQL and HPL/SQL. Without options the sections of the settings stand for them."""
    from queryserver.engines.hiveserver2.engine import Hs2Engine
    from queryserver.engines.hiveserver2.variants import VARIANTS, Hs2Address, Kerberos, Limits, Mechanism, Member, Tls

    model = HS2_OPTIONS.get(connector.dialect)
    if model is None:
        known = ", ".join(sorted(HS2_OPTIONS))
        raise ConfigurationError([f"notebook.interpreters.{connector.key}.dialect: must be one of {known}."])
    given = {**section_defaults(connector.dialect, context), **(connector.options or _of_section(connector, context))}
    connector = replace(connector, options=MappingProxyType(given))
    options = context.options(model, connector)
    is_http = options.transport_mode == "http"
    mechanism = _hs2_mechanism(options, forwards_tokens=context.use_thrift_http_jwt)
    if problems := _hs2_problems(options, mechanism):
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
        kerberos=Kerberos(options.kerberos_service_name or usual_service, options.kerberos_host),
        tls=Tls(validate=options.ssl_validate, ca=options.ssl_ca) if options.use_ssl else None,
        database=options.database,
        session_conf=MappingProxyType(dict(options.session_conf)),
        query_timeout_s=options.query_timeout_s,
        session_timeout_s=options.session_timeout_s,
        limits=Limits(connect_s=options.connect_timeout_s),
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )
    return Hs2Engine(address, VARIANTS[connector.dialect], read_only=connector.read_only)


def _hs2_mechanism(options: Hs2Options, *, forwards_tokens: bool) -> str:
    if options.auth_mechanism:
        return options.auth_mechanism
    is_http = options.transport_mode == "http"
    if is_http and forwards_tokens:
        return "JWT"
    return "NONE" if options.use_sasl or is_http else "NOSASL"


def _hs2_problems(options: Hs2Options, mechanism: str) -> list[Problem]:
    """Options that are valid and contradict each other."""
    found = list[Problem]()
    is_http = options.transport_mode == "http"
    if mechanism == "JWT" and not (options.use_ssl or options.allow_insecure_http):
        found.append(Problem("use_ssl", "must be true with JWT, unless allow_insecure_http is"))
    if mechanism == "JWT" and not is_http:
        found.append(Problem("auth_mechanism", "JWT needs transport_mode http"))
    if mechanism == "GSSAPI" and is_http:
        found.append(Problem("auth_mechanism", "GSSAPI needs transport_mode binary"))
    return found


def section_defaults(dialect: str, sections: BuildContext | Settings) -> Mapping[str, SettingValue]:
    """The defaults of options that sections of the settings name, for connectors with options, too."""
    if dialect == "impala":
        names = ("query_timeout_s", "session_timeout_s", "close_queries")
        return {name: getattr(sections.impala, name) for name in names}
    return {"close_queries": sections.beeswax.close_queries} if dialect in _HIVE_LIKE else {}


def _of_section(connector: Connector, context: BuildContext) -> Mapping[str, SettingValue]:
    """The options that older settings files mean."""
    if connector.dialect == "impala":
        impala = context.impala
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
            **_tls_values(impala.ssl),
        }
    if connector.dialect == "sparksql":
        spark = context.spark
        return {
            "server_host": spark.sql_server_host,
            "server_port": spark.sql_server_port,
            "use_sasl": spark.use_sasl,
        }
    hive = context.beeswax
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
        **_tls_values(hive.ssl),
    }


def _tls_values(tls: EngineTlsSettings) -> Mapping[str, SettingValue]:
    return {"use_ssl": tls.enabled, "ssl_validate": tls.validate_certificate, "ssl_ca": _text_of(tls.cacerts)}


def _text_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return f"unreadable: {path.name}"


def _sqlalchemy(connector: Connector, context: BuildContext) -> Engine:
    from queryserver.connectors.sqlalchemy import build

    return build(connector, context)


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
