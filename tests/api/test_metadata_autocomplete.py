"""autocomplete and describe over real engines (Contract editor 10.1, 10.2, 10.4)."""

import pytest
from tests.api.dialects import Dialect
from tests.api.driving import Caller
from tests.api.metadata_objects import SCHEMAS, Shop, make_shop
from tests.cases import each


@pytest.fixture
async def shop(ana: Caller, dialect: Dialect) -> Shop:
    """The tables of one test."""
    return await make_shop(ana, dialect)


class TestAutocomplete:
    @pytest.mark.item(60)
    async def test_databases_are_listed(self, ana: Caller, dialect: Dialect):
        body = await ana.told("editor/autocomplete", snippet=f'{{"type": "{dialect}"}}')
        assert SCHEMAS[dialect.name] in body["databases"]
        assert (body["status"], body["truncated"]) == (0, False)
        assert body == await ana.told("query/autocomplete/", snippet=f'{{"type": "{dialect}"}}')

    @pytest.mark.item(60)
    async def test_tables_and_views_of_a_database_are_listed(self, ana: Caller, shop: Shop):
        body = await ana.told(f"editor/autocomplete/{shop.schema}", snippet=shop.snippet)
        kinds = {one["name"]: (one["type"], one["comment"]) for one in body["tables_meta"]}
        assert kinds[shop.items] == ("Table", "")
        assert kinds[shop.cheap] == ("View", "")

    @pytest.mark.item(60)
    async def test_a_table_tells_columns_and_keys(self, ana: Caller, shop: Shop):
        body = await ana.told(f"editor/autocomplete/{shop.schema}/{shop.items}", snippet=shop.snippet)
        assert (body["name"], body["is_view"], body["columns"]) == (shop.items, False, ["id", "name", "owner_id"])
        assert all(body["extended_columns"][place]["type"].lower().startswith("int") for place in (0, 2))
        assert [one["primary_key"] for one in body["extended_columns"]] == [True, False, False]
        assert body["primary_keys"] == [{"name": "id"}]
        assert [(one["name"], one["to"].rpartition(".")[2]) for one in body["foreign_keys"]] == [("owner_id", "id")]
        assert body["partition_keys"] == []
        assert body["hdfs_link"] is None
        assert "pen" in body["extended_columns"][1]["default"]

    @pytest.mark.item(60)
    async def test_a_column_tells_its_base_word_and_type(self, ana: Caller, shop: Shop):
        body = await ana.told(f"editor/autocomplete/{shop.schema}/{shop.items}/name", snippet=shop.snippet)
        assert (body["name"], body["type"], body["sample"]) == ("name", "varchar", [])
        assert "item" not in body

    @pytest.mark.item(61)
    @each(
        ("path", "code"),
        [
            ("nope", "database_not_found"),
            ("nope/t", "database_not_found"),
            ("{schema}/nope", "table_not_found"),
            ("{schema}/{items}/nope", "column_not_found"),
            ("{schema}/{items}/name/item", "nested_path_not_found"),
            ("{schema}/{items}/name/item/key", "nested_path_not_found"),
        ],
    )
    async def test_unknown_names_have_codes_of_their_own(self, ana: Caller, shop: Shop, path: str, code: str):
        path = path.format(schema=shop.schema, items=shop.items)
        assert await ana.refused(f"editor/autocomplete/{path}", snippet=shop.snippet) == (404, 1, code)

    @pytest.mark.item(61)
    async def test_an_empty_database_segment_is_the_default_one(self, ana: Caller, shop: Shop):
        body = await ana.told(f"editor/autocomplete//{shop.items}/", snippet=shop.snippet)
        assert body["name"] == shop.items
        named = await ana.told(f"editor/autocomplete/{shop.schema}/{shop.items}/", snippet=shop.snippet)
        assert body == named

    async def test_the_path_of_a_wrong_nested_segment_is_told(self, ana: Caller, shop: Shop):
        answer = await ana.post(f"editor/autocomplete//{shop.items}/name/item/k", snippet=shop.snippet)
        assert answer.json()["message"] == "Invalid nested type path: item/k"
