"""Attacks through the addresses of connectors: metadata services, the service itself, and its database."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.connectors.driving import ConnectorAdmin, listed
from tests.api.driving import Api, open_api
from tests.fixtures.database import execute

from queryserver.administration.configuration_check import check_settings
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules, HostRefused, literal_address
from queryserver.platform.connection_guard import guarded, install_guard
from queryserver.platform.embedded.cluster import SERVICE_ROLE
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.settings.editor import ConnectorPolicySettings
from queryserver.platform.settings.tree import Settings

pytestmark = pytest.mark.security("T8")

Opener = Callable[..., AbstractAsyncContextManager[Api]]

_METADATA = "169.254.169.254"
_NO_DATABASE = "postgresql://api_tests:planted-secret@127.0.0.1:1/none"
_REFUSED_ALLOWED = "desktop.connector_policy.allow_service_database_server"

CARRYING = (
    "::ffff:{v4}",
    "::{v4}",
    "::ffff:0:{v4}",
    "64:ff9b::{v4}",
    "64:ff9b:1::{v4}",
    "64:ff9b:1:2:3:4:{v4}",
    "64:ff9b:1:{a}{b}:{c}:{d}00::",
    "64:ff9b:1:{a}{b}:{c}:{d}12:3456:789a",
    "64:ff9b:1:77{a}:{b}:{c}{d}::",
    "64:ff9b:1:7788:{a}:{b}{c}:{d}00:0",
    "2002:{a}{b}:{c}{d}::1",
    "2001:0:{a}{b}:{c}{d}:0:1:2:3",
    "2001:0:102:304:0:1:{not_ab}:{not_cd}",
    "2001:db8::5efe:{v4}",
    "2001:db8::200:5efe:{v4}",
)
"""All formats of IPv6 addresses that embed an IPv4 address, at every possible position."""


def carrying(form: str, v4: str) -> str:
    """Return the IPv6 address of this format that embeds `v4`."""
    a, b, c, d = (f"{int(part):02x}" for part in v4.split("."))
    inverse = f"{int(f'{a}{b}{c}{d}', 16) ^ 0xFFFF_FFFF:08x}"
    return form.format(v4=v4, a=a, b=b, c=c, d=d, not_ab=inverse[:4], not_cd=inverse[4:])


def own_address() -> str:
    """Return a non-loopback address of this machine. If it has none, return a second loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return probe.getsockname()[0]


@asynccontextmanager
async def listening(host: str) -> AsyncGenerator[tuple[int, list[str]]]:
    """Start a real listener. Yield its port, and a list to which the address of each connecting peer is added."""
    peers = list[str]()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(str(writer.get_extra_info("peername")))
        writer.close()

    async with await asyncio.start_server(accept, host, 0) as server:
        yield server.sockets[0].getsockname()[1], peers


@pytest.mark.parametrize("form", CARRYING)
async def test_ipv6_address_is_refused_for_its_embedded_ipv4_address(form: str) -> None:
    rules = AddressRules(blocked=ConnectorPolicySettings().blocked_networks)
    hostile = carrying(form, _METADATA)
    assert literal_address(hostile) is not None
    with pytest.raises(HostRefused):
        await rules.resolve(hostile, 80)
    assert rules.refusal(hostile, 80) is not None
    harmless = carrying(form, "198.51.100.7")
    assert len(await rules.resolve(harmless, 80)) == 1, harmless


@pytest.mark.parametrize("form", CARRYING)
async def test_service_address_embedded_in_ipv6_is_refused(form: str) -> None:
    rules = AddressRules(own=frozenset({("127.0.0.1", 8888)}), service_database=frozenset({("10.1.2.3", 5432)}))
    for v4, port in (("127.0.0.1", 8888), ("10.1.2.3", 5432)):
        with pytest.raises(HostRefused):
            await rules.resolve(carrying(form, v4), port)
        assert await rules.resolve(carrying(form, v4), port + 1)


async def test_name_must_not_resolve_to_an_address_embedding_a_blocked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = AddressRules(blocked=ConnectorPolicySettings().blocked_networks)
    found = carrying("64:ff9b:1:{a}{b}:{c}:{d}00::", _METADATA)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(socket.AF_INET6, 1, 6, "", (found, 80, 0, 0))])
    with pytest.raises(HostRefused):
        await rules.resolve("harmless.example", 80)


@pytest.mark.parametrize("http_host", ["0.0.0.0", "::", "127.0.0.1", "localhost"])
async def test_service_listener_is_blocked_by_any_address_of_the_machine(http_host: str) -> None:
    async with listening("0.0.0.0") as (port, peers):
        settings = Settings.model_validate({"desktop": {"http_host": http_host, "http_port": port}})
        # The list of blocked networks is empty, because 0.0.0.0 must be refused even if it is not in the list.
        blocked = EngineBuilder(settings).addresses
        rules = AddressRules(own=blocked.own)
        for target in ("127.0.0.1", "127.8.9.10", "localhost", "0.0.0.0", "::1", "::", own_address(), "0x7f000001"):
            with pytest.raises(HostRefused, match="an address of the service itself"):
                await rules.resolve(target, port)
            assert literal_address(target) is None or rules.refusal(target, port)
        assert await rules.resolve("127.0.0.1", port - 1) == ["127.0.0.1"]
        assert await rules.resolve("198.51.100.7", port) == ["198.51.100.7"]
        assert peers == []


def link_local_addresses() -> list[tuple[str, str]]:
    """Return this machine's link-local addresses with their interfaces. The list is empty if it has no IPv6."""
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [(str(IPv6Address(int(line[0], 16))), line[5]) for line in lines if line[0].startswith("fe80")]


async def test_service_listener_is_blocked_by_link_local_addresses() -> None:
    """The service must be protected even if an operator has removed fe80::/10 from the blocked networks."""
    rules = AddressRules(own=frozenset({("0.0.0.0", 8888)}))
    for address, interface in link_local_addresses():
        for target in (f"{address}%{interface}", f"{address}%{socket.if_nametoindex(interface)}"):
            with pytest.raises(HostRefused, match="an address of the service itself"):
                await rules.resolve(target, 8888)
    assert await rules.resolve("fe80::1:2:3:4%lo", 8888) == ["fe80::1:2:3:4%lo"]


async def test_driver_with_its_own_connections_cannot_reach_the_listener() -> None:
    install_guard()
    async with listening("0.0.0.0") as (port, peers):
        rules = AddressRules(own=frozenset({("0.0.0.0", port)}))

        def connect() -> None:
            with guarded(rules):
                socket.create_connection((own_address(), port), timeout=5).close()

        with pytest.raises(HostRefused):
            await asyncio.to_thread(connect)
        assert peers == []


@pytest.fixture
async def own_url(database_dsn: str, tcp_open: EmbeddedPostgres) -> AsyncGenerator[str]:
    """The URL of the service database over TCP. It has a role for this test, because the embedded server refuses the
    service's own role over TCP.
    """
    database = database_dsn.partition("?")[0].rpartition("/")[2]
    role = f"service_of_{database}"
    await execute(tcp_open.admin_dsn(), f"CREATE ROLE {role} LOGIN PASSWORD '{role}' IN ROLE {SERVICE_ROLE}")
    yield f"postgresql://{role}:{role}@127.0.0.1:{tcp_open.address.port}/{database}"
    await execute(tcp_open.admin_dsn(), f"DROP ROLE {role}")


@pytest.fixture
def opener(tmp_path: Path, own_url: str, users_dsn: str) -> Opener:
    """A function that opens applications with the given connector policy. They reach their service database over
    TCP.
    """

    def opened(**policy: Any) -> AbstractAsyncContextManager[Api]:
        policy = {"local_database_dir": tmp_path / "databases", **policy}
        return open_api(make_settings(tmp_path, own_url, users_dsn, desktop={"connector_policy": policy}))

    return opened


async def outcome(admin: ConnectorAdmin, url: str) -> tuple[bool, str, str]:
    """Test a connector for this URL; return whether it succeeded, the reason for the failure, and the whole
    response.
    """
    draft = {"nice_name": "x", "dialect": "postgresql", "interface": "sqlalchemy", "settings": listed({"url": url})}
    response = await admin.caller.post("connector/instance/test", connector=json.dumps(draft))
    body = response.json()
    return body.get("ok", False), body.get("reason") or body.get("code"), response.text


async def test_service_database_server_is_refused_to_stored_connectors_with_reason(
    opener: Opener, users_dsn: str
) -> None:
    async with opener(allow_service_database_server=False) as api:
        admin = await ConnectorAdmin.of(api)
        draft = {"nice_name": "x", "dialect": "postgresql", "interface": "sqlalchemy"}
        status, code, errors = await admin.refused({**draft, "settings": listed({"url": users_dsn})})
        assert (status, code) == (400, "host_not_allowed")
        assert "server of the service's own database" in str(errors)
        assert _REFUSED_ALLOWED in str(errors)
        # The server resolves a host name only when it connects.
        ok, reason, text = await outcome(admin, users_dsn.replace("127.0.0.1", "localhost"))
        assert (ok, reason) == (False, "refused")
        assert "server of the service's own database" in text


async def test_other_databases_of_that_server_need_a_setting_for_stored_connectors(
    opener: Opener, users_dsn: str
) -> None:
    async with opener(allow_service_database_server=False) as api:
        # The interpreter `postgresql` in the settings file uses the same server, and remains allowed.
        ana = await api.user("ana")
        assert (await ana.result("postgresql", "select 1 + 1"))["data"] == [[2]]
    async with opener(allow_service_database_server=True) as api:
        admin = await ConnectorAdmin.of(api)
        for host in ("127.0.0.1", "localhost"):
            ok, _, text = await outcome(admin, users_dsn.replace("127.0.0.1", host))
            assert ok, text


async def test_service_database_itself_is_refused_in_any_spelling(
    opener: Opener, own_url: str, tcp_open: EmbeddedPostgres
) -> None:
    database = own_url.rpartition("/")[2]
    encoded = "".join(f"%{ord(letter):02x}" for letter in database)
    # A URL that names no database selects the database with the same name as the role.
    login = f"""CREATE ROLE "{database}" LOGIN PASSWORD 'x'; GRANT CONNECT ON DATABASE {database} TO {database}"""
    await execute(tcp_open.admin_dsn(), login)
    urls = [
        own_url,
        own_url.replace(f"/{database}", f"/{encoded}"),
        f"postgresql://{database}:x@127.0.0.1:{tcp_open.address.port}",
    ]
    try:
        async with opener(allow_service_database_server=True, blocked_networks=()) as api:
            admin = await ConnectorAdmin.of(api)
            for url in urls:
                for host in ("127.0.0.1", "localhost", "127.9.9.9", "0x7f000001", "2130706433"):
                    ok, reason, text = await outcome(admin, url.replace("@127.0.0.1:", f"@{host}:"))
                    assert not ok, (host, text)
                    assert reason in {"refused", "host_not_allowed"}, (host, text)
                    assert "the service's own database" in text, (host, text)
    finally:
        await execute(tcp_open.admin_dsn(), f"REVOKE ALL ON DATABASE {database} FROM {database}; DROP ROLE {database}")


@pytest.mark.parametrize(
    "tail",
    ["?dbname=own", "?database=own", "?service=own", "?options=-csearch_path%3Dx", "?host=127.0.0.1", "?hostaddr=::1"],
)
async def test_url_options_cannot_name_another_database(opener: Opener, users_dsn: str, tail: str) -> None:
    async with opener(allow_service_database_server=True, extra_url_options={"postgresql": ("options", "host")}) as api:
        ok, reason, text = await outcome(await ConnectorAdmin.of(api), f"{users_dsn}{tail}")
        assert (ok, reason) == (False, "option_not_allowed"), text


async def test_service_database_is_refused_among_several_hosts(opener: Opener, users_dsn: str) -> None:
    async with opener(allow_service_database_server=False) as api:
        several = users_dsn.replace("@127.0.0.1:", "@harmless.invalid,127.0.0.1:")
        ok, _, text = await outcome(await ConnectorAdmin.of(api), several)
        assert not ok, text


async def test_service_database_behind_another_port_is_recognized_by_its_identity(
    opener: Opener, own_url: str, tcp_open: EmbeddedPostgres
) -> None:
    """A forwarded port, such as that of a connection pooler, differs from the address of the service database."""
    async with (
        forwarded("127.0.0.1", tcp_open.address.port) as port,
        opener(allow_service_database_server=False) as api,
    ):
        admin = await ConnectorAdmin.of(api)
        hostile = own_url.replace(f":{tcp_open.address.port}/", f":{port}/")
        ok, reason, text = await outcome(admin, hostile)
        assert (ok, reason) == (False, "refused"), text
        assert "it is the service's own database" in text
        # Another database of the server is reachable at the same port, and remains allowed.
        ok, _, text = await outcome(
            admin, tcp_open.defaults.sample_dsn.replace(f":{tcp_open.address.port}/", f":{port}/")
        )
        assert ok, text


@asynccontextmanager
async def forwarded(host: str, target: int) -> AsyncGenerator[int]:
    """Yield a port that forwards all connections to the port `target` on `host`."""
    pumps = set[asyncio.Task[None]]()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, target)
        for one in (pump(reader, far_writer), pump(far_reader, writer)):
            task = asyncio.create_task(one)
            pumps.add(task)
            task.add_done_callback(pumps.discard)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for task in list(pumps):
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def test_driver_with_unknown_database_stays_refused(tmp_path: Path) -> None:
    policy = {"allow_service_database_server": True}
    database = {"url": "postgresql://own:secret@127.0.0.1:5433/own"}
    context = EngineBuilder(Settings.model_validate({"desktop": {"connector_policy": policy, "database": database}}))
    with pytest.raises(EngineUnavailable, match="server of the service's own database"):
        context.addresses.resolve_blocking("127.0.0.1", 5433)


async def test_config_check_reports_interpreters_that_lead_to_the_service(tmp_path: Path) -> None:
    own = "postgresql://svc:planted-secret@127.0.0.1:5433/own"
    urls = {
        "itself": "postgresql://u:p@localhost:5433/own",
        "by_default": "postgresql://own:p@127.0.0.1:5433",
        "as_service": "postgresql://svc:p@127.0.0.1:5433/other",
        "beside": "postgresql://u:p@127.0.0.1:5433/other",
        "elsewhere": "postgresql://u:p@127.0.0.1:5434/own",
        "unsure": "redshift+psycopg2://u:p@127.0.0.1:5433/other",
        "listener": "trino://u@127.0.0.1:8123/tpch",
    }
    interpreters = {
        key: {"interface": "sqlalchemy", "dialect": url.partition(":")[0].partition("+")[0], "options": {"url": url}}
        for key, url in urls.items()
    }
    desktop = {"database": {"url": own}, "http_port": 8123, "data_dir": tmp_path}
    settings = Settings.model_validate({"desktop": desktop, "notebook": {"interpreters": interpreters}})
    found = {
        one.key.rpartition(".")[2]: str(one)
        for one in await check_settings(settings)
        if one.key.startswith("notebook.interpreters.")
    }
    assert found.keys() == {"itself", "by_default", "as_service", "unsure", "listener"}
    assert found["itself"].startswith("error")
    assert "the service's own database" in found["by_default"]
    assert found["as_service"].startswith("warning")
    assert "Use a separate role" in found["as_service"]
    assert "server of the service's own database" in found["unsure"]
    assert "an address of the service itself" in found["listener"]
    assert "planted-secret" not in str(found)
