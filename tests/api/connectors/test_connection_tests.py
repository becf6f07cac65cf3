"""Tests of the call connector/instance/test (Contract platform 5.8)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, listed
from tests.api.driving import Api, Caller, until
from tests.fakes import http_driver
from tests.ports import free_port

from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import SubmittedConnector
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.model import User

_STEPS = ["resolve", "connect", "login", "statement"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncGenerator[int]:
    """Run a TCP server on loopback, which handles connections with `serve`; yield its port."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handle a connection without ever responding, until the client closes it."""
    while await reader.read(4096):
        pass
    writer.write_eof()


def speaking(status: int, body: str, seen: list[str] | None = None) -> Serve:
    """Return a handler that responds to one HTTP request with this status and body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head.decode())
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()

    return serve


def limited(directory: Path, timeout_s: int) -> dict[str, Any]:
    """Return the `desktop` settings of a server with this timeout for connection tests."""
    return {"connector_policy": {"test_timeout_s": timeout_s, "local_database_dir": directory / "databases"}}


async def outcome_of(caller: Caller, dialect: str, interface: str, /, **settings: Any) -> dict[str, Any]:
    """Run a connection test; return the response body."""
    given = {"dialect": dialect, "interface": interface, "nice_name": "Tried", "settings": listed(settings)}
    response = await caller.post("connector/instance/test", connector=json.dumps(given))
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["ok"] is (body["reason"] == "")
    assert body["hasWarnings"] is bool(body["warnings"])
    assert body["hasWarnings"] or body["ok"]
    assert [one["name"] for one in body["checks"]] == _STEPS[: len(body["checks"])]
    assert all(one["ok"] for one in body["checks"][:-1])
    return body


def last(body: dict[str, Any]) -> tuple[str, bool, str]:
    """Return the name and result of the last check, and the reason for the overall outcome."""
    return body["checks"][-1]["name"], body["checks"][-1]["ok"], body["reason"]


@pytest.mark.platform(73)
async def test_live_engine_passes_all_steps_and_reports_its_version(admin: ConnectorAdmin, users_url: str) -> None:
    body = await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=users_url)
    assert last(body) == ("statement", True, "")
    assert (len(body["checks"]), body["warnings"], body["status"]) == (4, "", 0)
    assert body["server_version"][0].isdigit()


@pytest.mark.platform(73)
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
async def test_in_process_engines_can_be_tested(admin: ConnectorAdmin, dialect: str) -> None:
    body = await outcome_of(admin.caller, dialect, dialect, path=":memory:")
    assert last(body) == ("statement", True, "")
    assert body["server_version"]


@pytest.mark.platform(73)
async def test_port_without_a_server_refuses_the_connection(admin: ConnectorAdmin) -> None:
    url = f"postgresql://svc:hidden@127.0.0.1:{free_port()}/shop"
    body = await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=url)
    assert last(body) == ("connect", False, "refused")
    assert body["warnings"].startswith("Tried - postgresql: ")
    assert body["server_version"] is None


@pytest.mark.platform(73)
async def test_refused_login_is_reported_as_refused(admin: ConnectorAdmin, users_url: str) -> None:
    wrong = users_url.replace("planted-secret", "mistyped-secret")
    body = await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=wrong)
    assert last(body) == ("login", False, "auth")
    assert "mistyped-secret" not in json.dumps(body)


@pytest.mark.platform(73)
async def test_unknown_database_is_reported_with_the_engine_message(admin: ConnectorAdmin, users_url: str) -> None:
    body = await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=f"{users_url}_not")
    assert last(body) == ("login", False, "engine")
    assert "does not exist" in body["warnings"]


@pytest.mark.platform(73)
async def test_unknown_host_is_reported_as_dns(admin: ConnectorAdmin) -> None:
    body = await outcome_of(admin.caller, "mysql", "sqlalchemy", url="mysql://u:p@no-such-host.invalid:3306/x")
    assert last(body) == ("resolve", False, "dns")


@pytest.mark.platform(73)
async def test_server_without_tls_is_reported_as_tls(admin: ConnectorAdmin) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with listening(plain) as port:
        body = await outcome_of(admin.caller, "trino", "trino", url=f"https://127.0.0.1:{port}")
    assert last(body)[1:] == (False, "tls")


_SILENT = [
    ("postgresql", "sqlalchemy", {"url": "postgresql://u:p@127.0.0.1:{port}/x"}),
    ("mysql", "sqlalchemy", {"url": "mysql://u:p@127.0.0.1:{port}/x"}),
    ("hive", "hiveserver2", {"server_host": "127.0.0.1", "server_port": "{port}"}),
    ("trino", "trino", {"url": "http://127.0.0.1:{port}"}),
    ("phoenix", "phoenix", {"url": "http://127.0.0.1:{port}/"}),
    ("hdfs", "rest", {"server_url": "http://127.0.0.1:{port}/webhdfs/v1"}),
]


@pytest.mark.platform(73)
async def test_silent_server_times_out_within_the_limit(small_api: ApiOpener, tmp_path: Path) -> None:
    bodies: dict[str, dict[str, Any]] = {}
    for timeout_s in (1, 4, 16):  # on a busy machine, connecting may take longer than a second
        async with small_api(desktop=limited(tmp_path, timeout_s)) as api, listening(silent) as port:
            bodies = await _of_silent(await api.user("root", admin=True), port)
        others = [body for dialect, body in bodies.items() if not _is_given_up(dialect, body, timeout_s)]
        if not others:
            return
        if not all(_came_too_late(body) for body in others):
            break
    pytest.fail(json.dumps(bodies))


async def _of_silent(admin: Caller, port: int) -> dict[str, dict[str, Any]]:
    """Run connection tests with a server that never responds; return the response bodies by dialect.

    At most four tests run concurrently, because the service limits their number.
    """
    at_once = asyncio.Semaphore(4)

    async def tested(dialect: str, interface: str, settings: dict[str, str]) -> dict[str, Any]:
        filled = {name: value.format(port=port) for name, value in settings.items()}
        async with at_once:
            return await outcome_of(admin, dialect, interface, **filled)

    bodies = await asyncio.gather(*(tested(*one) for one in _SILENT))
    return {dialect: body for (dialect, *_), body in zip(_SILENT, bodies, strict=True)}


def _failed(body: dict[str, Any]) -> list[str]:
    """Return the names of the failed checks."""
    return [one["name"] for one in body["checks"] if not one["ok"]]


def _came_too_late(body: dict[str, Any]) -> bool:
    """Return whether the timeout expired before a connection to the server was established."""
    return _failed(body) in (["resolve"], ["connect"]) and body["reason"] == "timeout"


def _is_given_up(dialect: str, body: dict[str, Any], timeout_s: int) -> bool:
    failed = _failed(body)
    return (
        len(failed) == 1
        and (dialect == "trino" or failed == ["login"])
        and body["reason"] == "timeout"
        and f"within {timeout_s} s" in body["warnings"]
        and body["duration_ms"] < 9_000 + 1000 * timeout_s
    )


@pytest.mark.platform(73)
async def test_connection_test_stores_nothing(admin: ConnectorAdmin, api: Api, users_url: str) -> None:
    count = "select (select count(*) from connectors) + (select count(*) from statements)"
    before = await api.database.value(count)
    await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=users_url)
    assert await api.database.value(count) == before


async def test_stored_connector_is_tested_by_id_with_its_secret(admin: ConnectorAdmin, users_url: str) -> None:
    stored = await admin.create("Tried by id", "postgresql", "sqlalchemy", url=users_url)
    for given in ({"id": stored["id"]}, stored):
        response = await admin.caller.post("connector/instance/test", connector=json.dumps(given))
        assert response.status_code == 200, response.text
        assert response.json()["ok"], response.text
    moved = {**stored, "settings": listed({"url": "postgresql://api_tests:********@127.0.0.1:1/x"})}
    refused = await admin.caller.refused("connector/instance/test", connector=json.dumps(moved))
    assert refused == (400, -1, "secret_required")


@pytest.mark.platform(73)
@pytest.mark.security("T8")
async def test_stored_connector_that_the_policy_now_forbids_is_refused_like_a_new_connector(small_api, tmp_path):
    databases = {"local_database_dir": tmp_path / "databases"}
    urls = {
        "mysql": ("mysql://u:p@db:3306/x", "driver_not_allowed"),
        "presto": ("presto://db:8080/x?protocol=https", "option_not_allowed"),
        "postgresql": ("postgresql://u:p@10.9.8.7/x", "host_not_allowed"),
    }
    async with small_api(
        desktop={"connector_policy": {**databases, "extra_url_options": {"presto": ("protocol",)}}}
    ) as api:
        admin = await ConnectorAdmin.of(api)
        stored = {
            (await admin.create(dialect, dialect, "sqlalchemy", url=url))["id"]: (code, "url")
            for dialect, (url, code) in urls.items()
        }
        sent = await admin.create("hdfs", "hdfs", "rest", server_url="http://10.9.8.7:9870/webhdfs/v1")
        stored[sent["id"]] = ("host_not_allowed", "server_url")
    less = {**databases, "allowed_drivers": ("postgresql", "presto"), "blocked_networks": ("10.9.8.0/24",)}
    async with small_api(desktop={"connector_policy": less}) as api:
        admin = await ConnectorAdmin.of(api)
        for connector, (code, setting) in stored.items():
            response = await admin.caller.post("connector/instance/test", connector=json.dumps({"id": connector}))
            body = response.json()
            assert (response.status_code, body["code"], list(body["errors"])) == (400, code, [setting])


@pytest.mark.platform(74)
@pytest.mark.parametrize(
    ("dialect", "interface", "settings"),
    [
        ("ksql", "ksql", {}),
        ("sql", "jdbc", {}),
        ("pyspark", "livy", {}),
        ("yarn", "rest", {}),
        ("hms", "hiveserver2", {}),
    ],
)
async def test_types_that_cannot_run_return_501(admin, dialect, interface, settings):
    given = json.dumps({"dialect": dialect, "interface": interface, "settings": listed(settings)})
    refused = await admin.caller.refused("connector/instance/test", connector=given)
    assert refused == (501, -1, "interface_not_supported")


@pytest.mark.platform(74)
async def test_driver_that_is_not_installed_returns_501(admin: ConnectorAdmin) -> None:
    given = {
        "dialect": "clickhouse",
        "interface": "sqlalchemy",
        "settings": listed({"url": "clickhouse://127.0.0.1:1"}),
    }
    refused = await admin.caller.refused("connector/instance/test", connector=json.dumps(given))
    assert refused == (501, -1, "driver_not_installed")


@pytest.mark.platform(73)
async def test_missing_type_is_reported(admin: ConnectorAdmin) -> None:
    response = await admin.caller.post("connector/instance/test", connector=json.dumps({"settings": []}))
    body = response.json()
    seen = (response.status_code, body["code"], set(body["errors"]))
    assert seen == (400, "validation_failed", {"dialect", "interface"})


@pytest.mark.platform(67)
async def test_only_administrators_may_test_connections(ana: Caller) -> None:
    assert await ana.refused("connector/instance/test", connector="{}") == (403, -1, "admin_required")


@pytest.mark.platform(72)
@pytest.mark.security("T8")
@pytest.mark.parametrize(
    "host", ["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]"]
)
async def test_metadata_service_addresses_are_refused_in_every_spelling(admin: ConnectorAdmin, host: str) -> None:
    given = {"dialect": "trino", "interface": "trino", "settings": listed({"url": f"http://{host}:80"})}
    refused = await admin.caller.refused("connector/instance/test", connector=json.dumps(given))
    assert refused == (400, -1, "host_not_allowed")


@pytest.mark.platform(72)
@pytest.mark.security("T8")
async def test_redirects_are_not_followed(admin: ConnectorAdmin) -> None:
    reached: list[str] = []
    async with listening(speaking(200, '{"Path": "/user/x"}', reached)) as target:

        async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            location = f"http://127.0.0.1:{target}/webhdfs/v1"
            writer.write(f"HTTP/1.1 307 X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()

        async with listening(redirecting) as port:
            body = await outcome_of(admin.caller, "hdfs", "rest", server_url=f"http://127.0.0.1:{port}/webhdfs/v1")
    assert last(body) == ("statement", False, "engine")
    assert reached == []


async def test_hdfs_test_requests_the_callers_home(admin: ConnectorAdmin) -> None:
    seen: list[str] = []
    async with listening(speaking(200, '{"Path": "/user/x"}', seen)) as port:
        body = await outcome_of(admin.caller, "hdfs", "rest", server_url=f"http://127.0.0.1:{port}/webhdfs/v1")
    assert last(body) == ("statement", True, "")
    assert f"GET /webhdfs/v1?op=GETHOMEDIRECTORY&user.name={admin.caller.username} " in seen[-1]


async def test_atlas_test_requests_the_version(admin: ConnectorAdmin) -> None:
    seen: list[str] = []
    async with listening(speaking(200, '{"Version": "2.3.0"}', seen)) as port:
        body = await outcome_of(
            admin.caller, "atlas", "rest", url=f"http://127.0.0.1:{port}", username="u", password="pw1"
        )
    assert (last(body), body["server_version"]) == (("statement", True, ""), "2.3.0")
    assert "GET /api/atlas/admin/version " in seen[-1]
    assert "Basic dTpwdzE=" in seen[-1]


async def test_refused_atlas_login_is_reported(admin: ConnectorAdmin) -> None:
    async with listening(speaking(401, "")) as port:
        body = await outcome_of(
            admin.caller, "atlas", "rest", url=f"http://127.0.0.1:{port}", username="u", password="pw1"
        )
    assert last(body) == ("login", False, "auth")


async def test_per_user_logins_are_tested_up_to_the_connection(admin: ConnectorAdmin, users_url: str) -> None:
    url = users_url.replace("api_tests:planted-secret@", "${USER}:${PASSWORD}@")
    body = await outcome_of(admin.caller, "postgresql", "sqlalchemy", url=url)
    assert last(body) == ("connect", True, "")
    assert "create_session" in body["warnings"]


@pytest.fixture
async def any_driver(small_api: ApiOpener, tmp_path: Path) -> AsyncGenerator[Caller]:
    """An administrator on a server that allows only the drivers of these tests."""
    http_driver.register()
    policy = {"local_database_dir": tmp_path / "databases", "allowed_drivers": (http_driver.NAME, "postgresql")}
    async with small_api(desktop={"connector_policy": policy}) as api:
        yield await api.user("root", admin=True)


@pytest.mark.platform(73)
async def test_login_proves_the_connection_when_no_port_is_known(any_driver, monkeypatch):
    url = f"{http_driver.NAME}://127.0.0.1/login"
    async with listening(speaking(200, '{"rows": [["Hello World!"]]}')) as port:
        monkeypatch.setattr(http_driver, "usual_port", port)
        body = await outcome_of(any_driver, "presto", "sqlalchemy", url=url)
        assert (last(body), len(body["checks"])) == (("statement", True, ""), 4)
    assert last(await outcome_of(any_driver, "presto", "sqlalchemy", url=url)) == ("connect", False, "refused")
    body = await outcome_of(any_driver, "presto", "sqlalchemy", url=f"{http_driver.NAME}://no-such-host.invalid/d")
    assert last(body) == ("resolve", False, "dns")


@pytest.mark.platform(73)
async def test_name_lookup_alone_is_not_reported_as_connected(any_driver: Caller) -> None:
    own = "${USER}:${PASSWORD}"
    body = await outcome_of(any_driver, "presto", "sqlalchemy", url=f"{http_driver.NAME}://{own}@127.0.0.1/d")
    assert (last(body), body["ok"]) == (("resolve", True, ""), True)
    assert "Only the host name was resolved" in body["warnings"]
    body = await outcome_of(
        any_driver, "presto", "sqlalchemy", url=f"{http_driver.NAME}://{own}@no-such-host.invalid/d"
    )
    assert last(body) == ("resolve", False, "dns")


@pytest.mark.platform(73)
@pytest.mark.security("T8")
async def test_driver_redirected_to_a_blocked_address_is_refused(any_driver: Caller) -> None:
    async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        location = "http://169.254.169.254/latest/meta-data"
        writer.write(f"HTTP/1.1 302 X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    async with listening(redirecting) as port:
        url = f"{http_driver.NAME}://127.0.0.1:{port}"
        seen = last(await outcome_of(any_driver, "presto", "sqlalchemy", url=f"{url}/login"))
        assert seen == ("login", False, "refused")
        seen = last(await outcome_of(any_driver, "presto", "sqlalchemy", url=f"{url}/d"))
        assert seen == ("statement", False, "refused")


@pytest.mark.platform(73)
async def test_duckdb_file_held_by_another_server_is_not_opened(small_api: ApiOpener, tmp_path: Path) -> None:
    async with small_api() as holder:
        admin = await ConnectorAdmin.of(holder)
        stored = await admin.create("Held", "duckdb", "duckdb", path="held.db")
        assert (await admin.caller.run(stored["id"], "CREATE TABLE t (a int)"))["status"] == 0
        async with small_api() as other:
            before = await other.database.fetch("select connector, owner from engine_owners order by connector")
            services = other.services
            tests = ConnectionTests(
                EngineBuilder(services.settings),
                EngineBuilder.build,
                services.stored_connectors,
                services.statements.runner.data.try_acquire,
            )
            async with tests.running():
                user = User(id=1, username="root", is_admin=True)
                outcome = await tests.test(user, SubmittedConnector(id=stored["id"]))
                assert outcome.reason == ""
                assert "in use by another server" in outcome.warnings
            assert await other.database.fetch("select connector, owner from engine_owners order by connector") == before
        outcome = await holder.services.connection_tests.test(user, SubmittedConnector(id=stored["id"]))
        assert (outcome.reason, outcome.warnings) == ("", "")


async def test_unverified_certificates_cause_a_warning(admin: ConnectorAdmin) -> None:
    async with listening(speaking(500, "")) as port:
        body = await outcome_of(admin.caller, "trino", "trino", url=f"http://127.0.0.1:{port}", ssl_validate=False)
    assert "Certificates are not verified" in body["warnings"]


async def test_at_most_four_connection_tests_run_concurrently(small_api: ApiOpener, tmp_path: Path) -> None:
    answered = asyncio.Event()

    async def holding(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await answered.wait()

    async with small_api(desktop=limited(tmp_path, 60)) as api, listening(holding) as port:
        admin = await api.user("root", admin=True)
        given = json.dumps(
            {
                "dialect": "postgresql",
                "interface": "sqlalchemy",
                "settings": listed({"url": f"postgresql://u:p@127.0.0.1:{port}/x"}),
            }
        )
        calls = [asyncio.create_task(admin.post("connector/instance/test", connector=given)) for _ in range(6)]
        await until(lambda: sum(call.done() for call in calls) == 2)
        answered.set()
        answers = await asyncio.gather(*calls)
        codes = sorted(one.status_code for one in answers)
        assert codes == [200, 200, 200, 200, 429, 429]
        late = next(one for one in answers if one.status_code == 429)
        assert late.json()["code"] == "too_many_requests"
        assert int(late.headers["Retry-After"]) >= 1


async def test_service_database_lookup_ends_with_the_services(small_api, monkeypatch) -> None:
    """Every connection to a PostgreSQL server waits for this lookup, which identifies the service database."""
    hangs = asyncio.Event()

    async def connect(*_arguments: object, **_options: object) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async with small_api() as api:
        own = api.services.connection_tests.builder.own_database
        assert own is not None
        elsewhere = AsyncMock(fetchrow=AsyncMock(return_value={"name": "other", "number": 1, "cluster": 1}))
        monkeypatch.setattr("queryserver.engines.postgresql.engine.asyncpg.connect", connect)
        waiting = asyncio.create_task(own.require_other(elsewhere, on_own_server=False))
        await hangs.wait()
    assert "own-database" not in {task.get_name() for task in asyncio.all_tasks()}
    with pytest.raises(EngineUnavailable, match="did not respond"):
        await waiting
