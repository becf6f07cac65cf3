"""The engine that each connector interface builds."""

import ssl
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any

import pytest
import sqlalchemy as sa
from scripts.document import INTERFACES
from tests.contract.engine_table import CAPABILITIES, COLUMNS, table
from tests.contract.support_table import Suite
from tests.contract.test_signatures import CATALOG_TESTS, ENGINE_TESTS

from queryserver.connectors.engine_builders import BUILDERS, EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.connectors.options import HS2_OPTIONS, AtlasOptions, PhoenixOptions, TrinoOptions
from queryserver.connectors.secrets import is_secret
from queryserver.connectors.urls import UrlOptions
from queryserver.engines.connections import client_tls
from queryserver.engines.hiveserver2.variants import Mechanism
from queryserver.engines.mysql.engine import MysqlEngine
from queryserver.engines.phoenix import connection as phoenix
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import Engine, SessionOptions
from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress, SqlalchemyEngine
from queryserver.engines.trino import protocol as trino
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.errors.base import ConfigurationError
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused, database_name
from queryserver.platform.settings.tree import Settings

_USER = User(id=1, username="ada")
_LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)


def connector(interface: str, dialect: str = "shop", *, only_reads: bool = False, **options: Any) -> Connector:
    return Connector(
        "shop", dialect, interface, "Shop", _LIMITS, options=MappingProxyType(options), read_only=only_reads
    )


def builder(**policy: Any) -> EngineBuilder:
    return EngineBuilder(Settings.model_validate({"desktop": {"connector_policy": policy}}))


def built(interface: str, *, policy: Mapping[str, Any] | None = None, **options: Any) -> Engine:
    return builder(**(policy or {})).build(connector(interface, **options))


def problems(interface: str, *, policy: Mapping[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        built(interface, policy=policy, **options)
    return raised.value.message


@pytest.mark.security("T9")
def test_every_secret_option_is_masked_by_its_name() -> None:
    models = {*HS2_OPTIONS.values(), TrinoOptions, PhoenixOptions, AtlasOptions, UrlOptions}
    secrets = {name for model in models for name, field in model.model_fields.items() if not field.repr}
    assert secrets == {"password", "credentials_json"}
    assert all(map(is_secret, secrets))


@pytest.mark.parametrize(
    ("interface", "mechanisms", "taken"),
    [
        ("trino", trino.TrinoAuthentication, "NONE, BASIC, JWT"),
        ("phoenix", phoenix.PhoenixAuthentication, "NONE, BASIC, SPNEGO"),
        ("hiveserver2", Mechanism, "empty, NONE, NOSASL, PLAIN, LDAP, GSSAPI, JWT"),
    ],
)
def test_options_name_the_mechanisms_of_the_engine(interface: str, mechanisms: Any, taken: str) -> None:
    assert set(taken.removeprefix("empty, ").split(", ")) == {one.value for one in mechanisms}
    found = problems(interface, dialect="hive", url="http://h", server_host="h", auth_mechanism="bogus")
    assert f"auth_mechanism: must be one of {taken}." in found


def test_unsupported_interface_is_reported_for_its_connector() -> None:
    assert problems("livy") == "notebook.interpreters.shop.interface: this server cannot run livy."


def test_all_problems_are_reported_together() -> None:
    found = problems("duckdb", threads="many", read_only="maybe", color="red").splitlines()
    assert found == [
        "notebook.interpreters.shop.options.color: is not an option of this interface.",
        "notebook.interpreters.shop.options.read_only: must be true or false.",
        "notebook.interpreters.shop.options.threads: must be an integer from 1 to 256.",
    ]


def test_problem_found_by_the_adapter_names_the_connector() -> None:
    assert problems("sqlite", read_only=True).startswith("notebook.interpreters.shop.read_only: must be false")


async def test_option_booleans_and_integers_may_be_text() -> None:
    engine = built("duckdb", threads="3", read_only="false")
    await engine.close()


@pytest.mark.parametrize(
    ("url", "engine"),
    [
        ("postgres://u:p@h/d", PostgresqlEngine),
        ("postgresql+asyncpg://u:p@h/d?sslmode=verify-full&keepalives_idle=30", PostgresqlEngine),
        ("POSTGRESQL+psycopg://u:p@h/d?target_session_attrs=primary", PostgresqlEngine),
        ("mysql://u:p@h/d?ssl_mode=VERIFY_IDENTITY&read_timeout=60&charset=utf8mb4", MysqlEngine),
        ("mysql+pymysql://u:p@h:3307/d", MysqlEngine),
        ("trino://u@h:8080/tpch/tiny", TrinoEngine),
        ("presto://h:8080/tpch", SqlalchemyEngine),
        ("druid://h:8082/druid/v2/sql/", SqlalchemyEngine),
    ],
)
async def test_url_selects_the_engine(url: str, engine: type) -> None:
    made = built("sqlalchemy", url=url)
    assert type(made) is engine
    await made.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "must be set"),
        ("mysql://h:port/d", "is not a valid url"),
        ("sqlite:///etc/passwd", "sqlite urls are not supported here: use the interface sqlite"),
        ("duckdb:///x", "duckdb urls are not supported here"),
        ("jdbc:db2://h", "jdbc urls are not supported here"),
        ("exotic://h", "the driver exotic is not in desktop.connector_policy.allowed_drivers"),
        ("mysql+aiomysql://h", "the driver mysql+aiomysql is not in"),
        ("mysql://h/d?local_infile=1", "the option local_infile is not allowed"),
        ("mysql://h/d?Local-Infile=1", "the option Local-Infile is not allowed"),
        ("mysql://h/d?allowLoadLocalInfile=1", "the option allowLoadLocalInfile is not allowed"),
        ("mysql://h/d?unix_socket=/tmp/s", "the option unix_socket is not allowed"),
        ("mysql://h/d?ssl_mode=maybe", "the option ssl_mode must be one of DISABLED, REQUIRED"),
        ("mysql://h/d?connect_timeout=0", "the option connect_timeout must be an integer from 1 to 604800"),
        (f"mysql://h/d?connect_timeout={'9' * 5000}", "the option connect_timeout must be an integer from 1 to"),
        ("postgresql://h/d?keepalives_count=128", "the option keepalives_count must be an integer from 1 to 127"),
        ("mysql://h:0/d", "is not a valid url"),
        ("postgresql://h/d?host=/tmp", "the option host is not allowed"),
        ("postgresql://h/d?options=-c%20x=y", "the option options is not allowed"),
        ("postgresql://h/d?sslrootcert=/etc/passwd", "the option sslrootcert is not allowed"),
        ("postgresql://h/d?keepalives=2", "the option keepalives must be one of 0, 1"),
    ],
)
def test_forbidden_url_parts_are_rejected(url: str, text: str) -> None:
    assert f"notebook.interpreters.shop.options.url: {text}" in problems("sqlalchemy", url=url)


def test_administrator_may_allow_harmless_options_only() -> None:
    policy = {"extra_url_options": {"druid": ("context", "ssl_ca", "init_command")}}
    assert "context" not in problems("sqlalchemy", policy=policy, url="druid://h/?context=a&ssl_ca=/x&init_command=y")
    found = problems("sqlalchemy", policy=policy, url="druid://h/?context=a&ssl_ca=/x&init_command=y").splitlines()
    assert [line.split("the option ")[1] for line in found] == [
        "init_command is not allowed.",
        "ssl_ca is not allowed.",
    ]


@pytest.mark.security("T8")
@pytest.mark.parametrize(
    "option", ["hostname", "ssh_host", "http_proxy", "endpoint_url", "token_uri", "dsn", "wallet_location", "module"]
)
def test_options_leading_to_other_hosts_or_code_cannot_be_allowed(option: str) -> None:
    policy = {"extra_url_options": {"druid": (option,)}}
    assert f"the option {option} is not allowed" in problems("sqlalchemy", policy=policy, url=f"druid://h/?{option}=x")


def test_tunnels_and_impersonation_are_rejected() -> None:
    found = problems(
        "sqlalchemy", url="mysql://h/d", has_ssh="true", ssh_server_host="127.0.0.1", has_impersonation=True
    )
    assert "has_ssh: must be false: tunnels are not supported." in found
    assert "has_impersonation: must be false: only trino supports impersonation." in found


def test_read_only_requires_an_enforcing_data_source() -> None:
    with pytest.raises(ConfigurationError, match="cannot be enforced with the driver druid"):
        builder().build(connector("sqlalchemy", only_reads=True, url="druid://h/"))


def test_placeholder_requests_the_callers_credentials() -> None:
    for url in ("mysql://${USER}:${PASSWORD}@h/d", "druid://${USER}:${PASSWORD}@h/", "postgresql://${USER}@h/d"):
        assert built("sqlalchemy", url=url).capabilities.wants_credentials


@pytest.mark.parametrize(
    "url", ["mysql://u:p@169.254.169.254/d", "postgresql://u:p@0.0.0.0/d", "druid://u:p@[ff02::1]/"]
)
async def test_blocked_addresses_are_never_connected_to(url: str) -> None:
    engine = built("sqlalchemy", url=url)
    with pytest.raises(EngineUnavailable, match=r"are not allowed here|is not installed"):
        await engine.ping()
    await engine.close()


async def test_only_allowed_networks_are_connected_to() -> None:
    engine = built(
        "sqlalchemy", policy={"allowed_networks": (ip_network("10.0.0.0/8"),)}, url="mysql://u:p@localhost/d"
    )
    with pytest.raises(EngineUnavailable, match="Connections to localhost are not allowed here"):
        async with engine.session(_USER, SessionOptions()):
            pass
    await engine.close()


def test_service_database_is_unreachable_for_connectors() -> None:
    settings = Settings.model_validate({"desktop": {"database": {"url": "postgresql://own:secret@localhost:5433/own"}}})
    rules = EngineBuilder(settings).addresses
    with pytest.raises(EngineUnavailable, match=r"Connections to 127\.0\.0\.1 are not allowed here"):
        rules.resolve_blocking("127.0.0.1", 5433)
    assert rules.resolve_blocking("127.0.0.1", 5434) == ["127.0.0.1"]


def test_certificate_is_checked_against_the_name_when_connecting_by_address() -> None:
    context = client_tls("db.example.com")
    connection = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="127.0.0.1")
    assert connection.server_hostname == "db.example.com"
    assert context.check_hostname
    with pytest.raises(ValueError, match="in PEM format"):
        client_tls("db.example.com", ca="no certificate")


@pytest.mark.security("T8")
@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("postgresql://u:p@db.example/queryserver", {("db.example", 5432)}),
        ("postgresql://u:p@one:5433,two,[::1]:5434/queryserver", {("one", 5433), ("two", 5432), ("::1", 5434)}),
        ("postgresql://u:p@/queryserver?host=10.0.0.1&port=5433", {("10.0.0.1", 5433)}),
        ("postgresql://u:p@/queryserver?host=one,two&port=1,2", {("one", 1), ("two", 2)}),
        ("postgresql://u:p@/queryserver?host=/run/postgresql&port=5433", {("localhost", 5433)}),
        ("postgresql://u:p@%2Frun%2Fpostgresql/queryserver", {("localhost", 5432)}),
    ],
)
def test_service_database_hosts_are_read_from_any_url_form(url: str, own: set[tuple[str, int]]) -> None:
    settings = Settings.model_validate({"desktop": {"database": {"url": url}}})
    assert EngineBuilder(settings).addresses.service_database == own


@pytest.mark.security("T8")
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::"])
def test_listener_and_broker_addresses_are_known(host: str) -> None:
    broker = {"enabled": True, "broker_url": "redis://:secret@broker.example/1"}
    settings = Settings.model_validate({"desktop": {"http_host": host, "http_port": 8123, "task_server": broker}})
    assert EngineBuilder(settings).addresses.own == {(host, 8123), ("broker.example", 6379)}


@pytest.mark.parametrize(("url", "name"),
    [("postgresql://u:p@h/own", "own"), ("postgresql://u:p@h/o%77n", "own"), ("postgresql://own:p@h", "own"),
    ("postgresql://h/?dbname=own&user=u", "own"), ("postgresql://u:p@/own?host=/run", "own")])  # fmt: skip
def test_service_database_name_is_read_from_any_url_form(url: str, name: str) -> None:
    assert database_name(url) == name


@pytest.mark.security("T8")
@pytest.mark.parametrize("url", ["redshift+psycopg2://u@127.0.0.1/d", "redshift+psycopg2://u@/d"])
def test_url_without_host_or_port_uses_driver_defaults(url: str) -> None:
    rules = AddressRules(own=frozenset({("127.0.0.1", 5432)}))
    with pytest.raises(HostRefused):
        SqlalchemyAddress(url=sa.make_url(url), rules=rules).checked_url(None, None)
    elsewhere = AddressRules(own=frozenset({("127.0.0.1", 5433)}))
    found = SqlalchemyAddress(url=sa.make_url(url), rules=elsewhere).checked_url(None, None)
    assert found.host in {"127.0.0.1", "::1"}
    assert found.port == 5432


@pytest.mark.security("T8")
def test_cloud_driver_url_with_a_port_names_a_host() -> None:
    rules = AddressRules(blocked=(ip_network("127.0.0.0/8"),))
    account = SqlalchemyAddress(url=sa.make_url("snowflake://u:p@account/d"), rules=rules)
    assert account.checked_url(None, None).host == "account"
    assert account.endpoints == ()
    host = SqlalchemyAddress(url=sa.make_url("snowflake://u:p@localhost:80/d"), rules=rules)
    assert host.endpoints == (("localhost", 80),)
    with pytest.raises(HostRefused):
        host.checked_url(None, None)


def test_every_tested_engine_has_a_column() -> None:
    shown = {column.tests for column in COLUMNS} | {"fake", "documented"}
    assert {file.split("_")[1] for file in (*ENGINE_TESTS, *CATALOG_TESTS)} == shown
    assert {column.interface for column in COLUMNS} == set(BUILDERS) == set(INTERFACES)


def test_every_row_has_a_test() -> None:
    rows = {row[0].removeprefix("| "): row[1:] for row in (line.split(" | ") for line in table().splitlines())}
    for name in CAPABILITIES:
        assert any(not cell.startswith(("no", "–")) for cell in rows[name]), name


@pytest.mark.parametrize(
    ("failures", "verdict"), [(((), ()), "yes"), (((), ("why",)), "part"), ((("why",), ("why",)), "no"), ((), "")]
)
def test_known_failure_appears_in_the_cell(failures: tuple[tuple[str, ...], ...], verdict: str) -> None:
    suite = Suite("peer", {"Run": {f"test_{number}": reasons for number, reasons in enumerate(failures)}})
    assert suite.verdict("Run") == verdict
    assert list(suite.reasons("Run")) == ["why" for reasons in failures if reasons]
