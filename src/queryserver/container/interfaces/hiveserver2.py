"""Interface `hiveserver2`: Hive, Impala, Spark SQL and HPL/SQL (Contract platform 5.11)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import Options, options_of
from queryserver.container.interfaces.problems import Kind
from queryserver.domain.connector import Connector
from queryserver.domain.errors import ConfigurationError
from queryserver.engines.hiveserver2.address import Hs2Address, Kerberos, Limits, Mechanism, Member, Tls
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.kerberos import is_installed
from queryserver.engines.hiveserver2.variants import VARIANTS
from queryserver.interfaces.engine import Engine
from queryserver.network.addresses import AddressRules
from queryserver.settings.engines import EngineTlsSettings

_MECHANISMS = ("", *(one.value for one in Mechanism))
_HIVE_LIKE = frozenset({"hive", "hplsql"})
_IMPALA_PORT = 21050
_PORT = 10000
_SHOWN = 60
_LONGEST_TIMEOUT_S = 7 * 24 * 3600

Values = Mapping[str, str | int | bool]


def with_closing(connector: Connector, context: BuildContext) -> Connector:
    """The connector with `close_queries`, as it says itself or the section of its engine does (Contract editor 13)."""
    if connector.dialect not in VARIANTS:
        return connector
    usual = bool(section_defaults(connector.dialect, context).get("close_queries"))
    return replace(connector, close_queries=Options(connector).flag("close_queries", default=usual))


def section_defaults(dialect: str, context: BuildContext) -> Values:
    """The defaults of options that sections of the settings name, for connectors with options, too."""
    if dialect == "impala":
        impala = context.impala
        return {
            "query_timeout_s": impala.query_timeout_s,
            "session_timeout_s": impala.session_timeout_s,
            "close_queries": impala.close_queries,
        }
    return {"close_queries": context.beeswax.close_queries} if dialect in _HIVE_LIKE else {}


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder. Without options the sections `beeswax`, `impala` and `spark` of the settings stand for them."""
    variant = VARIANTS.get(connector.dialect)
    if variant is None:
        raise ConfigurationError(
            [f"notebook.interpreters.{connector.key}.dialect: must be one of {', '.join(sorted(VARIANTS))}."]
        )
    given = connector.options or _from_sections(connector.dialect, context)
    with options_of(replace(connector, options=MappingProxyType(dict(given)))) as options:
        address = _address(options, connector.dialect, context)
        options.flag("is_llap")
        # Not for the engine: see `with_closing`.
        options.flag("close_queries")
        options.no_tunnel()
    return Hs2Engine(address, variant, read_only=connector.read_only)


def _address(options: Options, dialect: str, context: BuildContext) -> Hs2Address:
    is_impala = dialect == "impala"
    is_http = options.choice("transport_mode", ("binary", "http"), "binary") == "http"
    http_path = options.text("http_path", "cliservice")
    tls = _tls(options)
    mechanism = _mechanism(options, dialect, is_http=is_http, forwards_tokens=context.use_thrift_http_jwt)
    if not options.flag("allow_insecure_http") and mechanism is Mechanism.JWT and tls is None:
        options.refuse("use_ssl", "must be true with JWT, unless allow_insecure_http is")
    port = options.port("server_port", _IMPALA_PORT if is_impala else _PORT)
    usual = section_defaults(dialect, context)
    return Hs2Address(
        members=_members(options, port, context.addresses),
        mechanism=mechanism,
        http_path=http_path if is_http else None,
        username=options.text("username"),
        password=options.secret("password"),
        impersonation=options.flag("impersonation_enabled", default=dialect in _HIVE_LIKE),
        kerberos=Kerberos(
            options.text("kerberos_service_name") or ("impala" if is_impala else "hive"), options.text("kerberos_host")
        ),
        tls=tls,
        database=options.text("database", "default"),
        session_conf=options.pairs("session_conf", context.policy.session_conf_allowed),
        query_timeout_s=options.whole("query_timeout_s", int(usual.get("query_timeout_s", 0)), most=_LONGEST_TIMEOUT_S),
        session_timeout_s=options.whole(
            "session_timeout_s", int(usual.get("session_timeout_s", 0)), most=_LONGEST_TIMEOUT_S
        ),
        limits=Limits(connect_s=options.whole("connect_timeout_s", 10, least=1, most=600)),
        cell_max_bytes=context.cell_max_bytes,
        rules=context.addresses,
    )


def _members(options: Options, port: int, rules: AddressRules) -> tuple[Member, ...]:
    """`host`, `host:port`, `[::1]:port`, joined by commas."""
    members: list[Member] = []
    given = options.required("server_host")
    if given and not given.replace(",", "").strip():
        options.refuse("server_host", "must name a host")
    for part in given.split(","):
        text = part.strip()
        if not text:
            continue
        host, colon, own_port = text.rpartition(":")
        if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
            host, own_port = text, str(port)
        if "@" in text or "/" in text or not host.strip("[]"):
            options.refuse("server_host", "must hold nothing but hosts and ports")
            continue
        if not (own_port.isascii() and own_port.isdigit() and len(own_port) < 6 and 0 < int(own_port) < 65536):
            options.refuse("server_host", f"the port of {host[:_SHOWN]} must be a number from 1 to 65535")
            continue
        options.goes_to("server_host", host, int(own_port), rules)
        members.append(Member(host.strip("[]"), int(own_port)))
    return tuple(members)


def _mechanism(options: Options, dialect: str, *, is_http: bool, forwards_tokens: bool) -> Mechanism:
    uses_sasl = options.flag("use_sasl", default=dialect != "impala")
    chosen = options.choice("auth_mechanism", _MECHANISMS, "")
    if not chosen:
        chosen = "JWT" if is_http and forwards_tokens else "NONE" if uses_sasl or is_http else "NOSASL"
    mechanism = Mechanism(chosen)
    if mechanism is Mechanism.JWT and not is_http:
        options.refuse("auth_mechanism", "JWT needs transport_mode http")
    if mechanism is Mechanism.GSSAPI and is_http:
        options.refuse("auth_mechanism", "GSSAPI needs transport_mode binary")
    elif mechanism is Mechanism.GSSAPI and not is_installed():
        text = "the driver of GSSAPI is not installed: pip install queryserver[kerberos]"
        options.refuse("auth_mechanism", text, Kind.LACK)
    return mechanism


def _tls(options: Options) -> Tls | None:
    tls = Tls(validate=options.flag("ssl_validate", default=True), ca=options.authorities("ssl_ca"))
    return tls if options.flag("use_ssl") else None


def _from_sections(dialect: str, context: BuildContext) -> Values:
    """The options that older settings files mean."""
    if dialect == "impala":
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
    if dialect == "sparksql":
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


def _tls_values(tls: EngineTlsSettings) -> Values:
    return {"use_ssl": tls.enabled, "ssl_validate": tls.validate_certificate, "ssl_ca": _text_of(tls.cacerts)}


def _text_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return f"unreadable: {path.name}"
