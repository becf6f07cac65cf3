"""The SDK's client, over HTTP, in both revisions of the protocol."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
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
