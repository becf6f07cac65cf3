"""Client programs written for Hue work with this server.

`hueclientrest` and `workflow4ds` are on PyPI. `hueclientrest` runs unchanged, and `workflow4ds` uses a token instead of
Hue's login page. `ong-hue-api` is not on PyPI, so the test itself makes the calls of its REST API class, in the same
order and with the same fields.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.clients.generators import ENGINE, HUE, hue_environment
from tests.e2e.harness import ServerProcess, running_server
from tests.fixtures.engines import FIRST_TEST_TIMEOUT_S
from tests.jobs import found_by
from tests.timing import until

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

PASSWORD = "correct horse battery"
ROWS = 25_000
LAST = [ROWS - 1, f"row {ROWS - 1}"]
SETTINGS = "[desktop.connector_policy]\nsession_conf_allowed = []\n" + "\n".join(
    f'[notebook.interpreters.{key}]\ninterface = "duckdb"\ndialect = "duckdb"\noptions = {{path = ":memory:"}}'
    for key in ("duckdb", "hive", "impala")
)
"""The programs use the connector names of a Hadoop cluster, so the data sources have these names. Their engines accept
no Hive settings, so the list of settings to pass on is empty instead of the default.
"""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server started with `queryserver serve --embedded`. Its data sources have the names that the programs use."""
    place = tmp_path_factory.mktemp("hue-clients")
    settings = place / "queryserver.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    environment = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
    async with running_server(place / "data", settings=environment, arguments=["--config", str(settings)]) as server:
        yield server


async def done(job: str, server: ServerProcess, folder: Path) -> dict[str, Any]:
    """Run a job from `hue/` against the server; return its results."""
    python = await asyncio.to_thread(hue_environment)
    url = server.base_url.rstrip("/")
    return await found_by(python, HUE / f"{job}.py", url, PASSWORD, str(ROWS), folder=folder)


async def test_hueclientrest_saves_all_rows_and_moves_files(server: ServerProcess, tmp_path: Path):
    found = await done("hue_client_rest", server, tmp_path)
    whole = [["id", "name"], ROWS, [str(cell) for cell in LAST]]
    assert found["saved"] == {"1000": whole, "20000": whole}
    assert found["uploaded"] == [0, "file:///user/admin/rows-1000.csv"]
    assert (found["is_listed"], found["is_same"], found["exists"]) == (True, True, [True, False])


async def test_workflow4ds_fetches_all_rows_through_hue_page_paths(server: ServerProcess, tmp_path: Path):
    found = await done("workflow_4ds", server, tmp_path)
    assert found["fetched"] == [["id", "name"], ROWS, LAST]
    assert found["saved"] == [["id", "name"], ROWS, [str(cell) for cell in LAST]]
    assert (found["size"], found["again"]) == (ROWS, [[42]])
    assert found["sessions"] == [True, True, True]
    # The program sends about forty settings with every statement.
    assert found["settings"] > 20
    assert "not passed on to the engine: hive.tez.input.format," in found["log"]


async def test_ong_hue_api_calls_return_all_rows(server: ServerProcess):
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as http:

        async def post(path: str, **fields: Any) -> Any:
            answer = await http.post(path, data=fields)
            assert answer.status_code == 200, answer.text
            return answer.json()

        pair = await post("/api/v1/token/auth", username="admin", password=PASSWORD)
        await post("/api/v1/token/verify/", token=pair["access"])
        pair["access"] = (await post("/api/v1/token/refresh/", refresh=pair["refresh"]))["access"]
        http.headers["Authorization"] = f"Bearer {pair['access']}"
        sql = f"SELECT i AS id, 'row ' || i AS name FROM range({ROWS}) AS r(i) ORDER BY i"
        for statement, expected in ((f"with t as ( {sql} ) select count(*) from t limit 1", 1), (sql, ROWS)):
            begun = await post("/api/v1/editor/execute/impala", statement=statement)
            assert begun["status"] == 0
            # The program sends the same two fields to both operations.
            fields = {"operationId": begun["history_uuid"], "rows": 100_000}

            async def is_available(fields: dict[str, Any] = fields) -> bool:
                status = await post("/api/v1/editor/check_status", **fields)
                return status["query_status"]["status"] == "available"

            await until(is_available)
            rows, has_more = [], True
            while has_more:
                page = (await post("/api/v1/editor/fetch_result_data", **fields))["result"]
                rows, has_more = rows + page["data"], page["has_more"]
            assert (len(rows), rows[-1]) == (expected, [ROWS] if expected == 1 else LAST)
