"""The loader contract for tables in DuckDB."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contract.loading_basis import MemoryLedger, numbered, stream
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import LoadingFacts

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.protocol import Engine, TableName
from queryserver.errors.statements import StatementDenied

FACTS = LoadingFacts(
    dialect="duckdb",
    quoted=identifier,
    database="other schema",
    database_sql=("CREATE SCHEMA IF NOT EXISTS {d}",),
    longest_name=None,
)


class TestDuckdbLoading(LoadingContract):
    loading_facts: ClassVar[LoadingFacts] = FACTS
    tested_with = "DuckDB 2.0"

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
        engine = DuckdbEngine(path="facts.duckdb", root=tmp_path)
        yield engine
        await engine.close()

    async def test_read_only_database_refuses_new_table(self, engine: DuckdbEngine, tmp_path: Path) -> None:
        """Open the two connectors one after the other, because a process can open a database file only once."""
        await engine.ping()
        await engine.close()
        reading, ledger = DuckdbEngine(path="facts.duckdb", root=tmp_path, read_only=True), MemoryLedger()
        load = self.load_of(TableName(None, "t"))
        async with self.loading(reading) as loader:
            with pytest.raises(StatementDenied):
                await loader.load(load, stream(numbered(load, 1, 2)), ledger)
            assert not await loader.exists(load.target)
        assert not ledger.calls
        await reading.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, DuckdbEngine)
        return engine.busy
