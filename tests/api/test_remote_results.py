"""The life cycle of a result on real stores: execute, page, download, close, delete (Contract platform 10.3)."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import open_api, until
from tests.engines.result_places import ResultsPlace, abfs_results, hdfs_results, s3_results
from tests.modes import TASK_SERVER

from queryserver.platform.settings.tree import Settings
from queryserver.results.stores import open_results

_ROWS = 12_000


def settings_for(place: ResultsPlace, directory: Path, database_dsn: str, users_url: str) -> Settings:
    desktop = {"task_server": {"result_file_storage": place.setting}}
    settings = make_settings(directory, database_dsn, users_url, desktop=desktop)
    tables = Settings.model_validate(dict(place.tables))
    return settings.model_copy(update={name: getattr(tables, name) for name in place.tables})


@pytest.fixture(params=["server", "worker"])
def _runs_in(request, monkeypatch) -> None:
    """Makes the server or a worker run the statement and write its result. The server always reads the result."""
    if request.param == "worker":
        monkeypatch.setenv(TASK_SERVER, "1")
    else:
        monkeypatch.delenv(TASK_SERVER, raising=False)


@pytest.fixture
def walk(tmp_path, database_dsn, users_url, _runs_in) -> Callable[[ResultsPlace], Awaitable[None]]:
    async def stored_in(settings: Settings) -> int:
        async with open_results(settings) as opened:
            return sum([len(batch) async for batch in opened.listing.statements()])

    async def whole_path(place: ResultsPlace) -> None:
        settings = settings_for(place, tmp_path, database_dsn, users_url)
        async with open_api(settings) as api:

            async def is_ready() -> bool:
                # The first check creates the store's client, and may therefore time out on a busy machine.
                return (await api.stranger.send("GET", "/desktop/debug/is_ready")).status_code == 200

            await until(is_ready)
            ana = await api.user("ana")
            statement = f"SELECT i AS n, repeat('x', 20) AS t FROM range({_ROWS}) AS r(i) ORDER BY i"
            body = await ana.run("duckdb", statement, limit=_ROWS)
            assert (body["status"], body["query_status"]["rows"]) == (0, _ROWS), body
            operation = body["history_uuid"]
            assert await stored_in(settings) == 1
            page = await ana.page(operation, start_row=7_777, rows=3)
            assert [row[0] for row in page["data"]] == [7_777, 7_778, 7_779]
            first = await ana.page(operation, rows=5)
            assert [row[0] for row in first["data"]] == [0, 1, 2, 3, 4]
            download = await ana.get(f"editor/download/{operation}", format="csv")
            assert len(download.text.splitlines()) == _ROWS + 1
            stored = f"'result://{operation}'"
            counted = f"SELECT count(*), max(a.n), min(b.t) FROM {stored} AS a JOIN {stored} AS b USING (n)"
            assert (await ana.result("duckdb", counted))["data"] == [[_ROWS, _ROWS - 1, "x" * 20]]
            await ana.on(operation, "close_statement")

            async def is_gone() -> bool:
                return await stored_in(settings) == 0

            await until(is_gone)

    return whole_path


@pytest.mark.engine("s3")
@pytest.mark.platform(111)
async def test_result_is_stored_in_s3(walk, s3_server):
    await walk(await s3_results(s3_server))


@pytest.mark.engine("hdfs")
@pytest.mark.platform(111)
async def test_result_is_stored_in_hdfs(walk, hdfs_cluster):
    await walk(await hdfs_results(hdfs_cluster))


@pytest.mark.engine("azurite")
@pytest.mark.platform(111)
async def test_result_is_stored_in_azure(walk, azurite):
    await walk(await abfs_results(azurite))
