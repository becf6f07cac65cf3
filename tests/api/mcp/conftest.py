"""The SDK's client, over HTTP, in both revisions of the protocol."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult
from tests.api.driving import Api, Caller
from tests.api.serving import served

OpenClient = Callable[[Caller], AbstractAsyncContextManager[Client]]

MODERN, LEGACY = "2026-07-28", "legacy"


@pytest.fixture(scope="session")
async def mcp_url(api: Api) -> AsyncIterator[str]:
    """The URL of the endpoint of the shared application, on a real port."""
    async with served(api) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def connected(url: str, caller: Caller, *, mode: str = MODERN) -> AsyncIterator[Client]:
    """Connect the SDK's client with the caller's credentials. `legacy` is the newest revision with a handshake."""
    async with (
        httpx2.AsyncClient(headers=dict(caller.headers), timeout=90) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.fixture(params=[MODERN, LEGACY])
def connect(request: pytest.FixtureRequest, mcp_url: str) -> OpenClient:
    """A function that connects a client of a user, in each revision of the protocol."""
    return partial(connected, mcp_url, mode=request.param)


async def called(agent: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, which must succeed. Return its structured content, which the text content must equal."""
    result = await agent.call_tool(tool, arguments)
    assert not result.is_error, result.content
    content = result.structured_content
    assert content is not None
    assert json.loads(text_of(result)) == content
    return content


async def refused(agent: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, which must fail. Return its error."""
    result = await agent.call_tool(tool, arguments)
    assert result.is_error, result
    assert result.structured_content is None
    error = json.loads(text_of(result))["error"]
    assert error["code"]
    assert error["message"]
    assert error["next"]
    return error


def text_of(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    [content] = result.content
    assert content.type == "text"
    return content.text


async def posted(
    http: httpx.AsyncClient, method: str = "tools/list", *, path: str = "/mcp", headers: Any = (), **params: Any
) -> httpx.Response:
    """Send a message as a program without the SDK does, without a handshake."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    fixed = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    return await http.post(path, json=message, headers={**fixed, **dict(headers)})
