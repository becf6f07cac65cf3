"""What makes the engine of a connector: one function per interface.

An engine, and the driver that it needs, is imported only when a connector wants it. A new engine is an adapter in
`engines/`, a model of its options in `services/connector_options.py`, and a function with a row in `BUILDERS` here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from queryserver.container.interfaces.context import BuildContext
from queryserver.domain.connector import Connector
from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.errors.files import InvalidPath
from queryserver.domain.errors.statements import DriverNotInstalled, interface_not_supported
from queryserver.interfaces.engine import Engine
from queryserver.services.connector_options import (
    HS2_OPTIONS,
    DuckdbOptions,
    Hs2Options,
    OptionsRefused,
    PhoenixOptions,
    Problem,
    SqliteOptions,
    TrinoOptions,
)
from queryserver.settings import Settings
from queryserver.settings.engines import EngineTlsSettings

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
    from queryserver.engines.duckdb.engine import FILE_MEMORY_LIMIT, SESSION_MEMORY_LIMIT, DuckdbEngine
    from queryserver.engines.duckdb.temporary import TEMPORARY_MAX_BYTES
    from queryserver.engines.local_files import MEMORY

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
    from queryserver.engines.trino import PRESTO, TRINO, Authentication, TrinoAddress, TrinoEngine

    options = context.options(TrinoOptions, connector)
    address = TrinoAddress(
        url=options.url,
        catalog=options.catalog,
        schema=options.schema_,
        username=options.username,
        password=options.password,
        authentication=Authentication(options.auth_mechanism),
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
    from queryserver.engines.phoenix import Authentication, PhoenixAddress, PhoenixEngine

    options = context.options(PhoenixOptions, connector)
    if options.auth_mechanism == Authentication.SPNEGO:
        _require_kerberos(connector, "SPNEGO needs the extra `kerberos` of this server")
    address = PhoenixAddress(
        url=options.url,
        username=options.username,
        password=options.password,
        authentication=Authentication(options.auth_mechanism),
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
    from queryserver.engines.hiveserver2.address import Hs2Address, Kerberos, Limits, Mechanism, Member, Tls
    from queryserver.engines.hiveserver2.engine import Hs2Engine
    from queryserver.engines.hiveserver2.variants import VARIANTS

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
    from queryserver.container.interfaces.sqlalchemy import build

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
