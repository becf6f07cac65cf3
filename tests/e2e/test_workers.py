"""Several server processes serve one port (`--workers`)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import psutil
import pytest
from tests.e2e.harness import PROGRAM, ServerProcess, running_server, started
from tests.e2e.installation import Installation, Node, eventually, installed, query
from tests.fixtures.database import execute
from tests.fixtures.processes import command_of, is_alive
from tests.ports import free_port

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECRET_KEY = "QUERYSERVER__DESKTOP__SECRET_KEY"
WITHIN_S = 90
TWELVE = 'queryserver_http_requests_total{method="GET",route="/api/v1/editor/get_history",status="401"} 12.0'


def workers_of(server: ServerProcess) -> list[psutil.Process]:
    """Return the child processes that serve calls, excluding their helper processes."""
    return [one for one in psutil.Process(server.pid).children() if "spawn_main" in command_of(one)]


def serving(server: ServerProcess) -> int:
    """Return how many processes have begun to serve calls so far. Processes that have exited since then are
    included.
    """
    return (server.stdout + server.stderr).count("worker_serves ")


async def said(server: ServerProcess, event: str) -> None:
    """Wait until the log contains the event."""
    await until(lambda: event in server.stdout + server.stderr, server)


async def until(true: Callable[[], bool], server: ServerProcess) -> None:
    """Wait until the condition is true. Fails with the server's output on timeout."""
    for _ in range(WITHIN_S * 10):
        if true():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(server.stdout + server.stderr)


async def test_two_workers_serve_and_stop_together(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        family = psutil.Process(server.pid).children(recursive=True)
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
            await eventually(lambda: is_ready(client))
            assert (await client.get("/api/v1/editor/get_history")).status_code == 401
        assert len([process for process in family if "spawn" in command_of(process)]) >= 2
        assert await server.terminate() == 0
    _, left = await asyncio.to_thread(psutil.wait_procs, family, timeout=WITHIN_S)
    assert left == []


async def is_ready(client: httpx.AsyncClient) -> bool:
    """Return whether the server is ready. On a busy machine, a readiness check may time out."""
    return (await client.get("/desktop/debug/is_ready")).status_code == 200


async def refused(dsn: str, directory, workers: int, **settings: str) -> str:
    """Run a server that must exit with code 3 and without a traceback; return the output."""
    code, output = await ended(dsn, directory, workers, **settings)
    assert code == 3, output
    assert "Traceback" not in output
    return output


async def ended(dsn: str, directory, workers: int, **settings: str) -> tuple[int, str]:
    """Run a server until it exits by itself; return its exit code and output."""
    port = free_port()
    command = [str(PROGRAM), "serve", "--port", str(port), "--workers", str(workers)]
    environment = {
        "QUERYSERVER__DESKTOP__DATABASE__URL": dsn,
        "QUERYSERVER__DESKTOP__DATA_DIR": str(directory / "data"),
    }
    async with started(command, port, directory, environment | settings) as server:
        async with asyncio.timeout(WITHIN_S):
            code = await server.process.wait()
        return code, server.stdout + server.stderr


@pytest.mark.parametrize("workers", [1, 2])
async def test_database_without_tables_prevents_start(unmigrated_dsn, tmp_path, workers):
    assert "queryserver migrate" in await refused(unmigrated_dsn, tmp_path, workers)


@pytest.mark.platform(26)
@pytest.mark.parametrize("workers", [1, 2])
async def test_different_secret_key_on_same_database_prevents_start(database_dsn, tmp_path, workers):
    first, other = ({SECRET_KEY: f"Zr8#the-key-of-deployment-number-{number}"} for number in (1, 2))
    async with running_server(tmp_path / "data", database_dsn=database_dsn, settings=first) as server:
        assert await server.terminate() == 0
    output = await refused(database_dsn, tmp_path, workers, **other)
    assert output.count("error desktop.secret_key: ") == 1


@pytest.mark.platform(47)
@pytest.mark.parametrize("workers", [1, 2])
async def test_unloadable_authenticator_prevents_start(database_dsn, tmp_path, workers):
    output = await refused(database_dsn, tmp_path, workers, QUERYSERVER__DESKTOP__AUTH__API_AUTH="no.such.Class,jwt")
    assert output.count("error desktop.auth.api_auth: no.such.Class cannot be loaded") == 1


async def test_failing_workers_are_not_restarted_forever(database_dsn, tmp_path):
    no_certificate = tmp_path / "certificate.pem"
    no_certificate.write_text("nothing that TLS could use")
    tls = {f"QUERYSERVER__DESKTOP__SSL_{name}": str(no_certificate) for name in ("CERTIFICATE", "PRIVATE_KEY")}
    code, output = await ended(database_dsn, tmp_path, 2, **tls)
    assert code == 1, output


@pytest.mark.timeout(600)
async def test_failed_worker_restart_is_retried_until_it_succeeds(postgres: EmbeddedPostgres, database_dsn, tmp_path):
    admin = postgres.admin_dsn()
    name = urlsplit(database_dsn).path.lstrip("/")
    async with (
        running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server,
        httpx.AsyncClient(base_url=server.base_url, timeout=WITHIN_S, headers={"Connection": "close"}) as client,
    ):
        await until(lambda: serving(server) >= 2, server)
        lost, kept = workers_of(server)
        await execute(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await execute(admin, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        lost.kill()
        await said(server, "again_in_s=2.0")
        assert (await client.get("/desktop/debug/is_alive")).status_code == 200
        await execute(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await until(lambda: serving(server) >= 3, server)
        assert kept.is_running()
        # The older process is paused, so only the new one can respond.
        kept.send_signal(signal.SIGSTOP)
        assert (await client.get("/desktop/debug/is_alive")).status_code == 200
        with suppress(psutil.NoSuchProcess):  # the parent process kills workers that do not respond
            kept.kill()
        assert await server.terminate() == 0


@pytest.mark.timeout(600)
async def test_stop_works_while_a_worker_is_awaited(postgres: EmbeddedPostgres, database_dsn, tmp_path):
    name = urlsplit(database_dsn).path.lstrip("/")
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        await until(lambda: serving(server) >= 2, server)
        await execute(postgres.admin_dsn(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        workers_of(server)[0].kill()
        await said(server, "again_in_s=4.0")
        assert await server.terminate() == 0


async def test_workers_end_with_their_parent(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        await until(lambda: serving(server) >= 2, server)
        family = psutil.Process(server.pid).children(recursive=True)
        server.process.kill()
        _, left = await asyncio.to_thread(psutil.wait_procs, family, timeout=WITHIN_S)
        assert left == []


@pytest.mark.timeout(600)
async def test_hangup_replaces_each_worker_once_its_successor_serves(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        await until(lambda: serving(server) >= 2, server)
        output = server.stdout + server.stderr
        assert output.count(f"queryserver listens url={server.base_url}/ ") == 1
        assert "Uvicorn running" not in output
        before = workers_of(server)
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: serving(server) >= 4, server)
        after = workers_of(server)
        assert len(after) == 2
        assert not set(before) & set(after)
        assert await server.terminate() == 0


@pytest.mark.platform(100)
async def test_metrics_of_all_workers_are_merged(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        for _ in range(12):
            # Each call opens a new connection, so that both processes receive some of the calls.
            async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
                assert (await client.get("/api/v1/editor/get_history")).status_code == 401
        # A process counts a call only after its response has been sent.
        await eventually(lambda: all_counted(server))
        pages = [await metrics(server) for _ in range(4)]
        assert await server.terminate() == 0
    assert all(TWELVE in page for page in pages)
    assert all("# TYPE queryserver_jwks_fetch_total counter" in page for page in pages)


async def metrics(server: ServerProcess) -> str:
    """Fetch the metrics page over a new connection."""
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
        return (await client.get("/metrics")).text


async def all_counted(server: ServerProcess) -> bool:
    return TWELVE in await metrics(server)


@pytest.mark.timeout(300)
async def test_each_worker_responds_until_its_statement_has_finished(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
):
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(installed(postgres, migrated_template, tmp_path))
        node = await stack.enter_async_context(two_processes(place))
        holder = await asyncpg.connect(place.users_dsn, timeout=60)
        stack.push_async_callback(holder.close, timeout=60)
        processes = workers_of(node.process)
        held = await held_by_each(node, place, holder, len(processes))
        (first, first_lock), (last, last_lock) = [held[one.pid] for one in processes]
        node.process.process.send_signal(signal.SIGTERM)
        await eventually(lambda: is_stopping(node))
        assert [await state(node, one) for one in (first, last)] == ["running", "running"]
        waits = [asyncio.create_task(state(node, one, wait=60)) for one in (first, last)]
        await unlock(holder, first_lock)
        assert await waits[0] == "available"
        await until(lambda: not is_alive(processes[0]), node.process)
        assert (await called(node, "get", "/desktop/debug/is_ready")).json()["code"] == "stopping"
        assert [await state(node, one) for one in (first, last)] == ["available", "running"]
        path = f"/api/v1/editor/events/{last}"
        async with node.http.stream("GET", path, headers=node.headers()) as events:
            lines = events.aiter_lines()
            while await anext(lines) != "event: status":
                pass
            await unlock(holder, last_lock)
            assert [line async for line in lines if "available" in line or line == "event: end"]
        # The process that has exited may have handled this call, and then it returned `running`.
        assert await waits[1] in {"running", "available"}
        assert await node.process.terminate() == 0


@asynccontextmanager
async def two_processes(place: Installation) -> AsyncIterator[Node]:
    """A server with two processes that both serve calls. Its grace period is longer than the test."""
    settings = place.settings(desktop__shutdown_grace_s="90", editor__lease_timeout_s="30")
    arguments = ["--config", str(place.directory / "queryserver.toml"), "--workers", "2"]
    async with running_server(
        place.directory / "data", database_dsn=place.database_dsn, settings=settings, arguments=arguments
    ) as server:
        await until(lambda: serving(server) >= 2, server)
        async with httpx.AsyncClient(base_url=server.base_url, timeout=WITHIN_S) as http:
            yield Node(server, http, place.tokens)


async def is_stopping(node: Node) -> bool:
    """Return whether the process that answers this call reports that it is stopping."""
    return (await called(node, "get", "/desktop/debug/is_ready")).json().get("code") == "stopping"


async def held_by_each(
    node: Node, place: Installation, holder: asyncpg.Connection, processes: int
) -> dict[int, tuple[str, int]]:
    """Start statements that wait for locks until each process runs one of them. Return the operation id and the lock by
    PID.
    """
    held: dict[int, tuple[str, int]] = {}
    for lock in range(50):
        await holder.execute(f"SELECT pg_advisory_lock({lock})")
        body = {"statement": f"SELECT pg_advisory_xact_lock({lock})", "wait": 0}
        submitted = await called(node, "post", "/api/v1/editor/execute/postgresql", data=body)
        operation = submitted.json()["history_uuid"]
        while (found := await state(node, operation)) != "running":
            assert found == "waiting"
        owner = await query(place.database_dsn, "select owner from statements where id = $1::text::uuid", operation)
        pid = int(owner.split("-")[-2])
        if pid in held:
            await unlock(holder, lock)
        else:
            held[pid] = operation, lock
        if len(held) == processes:
            break
    assert len(held) == processes, f"only {list(held)} took statements"
    return held


async def unlock(holder: asyncpg.Connection, lock: int) -> None:
    await holder.execute(f"SELECT pg_advisory_unlock({lock})")


async def state(node: Node, operation: str, *, wait: float = 0) -> str:
    """Return a statement's state."""
    body = {"operationId": operation, "wait": wait}
    answer = await called(node, "post", "/api/v1/editor/check_status", data=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["query_status"]["state"]


async def called(node: Node, method: str, path: str, **more: Any) -> httpx.Response:
    """Make a call over a new connection, which any process may accept."""
    async with httpx.AsyncClient(base_url=node.process.base_url, timeout=WITHIN_S) as http:
        return await http.request(method, path, headers=node.headers(), **more)
