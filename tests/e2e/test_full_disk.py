"""Statements write endlessly to the databases of `serve --embedded` on a disk of 1 GiB (ADR 41)."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.harness import ServerProcess, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PASSWORD = "a password for a full disk"
MIB = 1024 * 1024
SIZE, FLOOR = 1024 * MIB, 300 * MIB
MARGIN = 150 * MIB
"""The most that may be written between two checks of the disk, even on a machine much faster than today's."""

SOME_TEXT = (
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n, hex(randomblob(1000)) AS a FROM r"
)
ENDLESS = (
    ("duckdb", "CREATE TABLE big AS SELECT uuid()::VARCHAR || uuid()::VARCHAR AS a FROM range(9000000000)"),
    ("sqlite", f"CREATE TABLE big AS {SOME_TEXT}"),
    ("sqlite", f"CREATE TEMP TABLE big AS {SOME_TEXT}"),
    ("postgresql", "CREATE TABLE big AS SELECT repeat(md5(n::text), 20) AS a FROM generate_series(1, 9000000000) n"),
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs file system. It is unmounted after the test, which deletes all its files."""
    directory = tmp_path / "disk"
    directory.mkdir()
    options = f"size={SIZE},mode=0755"
    mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=False)
    if mounting.returncode:
        pytest.skip("this account may not mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


async def logged_in(server: ServerProcess) -> httpx.AsyncClient:
    client = httpx.AsyncClient(base_url=f"{server.base_url}/api/v1/", timeout=90)
    login = await client.post("token/auth", data={"username": "admin", "password": PASSWORD})
    client.headers["Authorization"] = f"Bearer {login.raise_for_status().json()['access']}"
    return client


async def ended(client: httpx.AsyncClient, operation: str, disk: Path) -> tuple[str | None, int]:
    """Wait for the statement's end; return its code, and the lowest number of free bytes observed meanwhile."""
    least = shutil.disk_usage(disk).free
    while True:
        answer = (await client.post("editor/check_status", data={"operationId": operation})).json()
        least = min(least, shutil.disk_usage(disk).free)
        if answer["query_status"]["status"] not in {"waiting", "starting", "running"}:
            return answer.get("code"), least
        await asyncio.sleep(0.02)


@pytest.mark.platform(112)
async def test_endless_writes_leave_reserved_space_and_service(disk: Path) -> None:
    settings = {
        "QUERYSERVER_ADMIN_PASSWORD": PASSWORD,
        "QUERYSERVER__DESKTOP__MIN_FREE_BYTES": str(FLOOR),
        "QUERYSERVER__DESKTOP__MIN_FREE_PERCENT": "0",
    }
    async with running_server(disk / "data", settings=settings) as server:
        client = await logged_in(server)
        free = shutil.disk_usage(disk).free
        for dialect, statement in ENDLESS:
            begun = (await client.post(f"editor/execute/{dialect}", data={"statement": statement})).json()
            code, least = await ended(client, begun["history_uuid"], disk)
            assert (code, least > FLOOR - MARGIN) == ("insufficient_storage", True), (dialect, least // MIB)
            counting = {"statement": "SELECT count(*) FROM customers", "wait": "60"}
            assert (await client.post(f"editor/execute/{dialect}", data=counting)).json()["status"] == 0
        # Only the log of the sample database's PostgreSQL and its first files remain.
        assert shutil.disk_usage(disk).free > free - 400 * MIB
        ready = await client.get(f"{server.base_url}/desktop/debug/is_ready")
        assert ready.status_code == 200
        await client.aclose()
