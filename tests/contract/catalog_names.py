"""The part of the catalog suite that tests names: case folding, unusual characters and SQL injection."""

import pytest
from tests.contract.catalog_basis import FEW_ROWS, CatalogBasis
from tests.contract.catalog_facts import ODD_NAMES
from tests.refusals import raises_code

from queryserver.engines.catalog_queries import Folding
from queryserver.engines.protocol import Catalog, Engine, SampleKind
from queryserver.errors.statements import TableNotFound

_MADE_AND_ASKED = {
    Folding.LOWER: ("plain_items", "PLAIN_Items"),
    Folding.UPPER: ("PLAIN_ITEMS", "plain_Items"),
    Folding.CASELESS: ("Plain_Items", "pLAIN_iTEMS"),
}


class CatalogNames(CatalogBasis):
    """The `CatalogContract` tests for names."""

    @pytest.mark.item(61)
    @pytest.mark.capability("Names in any case")
    async def test_table_is_found_by_its_folded_name(self, engine: Engine, catalog: Catalog, database: str) -> None:
        made, asked = _MADE_AND_ASKED[self.catalog_facts.folding]
        await self.make_table(engine, database, made)
        assert (await catalog.table(database, made)).name == made
        assert (await catalog.table(database, asked)).name == made

    @pytest.mark.item(61)
    @pytest.mark.capability("Names in any case")
    async def test_database_is_found_by_its_folded_name(self, engine: Engine, catalog: Catalog, database: str) -> None:
        """Use the case opposite to the engine's own folding, because the fixture creates the name in folded case."""
        await self.make_table(engine, database, "items")
        asked = database.lower() if self.catalog_facts.folding is Folding.UPPER else database.upper()
        assert (await catalog.database(asked)).name == database
        assert [table.name for table in await catalog.tables(asked)] == ["items"]
        assert (await catalog.table(asked, "items")).database == database

    @pytest.mark.item(61)
    @pytest.mark.capability("Names in any case")
    async def test_exact_name_takes_precedence_over_folded_name(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        if not self.catalog_facts.distinguishes_case:
            pytest.skip("two names cannot differ by case alone")
        for name in ("items", "Items", "ITEMS"):
            await self.make_table(engine, database, name)
        for name in ("items", "Items", "ITEMS"):
            assert (await catalog.table(database, name)).name == name

    @pytest.mark.item(62)
    @pytest.mark.capability("Odd names, quoted")
    async def test_odd_table_names_work(self, engine: Engine, catalog: Catalog, database: str) -> None:
        names = self.catalog_facts.odd_tables
        await self.make_table(engine, database, "canary", FEW_ROWS)
        for name in names:
            await self.make_table(engine, database, name, FEW_ROWS)
        assert {table.name for table in await catalog.tables(database)} == {"canary", *names}
        for name in names:
            await self._use(engine, catalog, database, name)
        assert {table.name for table in await catalog.tables(database)} == {"canary", *names}

    @pytest.mark.item(62)
    @pytest.mark.capability("Odd names, quoted")
    async def test_odd_database_names_work(self, engine: Engine, catalog: Catalog) -> None:
        facts = self.catalog_facts
        if not facts.create_database:
            pytest.skip("the engine cannot create databases")
        for name in map(facts.database_name, facts.odd_databases):
            await self.make_database(engine, name)
            try:
                assert name in await catalog.databases()
                assert (await catalog.database(name)).name == name
                assert list(await catalog.functions(name)) == []
                await self.make_table(engine, name, "items", FEW_ROWS)
                assert [table.name for table in await catalog.tables(name)] == ["items"]
                await self._use(engine, catalog, name, "items")
            finally:
                await self.drop_database(engine, name)

    @pytest.mark.item(62)
    @pytest.mark.capability("Odd names, quoted")
    async def test_odd_column_names_work(self, engine: Engine, catalog: Catalog, database: str) -> None:
        names = self.catalog_facts.odd_columns
        row = ("1", *("'a'" for _ in names))
        await self.make_table(engine, database, "odd", [row], "id", *names)
        table = await catalog.table(database, "odd")
        assert [column.name for column in table.columns] == ["id", *names]
        for name in names:
            for kind in SampleKind:
                statement = await catalog.sample_statement(table, name, (), kind)
                assert await self.rows(engine, statement) == [("a",)]
            await catalog.column_statistics(table, name)
        await self.analyze(engine, catalog, table)

    @pytest.mark.item(62)
    @pytest.mark.capability("Odd names, quoted")
    async def test_unknown_odd_names_inject_no_sql(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.make_table(engine, database, "canary", FEW_ROWS)
        for name in ODD_NAMES:
            with pytest.raises(TableNotFound):
                await catalog.table(database, name)
            with raises_code("database_not_found"):
                await catalog.database(name)
            with raises_code("database_not_found"):
                await catalog.tables(name)
            with raises_code("database_not_found"):
                await catalog.table(name, "canary")
            with raises_code("database_not_found"):
                await catalog.functions(name)
        assert [table.name for table in await catalog.tables(database)] == ["canary"]
        await self._use(engine, catalog, database, "canary")

    async def _use(self, engine: Engine, catalog: Catalog, database: str, name: str) -> None:
        """Describe, sample and analyze a table that contains `FEW_ROWS`."""
        table = await catalog.table(database, name)
        assert (table.database, table.name) == (database, name)
        assert [column.name for column in table.columns] == ["id", "name"]
        sample = await catalog.sample_statement(table, None, (), SampleKind.DEFAULT)
        rows = await self.rows(engine, sample)
        assert sorted(rows) == [(1, "a"), (2, "bb"), (3, None), (4, "bb")]
        largest = await catalog.sample_statement(table, "id", (), SampleKind.MAX)
        assert await self.rows(engine, largest) == [(4,)]
        await self.analyze(engine, catalog, table)
