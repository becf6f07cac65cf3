"""The service's own database and broker, which no connector may reach (Contract platform 5.11: Hosts)."""

from ipaddress import ip_network

import pytest
import sqlalchemy as sa
from tests.cases import each

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress
from queryserver.platform.addresses import AddressRules, HostRefused, database_name
from queryserver.platform.settings.tree import Settings


@pytest.mark.security("T8")
@each(
    ("url", "own"),
    ("postgresql://u:p@db.example/queryserver", {("db.example", 5432)}),
    ("postgresql://u:p@one:5433,two,[::1]:5434/queryserver", {("one", 5433), ("two", 5432), ("::1", 5434)}),
    ("postgresql://u:p@/queryserver?host=10.0.0.1&port=5433", {("10.0.0.1", 5433)}),
    ("postgresql://u:p@/queryserver?host=one,two&port=1,2", {("one", 1), ("two", 2)}),
    ("postgresql://u:p@/queryserver?host=/run/postgresql&port=5433", {("localhost", 5433)}),
    ("postgresql://u:p@%2Frun%2Fpostgresql/queryserver", {("localhost", 5432)}),
)
def test_every_host_of_the_database_is_known_however_its_url_names_it(url: str, own: set[tuple[str, int]]) -> None:
    settings = Settings.model_validate({"desktop": {"database": {"url": url}}})
    assert EngineBuilder(settings).addresses.service_database == own


@pytest.mark.security("T8")
@each("host", "0.0.0.0", "127.0.0.1", "::")
def test_the_listener_and_the_broker_are_known(host: str) -> None:
    broker = {"enabled": True, "broker_url": "redis://:secret@broker.example/1"}
    settings = Settings.model_validate({"desktop": {"http_host": host, "http_port": 8123, "task_server": broker}})
    assert EngineBuilder(settings).addresses.own == {(host, 8123), ("broker.example", 6379)}


@each(
    ("url", "name"),
    ("postgresql://u:p@h/own", "own"),
    ("postgresql://u:p@h/o%77n", "own"),
    ("postgresql://own:p@h", "own"),
    ("postgresql://h/?dbname=own&user=u", "own"),
    ("postgresql://u:p@/own?host=/run", "own"),
)
def test_the_name_of_the_service_s_database_is_read_however_its_url_gives_it(url: str, name: str) -> None:
    assert database_name(url) == name


@pytest.mark.security("T8")
@each("url", "redshift+psycopg2://u@127.0.0.1/d", "redshift+psycopg2://u@/d")
def test_a_url_without_host_or_port_means_those_that_its_driver_takes(url: str) -> None:
    rules = AddressRules(own=frozenset({("127.0.0.1", 5432)}))
    with pytest.raises(HostRefused):
        SqlalchemyAddress(url=sa.make_url(url), rules=rules).checked_url(None, None)
    elsewhere = AddressRules(own=frozenset({("127.0.0.1", 5433)}))
    found = SqlalchemyAddress(url=sa.make_url(url), rules=elsewhere).checked_url(None, None)
    assert found.host in {"127.0.0.1", "::1"}
    assert found.port == 5432


@pytest.mark.security("T8")
def test_a_driver_of_a_cloud_that_is_given_a_port_is_given_a_host() -> None:
    rules = AddressRules(blocked=(ip_network("127.0.0.0/8"),))
    account = SqlalchemyAddress(url=sa.make_url("snowflake://u:p@account/d"), rules=rules)
    assert account.checked_url(None, None).host == "account"
    assert account.places == ()
    host = SqlalchemyAddress(url=sa.make_url("snowflake://u:p@localhost:80/d"), rules=rules)
    assert host.places == (("localhost", 80),)
    with pytest.raises(HostRefused):
        host.checked_url(None, None)
