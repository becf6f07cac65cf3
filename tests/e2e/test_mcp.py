"""Agents on two servers without affinity: consecutive calls of a session reach different servers
(Contract mcp 6, check 33).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.agents import SCENARIOS, Scenario, api_token
from tests.e2e.installation import Installation, Node, installed
from tests.mcp_sessions import REVISIONS, AlternatingTransport, Session, session

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def place(
    postgres: EmbeddedPostgres,
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Installation]:
    async with installed(postgres, migrated_template, tmp_path_factory.mktemp("agents")) as place:
        yield place


@pytest.fixture(scope="module")
async def nodes(place: Installation) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(place.server()) for _ in range(2)]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_agent_session_over_two_servers_without_affinity(
    scenario: Scenario, revision: str, place: Installation, nodes: list[Node], tmp_path: Path
) -> None:
    transport = AlternatingTransport([node.process.base_url for node in nodes])

    @asynccontextmanager
    async def connect(user: str, *scopes: str) -> AsyncIterator[Session]:
        token = await api_token(nodes[0], user, *scopes)
        async with session(f"{nodes[0].process.base_url}/mcp", token, revision, transport=transport) as agent:
            yield agent

    await scenario(partial(connect), place)
    assert min(transport.counts) > 0
