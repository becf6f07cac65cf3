"""The shared servers of the engine tests listen only on loopback. `EngineServers` checks for orphaned processes and
files.
"""

from typing import Protocol

import psutil
import pytest
from tests.fixtures.engines import EngineServers


class _Address(Protocol):
    @property
    def port(self) -> int: ...


def assert_on_loopback(servers: EngineServers, name: str, address: _Address) -> None:
    """Fail unless the server's processes listen only on loopback, and one of them on this address."""
    doors = [
        connection.laddr
        for process in servers.processes(name)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert address.port in {door.port for door in doors}
    assert {door.ip for door in doors} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.engine("hive")
def test_hive_listens_on_loopback(engine_servers: EngineServers, hive_server: _Address):
    assert_on_loopback(engine_servers, "hive_server", hive_server)


@pytest.mark.engine("hive")
def test_secured_hive_listens_on_loopback(engine_servers: EngineServers, secured_hive_server: _Address):
    assert_on_loopback(engine_servers, "secured_hive_server", secured_hive_server)


@pytest.mark.engine("ldap")
def test_directory_listens_on_loopback(engine_servers: EngineServers, ldap_server: _Address):
    assert_on_loopback(engine_servers, "ldap_server", ldap_server)


@pytest.mark.engine("phoenix")
def test_phoenix_listens_on_loopback(engine_servers: EngineServers, phoenix_server: _Address):
    assert_on_loopback(engine_servers, "phoenix_server", phoenix_server)


@pytest.mark.engine("sparksql")
def test_spark_listens_on_loopback(engine_servers: EngineServers, spark_server: _Address):
    assert_on_loopback(engine_servers, "spark_server", spark_server)


@pytest.mark.engine("trino")
def test_trino_listens_on_loopback(engine_servers: EngineServers, trino_server: _Address):
    assert_on_loopback(engine_servers, "trino_server", trino_server)


@pytest.mark.engine("trino")
def test_secured_trino_listens_on_loopback(engine_servers: EngineServers, secured_trino_server: _Address):
    assert_on_loopback(engine_servers, "secured_trino_server", secured_trino_server)
