"""Exports whose server is stopped, and go on after its restart (Contract exports 2.6)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.api.driving import Caller, open_api
from tests.api.exports.conftest import interpreters
from tests.api.exports.test_files import names, summary
from tests.api.storage.conftest import storage_settings
from tests.api.test_download import finished

from queryserver.engines.protocol import OperationHandle
from queryserver.platform.settings.tree import Settings
from queryserver.statements.stored_session import StoredSession

ROWS = 30_000
STATEMENT = f"SELECT n, repeat('x', 200) AS t FROM generate_series(1, {ROWS}) AS n"
TABLES = "SELECT count(*) AS n FROM pg_tables WHERE tablename = 'given_back' OR tablename LIKE '\\_qs\\_import%'"
TARGETS = {
    "file": {"path": "file:///shared/out.csv"},
    "parts": {"path": "file:///shared/out", "format": "csv", "split_rows": "7000"},
    "table": {"connector": "postgresql", "table": "given_back"},
}


@pytest.fixture
def settings(tmp_path: Path, database_dsn: str, users_url: str) -> Settings:
    """The settings of one server, which is started twice."""
    tables = {
        "notebook": {"interpreters": interpreters(users_url), "default_interpreter": "postgresql"},
        "editor": {"cancel_wait_s": 30, "result_max_rows": ROWS, "lease_timeout_s": 600},
    }
    return storage_settings(tmp_path, database_dsn, tables=tables)


async def begin(caller: Caller, source: str, target: str) -> str:
    """Start an export; return its operation."""
    answer = await caller.post("editor/export_result", operationId=source, **TARGETS[target])
    assert answer.status_code == 202, answer.text
    return answer.json()["history_uuid"]


@pytest.mark.exports(30)
@pytest.mark.parametrize("target", TARGETS)
async def test_export_of_a_stopped_server_goes_on_after_its_restart(
    settings: Settings, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
):
    shared, is_half_done = tmp_path / "files" / "shared", asyncio.Event()
    read = StoredSession.batches

    async def stop_after_the_rows(self: StoredSession, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        async for batch in read(self, handle):
            yield batch
        is_half_done.set()
        await asyncio.Event().wait()

    async with open_api(settings) as api:
        ana = await api.user("ana")
        source = await finished(ana, "postgresql", STATEMENT)
        with monkeypatch.context() as patch:
            patch.setattr(StoredSession, "batches", stop_after_the_rows)
            operation = await begin(ana, source, target)
            await asyncio.wait_for(is_half_done.wait(), 60)
            await api.running.statements.runner.shutdown.drain(at_once=True)
        assert await ana.state(operation) == "waiting"
        assert names(shared) == []
    async with open_api(settings) as api:
        ana = Caller(api, ana.username, ana.headers)
        found = await summary(ana, operation)
        assert found["rows"] == ROWS
        log = (await ana.on(operation, "get_logs"))["logs"]
        assert "The server is being shut down. The stored result will be read again." in log
        assert await tables(ana) == (1 if target == "table" else 0)
        assert names(shared) == ([] if target == "table" else [Path(TARGETS[target]["path"]).name])


async def tables(caller: Caller) -> Any:
    """Count the tables of the export, and drop the one that it has made."""
    counted = await caller.run("postgresql", TABLES, rows=1)
    await caller.run("postgresql", "DROP TABLE IF EXISTS given_back")
    return counted["result"]["data"][0][0]
