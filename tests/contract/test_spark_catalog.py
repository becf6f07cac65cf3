"""The catalog contract for Spark SQL's metadata."""

from collections.abc import AsyncGenerator

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, NestedFact, TypeText
from tests.contract.spark_basis import SparkBasis
from tests.engines.sparksql import SparkAddress
from tests.ports import free_port

from queryserver.engines.catalog_queries import Folding, backquoted
from queryserver.engines.hiveserver2.catalog_variants import SparkCatalog
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import SPARKSQL, Hs2Address, Member
from queryserver.engines.protocol import Catalog, Engine, SampleKind, TableColumn, TableKind

_KEPT = "(id int COMMENT 'the id', name string DEFAULT 'x', dt string COMMENT 'day')"

FACTS = CatalogFacts(
    folding=Folding.LOWER,
    default_database="default",
    int_type=TypeText("int", "int"),
    text_type=TypeText("string", "string"),
    types=(
        TypeText("decimal(10, 2)", "decimal(10,2)"),
        TypeText("varchar(20)", "varchar(20)"),
        TypeText("timestamp", "timestamp"),
        TypeText("array<struct<k:string>>", "array<struct<k:string>>"),
        TypeText("map<string, int>", "map<string,int>"),
    ),
    tables=(
        DescribedTable(
            "kept",
            (f"CREATE TABLE {{t}} {_KEPT} USING parquet PARTITIONED BY (dt)",),
            (
                TableColumn("id", "int", "the id"),
                TableColumn("name", "string", default="'x'"),
                TableColumn("dt", "string", "day", partition_key=True),
            ),
            support_updates=False,
            format="parquet",
        ),
        DescribedTable(
            "of_hive",
            ("CREATE TABLE {t} (id int) STORED AS ORC",),
            (TableColumn("id", "int"),),
            support_updates=False,
            format="orc",
        ),
    ),
    nested=(
        NestedFact("array<int>", ("array(3, 1)", "array(1, NULL)"), ("item",), (1, 3, None)),
        NestedFact(
            "array<struct<k:string>>",
            ("array(named_struct('k', 'b'))", "array(named_struct('k', 'a'))"),
            ("item", "k"),
            ("a", "b"),
        ),
        NestedFact("map<string,int>", ("map('x', 2)", "map('y', 1)"), ("key",), ("x", "y")),
        NestedFact("map<string,int>", ("map('x', 2)", "map('y', 1)"), ("value",), (1, 2)),
        NestedFact("struct<a:struct<b:int>>", ("named_struct('a', named_struct('b', 7))",), ("a", "b"), (7,)),
        NestedFact("map<string,array<int>>", ("map('x', array(5, 4))",), ("value", "item"), (4, 5)),
    ),
    create_database=("CREATE DATABASE {db}",),
    drop_database=("DROP DATABASE {db} CASCADE",),
    quote=backquoted,
    odd_databases=(),
    odd_tables=(),
    odd_columns=("a`b", "t;drop", "a.b", "`; DROP TABLE canary; --"),
    create_table=lambda table, columns: (
        f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)}) USING parquet",
    ),
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"min": "1", "max": "4", "num_nulls": 0, "distinct_count": 4},
        "name": {"num_nulls": 1, "distinct_count": 2, "max_col_len": 2},
    },
    builtin_function="abs",
    create_function=("CREATE FUNCTION {db}.twice AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFAbs'",),
    drop_function=("DROP FUNCTION {db}.twice",),
    many_tables=20,
    catalog_on=SparkCatalog,
)


@pytest.mark.engine("sparksql")
class TestSparkCatalog(SparkBasis, CatalogContract):
    """The catalog contract for the output of Spark's SHOW and DESCRIBE."""

    tested_with = "Spark 3.5.9 Thrift server"
    catalog_facts = FACTS

    @pytest.fixture
    async def engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member(spark_server.host, spark_server.port),)), SPARKSQL)
        await self.running_statements(engine)  # Spark takes seconds to serve the first page
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member("127.0.0.1", free_port()),)), SPARKSQL)
        yield engine
        await engine.close()

    @pytest.mark.item(63)
    async def test_built_in_functions_are_listed_once(self, engine: Engine, catalog: Catalog) -> None:
        """The list contains only names, because each signature would need a separate statement."""
        names = [function.name for function in await catalog.functions(None)]
        assert len(names) == len(set(names)) > 300
        assert "abs" in names
        found = await catalog.function(None, "abs")
        assert found is not None
        assert (found.name, found.signature, found.is_builtin) == ("abs", "abs(expr)", "BUILTIN")

    @pytest.mark.item(65)
    async def test_database_comment_is_reported(self, engine: Engine, catalog: Catalog, database: str) -> None:
        """Spark 3.5 accepts COMMENT ON DATABASE but does not store the comment."""
        await self.execute(engine, [f"DROP DATABASE {database}", f"CREATE DATABASE {database} COMMENT 'Shop data'"])
        assert (await catalog.database(database)).comment == "Shop data"

    @pytest.mark.item(65)
    async def test_description_includes_all_engine_metadata(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        told = "COMMENT 'it\\'s; a\\ntable' TBLPROPERTIES ('k'='v, x=y]')"
        await self.execute(engine, [f"CREATE TABLE {database}.items (id int) USING orc {told}"])
        found = await catalog.table(database, "ITEMS")
        assert (found.comment, found.format, found.kind) == ("it's; a\ntable", "orc", TableKind.MANAGED)
        assert {one.name: one.value for one in found.properties}["k"] == "v, x=y]"
        assert found.location.endswith(f"/{database}.db/items")
        assert found.create_time.endswith("Z")
        assert found.owner

    @pytest.mark.item(64)
    async def test_newest_partitions_come_first(self, engine: Engine, catalog: Catalog, database: str) -> None:
        table = f"{database}.days"
        columns = "(n int, day int, town string) USING parquet PARTITIONED BY (day, town)"
        values = ", ".join(f"({day * 1000 + n}, {day}, 'a/b=c')" for day in (9, 10, 11, 2) for n in range(30))
        await self.execute(
            engine, [f"CREATE TABLE {table} {columns}", f"INSERT INTO {table} VALUES {values}, (1, NULL, NULL)"]
        )
        described = await catalog.table(database, "days")
        rows = await self.rows(engine, await catalog.sample_statement(described, None, (), SampleKind.DEFAULT))
        assert [row[1] for row in rows[:90]] == [11] * 30 + [10] * 30 + [9] * 30
        assert len(rows) == 100

    @pytest.mark.item(64)
    async def test_map_samples_are_distinct(self, engine: Engine, catalog: Catalog, database: str) -> None:
        table = f"{database}.maps"
        await self.execute(
            engine,
            [
                f"CREATE TABLE {table} (m map<string,int>) USING parquet",
                f"INSERT INTO {table} VALUES (map('b', 1)), (map('a', 1)), (map('b', 1)), (NULL)",
            ],
        )
        described = await catalog.table(database, "maps")
        rows = await self.rows(engine, await catalog.sample_statement(described, "m", (), SampleKind.DISTINCT))
        assert rows == [('{"a":1}',), ('{"b":1}',), (None,)]
