"""`serve --embedded --with-workers` starts a whole fleet with a single command (Contract platform 12)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.e2e.harness import ServerProcess, running_server
from tests.fixtures import program
from tests.fixtures.processes import command_of, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "a password for the fleet"
ENDED_WITHIN_S = 60


@asynccontextmanager
async def logged_in(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that is logged in as the administrator."""
    async with httpx.AsyncClient(base_url=f"{server.base_url}/api/v1/", timeout=90) as client:
        login = await client.post("token/auth", data={"username": "admin", "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {login.raise_for_status().json()['access']}"
        yield client


async def call(server: ServerProcess, name: str, **fields: object) -> dict[str, Any]:
    """Make one call as the administrator: a GET if there are no fields, and otherwise a POST. Each call logs in
    again.
    """
    async with logged_in(server) as client:
        if not fields:
            return (await client.get(name)).raise_for_status().json()
        return await post(client, name, **fields)


async def post(client: httpx.AsyncClient, name: str, **fields: object) -> dict[str, Any]:
    """Send a POST request that must succeed; return the response body."""
    answer = await client.post(name, data=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def family(server: ServerProcess) -> list[psutil.Process]:
    """Wait until a worker and a beat are reported as alive; return the server and all its descendant processes."""
    async with asyncio.timeout(90):
        while True:
            status = await call(server, "taskserver/status")
            if status["beat_running"] and status["workers"]:
                break
            await asyncio.sleep(0.2)
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    commands = [command_of(one) for one in processes]
    for wanted in ("valkey", "worker --with-parent", "beat --with-parent", "postgres"):
        assert any(wanted in command for command in commands), (wanted, commands)
    return processes


async def running(server: ServerProcess, dialect: str, statement: str) -> str:
    """Submit a long statement; return its operation id once the statement is running."""
    async with asyncio.timeout(60), logged_in(server) as client:
        operation = (await post(client, f"editor/execute/{dialect}", statement=statement))["history_uuid"]
        while True:
            body = await post(client, "editor/check_status", operationId=operation)
            if body["query_status"]["state"] == "running":
                return operation
            assert body["query_status"]["state"] == "waiting", body
            await asyncio.sleep(0.1)


async def all_end(processes: list[psutil.Process]) -> None:
    """Fail unless all processes exit."""
    _, left = await asyncio.to_thread(psutil.wait_procs, processes, timeout=ENDED_WITHIN_S)
    assert [command_of(one) for one in left if is_alive(one)] == []


async def test_one_command_runs_a_fleet_and_leaves_no_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    environment = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER__DESKTOP__SHUTDOWN_GRACE_S": "120"}
    async with running_server(data, settings=environment, arguments=["--with-workers"]) as server:
        processes = await family(server)
        for dialect in ("postgresql", "duckdb", "sqlite"):
            done = await call(server, f"editor/execute/{dialect}", statement="SELECT 40 + 2 AS n", wait=60)
            operation = done["history_uuid"]
            body = await call(server, "editor/check_status", operationId=operation, wait=60)
            assert body["query_status"]["state"] == "available", body
            page = await call(server, "editor/fetch_result_data", operationId=operation)
            assert page["result"]["data"] == [[42]]
        examined = await program.run("doctor", "--json", cwd=tmp_path, env=environment | _data_in(data))
        findings = json.loads(examined.out)
        errors = [one for one in findings["findings"] if one["state"] == "error"]
        assert (examined.code, len(errors)) in {(0, 0), (1, findings["errors"])}, examined
        # The doctor command does not check the broker, because only the processes of the running fleet know its
        # address.
        assert {one["area"] for one in errors} <= {"disk", "limits"}, errors
        begun = await running(server, "postgresql", "SELECT pg_sleep(5)")
        assert await server.terminate() == 0
        await all_end(processes)
    async with running_server(data, settings=environment, arguments=["--with-workers"]) as server:
        processes = await family(server)
        ended = await call(server, "editor/check_status", operationId=begun)
        assert ended["query_status"]["state"] == "available", ended
        # The worker cannot record the statement's end, so it must not keep the file locked for the whole grace period.
        await running(
            server, "duckdb", "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range < b.range"
        )
        await server.kill9()
        await all_end(processes)


def _data_in(directory: Path) -> dict[str, str]:
    return {"QUERYSERVER__DESKTOP__DATA_DIR": str(directory)}
