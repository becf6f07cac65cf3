"""The fake engine keeps the rules of loaders, so that tests of imports may trust it."""

from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.loading_basis import MemoryLedger, numbered, stream
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import LoadingFacts
from tests.fakes.loading import FakeLoadingEngine, quoted

from queryserver.domain.errors import StatementDenied
from queryserver.interfaces.engine import Engine
from queryserver.interfaces.loading import TableName

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

    @pytest.fixture
    async def engine(self) -> AsyncGenerator[FakeLoadingEngine]:
        engine = FakeLoadingEngine()
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, FakeLoadingEngine)
        return engine.running

    async def test_a_connector_that_only_reads_refuses(self) -> None:
        engine = FakeLoadingEngine(read_only=True)
        load, ledger = self.load_of(TableName(None, "t")), MemoryLedger()
        async with engine.loader(USER, NO_OPTIONS) as loader:
            with pytest.raises(StatementDenied):
                await loader.load(load, stream(numbered(load, 1, 2)), ledger)
        assert (engine.tables, ledger.told) == ({}, [])
        await engine.close()
