"""The catalog contract for DuckDB's metadata, with a database file."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, NestedFact, TypeText
from tests.contract.test_duckdb_engine import held_by_another_process

from queryserver.engines.catalog_queries import Folding
from queryserver.engines.duckdb.catalog import DuckdbCatalog
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.limits import DuckdbResources
from queryserver.engines.protocol import Catalog, Engine, ForeignKey, SampleKind, TableColumn

_PLAIN = {"nullable": True, "autoincrement": False, "primary_key": False}
_DEEP = 'STRUCT(k VARCHAR, "a b" INTEGER[])[]'
_ROWS = ("[{k: 'x', 'a b': [3, 1]}, {k: 'y', 'a b': NULL}]", "[{k: 'x', 'a b': [10]}]", "NULL")

TABLES = (
    DescribedTable(
        "orders",
        (
            "CREATE SEQUENCE {db}.numbers",
            "CREATE TABLE {db}.people (id INTEGER PRIMARY KEY)",
            (
                "CREATE TABLE {t} (id INTEGER PRIMARY KEY DEFAULT nextval('{database}.numbers'),"
                " name VARCHAR NOT NULL DEFAULT 'a''b', price DECIMAL(10,2) DEFAULT 1 + 1,"
                " twice INTEGER GENERATED ALWAYS AS (id * 2), owner INTEGER REFERENCES {db}.people (id))"
            ),
            "COMMENT ON TABLE {t} IS 'What was ordered'",
            "COMMENT ON COLUMN {t}.price IS 'in EUR'",
        ),
        (
            TableColumn(
                "id", "INTEGER", nullable=False, autoincrement=True, primary_key=True,
                default="nextval('{database}.numbers')",
            ),
            TableColumn(
                "name", "VARCHAR", nullable=False, default="'a''b'", autoincrement=False, primary_key=False
            ),
            TableColumn("price", "DECIMAL(10,2)", comment="in EUR", default="(1 + 1)", **_PLAIN),
            TableColumn("twice", "INTEGER", **_PLAIN),
            TableColumn("owner", "INTEGER", **_PLAIN),
        ),
        comment="What was ordered",
        support_updates=True,
        foreign_keys=(ForeignKey("owner", "{database}.people.id"),),
    ),
)  # fmt: skip

FACTS = CatalogFacts(
    folding=Folding.CASELESS,
    default_database="main",
    int_type=TypeText("INTEGER", "INTEGER"),
    text_type=TypeText("VARCHAR", "VARCHAR"),
    types=(
        TypeText("DECIMAL(10,2)", "DECIMAL(10,2)"),
        TypeText("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"),
        TypeText("INTEGER[3]", "INTEGER[3]"),
        TypeText("MAP(VARCHAR, INTEGER[])", "MAP(VARCHAR, INTEGER[])"),
        TypeText(_DEEP, _DEEP),
        TypeText("ENUM ('a', 'b')", "ENUM('a', 'b')"),
    ),
    tables=TABLES,
    nested=(
        NestedFact(_DEEP, _ROWS, ("item", "k"), ("x", "y")),
        NestedFact(_DEEP, _ROWS, ("item", "A B", "item"), (1, 3, 10)),
        NestedFact("MAP(VARCHAR, INTEGER)", ("MAP {'b': 2, 'a': NULL}", "MAP {'a': 1}"), ("key",), ("a", "b")),
        NestedFact("MAP(VARCHAR, INTEGER)", ("MAP {'b': 2, 'a': NULL}", "MAP {'a': 1}"), ("value",), (1, 2, None)),
        NestedFact("INTEGER[2]", ("[3, 1]", "NULL"), ("item",), (1, 3)),
        NestedFact("STRUCT(a STRUCT(b INTEGER))", ("{a: {b: 1}}", "{a: NULL}"), ("a", "b"), (1, None)),
    ),
    create_database=("CREATE SCHEMA {db}",),
    drop_database=("DROP SCHEMA {db} CASCADE",),
    statistics={"numRows": "4"},
    column_statistics={
        "id": {"min": "1", "max": "4", "num_nulls": 0},
        "name": {"min": None, "max_col_len": 2, "num_nulls": None},
    },
    builtin_function="abs",
    overloaded_function="substr",
    create_function=("CREATE MACRO {db}.twice(x) AS x * 2",),
    catalog_on=lambda session: DuckdbCatalog(session, "catalog"),
)


class TestDuckdbCatalog(CatalogContract):
    catalog_facts = FACTS
    tested_with = "DuckDB 2.0"

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
        engine = DuckdbEngine(path="catalog.duckdb", root=tmp_path, resources=DuckdbResources(memory_limit="300MB"))
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
        with held_by_another_process(tmp_path / "held.duckdb"):
            engine = DuckdbEngine(path="held.duckdb", root=tmp_path)
            yield engine
            await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, DuckdbEngine)
        return engine.busy

    async def test_schema_may_be_named_like_the_file(self, engine: Engine, catalog: Catalog) -> None:
        await self.execute(
            engine, ["CREATE SCHEMA catalog.catalog", "CREATE TABLE catalog.catalog.items AS SELECT 1 AS id"]
        )
        table = await catalog.table("catalog", "items")
        assert await self.rows(engine, await catalog.sample_statement(table, None, (), SampleKind.DEFAULT)) == [(1,)]
        await self.execute(engine, [catalog.analyze_statement(table, None), catalog.analyze_statement(table, "id")])
        assert (await catalog.column_statistics(table, "id")).max == "1"
