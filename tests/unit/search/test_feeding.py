"""Where objects were read: the address of a scope (Contract platform 8.4)."""

from datetime import timedelta
from types import MappingProxyType
from typing import Any

from tests.cases import each

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.identity.model import User
from queryserver.platform.settings.tree import Settings
from queryserver.search.feeding import Scoping

LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)
ANA = User(4, "ana")


async def address(dialect: str, settings: dict[str, Any], **options: Any) -> bytes:
    """That of a connector of the interface `hiveserver2`."""
    builder = EngineBuilder(Settings.model_validate(settings))
    connector = Connector(dialect, dialect, "hiveserver2", dialect, LIMITS, options=MappingProxyType(options))
    connectors = Connectors([connector], build=builder.build)
    try:
        key = Scoping(connectors).key(ANA, connector)
    finally:
        await connectors.aclose()
    assert key is not None
    return key.address


@each(
    ("dialect", "section", "host", "port"),
    ("hive", "beeswax", "hive_server_host", "hive_server_port"),
    ("impala", "impala", "server_host", "server_port"),
    ("sparksql", "spark", "sql_server_host", "sql_server_port"),
)
async def test_another_host_of_the_sections_is_another_address(
    dialect: str, section: str, host: str, port: str
) -> None:
    """A connector without options has its host in a section of the settings."""
    one = await address(dialect, {section: {host: "one.example"}})
    assert one == await address(dialect, {section: {host: "one.example"}})
    assert one != await address(dialect, {section: {host: "two.example"}})
    assert one != await address(dialect, {section: {host: "one.example", port: 4711}})


async def test_another_password_is_the_same_address() -> None:
    given = {"server_host": "one.example", "username": "svc", "auth_mechanism": "LDAP"}
    one = await address("hive", {}, **given, password="first")
    assert one == await address("hive", {}, **given, password="second")
    assert one != await address("hive", {}, **{**given, "server_host": "two.example"}, password="first")
