"""The loader contract for the fake engine that import tests use."""

from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import LoadingFacts
from tests.fakes.loading import FakeLoadingEngine, quoted

from queryserver.engines.protocol import Engine

FACTS = LoadingFacts(
    dialect="postgresql",
    quoted=quoted,
    select_sql="table {t}",
    count_sql="count {t}",
    create_sql="make table {t}",
    create_n_sql="make table n {t}",
    insert_sql="fill {t}",
    drop_sql="drop {t}",
    view_sql=("make view {t}", "drop {t}"),
    database="other",
    database_sql=("make database {d}",),
)


class TestFakeLoading(LoadingContract):
    loading_facts: ClassVar[LoadingFacts] = FACTS
    tested_with = "the fake"

    @pytest.fixture
    async def engine(self) -> AsyncGenerator[FakeLoadingEngine]:
        engine = FakeLoadingEngine()
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, FakeLoadingEngine)
        return engine.running

    @pytest.fixture
    async def reading_engine(self, engine: FakeLoadingEngine) -> AsyncGenerator[FakeLoadingEngine]:
        reading = FakeLoadingEngine(read_only=True)
        reading.tables = engine.tables
        yield reading
        await reading.close()
