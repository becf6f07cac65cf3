"""The loader contract on a real Phoenix Query Server; every table has a primary key."""

import asyncio
import datetime as dt
import time
from collections.abc import AsyncGenerator
from types import MappingProxyType

import pytest
from tests.contract.loading_basis import INT64, STRING, MemoryLedger, batch_of, numbered, stream
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import NAMES, TEXTS, LoadingFacts
from tests.contract.phoenix_basis import PhoenixBasis
from tests.engines.servers import HttpAddress

from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.phoenix.connection import PhoenixAddress
from queryserver.engines.phoenix.engine import PhoenixEngine
from queryserver.engines.protocol import Engine, LoadColumn, TableLoad, TableLoader, TableName
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

FACTS = LoadingFacts(
    dialect="phoenix",
    replaces=False,
    quoted=identifier,
    create_sql='CREATE TABLE {t} ("a" INTEGER NOT NULL PRIMARY KEY)',
    create_n_sql='CREATE TABLE {t} ("n" BIGINT NOT NULL PRIMARY KEY)',
    insert_sql="UPSERT INTO {t} VALUES (1)",
    view_sql=None,
    database="OTHER",
    database_sql=("CREATE SCHEMA IF NOT EXISTS {d}",),
    values=MappingProxyType(
        {
            BaseType.UINT8: (0, 127),
            BaseType.UINT16: (0, 32767),
            BaseType.UINT32: (0, 2**31 - 1),
            BaseType.UINT64: (0, 2**63 - 1),
            BaseType.FLOAT32: (0.0, 1.5, -3.4028234663852886e38, 1.401298464324817e-45),
            BaseType.FLOAT64: (0.0, 0.1, 1.7976931348623157e308, -5e-324, 123456789012345.67),
            # Our Phoenix reader has millisecond precision; a separate test checks the stored precision.
            BaseType.DATETIME: tuple(
                map(
                    dt.datetime.fromisoformat,
                    ("0001-01-01 00:00:00.001", "1969-12-31 23:59:59", "2024-02-29 10:20:30.005"),
                )
            ),
            BaseType.TIME: (dt.time(0), dt.time(10, 20, 30), dt.time(10, 20, 30, 40000), dt.time(23, 59, 59, 999000)),
            BaseType.BINARY: (b"\x00\xff'\\\n\"",),  # Phoenix treats an empty binary value as an empty string
            BaseType.STRING: tuple(text for text in TEXTS if text),  # Phoenix treats an empty string as NULL
        }
    ),
    refused=(
        (BaseType.FLOAT64, float("nan"), "finite"),
        (BaseType.FLOAT32, float("inf"), "finite"),
        (BaseType.UINT64, 2**64 - 1, "greater than"),
        (BaseType.TIME, dt.time(10, 20, 30, 40), "milliseconds"),
        (BaseType.DATETIME, dt.datetime.fromisoformat("0001-01-01 00:00:00.000001"), "milliseconds"),
    ),
    names=tuple(name for name in NAMES if '"' not in name),
    table_names=("select", "a-b", "Zoë", "UPPER"),
    refused_tables=("with blank", "a:b", 'quo"te', "a.b", "x); DROP TABLE y; --"),
    refused_columns=('quo"te',),
    longest_name=None,
    long_text=100_000,
    batch_rows=1000,
    many_rows=8000,
    has_not_null=False,
)  # fmt: skip


@pytest.mark.engine("phoenix")
@pytest.mark.timeout(400)
class TestPhoenixLoading(PhoenixBasis, LoadingContract):
    """The loader contract for Phoenix. The first column of each table is the key; otherwise, the loader would add a
    key column unknown to the suite.
    """

    loading_facts = FACTS
    tested_with = "Phoenix 5.2.1 on HBase 2.5, Query Server 6.0.0"

    @pytest.fixture
    async def engine(self, phoenix_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = PhoenixEngine(PhoenixAddress(phoenix_server.url, username="", password=""))
        yield engine
        await engine.close()

    @pytest.fixture
    async def reading_engine(self, phoenix_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = PhoenixEngine(PhoenixAddress(phoenix_server.url, username="", password=""), read_only=True)
        yield engine
        await engine.close()

    def column(self, name: str, kind: ColumnType, *, nullable: bool = True) -> LoadColumn:
        is_key = name in {"n", FACTS.names[0]} or name.startswith("aaa")
        return super().column(name, kind, nullable=nullable and not is_key)

    async def test_columns_with_only_nulls_are_loaded(self, engine: Engine, loader: TableLoader, target: TableName):
        """The loader adds the key column `row_id`, whose numbers distinguish the rows."""
        load = self.load_of(target, self.column("only", STRING))
        assert await self.load(loader, load, batch_of(load, [(None,), (None,)])) == 2
        assert await self.run(engine, 'SELECT "only", "row_id" FROM {t}', target) == [(None, 1), (None, 2)]

    @pytest.mark.importer(53)
    async def test_keyless_rows_are_numbered_and_append_continues(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        columns = (self.column("row_id", INT64), self.column("s", STRING))
        load = self.load_of(target, *columns)
        await self.load(loader, load, batch_of(load, [(7, "a"), (7, "a")]), batch_of(load, [(7, "a")]))
        assert await self.run(engine, 'SELECT "row_id_2" FROM {t}', target) == [(1,), (2,), (3,)]
        more = self.load_of(target, self.column("s", STRING), append=True)
        await self.load(loader, more, batch_of(more, [("b",), ("b",)]))
        rows = await self.run(engine, 'SELECT "row_id", "s" FROM {t}', target)
        assert rows == [(7, "a")] * 3 + [(None, "b")] * 2

    async def test_repeated_key_is_refused(self, engine: Engine, loader: TableLoader, target: TableName):
        """Phoenix would silently keep only the last row with the key."""
        load = self.load_of(target)
        with pytest.raises(StatementRejected, match="duplicate values"):
            await self.load(loader, load, numbered(load, 1, 100), numbered(load, 50, 1))
        assert await self.missing(engine, target)
        await self.load(loader, load, numbered(load, 1, 2))
        more = self.load_of(target, append=True)
        for batches in ((numbered(more, 2, 1, "y"),), (numbered(more, 5, 1), numbered(more, 5, 1))):
            with pytest.raises(StatementRejected, match="key"):
                await self.load(loader, more, *batches)
            assert await self.missing(engine, more.staging)
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_table_being_created_is_left_alone(self, engine: Engine, loader: TableLoader, target: TableName):
        """Phoenix may accept two concurrent CREATE TABLE statements, so the loader first reserves the name with a
        sequence.
        """
        load, slot = self.load_of(target), int(time.time()) // 300
        # The sequence that claims the next time slot, as a server whose clock is ahead would create it.
        taken = identifier(f"_qs_import_{target.name}_{slot + 1}")
        await self.run(engine, f"CREATE SEQUENCE {taken}", target)
        with pytest.raises(StatementRejected, match=r"Another import is creating .* in ten minutes"):
            await self.load(loader, load, numbered(load, 1, 2))
        assert await self.missing(engine, target)
        await self.run(engine, f"DROP SEQUENCE {taken}", target)
        await self.load(loader, load, numbered(load, 1, 2))
        left = f"SELECT SEQUENCE_NAME FROM SYSTEM.\"SEQUENCE\" WHERE SEQUENCE_NAME LIKE '_qs_import_{target.name}%'"
        assert await self.run(engine, left, target) == []

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.parametrize("database", [None, "OTHER"])
    async def test_stale_claims_are_dropped_by_next_import(
        self, engine: Engine, loader: TableLoader, target: TableName, database: str | None
    ):
        """The import keeps claims that may still be valid, and claims on tables whose names share a prefix."""
        place, slot = TableName(database, target.name), int(time.time()) // 300
        if database is not None:
            await self.run(engine, f"CREATE SCHEMA IF NOT EXISTS {identifier(database)}", target)
        name = f"_qs_import_{target.name}"
        old, kept = [f"{name}_{slot - 400}", f"{name}_{slot - 5}"], [f"{name}_{slot + 5}", f"{name}_2_{slot - 5}"]
        in_place = [qualified(*filter(None, (database, one))) for one in (*old, *kept)]
        for one in in_place:
            await self.run(engine, f"CREATE SEQUENCE {one}", target)
        load = self.load_of(place)
        await self.load(loader, load, numbered(load, 1, 2))
        left = f"SELECT SEQUENCE_NAME FROM SYSTEM.\"SEQUENCE\" WHERE SEQUENCE_NAME LIKE '{name}%'"
        assert sorted(one for (one,) in await self.run(engine, left, target)) == sorted(kept)
        for one in in_place:
            await self.run(engine, f"DROP SEQUENCE IF EXISTS {one}", target)
        await self.drop(engine, place)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_concurrent_tables_of_one_name_do_not_mix_columns(self, engine: Engine, target: TableName):
        async def load_one(name: str, place: TableName) -> TableLoad | EngineError:
            load = self.load_of(place, self.column("n", INT64), self.column(name, STRING))
            async with self.loading(engine) as loader:
                try:
                    await self.load(loader, load, numbered(load, 1, 2, name))
                except EngineError as error:
                    return error
            return load

        for place in (TableName(None, f"{target.name}_{attempt}") for attempt in range(5)):
            ends = await asyncio.gather(load_one("a", place), load_one("b", place))
            (won,) = [end for end in ends if isinstance(end, TableLoad)]
            assert [type(end) for end in ends if end is not won] == [StatementRejected]
            assert await self.rows(engine, won) == [(n, won.columns[1].name) for n in (1, 2)]
            await self.drop(engine, place)

    async def test_microseconds_are_stored(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target, self.column("n", INT64), self.column("t", ColumnType(BaseType.DATETIME)))
        moments = ("1969-12-31 23:59:59.999999", "2024-02-29 10:20:30.000005")
        rows = list(enumerate(map(dt.datetime.fromisoformat, moments)))
        assert await loader.load(load, stream(batch_of(load, rows)), MemoryLedger()) == 2
        for number, moment in enumerate(moments):
            sql = f'SELECT "n" FROM {{t}} WHERE "t" = TIMESTAMP \'{moment}\''
            assert await self.run(engine, sql, target) == [(number,)]
