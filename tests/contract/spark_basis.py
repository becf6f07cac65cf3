"""What the suites of Spark share: what its Thrift server says is at work."""

import httpx
import pytest
from tests.engines.sparksql import SparkAddress

from queryserver.engines.protocol import Engine


class SparkBasis:
    """To be inherited before the contract."""

    @pytest.fixture(autouse=True)
    def _spark(self, spark_server: SparkAddress) -> None:
        self.ui = f"http://{spark_server.host}:{spark_server.ui_port}/api/v1/applications"

    async def running_statements(self, engine: Engine) -> int:
        """Statements with jobs that Spark is at work on, as it tells itself; a statement is a group of jobs."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            (application,) = (await client.get(self.ui)).json()
            jobs = (await client.get(f"{self.ui}/{application['id']}/jobs?status=running")).json()
        return len({job["jobGroup"] for job in jobs})
