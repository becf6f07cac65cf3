"""The loader contract for tables in SQLite."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contract.loading_basis import numbered
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import INF, NAN, LoadingFacts

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.protocol import Engine, TableLoader, TableName
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import BaseType

FACTS = LoadingFacts(
    dialect="sqlite",
    quoted=identifier,
    passing_database="temp",
    values={
        # SQLite stores -0.0 as 0 (its file format stores whole numbers as integers) and has no NaN.
        BaseType.FLOAT32: (0.0, 1.5, -3.4028234663852886e38, 1.401298464324817e-45, INF, -INF),
        BaseType.FLOAT64: (0.0, 0.1, 1.7976931348623157e308, -5e-324, 123456789012345.67, INF, -INF),
    },
    longest_name=None,
    refused=((BaseType.FLOAT64, NAN, "NaN"), (BaseType.FLOAT32, NAN, "NaN")),
)


class TestSqliteLoading(LoadingContract):
    loading_facts: ClassVar[LoadingFacts] = FACTS
    tested_with = "SQLite of the package apsw"

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
        engine = SqliteEngine(path="facts.sqlite", root=tmp_path)
        yield engine
        await engine.close()

    @pytest.fixture
    async def reading_engine(self, engine: SqliteEngine, tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
        await engine.ping()
        reading = SqliteEngine(path="facts.sqlite", root=tmp_path, read_only=True)
        yield reading
        await reading.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, SqliteEngine)
        return engine.busy

    async def test_virtual_table_is_not_replaced(self, engine: Engine, loader: TableLoader, target: TableName) -> None:
        """A virtual table has shadow tables and an index that an import cannot recreate."""
        await self.run(engine, "CREATE VIRTUAL TABLE {t} USING fts5(s)", target)
        load = self.load_of(target, replace=True)
        with pytest.raises(StatementRejected, match="not a plain table"):
            await self.load(loader, load, numbered(load, 1, 2))
        assert await self.run(engine, "SELECT count(*) FROM {t} WHERE s MATCH 'x'", target) == [(0,)]
        assert await self.missing(engine, load.staging)
