"""The loader contract for Hive, where each INSERT runs as a job of several seconds."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.loading_facts import NAMES
from tests.contract.slow_loading_contract import SlowLoadingContract
from tests.contract.test_hive_engine import statements_at_work
from tests.contract.test_spark_loading import HIVE_FAMILY
from tests.engines.servers import ServerAddress

from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE, Hs2Address, Member
from queryserver.engines.protocol import Engine

FACTS = replace(
    HIVE_FAMILY,
    # Hive folds names to lower case.
    names=tuple(name.lower() for name in NAMES if not set(name) & set(",:;.")),
    table_names=("select",),
    refused_tables=("with blank", "é"),
    refused_columns=("a.b", "a:b", "comma,comma", "${env:HOME}"),
    long_text=20_000,
)
_SHORT_NAMES = {"hive.resultset.use.unique.column.names": "false"}


@pytest.mark.engine("hive")
class TestHiveLoading(SlowLoadingContract):
    """The short loader contract on HiveServer2 with Tez in local mode."""

    loading_facts = FACTS
    tested_with = "Hive 4.0.1"

    @pytest.fixture(autouse=True)
    def _hive(self, hive_server: ServerAddress) -> None:
        self.port = hive_server.port

    async def running_statements(self, engine: Engine) -> int:
        """Return the number of HiveServer2 threads that are running a statement, as reported by the JVM."""
        return await statements_at_work(self.port)

    @pytest.fixture
    async def engine(self, hive_server: ServerAddress) -> AsyncGenerator[Engine]:
        address = Hs2Address((Member(hive_server.host, hive_server.port),), session_conf=_SHORT_NAMES)
        engine = Hs2Engine(address, HIVE)
        yield engine
        await engine.close()

    @pytest.fixture
    async def reading_engine(self, hive_server: ServerAddress) -> AsyncGenerator[Engine]:
        address = Hs2Address((Member(hive_server.host, hive_server.port),))
        engine = Hs2Engine(address, HIVE, read_only=True)
        yield engine
        await engine.close()
