"""The loader contract for Spark. Each statement takes a few tenths of a second, so the tests use few rows."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.loading_facts import NAMES, LoadingFacts
from tests.contract.slow_loading_contract import SlowLoadingContract
from tests.contract.spark_basis import SparkBasis
from tests.engines.sparksql import SparkAddress

from queryserver.engines.catalog_queries import backquoted
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import SPARKSQL, Hs2Address, Member
from queryserver.engines.protocol import Engine

HIVE_FAMILY = LoadingFacts(
    dialect="hive",
    quoted=backquoted,
    create_sql="CREATE TABLE {t} (a INT) STORED AS ORC",
    create_n_sql="CREATE TABLE {t} (n BIGINT) STORED AS ORC",
    database="other",
    database_sql=("CREATE DATABASE IF NOT EXISTS {d}",),
    table_names=("select", "_under", "1digit"),
    refused_tables=("with blank", "x); DROP TABLE y; --", "é", "a.b", "quo`te", "a-b", ""),
    long_text=100_000,
    batch_rows=300,
    many_rows=600,
    has_not_null=False,
)
"""Hive's file tables do not support NOT NULL, so the import itself rejects NULLs."""

FACTS = replace(
    HIVE_FAMILY,
    dialect="sparksql",
    names=tuple(name for name in NAMES if "," not in name),
    refused_columns=("comma,comma", "${env:HOME}"),
)


@pytest.mark.engine("sparksql")
class TestSparkLoading(SparkBasis, SlowLoadingContract):
    """The short loader contract on Spark's Thrift server."""

    loading_facts = FACTS
    tested_with = "Spark 3.5.9 Thrift server"

    @pytest.fixture
    async def engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member(spark_server.host, spark_server.port),)), SPARKSQL)
        yield engine
        await engine.close()

    @pytest.fixture
    async def reading_engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        address = Hs2Address((Member(spark_server.host, spark_server.port),))
        engine = Hs2Engine(address, SPARKSQL, read_only=True)
        yield engine
        await engine.close()
