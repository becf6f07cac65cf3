"""Shared code for the Trino suites: the server address and the number of running statements."""

from typing import Any
from uuid import uuid4

from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.engines.servers import HttpAddress

from queryserver.engines.protocol import Engine
from queryserver.engines.trino.protocol import TrinoAddress

SOURCE = f"tests-{uuid4().hex[:8]}"
"""Distinguishes the statements of this test run from others on the same coordinator."""


def address_of(server: HttpAddress, **changes: Any) -> TrinoAddress:
    """Return the address of the server's `memory` catalog."""
    return TrinoAddress(server.url, "memory", "default", source=SOURCE, **changes)


class TrinoBasis:
    """A mixin for the Trino test classes. It precedes the contract class in the list of bases."""

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements of this test run have not finished, according to the coordinator."""
        sql = (
            "SELECT count(*) FROM system.runtime.queries"
            f" WHERE source = '{SOURCE}' AND state NOT IN ('FINISHED', 'FAILED') AND query NOT LIKE '%runtime.queries%'"
        )
        async with engine.session(USER, NO_OPTIONS) as session:
            return (await run(session, sql)).cell
