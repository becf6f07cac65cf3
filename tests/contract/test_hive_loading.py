"""Hive's loader keeps the rules of all loaders.

Each INSERT is a job of seconds, so only those rules run here in which Hive might differ from Spark, whose loader is the
same but for its SQL.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.loading_basis import LoadingBasis
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import NAMES
from tests.contract.test_hive_engine import statements_at_work
from tests.contract.test_spark_loading import HIVE_FAMILY
from tests.engines.servers import ServerAddress

from queryserver.engines.hiveserver2.address import Hs2Address, Member
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE
from queryserver.interfaces.engine import Engine

FACTS = replace(
    HIVE_FAMILY,
    # Hive keeps names in lower case.
    names=tuple(name.lower() for name in NAMES if not set(name) & set(",:;.")),
    table_names=("select",),
    refused_tables=("with blank", "é"),
    refused_columns=("a.b", "a:b", "comma,comma", "${env:HOME}"),
)
_SHORT_NAMES = {"hive.resultset.use.unique.column.names": "false"}


@pytest.mark.engine("hive")
class TestHiveLoading(LoadingBasis):
    """HiveServer2 with Tez in local mode."""

    loading_facts = FACTS

    test_values = LoadingContract.test_values_of_all_types_arrive_as_they_are
    test_nulls = LoadingContract.test_columns_that_hold_nothing_but_null
    test_names = LoadingContract.test_names_are_data
    test_names_of_tables = LoadingContract.test_names_of_tables_are_data
    test_refused_names = LoadingContract.test_names_that_the_engine_cannot_hold_are_refused
    test_no_batches = LoadingContract.test_no_batches_make_an_empty_table
    test_existing_table = LoadingContract.test_a_table_that_exists_is_refused_and_left_alone
    test_view = LoadingContract.test_a_view_counts_as_existing
    test_append_by_names = LoadingContract.test_append_goes_by_names
    test_append_to_nothing = LoadingContract.test_append_to_what_is_not_there_is_refused
    test_cancel = LoadingContract.test_a_cancel_leaves_nothing
    test_left_over_table = LoadingContract.test_a_left_over_table_is_dropped
    test_unknown_database = LoadingContract.test_a_database_that_is_not_there_is_refused
    test_reading_connector = LoadingContract.test_a_connector_that_only_reads_refuses
    test_sql_in_cells = LoadingContract.test_sql_in_cells_is_never_executed

    @pytest.fixture(autouse=True)
    def _hive(self, hive_server: ServerAddress) -> None:
        self.port = hive_server.port

    async def running_statements(self, engine: Engine) -> int:
        """Threads of HiveServer2 that carry out a statement, asked of the JVM."""
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
