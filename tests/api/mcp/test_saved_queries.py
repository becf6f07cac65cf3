"""Resources of saved queries (Contract mcp 4; check 31)."""

import json

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from tests.api.documents.calls import save, share
from tests.api.driving import Caller
from tests.api.mcp.sources import Agents, agents, ana, api, bob, endpoint, files, newest
from tests.api.token.test_api_tokens import holding
from tests.mcp_sessions import Session

__all__ = ["agents", "ana", "api", "bob", "endpoint", "files", "newest"]  # fixtures


async def listed(agent: Session) -> dict[str, str]:
    """Return the URIs and names of all resources, page by page."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await agent.client.list_resources(cursor=cursor)
        found.update({str(one.uri): one.name for one in page.resources})
        cursor = page.next_cursor
        if cursor is None:
            return found


async def text_at(agent: Session, uri: str) -> str:
    [content] = (await agent.client.read_resource(uri)).contents
    assert content.mime_type == "application/json"
    return content.text


async def test_own_and_shared_queries_are_listed_and_read(agents: Agents, ana: Caller, bob: Caller) -> None:
    own = await save(ana, name="Own", statement="SELECT :day", parameters=[{"name": "day", "type": "date"}])
    shared = await save(bob, name="Shared", statement="SELECT 2", connector="duckdb", database="main")
    hidden = await save(bob, name="Hidden", statement="SELECT 3")
    assert (await share(bob, shared["uuid"], {"user": ana.username, "permission": "view"})).status_code == 200
    async with agents(ana) as agent:
        uris = {f"document://{one['uuid']}": one["name"] for one in (own, shared)}
        assert await listed(agent) == uris
        found = json.loads(await text_at(agent, f"document://{own['uuid']}"))
        assert (found["statement"], found["parameters"]) == ("SELECT :day", [{"name": "day", "type": "date"}])
        found = json.loads(await text_at(agent, f"document://{shared['uuid']}"))
        assert (found["owner"], found["connector"], found["database"]) == (bob.username, "duckdb", "main")
        missing = "document://00000000-0000-4000-8000-000000000000"
        refusals = []
        for uri in (f"document://{hidden['uuid']}", missing):
            with pytest.raises(MCPError) as refused:
                await agent.client.read_resource(uri)
            refusals.append((refused.value.error.code, str(refused.value).replace(uri.removeprefix("document://"), "")))
        assert refusals[0] == refusals[1]


async def test_pages_list_every_query_once(newest: Agents, ana: Caller) -> None:
    saved = [await save(ana, name=f"Query {number}", statement="SELECT 1") for number in range(60)]
    async with newest(ana) as agent:
        assert await listed(agent) == {f"document://{one['uuid']}": one["name"] for one in saved}


@pytest.mark.mcp(11)
async def test_an_internal_error_of_the_list_shows_only_its_error_id(
    agents: Agents, ana: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("planted-secret")

    async with agents(ana) as agent:
        monkeypatch.setattr(type(ana.api.services.documents), "page", broken)
        with pytest.raises(MCPError, match="Internal error") as failed:
            await agent.client.list_resources()
    assert failed.value.error.code == INTERNAL_ERROR
    assert "planted" not in str(failed.value.error)


async def test_long_statement_is_cut(newest: Agents, ana: Caller) -> None:
    saved = await save(ana, name="Long", statement="SELECT '" + "ü" * 100_000 + "'")
    async with newest(ana) as agent:
        found = json.loads(await text_at(agent, f"document://{saved['uuid']}"))
    assert found["is_cut"]
    assert len(found["statement"].encode()) <= 64 * 1024


async def test_template_names_the_resources(newest: Agents, ana: Caller) -> None:
    async with newest(ana) as agent:
        templates = (await agent.client.list_resource_templates()).resource_templates
    assert [one.uri_template for one in templates] == ["document://{uuid}"]


async def test_token_needs_a_scope_for_queries(newest: Agents, ana: Caller) -> None:
    saved = await save(ana, name="Own", statement="SELECT 1")
    async with newest(await holding(ana, "import")) as agent:
        with pytest.raises(MCPError, match="scope"):
            await agent.client.list_resources()
        with pytest.raises(MCPError, match="scope"):
            await agent.client.read_resource(f"document://{saved['uuid']}")
