"""The tool that explains statements (Contract mcp 3.8; check 28)."""

import pytest
from tests.api.driving import Caller
from tests.api.mcp.sources import Agents, agents, ana, api, endpoint, error_in, files, newest
from tests.api.token.test_api_tokens import holding

from queryserver.api.mcp.sizes import ANSWER_BYTES

__all__ = ["agents", "ana", "api", "endpoint", "files", "newest"]  # fixtures


async def test_plan_is_that_of_the_engine(agents: Agents, ana: Caller) -> None:
    async with agents(ana) as agent:
        found = await agent.call("explain", connector="postgresql", sql="SELECT * FROM pg_class")
    assert "Seq Scan on pg_class" in found["plan"]
    assert not found.get("is_cut")
    assert found["estimate"]["cost"] > 0


async def test_long_plan_is_cut_to_the_budget(newest: Agents, ana: Caller) -> None:
    sql = " UNION ALL ".join(f"SELECT relname FROM pg_class WHERE relname = 'größe {number}'" for number in range(500))
    async with newest(ana) as agent:
        found = await agent.call("explain", connector="postgresql", sql=sql)
    assert found["is_cut"]
    assert ANSWER_BYTES - 4 <= len(found["plan"].encode()) <= ANSWER_BYTES


async def test_error_has_the_message_and_position_of_the_engine(newest: Agents, ana: Caller) -> None:
    async with newest(ana) as agent:
        refusal = await agent.refused("explain", connector="postgresql", sql="SELECT\n misspelt FROM pg_class")
    error = error_in(refusal)
    assert (error["code"], error["line"], error["column"]) == ("engine_error", 2, 2)
    assert "misspelt" in error["message"]


@pytest.mark.parametrize("connector", ["postgresql", "duckdb"])
async def test_plans_need_only_the_scope_to_read(connector: str, newest: Agents, ana: Caller) -> None:
    async with newest(await holding(ana, "query:read")) as agent:
        assert (await agent.call("explain", connector=connector, sql="SELECT 1 AS one"))["plan"]


async def test_explain_never_runs_a_statement(newest: Agents, ana: Caller) -> None:
    assert (await ana.run("postgresql", "CREATE TABLE IF NOT EXISTS kept AS SELECT 1 AS n"))["status"] == 0
    async with newest(ana) as agent:
        await agent.call("explain", connector="postgresql", sql="DELETE FROM kept")
        for statement in (
            "ANALYZE DELETE FROM kept",
            "/* x */ (ANALYZE) DELETE FROM kept",
            "EXPLAIN ANALYZE DELETE FROM kept",
        ):
            assert error_in(await agent.refused("explain", connector="postgresql", sql=statement))
        counted = await agent.call("run_sql", connector="postgresql", sql="SELECT count(*) FROM kept", wait_s=30)
    assert counted["result"]["rows"] != [[0]]
