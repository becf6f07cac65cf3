"""What agents do in the end-to-end tests: each scenario is a session of calls over any route to the servers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

from tests.e2e.installation import Installation, Node, held
from tests.mcp_sessions import TOOLS, Session

Connect = Callable[..., AbstractAsyncContextManager[Session]]
"""Opens a session: `connect(user, *scopes)`."""
Scenario = Callable[[Connect, Installation], Awaitable[None]]

TERMINAL = {"available", "success", "failed", "canceled", "timed_out", "expired", "closed"}
_MISSING = str(uuid4())


async def api_token(node: Node, user: str, *scopes: str, host: str | None = None) -> str:
    """Create an API token of the user; return its value. `host` is the name of the service that the server expects."""
    body = {"name": f"agent {uuid4()}", "scopes": list(scopes or ["query"])}
    headers = node.headers(user) | ({} if host is None else {"Host": host})
    answer = await node.http.post("/api/v1/token/api_tokens/new", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


async def lists_tools(connect: Connect, place: Installation) -> None:
    async with connect("ana") as agent:
        tools = {one.name: one for one in (await agent.client.list_tools()).tools}
        assert set(tools) >= TOOLS
        for tool in tools.values():
            assert tool.description, tool.name
            assert tool.output_schema, tool.name
            assert tool.annotations, tool.name
            assert tool.annotations.read_only_hint is not None, tool.name
        keys = {one["name"] for one in (await agent.call("list_connectors"))["connectors"]}
        assert keys >= {"duckdb", "postgresql"}


async def follows_statement_that_outlasts_the_wait(connect: Connect, place: Installation) -> None:
    async with held(place.users_dsn, 4712) as release, connect("ana") as agent:
        submitted = await agent.call("run_sql", connector="postgresql", sql=_locked(4712), write=True, wait_s=1)
        operation = submitted["operation"]["operation_id"]
        assert submitted["operation"]["state"] == "running"
        assert (await agent.call("get_status", operation_id=operation))["state"] == "running"
        assert agent.progress
        await release()
        assert (await _ended(agent, operation))["state"] == "available"
        assert (await agent.call("get_result", operation_id=operation))["rows"] == [[7]]


async def reads_every_page_once(connect: Connect, place: Installation) -> None:
    sql = "SELECT n, md5(n::text) AS digest FROM generate_series(1, 3000) AS n ORDER BY n"
    async with connect("ana") as agent:
        submitted = await agent.call("run_sql", connector="postgresql", sql=sql, wait_s=30)
        operation = submitted["operation"]["operation_id"]
        await _ended(agent, operation)
        rows: list[Any] = []
        offset: int | None = 0
        while offset is not None:
            page = await agent.call("get_result", operation_id=operation, offset=offset, rows=1000)
            rows += page["rows"]
            offset = page["next_offset"] if page["has_more"] else None
        assert [row[0] for row in rows] == list(range(1, 3001))


async def cancels_statement(connect: Connect, place: Installation) -> None:
    async with held(place.users_dsn, 4713), connect("ana") as agent:
        submitted = await agent.call("run_sql", connector="postgresql", sql=_locked(4713), write=True, wait_s=0)
        operation = submitted["operation"]["operation_id"]
        await agent.call("cancel", operation_id=operation)
        assert (await _ended(agent, operation))["state"] == "canceled"


async def reads_errors_that_name_the_cause(connect: Connect, place: Installation) -> None:
    async with connect("ana") as agent:
        failed = await agent.refused("run_sql", connector="postgresql", sql="SELECT misspelt FROM pg_class")
        assert "misspelt" in failed
        unknown = await agent.refused("run_sql", connector="nowhere", sql="SELECT 1")
        assert "postgresql" in unknown
        assert _MISSING in await agent.refused("get_status", operation_id=_MISSING)


async def sees_no_operation_of_another_user(connect: Connect, place: Installation) -> None:
    async with connect("ana") as ana, connect("bob") as bob:
        submitted = await ana.call("run_sql", connector="postgresql", sql="SELECT 'of ana' AS secret", wait_s=30)
        operation = submitted["operation"]["operation_id"]
        for tool in ("get_status", "get_result", "cancel"):
            refusal = await bob.refused(tool, operation_id=operation)
            assert "of ana" not in refusal
        refusal = await bob.refused("export_result", operation_id=operation, path="file:///shared/of-ana.csv")
        assert "of ana" not in refusal
        assert (await ana.call("get_result", operation_id=operation))["rows"] == [["of ana"]]


async def reads_only_with_scope_that_reads(connect: Connect, place: Installation) -> None:
    async with connect("ana", "query:read") as agent:
        write = "CREATE TABLE planted (id int)"
        for arguments in ({}, {"write": True}):
            assert await agent.refused("run_sql", connector="postgresql", sql=write, wait_s=30, **arguments)
        submitted = await agent.call("run_sql", connector="postgresql", sql="SELECT 1 AS one", wait_s=30)
        refusal = await agent.refused(
            "export_result", operation_id=submitted["operation"]["operation_id"], path="file:///shared/x.csv"
        )
        assert "query" in refusal
    async with connect("ana", "query") as agent:
        counted = "SELECT count(*) FROM pg_class WHERE relname = 'planted'"
        found = await agent.call("run_sql", connector="postgresql", sql=counted, wait_s=30)
        assert found["result"]["rows"] == [[0]]


SCENARIOS = (
    lists_tools,
    follows_statement_that_outlasts_the_wait,
    reads_every_page_once,
    cancels_statement,
    reads_errors_that_name_the_cause,
    sees_no_operation_of_another_user,
    reads_only_with_scope_that_reads,
)


def _locked(lock: int) -> str:
    """Return a statement that waits until the advisory lock is free."""
    return f"SELECT 7 AS seven FROM (SELECT pg_advisory_xact_lock({lock})) AS locked"


async def _ended(agent: Session, operation: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (status := await agent.call("get_status", operation_id=operation, wait_s=10))["state"] not in TERMINAL:
            pass
    return status
