"""Shared code for tests that use a real Phoenix. Each test waits until the previous test's statements have ended."""

import asyncio

import pytest
from tests.engines.phoenix_threads import scans_of, statements_of
from tests.engines.servers import HttpAddress

from queryserver.engines.protocol import Engine

_REST_S = 30.0
"""How long a test waits until its statements have ended, in seconds. The Query Server stops its part of a statement at
once; the region server may need a few more seconds.
"""
_START_S = 250.0
"""How long a test waits for earlier statements to end, in seconds. HBase does not interrupt an aggregation; one took
more than 100 s while other engines were running.
"""


class PhoenixBasis:
    """A mixin for test classes that use the fixture `phoenix_server`. It precedes the contract class in the list of
    bases.
    """

    @pytest.fixture(autouse=True)
    async def _at_rest(self, phoenix_server: HttpAddress) -> None:
        self._port = phoenix_server.port
        await self._idle(within_s=_START_S)

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements the Query Server is running."""
        return await statements_of(self._port)

    async def eventually_idle(self, engine: Engine) -> None:
        """Wait until the Query Server runs no statement."""
        await self._idle(within_s=_REST_S)

    async def scanning(self, *, within_s: float) -> None:
        """Wait until HBase has been scanning for a second, because a cancel sent earlier might not reach HBase."""
        async with asyncio.timeout(within_s):
            while not await scans_of(self._port):  # noqa: ASYNC110 HBase sends no event
                await asyncio.sleep(0.2)
            await asyncio.sleep(1)

    async def no_scans(self, *, within_s: float) -> None:
        """Wait until HBase runs no scan and the Query Server runs no statement."""
        async with asyncio.timeout(within_s):
            while await scans_of(self._port) or await statements_of(self._port):  # noqa: ASYNC110 HBase sends no event
                await asyncio.sleep(0.2)

    async def _idle(self, *, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while await statements_of(self._port):  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.2)
