"""Rows of stored results within a byte budget (Contract mcp 3.3)."""

import json
from typing import Any

import pytest
from mcp import Client
from tests.api.driving import Caller
from tests.api.mcp.conftest import OpenClient, called, refused

WIDE = "SELECT range AS n, repeat('x', 100) AS t FROM range(1000)"


async def ran(agent: Client, sql: str, **arguments: Any) -> dict[str, Any]:
    return await called(agent, "run_sql", sql=sql, connector="duckdb", **arguments)


@pytest.mark.mcp(20)
@pytest.mark.parametrize("budget", [{}, {"max_bytes": 1000}, {"rows": 7}, {"rows": 5000, "max_bytes": 200_000}])
async def test_pages_return_each_row_once_within_the_budget(
    connect: OpenClient, ana: Caller, budget: dict[str, int]
) -> None:
    async with connect(ana) as agent:
        first = await ran(agent, WIDE)
        operation, seen, offset, sizes = first["operation"]["operation_id"], list[int](), 0, list[int]()
        while True:
            page = await called(agent, "get_result", operation_id=operation, offset=offset, **budget)
            seen += [row[0] for row in page["rows"]]
            sizes.append(len(json.dumps(page["rows"], separators=(",", ":"))))
            assert (page["offset"], page["rows_returned"], page["rows_total"]) == (offset, len(page["rows"]), 1000)
            if not page["has_more"] or len(sizes) > 40:
                break
            offset = page["next_offset"]
    assert max(sizes) <= budget.get("max_bytes", 20_000)
    assert seen == list(range(len(seen)))
    if not page["has_more"]:
        assert len(seen) == 1000
        assert page["next_offset"] is None


@pytest.mark.mcp(20)
async def test_first_rows_of_run_sql_fit_the_default_budget(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        result = (await ran(agent, WIDE))["result"]
    assert result["has_more"]
    assert result["next_offset"] == result["rows_returned"] < 200
    assert len(json.dumps(result["rows"], separators=(",", ":"))) <= 20_000


@pytest.mark.mcp(20)
async def test_a_row_that_is_too_large_is_named(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        first = await ran(agent, "SELECT repeat('x', 30000) AS t UNION ALL SELECT 'small'")
        operation = first["operation"]["operation_id"]
        assert first["result"] is None
        error = await refused(agent, "get_result", operation_id=operation)
        assert error["code"] == "row_too_large"
        assert "offset=1" in error["next"]
        page = await called(agent, "get_result", operation_id=operation, max_bytes=50_000)
        assert page["rows_returned"] == 2


@pytest.mark.mcp(21)
async def test_a_result_is_reduced_by_sql_over_it(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        first = await ran(agent, WIDE)
        operation = first["operation"]["operation_id"]
        assert "duckdb" in first["result"]["next"]
        assert f"result://{operation}" in first["result"]["next"]
        reduced = await ran(agent, f"SELECT max(n), count(*) FROM 'result://{operation}'")
    assert reduced["result"]["rows"] == [[999, 1000]]


@pytest.mark.mcp(20)
async def test_a_truncated_result_says_so(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        result = (await ran(agent, "SELECT * FROM range(100)", row_limit=10))["result"]
    assert (result["rows_total"], result["has_more"]) == (10, False)
    assert "row_limit" in result["truncated"]


@pytest.mark.mcp(20)
async def test_reading_leaves_the_cursor_where_it_was(connect: OpenClient, ana: Caller) -> None:
    operation = (await ana.run("duckdb", "SELECT * FROM range(5)"))["history_uuid"]
    await ana.page(operation, rows=2)
    async with connect(ana) as agent:
        page = await called(agent, "get_result", operation_id=operation)
    assert page["rows_returned"] == 5
    assert (await ana.page(operation, rows=2))["data"] == [[2], [3]]


@pytest.mark.mcp(22)
async def test_rows_of_a_running_statement_can_be_read(connect: OpenClient, ana: Caller) -> None:
    operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    async with connect(ana) as agent:
        page = await called(agent, "get_result", operation_id=operation)
        assert (page["rows"], page["rows_total"], page["has_more"], page["next_offset"]) == ([], None, True, 0)
        await called(agent, "cancel", operation_id=operation)
        assert (await refused(agent, "get_result", operation_id=operation))["code"] == "canceled"
