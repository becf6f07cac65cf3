"""The scopes of API tokens, tool by tool (Contract mcp 2.3, platform 4.4). A new tool fails here until its scope is
decided.
"""

import json
from uuid import uuid4

import pytest
from tests.api.driving import Caller
from tests.api.mcp.sources import Agents, agents, ana, api, endpoint, error_in, files, newest
from tests.api.token.test_api_tokens import holding
from tests.mcp_sessions import TOOLS

__all__ = ["agents", "ana", "api", "endpoint", "files", "newest"]  # fixtures

READING = {
    "list_connectors": {},
    "search_tables": {"text": "x"},
    "describe_table": {"connector": "duckdb", "database": "main", "table": "missing"},
    "explain": {"connector": "duckdb", "sql": "SELECT 1"},
    "run_sql": {"connector": "duckdb", "sql": "SELECT 1"},
    "get_result": {"operation_id": str(uuid4())},
    "get_status": {"operation_id": str(uuid4())},
    "cancel": {"operation_id": str(uuid4())},
}
"""The tools that need `query:read`, with arguments."""
CHANGING = {"export_result": {"operation_id": str(uuid4()), "path": "file:///shared/planted.csv"}}
"""The tools that need `query`."""


def test_the_scope_of_every_tool_is_decided() -> None:
    assert READING.keys() | CHANGING.keys() == TOOLS


@pytest.mark.platform(126)
async def test_each_tool_needs_its_scope(newest: Agents, ana: Caller) -> None:
    async with newest(await holding(ana, "import")) as agent:
        for scope, tools in (("query:read", READING), ("query", CHANGING)):
            for tool, arguments in tools.items():
                error = error_in(await agent.refused(tool, **arguments))
                assert (error["code"], error["scope"]) == ("insufficient_scope", scope), tool


@pytest.mark.platform(126)
async def test_tools_that_read_accept_the_narrow_scope(agents: Agents, ana: Caller) -> None:
    async with agents(await holding(ana, "query:read")) as agent:
        for tool, arguments in READING.items():
            result = await agent.result(tool, **arguments)
            assert "insufficient_scope" not in json.dumps([one.model_dump() for one in result.content]), tool
        for tool, arguments in CHANGING.items():
            assert error_in(await agent.refused(tool, **arguments))["scope"] == "query", tool
        operation = (await agent.call("run_sql", connector="duckdb", sql="SELECT 42"))["operation"]["operation_id"]
        assert (await agent.call("get_result", operation_id=operation))["rows"] == [[42]]


@pytest.mark.platform(126)
async def test_statements_of_the_narrow_scope_only_read(newest: Agents, ana: Caller) -> None:
    table = f"made_{uuid4().hex}"
    change = {"connector": "duckdb", "sql": f"CREATE TABLE {table} (n integer)"}
    async with newest(await holding(ana, "query:read")) as agent:
        assert error_in(await agent.refused("run_sql", **change))["code"] == "rejected"
        refused = error_in(await agent.refused("run_sql", **change, write=True))
        assert (refused["code"], refused["scope"]) == ("insufficient_scope", "query")
    async with newest(ana) as agent:
        assert error_in(await agent.refused("run_sql", connector="duckdb", sql=f"SELECT * FROM {table}"))["code"]
