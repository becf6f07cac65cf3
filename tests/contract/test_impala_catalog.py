"""The catalog contract for the Impala dialect, with metadata from a scripted server."""

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, TypeText
from tests.contract.test_impala_engine import ScriptedImpala

from queryserver.engines.catalog_queries import Folding, backquoted
from queryserver.engines.hiveserver2.catalog_variants import ImpalaCatalog
from queryserver.engines.protocol import Catalog, Engine, SampleKind, TableColumn, TableDescription, TableKind
from queryserver.errors.base import NotSupported

FACTS = CatalogFacts(
    folding=Folding.LOWER,
    default_database="default",
    int_type=TypeText("int", "int"),
    text_type=TypeText("string", "string"),
    types=(
        TypeText("bigint", "bigint"),
        TypeText("double", "double"),
        TypeText("boolean", "boolean"),
        TypeText("timestamp", "timestamp"),
        TypeText("decimal(10,2)", "decimal(10,2)"),
        TypeText("varchar(20)", "varchar(20)"),
    ),
    tables=(
        DescribedTable(
            "kept",
            ("CREATE TABLE {t} (id int COMMENT 'the id', name string) STORED AS PARQUET",),
            (TableColumn("id", "int", "the id"), TableColumn("name", "string")),
            support_updates=False,
            format="parquet",
        ),
    ),
    create_database=("CREATE DATABASE {db}",),
    drop_database=("DROP DATABASE {db} CASCADE",),
    comment_database=("COMMENT ON DATABASE {db} IS 'Shop data'",),
    quote=backquoted,
    odd_databases=(),
    odd_tables=(),
    odd_columns=(),
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"distinct_count": 4, "num_nulls": 0, "max_col_len": 4, "avg_col_len": 4.0},
        "name": {"distinct_count": 2, "num_nulls": 1},
    },
    builtin_function="acos",
    overloaded_function="abs",
    catalog_on=ImpalaCatalog,
)


class TestImpalaCatalog(ScriptedImpala, CatalogContract):
    """The catalog contract for the output of Impala's SHOW and DESCRIBE."""

    catalog_facts = FACTS

    @pytest.mark.item(65)
    async def test_description_includes_all_engine_metadata(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        columns = "(id int, name string)"
        await self.execute(
            engine, [f"CREATE EXTERNAL TABLE {database}.items {columns} COMMENT 'It is\\'s; a table' STORED AS ORC"]
        )
        found = await catalog.table(database, "items")
        assert (found.comment, found.format, found.kind) == ("It is's; a table", "orc", TableKind.EXTERNAL)
        assert (found.owner, found.create_time) == ("impala", "2026-11-21T22:48:19Z")
        assert found.location == f"hdfs://namenode:8020/warehouse/{database}.db/items"
        assert {one.name for one in found.properties} == {"comment", "transient_lastDdlTime"}
        described = await catalog.database(database)
        assert (described.owner_name, described.owner_type) == ("impala", "USER")
        assert described.location.endswith(f"/{database}.db")

    @pytest.mark.item(64)
    @pytest.mark.parametrize(
        ("column", "path", "expected"),
        [
            ("tags", ("item",), "SELECT DISTINCT x1.item AS v FROM `d`.`t` t, t.`tags` x1"),
            ("people", ("item", "k"), "SELECT DISTINCT x1.item.`k` AS v FROM `d`.`t` t, t.`people` x1"),
            ("sizes", ("key",), "SELECT DISTINCT x1.key AS v FROM `d`.`t` t, t.`sizes` x1"),
            ("sizes", ("value", "item"), "SELECT DISTINCT x2.item AS v FROM `d`.`t` t, t.`sizes` x1, x1.value x2"),
            ("place", ("city",), "SELECT DISTINCT t.`place`.`city` AS v FROM `d`.`t` t"),
        ],
    )
    async def test_nested_values_are_joined(
        self, catalog: Catalog, column: str, path: tuple[str, ...], expected: str
    ) -> None:
        table = TableDescription("d", "t", _NESTED)
        statement = await catalog.sample_statement(table, column, path, SampleKind.DISTINCT)
        name = backquoted(path[-1])
        assert statement == f"SELECT v AS {name} FROM ({expected}) q ORDER BY {name} NULLS LAST LIMIT 100"

    @pytest.mark.item(64)
    async def test_complex_values_cannot_be_compared(self, catalog: Catalog) -> None:
        table = TableDescription("d", "t", _NESTED)
        with pytest.raises(NotSupported):
            await catalog.sample_statement(table, "people", ("item",), SampleKind.DISTINCT)


_NESTED = (
    TableColumn("tags", "array<string>"),
    TableColumn("people", "array<struct<k:string>>"),
    TableColumn("sizes", "map<string,array<int>>"),
    TableColumn("place", "struct<city:string>"),
)
