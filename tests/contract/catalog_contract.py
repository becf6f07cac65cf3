"""The metadata contract of every engine (engines/protocol.py, Contract editor 10), as one test suite.

Each engine has a test class that inherits `CatalogContract`, declares its `catalog_facts`, and provides the fixtures
`engine` and `unreachable_engine`. The facts also declare which features the engine lacks.
"""

import asyncio
from contextlib import suppress
from dataclasses import fields, replace

import pytest
from tests.contract.catalog_basis import FEW_ROWS, CountingSession
from tests.contract.catalog_facts import ODD_NAMES, DescribedTable
from tests.contract.catalog_names import CatalogNames
from tests.contract.catalog_sampling import CatalogSampling
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.refusals import raises_code

from queryserver.engines.protocol import Catalog, CatalogEngine, ColumnStatistics, Engine, SampleKind, TableKind
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import EngineUnavailable, TableNotFound


class CatalogContract(CatalogNames, CatalogSampling):
    """The catalog tests. Each engine has a test class that inherits them."""

    @pytest.mark.item(60)
    @pytest.mark.capability("Databases, tables, views")
    async def test_database_is_listed_and_described(self, catalog: Catalog, database: str) -> None:
        names = list(await catalog.databases())
        assert names.count(database) == 1
        assert len(names) == len(set(names))
        assert (await catalog.database(database)).name == database

    @pytest.mark.item(65)
    @pytest.mark.capability("Comments")
    async def test_database_comment_is_reported(self, engine: Engine, catalog: Catalog, database: str) -> None:
        facts = self.catalog_facts
        if not facts.comment_database:
            pytest.skip("the engine does not store comments of databases")
        await self.execute(engine, self._with_database(facts.comment_database, database))
        assert (await catalog.database(database)).comment == "Shop data"

    @pytest.mark.item(61)
    @pytest.mark.capability("Databases, tables, views")
    async def test_missing_database_name_means_the_default_database(self, catalog: Catalog) -> None:
        if self.catalog_facts.default_database == "":
            pytest.skip("the engine has a database without a name")
        assert (await catalog.database("")).name == self.catalog_facts.default_database
        await catalog.tables("")
        with pytest.raises(TableNotFound):
            await catalog.table("", "no_such_table")

    @pytest.mark.item(60)
    @pytest.mark.capability("Databases, tables, views")
    async def test_tables_and_views_are_listed(self, engine: Engine, catalog: Catalog, database: str) -> None:
        assert list(await catalog.tables(database)) == []
        await self.make_table(engine, database, "items")
        listed = {table.name: table for table in await catalog.tables(database)}
        assert set(listed) == {"items"}
        assert listed["items"].kind is TableKind.MANAGED
        await self.make_view(engine, database, "items_view", "items")
        listed = {table.name: table for table in await catalog.tables(database)}
        assert {name: table.kind for name, table in listed.items()} == {
            "items": TableKind.MANAGED,
            "items_view": TableKind.VIEW,
        }

    @pytest.mark.item(61)
    @pytest.mark.capability("Databases, tables, views")
    async def test_unknown_names_are_not_found(self, catalog: Catalog, database: str) -> None:
        with raises_code("database_not_found"):
            await catalog.database("no_such_database")
        with raises_code("database_not_found"):
            await catalog.tables("no_such_database")
        with raises_code("database_not_found"):
            await catalog.table("no_such_database", "items")
        with pytest.raises(TableNotFound):
            await catalog.table(database, "no_such_table")

    @pytest.mark.item(60)
    @pytest.mark.capability("Columns")
    async def test_columns_keep_table_order_and_native_type_names(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        facts = self.catalog_facts
        types = (facts.int_type, facts.text_type, *facts.types)
        names = [f"c{len(types) - number}" for number in range(len(types))]
        declared = [(facts.quote(name), kind.ddl) for name, kind in zip(names, types, strict=True)]
        await self.execute(engine, facts.create_table(facts.table(database, "typed"), declared))
        found = (await catalog.table(database, "typed")).columns
        assert [column.name for column in found] == names
        assert [column.type for column in found] == [kind.shown for kind in types]
        assert not any(column.partition_key for column in found)

    @pytest.mark.item(60)
    @pytest.mark.item(65)
    @pytest.mark.capability("Keys, formats, partitions")
    @pytest.mark.capability("Comments")
    async def test_table_is_described(
        self, engine: Engine, catalog: Catalog, database: str, described: DescribedTable
    ) -> None:
        facts = self.catalog_facts
        table = facts.table(database, described.name)
        statements = [text.replace("{t}", table).replace("{database}", database) for text in described.statements]
        await self.execute(engine, self._with_database(statements, database))
        found = await catalog.table(database, described.name)
        assert found.columns == tuple(
            replace(column, default=column.default and column.default.replace("{database}", database))
            for column in described.columns
        )
        assert (found.database, found.name) == (database, described.name)
        assert (found.kind, found.comment, found.format) == (described.kind, described.comment, described.format)
        assert found.support_updates == described.support_updates
        expected = {(key.name, key.to.replace("{database}", database)) for key in described.foreign_keys}
        assert {(key.name, key.to) for key in found.foreign_keys} == expected
        (listed,) = [one for one in await catalog.tables(database) if one.name == described.name]
        assert (listed.kind, listed.comment) == (described.kind, described.comment)

    @pytest.mark.item(60)
    @pytest.mark.capability("Databases, tables, views")
    async def test_view_is_described_like_a_table(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.make_table(engine, database, "items")
        await self.make_view(engine, database, "items_view", "items")
        view, table = await catalog.table(database, "items_view"), await catalog.table(database, "items")
        assert view.kind is TableKind.VIEW
        assert [column.name for column in view.columns] == [column.name for column in table.columns]
        assert [column.type for column in view.columns] == [column.type for column in table.columns]

    @pytest.mark.item(66)
    @pytest.mark.capability("Statistics")
    async def test_analyze_makes_statistics_available(self, engine: Engine, catalog: Catalog, database: str) -> None:
        facts = self.catalog_facts
        await self.make_table(engine, database, "items", FEW_ROWS)
        await self.analyze(engine, catalog, await catalog.table(database, "items"))
        table = await catalog.table(database, "items")
        assert {key: table.statistics.get(key) for key in facts.statistics} == dict(facts.statistics)
        for column in ("id", "name"):
            found = await catalog.column_statistics(table, column)
            expected = facts.column_statistics.get(column)
            if expected is None:
                assert found == ColumnStatistics(message=found.message)
                assert found.message
            else:
                assert {field: getattr(found, field) for field in expected} == dict(expected)
                assert found.message == ""

    @pytest.mark.item(65)
    @pytest.mark.capability("Statistics")
    async def test_statistics_before_analyze_are_absent_or_correct(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        await self.make_table(engine, database, "items")
        table = await catalog.table(database, "items")
        assert table.statistics.get("numRows", "0") == "0"
        found = await catalog.column_statistics(table, "id")
        values = [getattr(found, field.name) for field in fields(found) if field.name != "message"]
        assert found.message or any(value is not None for value in values)

    @pytest.mark.item(66)
    @pytest.mark.capability("Analyze")
    async def test_unsupported_analyze_raises_not_supported(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        facts = self.catalog_facts
        await self.make_table(engine, database, "items")
        table = await catalog.table(database, "items")
        for column, supported in ((None, facts.analyzes_tables), ("name", facts.analyzes_columns)):
            if supported:
                assert catalog.analyze_statement(table, column)
            else:
                with pytest.raises(NotSupported):
                    catalog.analyze_statement(table, column)

    @pytest.mark.item(63)
    @pytest.mark.capability("Functions")
    async def test_built_in_functions_are_listed_once(self, engine: Engine, catalog: Catalog) -> None:
        facts = self.catalog_facts
        assert isinstance(engine, CatalogEngine)
        assert engine.lists_functions == (facts.builtin_function is not None)
        functions = await catalog.functions(None)
        names = [function.name for function in functions]
        assert len(names) == len(set(names))
        if facts.builtin_function is None:
            assert names == []
            return
        assert len(names) > 20
        (listed,) = [function for function in functions if function.name == facts.builtin_function]
        found = await catalog.function(None, facts.builtin_function)
        assert found is not None
        assert (found.name, found.signature) == (listed.name, listed.signature)

    @pytest.mark.item(63)
    @pytest.mark.capability("Functions")
    async def test_overload_signatures_are_joined_by_line_breaks(self, catalog: Catalog) -> None:
        name = self.catalog_facts.overloaded_function
        if name is None:
            pytest.skip("the engine does not report overloads")
        found = await catalog.function(None, name)
        assert found is not None
        lines = found.signature.split("\n")
        assert len(lines) > 1
        assert len(lines) == len(set(lines))
        assert all(lines)

    @pytest.mark.item(61)
    @pytest.mark.capability("Functions")
    async def test_unknown_function_has_no_description(self, catalog: Catalog, database: str) -> None:
        for name in ("no_such_function", *ODD_NAMES):
            assert await catalog.function(None, name) is None
            assert await catalog.function(database, name) is None

    @pytest.mark.item(63)
    @pytest.mark.capability("Functions")
    async def test_database_lists_only_its_own_functions(self, engine: Engine, catalog: Catalog, database: str) -> None:
        facts = self.catalog_facts
        assert list(await catalog.functions(database)) == []
        with raises_code("database_not_found"):
            await catalog.functions("no_such_database")
        if not facts.create_function:
            return
        await self.execute(engine, self._with_database(facts.create_function, database))
        (only,) = await catalog.functions(database)
        assert only.name == "twice"
        found = await catalog.function(database, "twice")
        assert found is not None
        assert found.signature == only.signature
        assert await catalog.function(database, facts.builtin_function or "abs") is None
        await self.execute(engine, self._with_database(facts.drop_function, database))

    @pytest.mark.item(64)
    @pytest.mark.parametrize("after_s", [0, 0.001, 0.005, 0.02, 0.1])
    @pytest.mark.capability("Databases, tables, views")
    async def test_canceled_lookup_leaves_no_running_statement(
        self, engine: Engine, database: str, after_s: float
    ) -> None:
        assert isinstance(engine, CatalogEngine)
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s), engine.catalog(USER, NO_OPTIONS) as catalog:
                await catalog.functions(None)
                await catalog.tables(database)
                await catalog.databases()
        await self.eventually_idle(engine)
        async with engine.catalog(USER, NO_OPTIONS) as catalog:
            assert list(await catalog.tables(database)) == []

    @pytest.mark.capability("Databases, tables, views")
    async def test_listing_many_tables_takes_few_statements(self, engine: Engine, database: str) -> None:
        facts = self.catalog_facts
        if facts.catalog_on is None:
            pytest.skip("the catalog is read without SQL statements")
        quoted, count = facts.database(database), facts.many_tables
        one_by_one = [
            statement
            for number in range(count)
            for statement in facts.create_table(f"{quoted}.{facts.quote(f't{number}')}", [("id", facts.int_type.ddl)])
        ]
        await self.execute(engine, facts.create_many(quoted, count) if facts.create_many else one_by_one)
        async with engine.session(USER, NO_OPTIONS) as session:
            counting = CountingSession(session)
            catalog = facts.catalog_on(counting)
            assert len(await catalog.tables(database)) == count
            assert len(counting.statements) <= 5
            counting.statements.clear()
            assert (await catalog.table(database, f"t{count - 1}")).name == f"t{count - 1}"
            assert len(counting.statements) <= 10

    @pytest.mark.capability("Databases, tables, views")
    async def test_unreachable_engine_is_unavailable(self, unreachable_engine: Engine) -> None:
        assert isinstance(unreachable_engine, CatalogEngine)
        with pytest.raises(EngineUnavailable):
            async with unreachable_engine.catalog(USER, NO_OPTIONS) as catalog:
                await catalog.databases()

    @pytest.mark.item(62)
    @pytest.mark.capability("Samples")
    async def test_metadata_calls_neither_read_nor_change_rows(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        """The catalog only returns the sample statement; the caller decides whether to run it."""
        await self.make_table(engine, database, "items", FEW_ROWS)
        table = await catalog.table(database, "items")
        statement = await catalog.sample_statement(table, None, (), SampleKind.DEFAULT)
        assert len(await self.rows(engine, statement)) == len(FEW_ROWS)
