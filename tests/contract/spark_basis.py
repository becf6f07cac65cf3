"""Shared code for the Spark suites, which counts the statements that the Thrift server is running."""

import httpx
import pytest
from tests.engines.sparksql import SparkAddress

from queryserver.engines.protocol import Engine


class SparkBasis:
    """A mixin for the Spark test classes. It precedes the contract class in the list of bases."""

    @pytest.fixture(autouse=True)
    def _spark(self, spark_server: SparkAddress) -> None:
        self.ui = f"http://{spark_server.host}:{spark_server.ui_port}/api/v1/applications"

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements have a running job, according to Spark's REST API; each statement is one job
        group.
        """
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            (application,) = (await client.get(self.ui)).json()
            jobs = (await client.get(f"{self.ui}/{application['id']}/jobs?status=running")).json()
        return len({job["jobGroup"] for job in jobs})
