"""What the suites of Trino share: the address, and what the coordinator says is at work."""

from typing import Any
from uuid import uuid4

from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.engines.servers import HttpAddress

from queryserver.engines.protocol import Engine
from queryserver.engines.trino.protocol import TrinoAddress

SOURCE = f"tests-{uuid4().hex[:8]}"


def address_of(server: HttpAddress, **changes: Any) -> TrinoAddress:
    """The memory catalogue of a server."""
    return TrinoAddress(server.url, "memory", "default", source=SOURCE, **changes)


class TrinoBasis:
    """To be inherited before the contract."""

    async def running_statements(self, engine: Engine) -> int:
        """Statements of this run that have not ended, by the coordinator's own list."""
        sql = (
            "SELECT count(*) FROM system.runtime.queries"
            f" WHERE source = '{SOURCE}' AND state NOT IN ('FINISHED', 'FAILED') AND query NOT LIKE '%runtime.queries%'"
        )
        async with engine.session(USER, NO_OPTIONS) as session:
            return (await run(session, sql)).cell
