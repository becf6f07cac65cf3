"""The part of the catalog suite that runs sample statements and checks their rows."""

import pytest
from tests.contract.catalog_basis import CatalogBasis
from tests.contract.catalog_facts import NestedFact

from queryserver.engines.protocol import SAMPLE_ROWS, Catalog, Engine, SampleKind
from queryserver.errors.base import NotSupported

_ROWS = (("1", "'b'"), ("2", "'a'"), ("3", "NULL"), ("10", "'b'"), ("9", "'c'"))


class CatalogSampling(CatalogBasis):
    """The `CatalogContract` tests for sample statements."""

    async def sample(
        self,
        engine: Engine,
        catalog: Catalog,
        name: tuple[str, str],
        column: str | None,
        kind: SampleKind,
        *nested: str,
    ) -> list[tuple[object, ...]]:
        """Return the sample rows of the table `name`, a pair of database and table."""
        table = await catalog.table(*name)
        return await self.rows(engine, await catalog.sample_statement(table, column, nested, kind))

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_table_sample_returns_its_rows(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.make_table(engine, database, "items", _ROWS)
        rows = await self.sample(engine, catalog, (database, "items"), None, SampleKind.DEFAULT)
        assert sorted(rows) == [(1, "b"), (2, "a"), (3, None), (9, "c"), (10, "b")]

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_sample_has_at_most_a_hundred_rows(self, engine: Engine, catalog: Catalog, database: str) -> None:
        rows = [(str(number), f"'v{number}'") for number in range(SAMPLE_ROWS + 30)]
        await self.make_table(engine, database, "items", rows)
        name = (database, "items")
        assert len(await self.sample(engine, catalog, name, None, SampleKind.DEFAULT)) == SAMPLE_ROWS
        assert await self.sample(engine, catalog, name, "id", SampleKind.DISTINCT) == [
            (number,) for number in range(SAMPLE_ROWS)
        ]

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_column_sample_is_distinct_and_sorted_with_null_last(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        await self.make_table(engine, database, "items", _ROWS)
        name = (database, "items")
        for kind in (SampleKind.DEFAULT, SampleKind.DISTINCT):
            assert await self.sample(engine, catalog, name, "name", kind) == [("a",), ("b",), ("c",), (None,)]
            assert await self.sample(engine, catalog, name, "id", kind) == [(1,), (2,), (3,), (9,), (10,)]

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_largest_and_smallest_values_are_one_row(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        await self.make_table(engine, database, "items", _ROWS)
        name = (database, "items")
        assert await self.sample(engine, catalog, name, "name", SampleKind.MAX) == [("c",)]
        assert await self.sample(engine, catalog, name, "name", SampleKind.MIN) == [("a",)]
        assert await self.sample(engine, catalog, name, "id", SampleKind.MAX) == [(10,)]
        assert await self.sample(engine, catalog, name, "id", SampleKind.MIN) == [(1,)]

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_empty_table_has_empty_sample(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.make_table(engine, database, "items")
        name = (database, "items")
        assert await self.sample(engine, catalog, name, None, SampleKind.DEFAULT) == []
        for kind in (SampleKind.DEFAULT, SampleKind.DISTINCT, SampleKind.MAX, SampleKind.MIN):
            assert await self.sample(engine, catalog, name, "name", kind) in ([], [(None,)])

    @pytest.mark.item(64)
    @pytest.mark.capability("Samples")
    async def test_view_is_sampled_like_a_table(self, engine: Engine, catalog: Catalog, database: str) -> None:
        await self.make_table(engine, database, "items", _ROWS)
        await self.make_view(engine, database, "items_view", "items")
        name = (database, "items_view")
        assert len(await self.sample(engine, catalog, name, None, SampleKind.DEFAULT)) == len(_ROWS)
        assert await self.sample(engine, catalog, name, "name", SampleKind.DISTINCT) == [
            ("a",), ("b",), ("c",), (None,),
        ]  # fmt: skip

    @pytest.mark.item(64)
    @pytest.mark.capability("Values inside nested columns")
    async def test_values_at_nested_path_are_sampled(
        self, engine: Engine, catalog: Catalog, database: str, nested: NestedFact
    ) -> None:
        facts = self.catalog_facts
        table = facts.table(database, "deep")
        declared = [(facts.quote("id"), facts.int_type.ddl), (facts.quote("c"), nested.ddl)]
        rows = [(str(number), value) for number, value in enumerate(nested.values)]
        await self.execute(engine, [*facts.create_table(table, declared), *facts.insert(table, rows)])
        found = await self.sample(engine, catalog, (database, "deep"), "c", SampleKind.DISTINCT, *nested.path)
        assert found == [(value,) for value in nested.expected]
        largest = [value for value in nested.expected if value is not None][-1]
        assert await self.sample(engine, catalog, (database, "deep"), "c", SampleKind.MAX, *nested.path) == [(largest,)]

    @pytest.mark.item(64)
    @pytest.mark.capability("Values inside nested columns")
    async def test_path_below_plain_column_is_not_supported(
        self, engine: Engine, catalog: Catalog, database: str
    ) -> None:
        await self.make_table(engine, database, "items", _ROWS)
        table = await catalog.table(database, "items")
        with pytest.raises(NotSupported):
            await catalog.sample_statement(table, "name", ("item",), SampleKind.DISTINCT)
