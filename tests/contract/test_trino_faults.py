"""Trino when the connection breaks or the coordinator misbehaves."""

from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from tests.contract.engine_faults import FaultsContract
from tests.contract.test_trino_engine import FACTS
from tests.contract.trino_basis import SOURCE
from tests.engines.servers import HttpAddress

from queryserver.engines.protocol import Engine
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.engines.trino.protocol import TrinoAddress, TrinoTimeouts

SHORT = TrinoTimeouts(connect_s=2.0, answer_s=2.5, retry_s=5.0, stop_s=2.0, open_s=8.0)


@pytest.mark.engine("trino")
class TestTrinoFaults(FaultsContract):
    """The broken-connection tests on a real coordinator. The adapter repeats a request whose response was
    lost, because the statement is still running.
    """

    facts = FACTS
    tested_with = "Trino 476"
    reconnects = True

    @pytest.fixture(autouse=True)
    async def _ends_what_is_left(self, trino_server: HttpAddress) -> AsyncGenerator[None]:
        """Kill statements that could not be canceled over the broken connection; they would run for minutes during
        other tests.
        """
        yield
        async with httpx.AsyncClient(
            base_url=trino_server.url, headers={"X-Trino-User": "tests"}, timeout=30
        ) as client:
            for query in (await client.get("/v1/query")).json():
                if query["state"] not in {"FINISHED", "FAILED"}:
                    await client.delete(f"/v1/query/{query['queryId']}")

    @pytest.fixture
    def server(self, trino_server: HttpAddress) -> tuple[str, int]:
        return trino_server.host, trino_server.port

    @pytest.fixture
    def engine_at(self) -> Callable[[int], Engine]:
        return lambda port: TrinoEngine(
            TrinoAddress(f"http://127.0.0.1:{port}", "memory", "default", source=SOURCE, timeouts=SHORT)
        )
