"""Programs from PyPI that need only a SQLAlchemy URL work with a server (issue 20, section 5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.e2e.harness import ServerProcess, running_server
from tests.fixtures.engines import FIRST_TEST_TIMEOUT_S
from tests.jobs import found_by
from tests.tools.environment import ENGINE, HERE, install_client, python_with_tools

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """Start a server with `queryserver serve --embedded`."""
    state = tmp_path_factory.mktemp("tools") / "data"
    async with running_server(state, settings={"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools-client")
    install_client(folder)
    return folder


@pytest.fixture(params=["duckdb", "postgresql"])
def url(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    host, _, port = server.base_url.removeprefix("http://").partition("/")[0].partition(":")
    made = sa.URL.create(
        "queryserver", "admin", PASSWORD, host, int(port), database=request.param, query={"scheme": "http"}
    )
    return made.render_as_string(hide_password=False)


async def done(job: str, client: Path, folder: Path, *arguments: str) -> Any:
    """Run a job from this folder; return its results."""
    unsent = {"RUNTIME__DLTHUB_TELEMETRY": "false", "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false"}
    python = await asyncio.to_thread(python_with_tools)
    environment = {**unsent, "PYTHONPATH": str(client)}
    return await found_by(python, HERE / f"{job}.py", *arguments, folder=folder, environment=environment)


async def test_jupysql_runs_notebook(url: str, client: Path, tmp_path: Path):
    shown = await done("notebook", client, tmp_path, url)
    tables, columns, snippet, _, grouped, named, everything, refused = shown[3:]
    assert "note_orders" in tables
    assert [line.split("|")[1].strip() for line in columns.splitlines()[3:6]] == ["id", "item", "price"]
    assert "NUMERIC(8, 2)" in columns
    assert "Skipping" in snippet
    assert json.loads(grouped)[3] == ["item 3", "57", "2835.75"]
    assert (named, everything) == ("357", "2500")
    assert "nothing" in refused


async def test_sqlacodegen_generates_working_models(url: str, client: Path, tmp_path: Path):
    found = await done("models", client, tmp_path, url, str(tmp_path))
    assert found["used"] == ["ana", "1.00", ["one"]]
    parts = ("CheckConstraint(", "Index('model_books_title'", "Numeric(6, 2)")
    assert [part for part in parts if part not in found["text"]] == []
    assert "unique=True" in found["text"] or "UniqueConstraint('name'" in found["text"]


async def test_dlt_loads_tables_by_reflection_in_chunks_and_incrementally(url: str, client: Path, tmp_path: Path):
    found = await done("loading", client, tmp_path, url, str(tmp_path))
    first, second = found["loads"]
    assert (first["loaded_orders"], first["loaded_customers"]) == (2500, 10)
    assert second["loaded_orders"] == 10
    assert found["columns"] == {
        "id": {"data_type": "bigint", "nullable": False, "primary_key": True},
        "customer": {"data_type": "bigint", "nullable": False},
        "price": {"data_type": "decimal", "nullable": True, "precision": 8, "scale": 2},
        "day": {"data_type": "date", "nullable": True},
    }


async def test_streamlit_dashboard_shows_pages_of_tables(url: str, client: Path, tmp_path: Path):
    shown = await done("dashboard_pages", client, tmp_path, url)
    assert all(one["errors"] == [] for one in shown)
    assert all(one["tables"] == ["dash_items", "dash_sales"] for one in shown)
    assert [one["ids"] for one in shown] == [[0, 49], [100, 119], [0, 19]]
    assert [one["metrics"] for one in shown] == [["120", "6"], ["120", "6"], ["20", "6"]]
