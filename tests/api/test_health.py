"""is_alive and is_ready (Contract platform 9.1, 9.2)."""

import asyncio
import shutil
import threading
from concurrent.futures import Executor
from dataclasses import fields
from pathlib import Path

import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api


def take_away(directory: Path) -> None:
    shutil.move(directory, directory.with_name("aside"))
    directory.write_text("a file where the directory was")


def bring_back(directory: Path) -> None:
    directory.unlink()
    shutil.move(directory.with_name("aside"), directory)


@pytest.mark.platform(98)
async def test_is_alive_answers_while_every_thread_is_busy_and_whatever_the_token(api: Api):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    pools = [getattr(api.services.threads, field.name) for field in fields(api.services.threads)]
    shared = [None, *(pool for pool in pools if isinstance(pool, Executor))]
    threads = [loop.run_in_executor(pool, release.wait, 30) for pool in shared for _ in range(64)]
    try:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}):
            async with asyncio.timeout(25):
                answer = await api.http.get("/desktop/debug/is_alive", headers=headers)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/plain")
    finally:
        release.set()
        await asyncio.gather(*threads)


@pytest.mark.platform(98, 99)
async def test_without_the_result_store_the_server_lives_and_is_not_ready(small_api: ApiOpener):
    async with small_api() as api:
        results = Path(api.services.settings.results_dir)
        take_away(results)
        assert (await api.http.get("/desktop/debug/is_alive")).status_code == 200
        refused = await api.http.get("/desktop/debug/is_ready")
        body = refused.json()
        assert (refused.status_code, body["code"], body["ready"]) == (503, "not_ready", False)
        assert body["checks"]["result_store"]["ok"] is False
        assert int(refused.headers["Retry-After"]) > 0
        assert str(results.parent) not in refused.text
        bring_back(results)
        await is_ready_again(api)


async def is_ready_again(api: Api) -> None:
    """Returns once it is ready: a part that fails is looked at again after a second."""
    for _ in range(600):
        if (await api.http.get("/desktop/debug/is_ready")).json()["ready"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError


@pytest.mark.platform(99)
async def test_on_another_schema_the_server_is_not_ready(small_api: ApiOpener):
    async with small_api() as api:
        newest = await api.database.value("select version_num from alembic_version")
        await api.database.execute("update alembic_version set version_num = '0001'")
        refused = await api.http.get("/desktop/debug/is_ready")
        assert (refused.status_code, refused.json()["checks"]["schema"]["ok"]) == (503, False)
        await api.database.execute("update alembic_version set version_num = $1", newest)
        ready = await api.http.get("/desktop/debug/is_ready")
        assert ready.status_code == 200
        assert set(ready.json()["checks"]) == {"database", "schema", "result_store", "broker"}
        api.services.readiness.stopping = True
        stopping = await api.http.get("/desktop/debug/is_ready")
        assert (stopping.status_code, stopping.json()["code"], stopping.headers["retry-after"]) == (
            503,
            "stopping",
            "5",
        )
        assert stopping.json()["checks"]["database"]["ok"]


@pytest.mark.platform(99)
async def test_readiness_shows_no_address(api: Api):
    dsn = api.services.settings.desktop.database.dsn or ""
    shown = (await api.http.get("/desktop/debug/is_ready")).text
    assert "postgres" not in shown
    assert dsn.rpartition("/")[2] not in shown
