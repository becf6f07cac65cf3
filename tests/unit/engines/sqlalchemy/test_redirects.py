"""Address rules also apply to redirects that third-party drivers follow (Contract platform 5.11: Hosts)."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fakes import http_driver

from queryserver.connectors.connection_tests import reason_of
from queryserver.engines import sessions as direct
from queryserver.engines.protocol import EngineSession, SessionOptions
from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress, SqlalchemyEngine
from queryserver.errors.statements import CredentialsRequired, OutcomeUnknown, StatementRejected
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused

pytestmark = [pytest.mark.platform(72), pytest.mark.security("T8")]

_GOOD, _BAD = "127.0.0.2", "127.0.0.9"
_RULES = AddressRules(blocked=(ip_network(f"{_BAD}/32"),))
_ANA = User(id=1, username="ana")


@dataclass
class World:
    """Servers on two addresses.

    A server redirects if `redirects` has an entry for the path; otherwise, it returns the entry in `answers`.
    """

    port: int = 0
    reached: Counter[str] = field(default_factory=Counter[str])
    answers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    redirects: dict[str, str] = field(default_factory=dict[str, str])

    @asynccontextmanager
    async def listening(self, address: str) -> AsyncGenerator[None]:
        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.reached[address] += 1
            path = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1]
            if target := self.redirects.get(path):
                head, body = f"HTTP/1.1 302 X\r\nLocation: {target}\r\n", b""
            else:
                head, body = "HTTP/1.1 200 X\r\n", json.dumps(self.answers.get(path, {"rows": []})).encode()
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(come, address, self.port) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    def url(self, host: str, path: str = "/more") -> str:
        """Return a URL on one of the servers."""
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Run both servers for one test."""
    http_driver.register()
    world = World()
    async with world.listening(_GOOD), world.listening(_BAD):
        yield world


async def rows(world: World, database: str = "d", rules: AddressRules = _RULES) -> list[str]:
    """Run a statement and return the values of its first column."""
    async with session_of(world, database, rules) as session:
        answer = await direct.run(session, "SELECT 1", max_rows=10)
        return [value for batch in answer.rows for value in batch.column(0).to_pylist()]


@asynccontextmanager
async def session_of(world: World, database: str = "d", rules: AddressRules = _RULES) -> AsyncGenerator[EngineSession]:
    """Open a session on the first server."""
    url = sa.URL.create(http_driver.NAME, host=_GOOD, port=world.port, database=database)
    engine = SqlalchemyEngine(SqlalchemyAddress(url, rules=rules), dialect="presto")
    try:
        async with asyncio.timeout(60), engine.session(_ANA, SessionOptions()) as session:
            yield session
    finally:
        await engine.close()


async def test_redirect_to_permitted_address_is_followed(world: World) -> None:
    world.redirects["/"] = world.url(_BAD)
    world.answers["/more"] = {"rows": [["found"]]}
    assert await rows(world, rules=AddressRules()) == ["found"]


@pytest.mark.parametrize(("database", "error"), [("login", HostRefused), ("d", OutcomeUnknown)])
async def test_redirect_to_refused_address_is_not_followed(world, database, error) -> None:
    world.reached.clear()
    world.redirects["/"] = world.url(_BAD)
    with pytest.raises(error, match="tried to connect to an address") as raised:
        await rows(world, database)
    assert reason_of(raised.value) == "refused"
    assert _BAD not in raised.value.message
    assert world.reached == {_GOOD: 1}


async def test_rows_are_not_fetched_from_refused_next_address(world: World) -> None:
    world.answers["/"] = {"rows": [["one"]], "next": world.url(_BAD)}
    with pytest.raises(OutcomeUnknown, match="tried to connect to an address"):
        await rows(world)
    assert world.reached == {_GOOD: 1}


@pytest.mark.parametrize(
    ("database", "text", "error"),
    [("login", "Incorrect username or password", CredentialsRequired), ("d", "no such table", StatementRejected)],
)
async def test_ignored_refusal_does_not_replace_later_error(world, database, text, error) -> None:
    world.reached.clear()
    world.answers["/"] = {"report_to": world.url(_BAD), "error": text}
    with pytest.raises(error, match=text):
        await rows(world, database)
    assert world.reached == {_GOOD: 1}


async def test_session_survives_statement_failure_after_ignored_refusal(world: World) -> None:
    world.answers["/"] = {"report_to": world.url(_BAD), "error": "no such table"}
    async with session_of(world) as session:
        with pytest.raises(StatementRejected):
            await direct.run(session, "SELECT 1", max_rows=10)
        assert await session.is_alive()


async def test_host_name_is_checked_again_at_every_resolution(world, monkeypatch) -> None:
    answers = [_GOOD, _BAD]
    system_s = socket.getaddrinfo

    def resolve(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        moved = answers.pop(0) if host == "moving.example" else host
        return system_s(moved, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    world.answers["/"] = {"rows": [], "next": world.url("moving.example", "/one")}
    world.answers["/one"] = {"rows": [], "next": world.url("moving.example", "/two")}
    with pytest.raises(OutcomeUnknown, match="tried to connect to an address"):
        await rows(world)
    assert answers == []
    assert world.reached == {_GOOD: 2}


async def test_redirect_cannot_reach_service_database(world: World) -> None:
    own = World()
    async with own.listening("127.0.0.1"):
        world.redirects["/"] = own.url("127.0.0.1")
        with pytest.raises(HostRefused, match="tried to connect to an address"):
            await rows(world, "login", AddressRules(own=frozenset({("localhost", own.port)})))
    assert (world.reached, own.reached) == ({_GOOD: 1}, {})


@pytest.mark.parametrize("url", ["qshttp:///d", "mariadb+pymysql:///d", "clickhouse:///d", "presto+https:///d"])
def test_url_without_host_is_checked_as_local_machine(url: str) -> None:
    nothing_here = AddressRules(blocked=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
    with pytest.raises(HostRefused):
        SqlalchemyAddress(sa.make_url(url), rules=nothing_here).checked_url(None, None)
    own = AddressRules(own=frozenset({("localhost", 3306)}))
    if url.startswith("mariadb"):
        with pytest.raises(HostRefused):
            SqlalchemyAddress(sa.make_url(url), rules=own).checked_url(None, None)


@pytest.mark.parametrize(
    ("url", "places", "host"),
    [
        ("presto://h/d", (("h", 8080),), "h"),
        ("clickhouse:///d", (("localhost", 8123),), "localhost"),
        ("redshift+psycopg2://h/d", (("h", 5432),), "h"),
        ("redshift://h/d", (("h", 5432),), "h"),
        ("cockroachdb:///d", (("localhost", 5432),), "localhost"),
        ("cockroachdb://h:26257/d", (("h", 26257),), "h"),
        ("redshift+redshift_connector://h/d", (("h", 5439),), "h"),
        ("mariadb:///d", (("localhost", 3306),), "localhost"),
        ("calcite://h/d", (), "h"),
        ("calcite://h:1/d", (("h", 1),), "h"),
        ("snowflake://account/d", (), None),
        ("bigquery:///d", (), None),
        ("bigquery://h:443/d", (("h", 443),), "h"),
    ],
)
def test_url_endpoints_use_known_default_ports(url, places, host) -> None:
    address = SqlalchemyAddress(sa.make_url(url))
    assert (address.endpoints, address.host) == (places, host)


@pytest.mark.parametrize(("url", "port"),
    [("redshift://127.0.0.5/d", 5432), ("cockroachdb://127.0.0.5/d", 5432), ("mariadb://127.0.0.5/d", 3306),
    ("mysql+mysqldb://127.0.0.5/d", 3306)])  # fmt: skip
def test_c_library_gets_the_checked_port(url: str, port: int) -> None:
    """If the URL contained no port, the library would read it from the server's environment variables, where no rule
    checks it.
    """
    own = AddressRules(own=frozenset({("localhost", port)}))
    with pytest.raises(HostRefused):
        SqlalchemyAddress(sa.make_url(url), rules=own).checked_url(None, None)
    elsewhere = AddressRules(own=frozenset({("localhost", port + 1)}))
    assert SqlalchemyAddress(sa.make_url(url), rules=elsewhere).checked_url(None, None).port == port
