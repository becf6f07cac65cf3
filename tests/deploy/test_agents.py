"""Agents behind the proxies of `deploy/`, without affinity: consecutive calls reach different servers
(Contract mcp 6, check 33).
"""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.deploy.proxies import PROXIES, SERVICE, Proxy
from tests.deploy.test_proxies import Server, place, server
from tests.e2e.agents import SCENARIOS, Scenario, api_token
from tests.e2e.installation import Installation
from tests.mcp_sessions import REVISIONS, Session, session
from tests.timing import until

__all__ = ["place"]  # a fixture

WITHOUT_AFFINITY = {
    # The processes of nginx take turns together only with a zone: otherwise each begins with the first server.
    "nginx": {"    hash $remote_addr consistent;\n": "    zone queryserver 64k;\n"},
    "haproxy": {"  balance source\n  hash-type consistent\n": "  balance roundrobin\n"},
}


@pytest.fixture(scope="module")
async def servers(place: Installation) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        yield [await server(stack, place, "third"), await server(stack, place, "fourth")]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in PROXIES])
def proxy(request: pytest.FixtureRequest, servers: list[Server]) -> Iterator[Proxy]:
    """The proxy under test, which sends calls to the servers in turn."""
    with PROXIES[request.param]([one.port for one in servers], WITHOUT_AFFINITY[request.param]) as proxy:
        yield proxy


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_agent_session_passes_through_proxy(
    scenario: Scenario, revision: str, proxy: Proxy, place: Installation, servers: list[Server]
) -> None:
    authority = ssl.create_default_context(cafile=proxy.authority)
    before = [calls(one) for one in servers]

    @asynccontextmanager
    async def connect(user: str, *scopes: str) -> AsyncIterator[Session]:
        token = await api_token(servers[0].node, user, *scopes, host=SERVICE)
        url, headers = f"https://127.0.0.1:{proxy.port}/mcp", {"Host": SERVICE}
        async with session(url, token, revision, authority=authority, headers=headers) as agent:
            yield agent

    await scenario(connect, place)
    # A server logs a call after its response.
    await until(lambda: all(calls(one) > earlier for one, earlier in zip(servers, before, strict=True)))


def calls(one: Server) -> int:
    """Return the number of calls of agents that a server has logged."""
    path = Path(one.directory) / "access"
    return path.read_text().count('"/mcp"') if path.exists() else 0
