"""Sessions of agents: the SDK's client of the Model Context Protocol, over HTTP, in both revisions."""

import itertools
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

REVISIONS = ("2026-07-28", "2025-11-25")
"""The revisions that the server speaks: the stateless one, and the last one with a handshake."""

TOOLS = {
    "list_connectors",
    "search_tables",
    "describe_table",
    "explain",
    "run_sql",
    "get_result",
    "get_status",
    "cancel",
    "export_result",
}


class AlternatingTransport(httpx2.AsyncBaseTransport):
    """Sends each request to the next of several servers, as a proxy without affinity does. `counts` has the number of
    requests of each server.
    """

    def __init__(self, base_urls: Sequence[str]) -> None:
        self._targets = [httpx2.URL(url) for url in base_urls]
        self._next = itertools.cycle(range(len(base_urls)))
        self._inner = httpx2.AsyncHTTPTransport()
        self.counts = [0] * len(base_urls)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        number = next(self._next)
        self.counts[number] += 1
        target = self._targets[number]
        request.url = request.url.copy_with(scheme=target.scheme, host=target.host, port=target.port)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class Session:
    """A connected agent."""

    client: Client
    progress: list[tuple[float, float | None, str | None]] = field(default_factory=list)
    """The progress notifications of all calls so far."""

    async def result(self, tool: str, /, **arguments: Any) -> CallToolResult:
        """Call a tool; return the whole result, which may be an error."""
        return await self.client.call_tool(tool, arguments, progress_callback=self._on_progress)

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; return its structured content."""
        result = await self.result(tool, **arguments)
        assert not result.is_error, result.content
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that must fail; return the text that the model reads."""
        result = await self.result(tool, **arguments)
        assert result.is_error, result.structured_content
        return text_of(result)

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))


def text_of(result: CallToolResult) -> str:
    """Return the texts of a result, as a model reads them."""
    return "\n".join(one.text for one in result.content if isinstance(one, TextContent))


@asynccontextmanager
async def session(
    url: str,
    token: str,
    revision: str,
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
    authority: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Session]:
    """Connect an agent with a bearer token to the endpoint at `url`."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers={"Authorization": f"Bearer {token}", **(headers or {})},
                transport=transport,
                verify=authority or True,
                timeout=90,
            )
        )
        mode = "legacy" if revision < "2026" else revision
        client = await stack.enter_async_context(
            Client(streamable_http_client(url, http_client=http), mode=mode, cache=None, read_timeout_seconds=120)
        )
        assert client.protocol_version == revision
        yield Session(client)
