"""The official inspector and conformance suite of the Model Context Protocol accept the endpoint
(Contract mcp 6, check 32).
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.clients.mcp_programs import ENGINE, check_conformance, inspect, with_token
from tests.e2e.harness import ServerProcess, running_server
from tests.fixtures.engines import FIRST_TEST_TIMEOUT_S
from tests.mcp_sessions import TOOLS

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

PASSWORD = "correct horse battery"
ERAS = ("modern", "legacy")
SCENARIOS = (
    "server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection",
)  # fmt: skip
"""Scenarios of the suite that need no tools, resources or prompts of its own sample server."""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server started with `queryserver serve --embedded`, with the sample data."""
    state = tmp_path_factory.mktemp("mcp-programs") / "data"
    async with running_server(state, settings={"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
async def token(server: ServerProcess) -> str:
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as http:
        answer = await http.post("/api/v1/token/auth", data={"username": "admin", "password": PASSWORD})
        return answer.json()["access"]


async def inspected(server: ServerProcess, token: str, era: str, folder: Path, *arguments: str) -> Any:
    """Return the JSON that the inspector prints for a call that must succeed."""
    outcome = await inspect(f"{server.base_url}/mcp", token, era, folder, *arguments)
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


@pytest.mark.parametrize("era", ERAS)
async def test_inspector_lists_portable_tools(era: str, server: ServerProcess, token: str, tmp_path: Path) -> None:
    found = await inspected(server, token, era, tmp_path, "--method", "tools/list", "--strict")
    assert {one["name"] for one in found["tools"]} >= TOOLS


@pytest.mark.parametrize("era", ERAS)
async def test_inspector_runs_sql(era: str, server: ServerProcess, token: str, tmp_path: Path) -> None:
    call = ["--method", "tools/call", "--tool-name", "run_sql", "--tool-arg"]
    found = await inspected(
        server, token, era, tmp_path, *call, "sql=SELECT count(*) FROM customers", "connector=duckdb"
    )
    assert found["structuredContent"]["result"]["rows"] == [[400]]


@pytest.mark.parametrize("era", ERAS)
async def test_inspector_lists_resources(era: str, server: ServerProcess, token: str, tmp_path: Path) -> None:
    assert (await inspected(server, token, era, tmp_path, "--method", "resources/list"))["resources"] == []
    found = await inspected(server, token, era, tmp_path, "--method", "resources/templates/list")
    assert [one["uriTemplate"] for one in found["resourceTemplates"]] == ["document://{uuid}"]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_conformance_suite_passes(scenario: str, server: ServerProcess, token: str, tmp_path: Path) -> None:
    async with with_token(server.base_url, token) as url:
        outcome = await check_conformance(f"{url}/mcp", scenario, tmp_path)
    assert outcome.code == 0, outcome
