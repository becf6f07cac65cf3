"""Contract mcp 3: tools for statements."""

import json
from typing import Any

from tests.api.driving import Caller
from tests.api.mcp.conftest import OpenClient


def error_of(result: Any) -> dict[str, Any]:
    assert result.is_error, result
    return json.loads(result.content[0].text)["error"]


async def test_an_agent_lists_its_connectors_and_runs_sql(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        listed = await agent.call_tool("list_connectors", {})
        assert "duckdb" in [one["name"] for one in listed.structured_content["connectors"]]
        ran = await agent.call_tool("run_sql", {"sql": "select 42 as n, 'x' as t", "connector": "duckdb"})
        assert ran.structured_content["operation"]["state"] == "available", ran
        assert ran.structured_content["result"]["rows"] == [[42, "x"]]


async def test_a_statement_that_may_change_data_is_refused_unless_the_call_permits_it(
    connect: OpenClient, ana: Caller
) -> None:
    async with connect(ana) as agent:
        refused = await agent.call_tool("run_sql", {"sql": "create table mcp_t (n int)", "connector": "duckdb"})
        assert error_of(refused)["code"] == "rejected"
        changed = {"sql": "create or replace table mcp_t as select 1 as n", "connector": "duckdb", "write": True}
        assert not (await agent.call_tool("run_sql", changed)).is_error


async def test_an_unknown_argument_is_an_error(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        failed = await agent.call_tool("run_sql", {"sql": "select 1", "limit": 3})
        assert error_of(failed)["code"] == "invalid_parameter"
        assert "limit" in error_of(failed)["message"]


async def test_a_failed_statement_is_a_tool_error_with_its_position(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        failed = await agent.call_tool("run_sql", {"sql": "select no_such_column", "connector": "duckdb"})
        error = error_of(failed)
        assert error["line"] == 1
        assert error["operation_id"]
        assert "no_such_column" in error["message"]
