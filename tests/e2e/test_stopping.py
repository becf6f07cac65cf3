"""Users run statements while a server is being stopped."""

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.harness import ServerProcess, running_server
from tests.timing import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "a password for stopping"
ADMINISTRATOR = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
SETTING = "QUERYSERVER__DESKTOP__SHUTDOWN_"


@asynccontextmanager
async def logged_in(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Log in as the administrator. A test logs in only once, because checking a password takes long on a busy machine,
    and a stopping server waits only for its grace period. Each call opens a connection, because a stopping server
    closes idle connections.
    """
    headers = {"Connection": "close"}
    async with httpx.AsyncClient(base_url=f"{server.base_url}/api/v1/", headers=headers, timeout=60) as client:
        login = await client.post("token/auth", data={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {login.raise_for_status().json()['access']}"
        yield client


async def call(client: httpx.AsyncClient, name: str, *, status: int = 200, **fields: object) -> dict[str, Any]:
    """Make one editor call."""
    answer = await client.post(f"editor/{name}", data=fields)
    assert answer.status_code == status, answer.text
    assert status != 503 or "Retry-After" in answer.headers
    return answer.json()


async def stop_signal_received(server: ServerProcess) -> None:
    """Wait until the server reports that it is stopping. The response code is checked, because a readiness check may
    also fail for other reasons on a busy machine.
    """
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:

        async def says_so() -> bool:
            answer = await client.get("/desktop/debug/is_ready")
            return (answer.status_code, answer.json().get("code")) == (503, "stopping")

        await until(says_so)


@pytest.mark.parametrize(
    ("grace_s", "seconds", "state"), [(60, 15, "available"), (0, 60, "canceled")], ids=["finishes", "is-canceled"]
)
async def test_running_statement_may_finish_in_grace_period_and_is_then_canceled(
    tmp_path: Path, grace_s: int, seconds: int, state: str
) -> None:
    settings = ADMINISTRATOR | {f"{SETTING}GRACE_S": str(grace_s)}
    async with running_server(tmp_path / "data", settings=settings) as server, logged_in(server) as client:
        submitted = await call(client, "execute/postgresql", statement=f"SELECT pg_sleep({seconds})")
        operation = submitted["history_uuid"]

        async def is_running() -> bool:
            status = await call(client, "check_status", operationId=operation)
            return status["query_status"]["state"] == "running"

        await until(is_running)
        signaled_at = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        if grace_s:

            async def is_refused() -> bool:
                answer = await client.post("editor/execute/postgresql", data={"statement": "SELECT 1"})
                return (answer.status_code, answer.json().get("code")) == (503, "stopping")

            # Uvicorn begins the shutdown up to 0.1 s after the signal. Until then, calls are served.
            await until(is_refused)
            session = '{"type": "postgresql"}'
            assert (await call(client, "create_session", status=503, session=session))["code"] == "stopping"
            assert (await call(client, "check_status", operationId=operation, wait=30))["status"] == 0
        assert await server.terminate() == 0
        assert time.monotonic() - signaled_at < 45
    async with running_server(tmp_path / "data", settings=settings) as server, logged_in(server) as client:
        status = await call(client, "check_status", operationId=operation)
    assert status["query_status"]["state"] == state


async def test_server_serves_but_is_not_ready_during_delay(tmp_path: Path) -> None:
    settings = ADMINISTRATOR | {f"{SETTING}DELAY_S": "600", f"{SETTING}GRACE_S": "5"}
    async with running_server(tmp_path / "data", settings=settings) as server, logged_in(server) as client:
        server.process.send_signal(signal.SIGTERM)
        await stop_signal_received(server)
        first = time.monotonic()
        body = await call(client, "execute/postgresql", statement="SELECT 1", wait=30)
        assert body["query_status"]["state"] == "available"
        while time.monotonic() - first < 2.5:  # a signal within two seconds of the first does not count
            await call(client, "check_status", operationId=body["history_uuid"])
        assert await server.terminate() == 0
        assert server.stderr.count('step="calls may finish"') == 1
