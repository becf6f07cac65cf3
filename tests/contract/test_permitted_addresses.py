"""Every adapter connects to the address that was checked; it does not resolve the name again (Contract
platform 5.11).
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any

import pytest
from tests.fakes import http_driver

from queryserver.connectors.connection_tests import Login, engine_login, rest_login
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.engines.protocol import SessionOptions
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.http_client import HttpClient, HttpRequest
from queryserver.platform.settings.editor import ConnectorPolicySettings
from queryserver.platform.settings.tree import Settings

pytestmark = [pytest.mark.platform(72), pytest.mark.security("T8")]

_NAME = "moving.example"
_GOOD, _BAD = "127.0.0.2", "127.0.0.9"
_RULES = AddressRules(blocked=(ip_network(f"{_BAD}/32"),))
_DRIVERS = ConnectorPolicySettings().allowed_drivers
_SETTINGS = Settings.model_validate(
    {"desktop": {"connector_policy": {"allowed_drivers": (*_DRIVERS, "mariadb+pymysql", http_driver.NAME)}}}
)
_LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)
_ANA = User(id=1, username="ana")

ADAPTERS = {
    "postgresql": ("postgresql", "sqlalchemy", {"url": "postgresql://u:p@{name}:{port}/x?connect_timeout=30"}),
    "mysql": ("mysql", "sqlalchemy", {"url": "mysql://u:p@{name}:{port}/x?connect_timeout=30"}),
    "any driver": ("mysql", "sqlalchemy", {"url": "mariadb+pymysql://u:p@{name}:{port}/x"}),
    "any driver over http": ("presto", "sqlalchemy", {"url": f"{http_driver.NAME}://u:p@{{name}}:{{port}}/login"}),
    "hive": ("hive", "hiveserver2", {"server_host": "{name}", "server_port": "{port}"}),
    "hive without sasl": ("hive", "hiveserver2", {"server_host": "{name}:{port}", "auth_mechanism": "NOSASL"}),
    "hive over http": (
        "hive",
        "hiveserver2",
        {"server_host": "{name}", "server_port": "{port}", "transport_mode": "http"},
    ),
    "trino": ("trino", "trino", {"url": "http://{name}:{port}"}),
    "trino by url": ("trino", "sqlalchemy", {"url": "trino://u@{name}:{port}/tpch"}),
    "phoenix": ("phoenix", "phoenix", {"url": "http://{name}:{port}/"}),
    "phoenix by url": ("phoenix", "sqlalchemy", {"url": "phoenix://{name}:{port}/"}),
}


@dataclass
class World:
    """Servers on two addresses that count their connections, and a resolver that returns a sequence of results."""

    port: int = 0
    reached: Counter[str] = field(default_factory=Counter[str])
    answers: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    asked: int = 0

    def begin(self, answers: Sequence[Sequence[str]]) -> None:
        """Reset the counters and define the resolver's results."""
        self.answers, self.asked = list(answers), 0
        self.reached.clear()

    def resolve(self, host: Any, port: Any, *more: Any, **options: Any) -> Any:
        """Return the next result for the tests' host name, and repeat the last result from then on. Resolve other names
        normally.
        """
        if host != _NAME:
            return _system_resolver(host, port, *more, **options)
        addresses = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, int(port))) for one in addresses]


_system_resolver = socket.getaddrinfo


@asynccontextmanager
async def _listening(world: World, address: str) -> AsyncGenerator[None]:
    async def come(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        world.reached[address] += 1
        writer.close()

    async with await asyncio.start_server(come, address, world.port) as server:
        world.port = server.sockets[0].getsockname()[1]
        yield


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    """Start the servers and replace the resolver for one test."""
    http_driver.register()
    world = World()
    async with _listening(world, _GOOD), _listening(world, _BAD):
        monkeypatch.setattr(socket, "getaddrinfo", world.resolve)
        yield world


@asynccontextmanager
async def _attempt(adapter: str, world: World) -> AsyncGenerator[Login]:
    dialect, interface, options = ADAPTERS[adapter]
    filled = {name: value.format(name=_NAME, port=world.port) for name, value in options.items()}
    connector = Connector("shop", dialect, interface, "Shop", _LIMITS, options=MappingProxyType(filled))
    builder = EngineBuilder(_SETTINGS, addresses=_RULES)
    engine = builder.build(connector)
    try:
        yield engine_login(engine, dialect, passes_tokens=False)
    finally:
        await engine.close()


async def _try(attempt: Login) -> EngineError:
    try:
        async with asyncio.timeout(60), attempt(_ANA) as hello:
            await hello()
    except EngineError as error:
        return error
    pytest.fail("nobody there speaks any protocol")


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_address_change_after_check_is_not_followed(adapter: str, world: World) -> None:
    world.begin([[_GOOD], [_BAD]])
    async with _attempt(adapter, world) as attempt:
        await _try(attempt)
        assert world.reached[_GOOD]
        assert isinstance(await _try(attempt), EngineUnavailable)
    assert world.reached[_BAD] == 0
    assert world.asked >= 2


@pytest.mark.parametrize("adapter", [one for one in ADAPTERS if one != "trino by url"])
async def test_only_permitted_addresses_of_a_name_are_tried(adapter: str, world: World) -> None:
    world.begin([[_BAD, _GOOD, _BAD]])
    async with _attempt(adapter, world) as attempt:
        await _try(attempt)
    assert world.reached[_GOOD]
    assert world.reached[_BAD] == 0


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_name_with_refused_address_is_never_connected(adapter: str, world: World) -> None:
    world.begin([[_BAD]])
    async with _attempt(adapter, world) as attempt:
        error = await _try(attempt)
    assert not world.reached
    assert isinstance(error, EngineUnavailable)
    assert _BAD not in error.message


async def test_rest_servers_follow_the_same_rules(world: World) -> None:
    request = HttpRequest(f"http://{_NAME}:{world.port}/x?op=y")
    world.begin([[_GOOD], [_BAD]])
    async with HttpClient(_RULES) as exchanges:
        attempt = rest_login(exchanges, request, member="Path")
        await _try(attempt)
        assert isinstance(await _try(attempt), HostRefused)
    assert world.reached == {_GOOD: 1}


@pytest.mark.parametrize(
    "adapter", ["postgresql", "mysql", "hive", "trino", "phoenix", "any driver", "any driver over http"]
)
async def test_service_database_is_unreachable_by_any_name(adapter: str, world: World) -> None:
    world.begin([[_GOOD]])
    dialect, interface, options = ADAPTERS[adapter]
    filled = {name: value.format(name=_NAME, port=world.port) for name, value in options.items()}
    own = AddressRules(own=frozenset({("127.0.0.1", world.port)}))
    connector = Connector("shop", dialect, interface, "Shop", _LIMITS, options=MappingProxyType(filled))
    engine = EngineBuilder(_SETTINGS, addresses=own).build(connector)
    with suppress(EngineError):
        async with engine.session(_ANA, SessionOptions()) as session:
            await session.submit("SELECT 1")
    await engine.close()
    assert not world.reached
