"""The Spark adapter when the connection breaks."""

from collections.abc import Callable

import pytest
from tests.contract.engine_faults import FaultsContract
from tests.contract.test_spark_engine import FACTS, spark_engine
from tests.engines.sparksql import SparkAddress

from queryserver.engines.hiveserver2.variants import Limits
from queryserver.engines.protocol import Engine

# Spark holds back the response to GetOperationStatus for up to 5 s.
LIMITS = Limits(connect_s=2.0, execute_s=5.0, status_s=7.0, fetch_s=5.0, other_s=4.0, end_s=1.0, retry_s=2.0)


@pytest.mark.engine("sparksql")
class TestSparkFaults(FaultsContract):
    """The broken-connection tests on Spark. Sessions and statements end with the connection on which they were
    opened.
    """

    facts = FACTS
    tested_with = "Spark 3.5.9 Thrift server"

    @pytest.fixture
    def server(self, spark_server: SparkAddress) -> tuple[str, int]:
        return spark_server.host, spark_server.port

    @pytest.fixture
    def engine_at(self, spark_server: SparkAddress) -> Callable[[int], Engine]:
        return lambda port: spark_engine(spark_server, port=port, limits=LIMITS)
