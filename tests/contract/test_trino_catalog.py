"""The catalog contract for Trino: the memory connector of a real coordinator."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import ODD_NAMES, CatalogFacts, DescribedTable, NestedFact, TypeText
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.trino_basis import TrinoBasis, address_of
from tests.engines.servers import HttpAddress
from tests.ports import free_port

from queryserver.engines.catalog_queries import Folding, qualified
from queryserver.engines.protocol import Catalog, Engine, SampleKind, TableColumn, TableDescription, TableKind
from queryserver.engines.trino.catalog import TrinoCatalog, join_database, split_database
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.engines.trino.protocol import TrinoAddress
from queryserver.errors.statements import StatementRejected

ODD = tuple(name.lower() for name in ODD_NAMES)
"""Trino folds even quoted names to lower case."""


def _column(name: str, kind: str, comment: str = "") -> TableColumn:
    return TableColumn(name, kind, comment, nullable=True)


FACTS = CatalogFacts(
    folding=Folding.LOWER,
    default_database="memory.default",
    int_type=TypeText("integer", "integer"),
    text_type=TypeText("varchar", "varchar"),
    types=(
        TypeText("bigint", "bigint"),
        TypeText("varchar(20)", "varchar(20)"),
        TypeText("decimal(10,2)", "decimal(10,2)"),
        TypeText("timestamp(3) with time zone", "timestamp(3) with time zone"),
        TypeText('array(row("a b" integer))', 'array(row("a b" integer))'),
        TypeText("map(varchar, double)", "map(varchar, double)"),
    ),
    tables=(
        DescribedTable(
            "commented",
            ("CREATE TABLE {t} (id integer COMMENT 'the key', t varchar) COMMENT 'All of it'",),
            (_column("id", "integer", "the key"), _column("t", "varchar")),
            comment="All of it",
        ),
        DescribedTable(
            "a_view",
            ("CREATE VIEW {t} COMMENT 'Seen' AS SELECT 1 AS n, 'x' AS s",),
            (_column("n", "integer"), _column("s", "varchar(1)")),
            kind=TableKind.VIEW,
            comment="Seen",
        ),
    ),
    nested=(
        NestedFact("array(integer)", ("ARRAY[3, 1]", "ARRAY[1, NULL]", "NULL"), ("item",), (1, 3, None)),
        NestedFact('row(a integer, "b c" varchar)', ("ROW(2, 'x')", "ROW(1, 'y')", "NULL"), ("b c",), ("x", "y", None)),
        NestedFact("map(varchar, integer)", ("MAP(ARRAY['k'], ARRAY[7])", "NULL"), ("key",), ("k",)),
        NestedFact("map(varchar, integer)", ("MAP(ARRAY['k'], ARRAY[7])", "NULL"), ("value",), (7,)),
        NestedFact(
            "array(row(a integer, m map(varchar, array(integer))))",
            ("ARRAY[ROW(1, MAP(ARRAY['k', 'l'], ARRAY[ARRAY[5, 6], ARRAY[5]]))]",),
            ("item", "m", "value", "item"),
            (5, 6),
        ),
        NestedFact("array(row(integer, varchar))", ("ARRAY[ROW(4, 'z')]",), ("item", "field1"), ("z",)),
    ),
    create_database=("CREATE SCHEMA {db}",),
    drop_database=("DROP SCHEMA {db} CASCADE",),
    database_name=lambda name: join_database("memory", name),
    quote_database=lambda name: qualified(*split_database(name, "memory")),
    odd_databases=ODD,
    odd_tables=ODD,
    odd_columns=ODD,
    statistics={"numRows": "4"},
    builtin_function="abs",
    overloaded_function="abs",
    create_function=("CREATE FUNCTION {db}.twice(x integer) RETURNS integer RETURN x * 2",),
    drop_function=("DROP FUNCTION {db}.twice(integer)",),
    many_tables=40,
    catalog_on=lambda session: TrinoCatalog(session, catalog="memory", schema="default"),
)


@pytest.mark.engine("trino")
class TestTrinoCatalog(TrinoBasis, CatalogContract):
    """The catalog contract for the memory connector, which has no column statistics and does not support ANALYZE."""

    catalog_facts = FACTS
    tested_with = "Trino 476"

    async def analyze(self, engine: Engine, catalog: Catalog, table: TableDescription) -> None:
        """Check that analyze statements fail: Trino accepts them, but the memory connector raises an error."""
        for column in (None, *(column.name for column in table.columns)):
            with pytest.raises(StatementRejected, match="analyze"):
                await self.execute(engine, [catalog.analyze_statement(table, column)])

    @pytest.fixture
    async def engine(self, trino_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(address_of(trino_server))
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(TrinoAddress(f"http://127.0.0.1:{free_port()}"))
        yield engine
        await engine.close()

    @pytest.mark.item(60)
    async def test_schemas_of_all_catalogs_are_listed(self, catalog: Catalog) -> None:
        names = await catalog.databases()
        assert {"memory.default", "tpch.tiny", "system.runtime"} <= set(names)

    @pytest.mark.item(60)
    async def test_schema_of_another_catalog_has_qualified_name(self, catalog: Catalog) -> None:
        assert "nation" in {table.name for table in await catalog.tables("tpch.tiny")}
        nation = await catalog.table("TPCH.Tiny", "NATION")
        assert (nation.database, nation.name) == ("tpch.tiny", "nation")
        assert [column.nullable for column in nation.columns] == [False] * 4

    @pytest.mark.item(65)
    async def test_connector_statistics_are_shown(self, engine: Engine, catalog: Catalog) -> None:
        nation = await catalog.table("tpch.tiny", "nation")
        assert nation.statistics == {"numRows": "25"}
        key = await catalog.column_statistics(nation, "nationkey")
        assert (key.min, key.max, key.num_nulls, key.distinct_count) == ("0", "24", 0, 25)
        assert (await catalog.column_statistics(nation, "name")).avg_col_len == pytest.approx(177 / 25)

    @pytest.mark.item(64)
    async def test_unorderable_values_are_sampled(self, engine: Engine, catalog: Catalog, database: str) -> None:
        table = FACTS.table(database, "deep")
        await self.execute(
            engine, [f"CREATE TABLE {table} AS SELECT MAP(ARRAY['k'], ARRAY[n]) AS m FROM (VALUES 2, 1) v(n)"]
        )
        sample = await catalog.sample_statement(await catalog.table(database, "deep"), "m", (), SampleKind.DISTINCT)
        assert await self.rows(engine, sample) == [([("k", 1)],), ([("k", 2)],)]

    @pytest.mark.item(61)
    async def test_unqualified_schema_resolves_in_connector_catalog(self, trino_server: HttpAddress) -> None:
        engine = TrinoEngine(replace(address_of(trino_server), catalog="tpch", schema=""))
        try:
            async with engine.catalog(USER, NO_OPTIONS) as catalog:
                assert (await catalog.database("tiny")).name == "tpch.tiny"
        finally:
            await engine.close()
