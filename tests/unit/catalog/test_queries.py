"""Catalog results do not change when they are read from the cache."""

from types import MappingProxyType

import pytest
from tests.fakes.catalog import FakeCatalog, FakeCatalogEngine, table
from tests.refusals import raises_code

from queryserver.catalog import queries
from queryserver.catalog.queries import QUERIES_BY_KIND, CatalogQuery
from queryserver.engines.protocol import ForeignKey, TableProperty

ALL = [
    queries.databases(), queries.database("shop"), queries.tables("shop"), queries.table("shop", "rich"),
    queries.column("shop", "rich", "ID"), queries.functions(None), queries.functions("shop"),
    queries.function("abs"), queries.function("nope"),
]  # fmt: skip


@pytest.fixture
def catalog() -> FakeCatalog:
    """Provide a catalog with a table that uses every attribute."""
    engine = FakeCatalogEngine()
    engine.content["shop"]["rich"] = table(
        "shop",
        "rich",
        foreign_keys=(ForeignKey("id", "shop.people.id"),),
        properties=(TableProperty("EXTERNAL", "TRUE"),),
        statistics=MappingProxyType({"numRows": "12"}),
        support_updates=True,
    )
    return FakeCatalog(engine)


@pytest.mark.parametrize("query", ALL, ids=lambda one: f"{one.kind}{one.names}")
async def test_result_survives_encoding(catalog: FakeCatalog, query: CatalogQuery[object]):
    answer = await query.run(catalog)
    assert query.decode(query.encode(answer)) == answer


@pytest.mark.parametrize("query", ALL, ids=lambda one: f"{one.kind}{one.names}")
async def test_query_can_be_rebuilt_from_its_kind_and_names(catalog: FakeCatalog, query: CatalogQuery[object]):
    rebuilt = QUERIES_BY_KIND[query.kind](*query.names)
    assert (rebuilt.kind, rebuilt.names) == (query.kind, query.names)
    assert await rebuilt.run(catalog) == await query.run(catalog)


async def test_missing_table_parts_are_named(catalog: FakeCatalog):
    described = await catalog.table("shop", "rich")
    with raises_code("column_not_found"):
        queries.column_of(described, "nope")
    with raises_code("nested_path_not_found", match=r"^Invalid nested type path: item/x$"):
        queries.nested_type(queries.column_of(described, "tags"), ("item", "x"))
