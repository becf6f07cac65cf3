"""The loader contract for Trino: the memory connector of a real coordinator."""

import datetime as dt
from collections.abc import AsyncGenerator
from types import MappingProxyType

import pytest
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import NAMES, LoadingFacts
from tests.contract.trino_basis import TrinoBasis, address_of
from tests.engines.servers import HttpAddress

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.protocol import Engine
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.formats.arrow import BaseType

FACTS = LoadingFacts(
    dialect="trino",
    quoted=identifier,
    database="other",
    database_sql=("CREATE SCHEMA IF NOT EXISTS {d}",),
    values=MappingProxyType(
        {
            BaseType.DURATION: (
                dt.timedelta(0), dt.timedelta(hours=30), dt.timedelta(milliseconds=-1),
                dt.timedelta(days=400, seconds=1), -dt.timedelta(hours=30, minutes=5),
            ),
        }
    ),
    refused=((BaseType.DURATION, dt.timedelta(microseconds=-1), "milliseconds"),),
    # Trino folds names to lower case.
    names=tuple(name.lower() for name in NAMES),
    table_names=('with blank', 'quo"te', "x'); drop table y; --", 'zoë 日本', 'a.b'),
    longest_name=None,
    long_text=100_000,
    batch_rows=1000,
    many_rows=10_000,
)  # fmt: skip


@pytest.mark.engine("trino")
class TestTrinoLoading(TrinoBasis, LoadingContract):
    """The loader contract on a single node with the memory connector."""

    loading_facts = FACTS
    tested_with = "Trino 476"

    @pytest.fixture
    async def engine(self, trino_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(address_of(trino_server))
        yield engine
        await engine.close()

    @pytest.fixture
    async def reading_engine(self, trino_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(address_of(trino_server), read_only=True)
        yield engine
        await engine.close()
