"""Several worker processes behind one port."""

import asyncio

import httpx
import psutil
import pytest
from tests.e2e.harness import PROGRAM, free_port, running_server


async def test_two_workers_serve_and_stop_together(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        family = psutil.Process(server.pid).children(recursive=True)
        async with httpx.AsyncClient(base_url=server.base_url) as client:
            assert (await client.get("/desktop/debug/is_ready")).status_code == 200
            assert (await client.get("/api/v1/editor/get_history")).status_code == 401
        assert len([process for process in family if "spawn" in " ".join(process.cmdline())]) >= 2
        assert await server.terminate() == 0
    _, left = await asyncio.to_thread(psutil.wait_procs, family, timeout=10)
    assert left == []


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_database_without_tables_stops_the_start(unmigrated_dsn, tmp_path, workers):
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *("serve", "--port", str(free_port()), "--workers", str(workers)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            "QUERYSERVER__DESKTOP__DATABASE__URL": unmigrated_dsn,
            "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
        },
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    assert process.returncode == 3
    assert b"queryserver migrate" in output


@pytest.mark.platform(100)
async def test_metrics_of_all_workers_are_one_answer(database_dsn, tmp_path):
    async with running_server(tmp_path / "data", database_dsn=database_dsn, arguments=["--workers", "2"]) as server:
        for _ in range(12):
            # A connection each, so that both workers get some.
            async with httpx.AsyncClient(base_url=server.base_url) as client:
                assert (await client.get("/api/v1/editor/get_history")).status_code == 401
        pages = []
        for _ in range(4):
            async with httpx.AsyncClient(base_url=server.base_url) as client:
                pages.append((await client.get("/metrics")).text)
        assert await server.terminate() == 0
    counted = 'queryserver_http_requests_total{method="GET",route="/api/v1/editor/get_history",status="401"} 12.0'
    assert all(counted in page for page in pages)
    assert all("# TYPE queryserver_jwks_fetch_total counter" in page for page in pages)
