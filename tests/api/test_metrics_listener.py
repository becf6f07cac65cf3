"""The metrics port of worker and beat processes (Contract platform 9.3)."""

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs
from tests.api.driving import Api, until
from tests.engines.certificates import Authority
from tests.ports import free_port
from tests.unit.cli.test_commands import command_in

from queryserver.api.monitoring import metrics_listener
from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.desktop import DesktopSettings

TOKEN = "metrics-token-of-the-tests"
CLOSED = {"token": TOKEN, "allowed_networks": ["10.1.0.0/16"]}
"""Settings in which calls need the token. The tests call from loopback, which is not an allowed network."""

Opener = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def desktop_with(port: int, *, host: str = "127.0.0.1", **desktop: Any) -> DesktopSettings:
    """Return the settings of a process whose metrics listener has this host and port."""
    tasks = {"metrics_host": host, "metrics_port": port}
    return DesktopSettings.model_validate({"task_server": tasks, **desktop})


@pytest.fixture
def listener(api: Api) -> Opener:
    """A function that opens a metrics listener with changed settings, and yields a client for it."""

    @asynccontextmanager
    async def opened(*, page: bool = True, **desktop: Any) -> AsyncIterator[httpx.AsyncClient]:
        port = free_port()
        with metrics_listener(desktop_with(port, **desktop)) as opened:
            async with (
                opened.serving(api.services.metrics_text if page else None),
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
            ):
                yield client
        with socket.socket() as again:
            assert again.connect_ex(("127.0.0.1", port)) != 0, "it listens no more"

    return opened


@pytest.mark.platform(100)
async def test_foreign_address_requires_the_token(listener: Opener):
    async with listener(metrics=CLOSED) as client:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"X-Forwarded-For": "10.1.0.1"},
        ):
            refused = await client.get("/metrics", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
            assert "queryserver_" not in refused.text
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "queryserver_leases_lost_total " in answer.text
        assert (await client.get("/desktop/debug/is_alive")).status_code == 200


@pytest.mark.platform(100)
async def test_allowed_network_needs_no_token_and_trusted_proxy_names_its_client(listener: Opener):
    async with listener() as client:
        assert (await client.get("/metrics")).status_code == 200
    async with listener(trusted_proxies=["127.0.0.1"]) as client:
        assert (await client.get("/metrics", headers={"X-Forwarded-For": "198.51.100.1"})).status_code == 403


async def test_listener_serves_only_two_read_only_paths(listener: Opener):
    async with listener(url_prefix="/sql") as client:
        assert (await client.get("/sql/metrics")).status_code == 200
        alive = await client.get("/sql/desktop/debug/is_alive")
        assert (alive.status_code, alive.content) == (200, b"")
        for path in ("/metrics", "/", "/sql/desktop/debug/is_ready", "/sql/api/v1/editor/get_history"):
            assert (await client.get(path)).status_code == 404, path
        assert (await client.post("/sql/metrics", content=b"x" * 100_000)).status_code == 405


async def test_liveness_works_without_metrics(listener: Opener):
    async with listener(page=False) as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.get("/desktop/debug/is_alive")).status_code == 200


async def test_header_size_and_connections_are_limited(listener: Opener, monkeypatch: pytest.MonkeyPatch):
    # With the default limit, the first connections could be closed before the last one is opened on a busy machine.
    monkeypatch.setattr("queryserver.api.monitoring._HEAD_WITHIN_S", 60.0)
    async with listener() as client:
        refused = await client.get("/metrics", headers={"X-Long": "x" * 100_000})
        assert refused.status_code == 431
        # Connections are accepted in order. The last one is refused, because its address already has 16 open
        # connections.
        held = [await asyncio.open_connection("127.0.0.1", client.base_url.port) for _ in range(17)]
        try:
            async with asyncio.timeout(30):
                assert (await held[-1][0].readline()).startswith(b"HTTP/1.1 429 ")
        finally:
            for _, writer in held:
                writer.close()


async def test_listener_failure_is_logged_and_the_listener_recovers(listener: Opener, monkeypatch: pytest.MonkeyPatch):
    failures, tick = [RuntimeError("planted")] * 2, uvicorn.Server.on_tick

    async def fails(server: uvicorn.Server, counter: int) -> bool:
        # Servers of other tests that run in this process are past their first tick.
        if failures and counter == 0:
            raise failures.pop()
        return await tick(server, counter)

    monkeypatch.setattr(uvicorn.Server, "on_tick", fails)
    with capture_logs() as logs:
        async with listener() as client:
            await until(lambda: not failures)
            # The request has been waiting in the accept queue of the port.
            assert (await client.get("/metrics")).status_code == 200
    said = [one for one in logs if one["event"] == "metrics listener failed"]
    assert [one["again_in_s"] for one in said] == [1, 2]


async def test_permanently_failing_listener_does_not_delay_shutdown(listener: Opener, monkeypatch: pytest.MonkeyPatch):
    tried, tick = asyncio.Event(), uvicorn.Server.on_tick

    async def fails(server: uvicorn.Server, counter: int) -> bool:
        if counter > 0:  # a server of other tests
            return await tick(server, counter)
        tried.set()
        raise RuntimeError("planted")

    monkeypatch.setattr(uvicorn.Server, "on_tick", fails)
    monkeypatch.setattr("queryserver.platform.threads.restart_pause_s", lambda failures: 3600.0 * failures)
    monkeypatch.setattr("queryserver.api.monitoring._STOPPED_WITHIN_S", 3600.0)
    async with asyncio.timeout(30), listener():
        await tried.wait()


async def test_listener_uses_tls_when_configured(api: Api, tmp_path: Path):
    authority = Authority()
    certificate, key = authority.certify("127.0.0.1").write(tmp_path)
    port = free_port()
    desktop = desktop_with(port, ssl_certificate=str(certificate), ssl_private_key=str(key))
    context = ssl.create_default_context(cadata=authority.certificate)
    with metrics_listener(desktop) as opened:
        async with (
            opened.serving(api.services.metrics_text),
            httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=context) as client,
        ):
            assert (await client.get("/metrics")).status_code == 200


async def test_missing_certificate_is_a_configuration_error(tmp_path: Path):
    missing = str(tmp_path / "missing.pem")
    desktop = desktop_with(free_port(), ssl_certificate=missing, ssl_private_key=missing)
    with metrics_listener(desktop) as opened, pytest.raises(ConfigurationError, match=r"desktop\.ssl_certificate: "):
        async with opened.serving(None):
            raise AssertionError


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_unavailable_address_is_a_configuration_error(host: str):
    problem = f"metrics_host: {host} is not an address of this machine"
    with pytest.raises(ConfigurationError, match=problem), metrics_listener(desktop_with(free_port(), host=host)):
        raise AssertionError


@pytest.mark.parametrize("command", ["worker", "beat"])
async def test_port_in_use_stops_the_process_before_anything_is_opened(command: str, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        program = command_in(
            tmp_path,
            # No process listens on this port, and the started process never connects to it.
            QUERYSERVER__DESKTOP__DATABASE__URL=f"postgresql://nobody@127.0.0.1:{free_port()}/none",
            QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED="true",
            QUERYSERVER__DESKTOP__TASK_SERVER__BEAT_ENABLED="true",
        )
        ended = await program(command, "--metrics-port", str(port))
    said = ended.err + ended.out
    assert ended.code == 3, said
    assert f"desktop.task_server.metrics_port: {port} is already in use by another process." in said
    assert "--metrics-port" in said
    assert "Traceback" not in said


def test_listener_imports_no_routes():
    script = """
import sys, queryserver.worker
print(*sys.modules)
import queryserver.api.monitoring
print(*sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    without, loaded = map(str.split, ended.stdout.splitlines())
    assert {"starlette", "uvicorn"}.isdisjoint(without)
    assert "starlette" in loaded
    assert {"fastapi", "queryserver.api.dependencies", "queryserver.api.schemas"}.isdisjoint(loaded)
