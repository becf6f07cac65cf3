"""The catalog contract for Phoenix's metadata."""

from collections.abc import AsyncGenerator, Sequence

import pytest
from tests.contract.catalog_contract import CatalogContract
from tests.contract.catalog_facts import ODD_NAMES, CatalogFacts, DescribedTable, TypeText
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.phoenix_basis import PhoenixBasis
from tests.engines.servers import HttpAddress
from tests.ports import free_port

from queryserver.engines.catalog_queries import Folding
from queryserver.engines.phoenix.connection import PhoenixAddress
from queryserver.engines.phoenix.engine import PhoenixEngine
from queryserver.engines.protocol import Catalog, Engine, TableColumn, TableKind

TABLES = (
    DescribedTable(
        "ORDERS",
        (
            (
                "CREATE TABLE {t} (shop VARCHAR(7) NOT NULL, id BIGINT NOT NULL, price DECIMAL(10,2) DEFAULT 1.5,"
                ' extra.tags VARCHAR(9) ARRAY, "low er" TIME, CONSTRAINT pk PRIMARY KEY (shop, id DESC))'
            ),
        ),
        (
            TableColumn("SHOP", "VARCHAR(7)", nullable=False, primary_key=True),
            TableColumn("ID", "BIGINT", nullable=False, primary_key=True),
            TableColumn("PRICE", "DECIMAL(10,2)", nullable=True, default="1.5", primary_key=False),
            TableColumn("TAGS", "VARCHAR(9) ARRAY", nullable=True, primary_key=False),
            TableColumn("low er", "TIME", nullable=True, primary_key=False),
        ),
        support_updates=True,
    ),
    DescribedTable(
        "BIG_ORDERS",
        (
            "CREATE TABLE {db}.base (id INTEGER PRIMARY KEY, price INTEGER)",
            "CREATE VIEW {t} (note VARCHAR) AS SELECT * FROM {db}.base WHERE price > 100",
        ),
        (
            TableColumn("ID", "INTEGER", nullable=False, primary_key=True),
            TableColumn("PRICE", "INTEGER", nullable=True, primary_key=False),
            TableColumn("NOTE", "VARCHAR", nullable=True, primary_key=False),
        ),
        kind=TableKind.VIEW,
        support_updates=False,
    ),
)


def _create_table(table: str, columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    (key, kind), *others = columns
    declared = [f"{key} {kind} NOT NULL PRIMARY KEY", *(f"{name} {other}" for name, other in others)]
    return (f"CREATE TABLE {table} ({', '.join(declared)})",)


def _insert(table: str, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"UPSERT INTO {table} VALUES ({', '.join(row)})" for row in rows)


FACTS = CatalogFacts(
    folding=Folding.UPPER,
    default_database="",
    int_type=TypeText("INTEGER", "INTEGER"),
    text_type=TypeText("VARCHAR", "VARCHAR"),
    types=tuple(
        TypeText(name, name)
        for name in (
            "VARCHAR(20)", "CHAR(5)", "DECIMAL", "DECIMAL(10,2)", "UNSIGNED_LONG", "TIMESTAMP", "BINARY(3)",
            "VARBINARY", "INTEGER ARRAY", "DECIMAL(10,2) ARRAY",
        )
    ),
    tables=TABLES,
    create_database=("CREATE SCHEMA {db}",),
    drop_database=("DROP SCHEMA {db}",),
    database_name=str.upper,
    create_table=_create_table,
    insert=_insert,
    distinguishes_case=True,
    odd_databases=("Mixed_Case", "_1"),
    odd_tables=("with-dash", "_1", "lower", "x.y"),
    odd_columns=tuple(name for name in ODD_NAMES if '"' not in name),
    analyzes_columns=False,
)  # fmt: skip


@pytest.mark.engine("phoenix")
@pytest.mark.timeout(400)
class TestPhoenixCatalog(PhoenixBasis, CatalogContract):
    catalog_facts = FACTS
    tested_with = "Phoenix 5.2.1 on HBase 2.5, Query Server 6.0.0"

    @pytest.fixture
    async def engine(self, phoenix_server: HttpAddress) -> AsyncGenerator[PhoenixEngine]:
        engine = PhoenixEngine(PhoenixAddress(phoenix_server.url))
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[PhoenixEngine]:
        engine = PhoenixEngine(PhoenixAddress(f"http://127.0.0.1:{free_port()}"))
        yield engine
        await engine.close()

    async def drop_database(self, engine: Engine, name: str) -> None:
        """Drop views before their tables, and then the schema, because Phoenix drops only empty schemas."""
        assert isinstance(engine, PhoenixEngine)
        async with engine.catalog(USER, NO_OPTIONS) as catalog:
            tables = sorted(await catalog.tables(name), key=lambda table: not table.kind.is_view)
        facts = self.catalog_facts
        drops = [
            (facts.drop_view.replace("{v}", facts.table(name, table.name)))
            if table.kind.is_view
            else facts.drop_table.replace("{t}", facts.table(name, table.name))
            for table in tables
        ]
        await self.execute(engine, drops)
        await super().drop_database(engine, name)

    @pytest.mark.item(60)
    async def test_unnamed_schema_lists_its_tables(self, engine: Engine, catalog: Catalog) -> None:
        await self.execute(engine, ["CREATE TABLE IF NOT EXISTS lonely (id INTEGER PRIMARY KEY)"])
        try:
            assert "" in await catalog.databases()
            assert "LONELY" in [table.name for table in await catalog.tables("")]
            assert (await catalog.table("", "lonely")).columns[0].name == "ID"
        finally:
            await self.execute(engine, ["DROP TABLE lonely"])
