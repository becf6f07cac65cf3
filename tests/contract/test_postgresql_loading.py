"""The loader contract for PostgreSQL: always the newest release, and release 15 on request."""

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator
from typing import ClassVar, cast

import pyarrow as pa
import pytest
from tests.contract.engine_basis import USER
from tests.contract.loading_basis import CHUNK_TEXT, MemoryLedger, batch_of, numbered
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import NAMES, LoadingFacts
from tests.contract.postgresql_basis import EmbeddedBasis, Release15Basis

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.postgresql.engine import PostgresqlAddress, PostgresqlEngine
from queryserver.engines.protocol import Engine, LoadingEngine, SessionOptions, TableLoader, TableName
from queryserver.errors.statements import OutcomeUnknown, SessionLost, StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

FACTS = LoadingFacts(
    dialect="postgresql",
    uses_ledger=False,
    quoted=identifier,
    passing_database="pg_temp",
    database="other schema",
    database_sql=("CREATE SCHEMA IF NOT EXISTS {d}",),
    refused=((BaseType.STRING, "a\0b", "0x00"),),
    names=(*NAMES, "é" * 31),
    refused_names=("é" * 32,),
    refused_columns=("ctid",),
    longest_name=63,
)


class ReadingBasis(LoadingContract):
    """The loader contract with a second engine, whose connector to the same database is read-only."""

    adapter = PostgresqlEngine
    loading_facts: ClassVar[LoadingFacts] = FACTS

    @pytest.fixture
    async def reading_engine(self, address: PostgresqlAddress) -> AsyncGenerator[Engine]:
        engine = PostgresqlEngine(address, read_only=True)
        yield engine
        await engine.close()


class TestPostgresqlLoading(EmbeddedBasis, ReadingBasis, LoadingContract):
    """The loader contract on the newest release."""

    async def test_reading_stops_after_refused_row(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        load, taken = self.load_of(target), 0

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            nonlocal taken
            yield batch_of(load, [(1, "a\0b")])
            for taken in range(1, 501):
                yield numbered(load, taken, 5000, CHUNK_TEXT)

        with pytest.raises(StatementRejected, match="0x00"):
            await loader.load(load, batches(), MemoryLedger())
        assert taken < 100
        assert await self.missing(engine, load.target, load.staging)

    async def test_connection_lost_during_copy_fails_load(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        load = self.load_of(target)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            for at in range(2000):
                yield numbered(load, at, 5000, CHUNK_TEXT)
                if at == 20:
                    mine = f"query LIKE 'COPY %{load.staging.name}%'"
                    await self.run(
                        engine, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}", target
                    )

        async with asyncio.timeout(60):
            with pytest.raises((SessionLost, OutcomeUnknown)):
                await loader.load(load, batches(), MemoryLedger())
        assert await self.missing(engine, load.target, load.staging)

    async def test_overlong_name_never_resolves_to_another_table(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        kept = TableName(None, "k" * 63)
        await self.run(engine, self.loading_facts.create_sql, kept)
        longer = TableName(None, "k" * 64)
        assert not await loader.exists(longer)
        with pytest.raises(StatementRejected, match="64 bytes"):
            await loader.drop(longer)
        load = self.load_of(TableName("s" * 64, target.name))
        with pytest.raises(StatementRejected, match="64 bytes"):
            await self.load(loader, load, numbered(load, 1, 2))
        assert await loader.exists(kept)

    async def test_referenced_and_partitioned_tables_are_not_replaced(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        """Covers a partitioned table and a partition, whose rows would be lost, and tables to which views and foreign
        keys refer.
        """
        load = self.load_of(target, replace=True)
        parent = "CREATE TABLE {} (n bigint PRIMARY KEY) PARTITION BY RANGE (n)"
        drop = "DROP TABLE {t}"
        cases = [
            ([parent.format("{t}")], [drop]),
            (
                [parent.format("parts"), "CREATE TABLE {t} PARTITION OF parts FOR VALUES FROM (0) TO (9)"],
                ["DROP TABLE parts"],
            ),
            (["CREATE TABLE up (n bigint)", "CREATE TABLE {t} () INHERITS (up)"], [drop, "DROP TABLE up"]),
            (["CREATE TABLE {t} (n bigint)", "CREATE VIEW low AS SELECT n FROM {t}"], ["DROP VIEW low", drop]),
            (
                ["CREATE TABLE {t} (n bigint PRIMARY KEY)", "CREATE TABLE low (n bigint REFERENCES {t})"],
                ["DROP TABLE low", drop],
            ),
            (["CREATE MATERIALIZED VIEW {t} AS SELECT 1 AS n"], ["DROP MATERIALIZED VIEW {t}"]),
        ]
        kind = "SELECT oid, relkind, relispartition FROM pg_class WHERE oid = '{t}'::regclass"
        for making, clearing in cases:
            for sql in making:
                await self.run(engine, sql, target)
            before = await self.run(engine, kind, target)
            with pytest.raises(StatementRejected):
                await self.load(loader, load, numbered(load, 1, 2))
            assert await self.run(engine, kind, target) == before
            assert await self.missing(engine, load.staging)
            for sql in clearing:
                await self.run(engine, sql, target)

    async def test_column_types_are_built_in_types(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        """Types of the same names in the session's search path have no effect."""
        await self.run(engine, "CREATE DOMAIN public.text AS varchar(1)", target)
        await self.run(engine, "CREATE DOMAIN public.date AS varchar(1)", target)
        columns = [self.column(base.value, ColumnType(base)) for base in (BaseType.STRING, BaseType.DATE)]
        load = self.load_of(target, *columns)
        options = SessionOptions(settings={"search_path": "public, pg_catalog"})
        async with cast("LoadingEngine", engine).loader(USER, options) as loader:
            await self.load(loader, load, batch_of(load, [("long", dt.date(2024, 2, 29))]))
        found = await self.run(engine, "SELECT * FROM {t}", target)
        assert found == [("long", dt.date(2024, 2, 29))]


@pytest.mark.engine("postgresql15")
class TestPostgresql15Loading(Release15Basis, ReadingBasis, LoadingContract):
    """The loader contract on an older release."""
