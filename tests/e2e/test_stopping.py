"""A server that is told to stop: what its users' statements come to."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.harness import ServerProcess, running_server

PASSWORD = "a password for stopping"
ADMINISTRATOR = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}


async def call(server: ServerProcess, name: str, **fields: object) -> dict[str, Any]:
    """One call of the editor as the administrator, with a login of its own."""
    async with httpx.AsyncClient(base_url=f"{server.base_url}/api/v1/", timeout=60) as client:
        login = await client.post("token/auth", data={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {login.raise_for_status().json()['access']}"
        return (await client.post(f"editor/{name}", data=fields)).raise_for_status().json()


@pytest.mark.parametrize(
    ("grace_s", "seconds", "state"), [(30, 3, "available"), (0, 30, "canceled")], ids=["finishes", "is-canceled"]
)
async def test_a_running_statement_may_finish_within_the_grace_and_is_canceled_after_it(
    tmp_path: Path, grace_s: int, seconds: int, state: str
) -> None:
    settings = ADMINISTRATOR | {"QUERYSERVER__DESKTOP__SHUTDOWN_GRACE_S": str(grace_s)}
    async with running_server(tmp_path / "data", settings=settings) as server:
        submitted = await call(server, "execute/postgresql", statement=f"SELECT pg_sleep({seconds})", wait=0.5)
        assert submitted["query_status"]["state"] == "running"
        told = time.monotonic()
        assert await server.terminate() == 0
        assert time.monotonic() - told < 20
    async with running_server(tmp_path / "data", settings=settings) as server:
        status = await call(server, "check_status", operationId=submitted["history_uuid"])
    assert status["query_status"]["state"] == state
