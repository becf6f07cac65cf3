"""`queryserver beat` as a separate process (Contract platform 12)."""

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.program import ForkedProcess


@pytest.fixture
def environment(tmp_path: Path, database_dsn: str) -> Mapping[str, str]:
    """Environment variables with which a process uses the application's database."""
    return {
        "HOME": str(tmp_path),
        "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
        "QUERYSERVER__DESKTOP__SECRET_KEY": "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge",
        "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
        "QUERYSERVER__DESKTOP__CONNECTOR_POLICY__LOCAL_DATABASE_DIR": str(tmp_path / "databases"),
        "QUERYSERVER__NOTEBOOK__INTERPRETERS__SQLITE": '{"interface": "sqlite", "options": {"path": "api.sqlite"}}',
        "QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED": "true",
        "QUERYSERVER__DESKTOP__TASK_SERVER__BEAT_ENABLED": "true",
    }


@pytest.mark.platform(107)
async def test_two_processes_fire_once_and_stop_cleanly(
    fleets: Callable[..., Any], environment: Mapping[str, str], tmp_path: Path
):
    async with fleets(beats=False) as fleet:
        made = await fleet.schedule("by processes", connector="sqlite", statement="select 1")
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            beats = [
                await ForkedProcess.start(["beat"], cwd=tmp_path, env=environment, files=(out, err)) for _ in range(2)
            ]
        try:

            async def both_live() -> bool:
                ended = [beat.returncode for beat in beats if beat.returncode is not None]
                assert not ended, (tmp_path / "err").read_text()
                return await fleet.api.database.value("select count(*) from instances where kind = 'beat'") == 2

            await fleet.until(both_live)
            assert (await fleet.root.get("taskserver/schedules")).json()["beat_running"]
            for fire in range(1, 3):
                await fleet.due(made["id"])
                runs = await fleet.ended(made["id"], fire)
                assert [run["status"] for run in runs] == ["finished"] * fire
            assert await fleet.api.database.value("select count(*) from statements") == 2
            for beat, number in zip(beats, (signal.SIGTERM, signal.SIGINT), strict=True):
                beat.send_signal(number)
            assert [await beat.wait() for beat in beats] == [0, 0]
        finally:
            for beat in beats:
                beat.kill()
        assert await fleet.api.database.value("select count(*) from instances where kind = 'beat'") == 0
