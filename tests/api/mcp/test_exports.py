"""The tool that exports results (Contract mcp 3.9; checks 29 and 30)."""

from uuid import uuid4

import pytest
from tests.api.driving import Caller
from tests.api.mcp.sources import Agents, agents, ana, api, bob, endpoint, error_in, files, newest
from tests.api.storage.conftest import Files
from tests.api.token.test_api_tokens import holding
from tests.mcp_sessions import Session

__all__ = ["agents", "ana", "api", "bob", "endpoint", "files", "newest"]  # fixtures


async def result_of(agent: Session, sql: str = "SELECT 42 AS answer") -> str:
    """Run a statement; return the operation whose result is exported."""
    outcome = await agent.call("run_sql", connector="duckdb", sql=sql, wait_s=30)
    assert outcome["operation"]["state"] == "available"
    return outcome["operation"]["operation_id"]


async def ended(agent: Session, operation: str) -> str:
    return (await agent.call("get_status", operation_id=operation, wait_s=30))["state"]


async def test_result_goes_into_a_file(agents: Agents, ana: Caller, files: Files) -> None:
    folder = files.folder()
    async with agents(ana) as agent:
        operation = await result_of(agent)
        export = await agent.call("export_result", operation_id=operation, path=f"file:///{folder}/answer.csv")
        assert export["path"] == f"file:///{folder}/answer.csv"
        assert await ended(agent, export["operation_id"]) == "available"
        summary = await agent.call("get_result", operation_id=export["operation_id"])
        assert summary["rows"][0][0] == 1
    assert (files.root / folder / "answer.csv").read_text().splitlines() == ["answer", "42"]


async def test_result_goes_into_a_table(newest: Agents, ana: Caller) -> None:
    async with newest(ana) as agent:
        operation = await result_of(agent)
        target = {"connector": "postgresql", "database": "public", "table": f"answers_{uuid4().hex}"}
        export = await agent.call("export_result", operation_id=operation, **target)
        assert export["table"] == f"public.{target['table']}"
        assert await ended(agent, export["operation_id"]) == "available"
        rows = await agent.call("run_sql", connector="postgresql", sql=f"SELECT * FROM {target['table']}", wait_s=30)
    assert rows["result"]["rows"] == [[42]]


async def test_repeated_call_with_the_key_returns_the_same_export(newest: Agents, ana: Caller, files: Files) -> None:
    path, key = f"file:///{files.folder()}/once.csv", uuid4().hex
    async with newest(ana) as agent:
        operation = await result_of(agent)
        calls = [
            await agent.call("export_result", operation_id=operation, path=path, idempotency_key=key) for _ in range(2)
        ]
    assert calls[0]["operation_id"] == calls[1]["operation_id"]
    assert [one.get("is_replay", False) for one in calls] == [False, True]


async def test_existing_file_is_kept_unless_the_call_replaces_it(newest: Agents, ana: Caller, files: Files) -> None:
    folder = files.folder()
    (files.root / folder / "kept.csv").write_text("kept")
    path = f"file:///{folder}/kept.csv"
    async with newest(ana) as agent:
        operation = await result_of(agent)
        refusal = await agent.refused("export_result", operation_id=operation, path=path)
        assert error_in(refusal)["code"] == "already_exists"
        assert (files.root / folder / "kept.csv").read_text() == "kept"
        export = await agent.call("export_result", operation_id=operation, path=path, if_exists="replace")
        assert await ended(agent, export["operation_id"]) == "available"


async def test_operation_of_another_user_is_like_an_unknown_one(
    newest: Agents, ana: Caller, bob: Caller, files: Files
) -> None:
    path = f"file:///{files.folder()}/of-ana.csv"
    async with newest(ana) as owner, newest(bob) as other:
        operation = await result_of(owner)
        refusals = [
            error_in(await other.refused("export_result", operation_id=one, path=path))
            for one in (operation, str(uuid4()))
        ]
    assert "permission" in refusals[0]["code"] or refusals[0]["code"] == refusals[1]["code"]
    assert not (files.root / path.removeprefix("file:///")).exists()


@pytest.mark.parametrize("scopes", [("import",), ("query:read",)])
async def test_token_needs_the_scope_query(scopes: tuple[str, ...], newest: Agents, ana: Caller, files: Files) -> None:
    path = f"file:///{files.folder()}/refused.csv"
    async with newest(ana) as owner, newest(await holding(ana, *scopes)) as agent:
        operation = await result_of(owner)
        refusal = error_in(await agent.refused("export_result", operation_id=operation, path=path))
    assert refusal["code"] == "insufficient_scope"
    assert not (files.root / path.removeprefix("file:///")).exists()


async def test_token_limited_to_one_connector_cannot_export_into_another(newest: Agents, ana: Caller) -> None:
    async with newest(await holding(ana, "query", connectors=["duckdb"])) as agent:
        operation = await result_of(agent)
        target = {"connector": "postgresql", "database": "public", "table": "planted"}
        refusal = error_in(await agent.refused("export_result", operation_id=operation, **target))
    assert refusal["code"] == "dialect_not_found"


async def test_user_without_the_right_to_download_cannot_export(
    newest: Agents, ana: Caller, api: object, files: Files
) -> None:
    database = files.api.database
    await database.execute("update group_rights set \"right\" = 'none' where \"right\" = 'download'")
    try:
        async with newest(ana) as agent:
            operation = await result_of(agent)
            path = f"file:///{files.folder()}/refused.csv"
            refusal = error_in(await agent.refused("export_result", operation_id=operation, path=path))
        assert refusal["code"] == "download_disabled"
    finally:
        await database.execute("update group_rights set \"right\" = 'download' where \"right\" = 'none'")
