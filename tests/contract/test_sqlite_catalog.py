"""The catalog contract for SQLite's metadata, with a database file."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import CatalogFacts, DescribedTable, TypeText

from queryserver.engines.catalog_queries import Folding
from queryserver.engines.protocol import Catalog, ColumnStatistics, Engine, ForeignKey, TableColumn
from queryserver.engines.sqlite.catalog import SqliteCatalog
from queryserver.engines.sqlite.engine import SqliteEngine

_PLAIN = {"nullable": True, "autoincrement": False, "primary_key": False}

TABLES = (
    DescribedTable(
        "orders",
        (
            "CREATE TABLE {db}.people (id INTEGER PRIMARY KEY, code TEXT UNIQUE)",
            (
                "CREATE TABLE {t} (id INTEGER PRIMARY KEY AUTOINCREMENT, name VARCHAR(20) NOT NULL DEFAULT 'a''b',"
                " price DECIMAL(10,2) DEFAULT (1 + 1), anything, twice INTEGER AS (price * 2) STORED,"
                " owner INT REFERENCES people, code TEXT REFERENCES people (code))"
            ),
        ),
        (
            TableColumn("id", "INTEGER", nullable=False, autoincrement=True, primary_key=True),
            TableColumn(
                "name", "VARCHAR(20)", nullable=False, default="'a''b'", autoincrement=False, primary_key=False
            ),
            TableColumn("price", "DECIMAL(10,2)", default="1 + 1", **_PLAIN),
            TableColumn("anything", "", **_PLAIN),
            TableColumn("twice", "INTEGER", **_PLAIN),
            TableColumn("owner", "INT", **_PLAIN),
            TableColumn("code", "TEXT", **_PLAIN),
        ),
        support_updates=True,
        foreign_keys=(ForeignKey("owner", "{database}.people.id"), ForeignKey("code", "{database}.people.code")),
    ),
    DescribedTable(
        "pairs",
        ("CREATE TABLE {t} (a INTEGER, b TEXT, PRIMARY KEY (b, a)) WITHOUT ROWID",),
        (
            TableColumn("a", "INTEGER", nullable=False, autoincrement=False, primary_key=True),
            TableColumn("b", "TEXT", nullable=False, autoincrement=False, primary_key=True),
        ),
        support_updates=True,
    ),
)

FACTS = CatalogFacts(
    folding=Folding.CASELESS,
    default_database="main",
    int_type=TypeText("INTEGER", "INTEGER"),
    text_type=TypeText("TEXT", "TEXT"),
    types=tuple(TypeText(name, name) for name in ("BLOB", "DOUBLE PRECISION", "decimal(10, 2)", "DATETIME", "POINT")),
    tables=TABLES,
    analyzes_columns=False,
    statistics={"numRows": "4"},
    builtin_function="abs",
    overloaded_function="substr",
    catalog_on=SqliteCatalog,
)


class TestSqliteCatalog(CatalogContract):
    catalog_facts = FACTS
    tested_with = "SQLite of the package apsw"

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
        engine = SqliteEngine(path="catalog.sqlite", root=tmp_path)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
        engine = SqliteEngine(path="missing/catalog.sqlite", root=tmp_path)
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, SqliteEngine)
        return engine.busy

    async def test_indexed_column_has_distinct_count(self, engine: Engine, catalog: Catalog) -> None:
        await self.make_table(engine, "main", "items", [("1", "'a'"), ("2", "'a'"), ("3", "'b'"), ("4", "'b'")])
        await self.execute(engine, ["CREATE INDEX by_name ON items (name)", "ANALYZE items"])
        table = await catalog.table("main", "items")
        assert await catalog.column_statistics(table, "name") == ColumnStatistics(distinct_count=2)

    async def test_forbidden_functions_are_not_listed(self, catalog: Catalog) -> None:
        assert await catalog.function(None, "load_extension") is None
