"""Metadata calls on real engines (Contract editor 8.3, 10.1 to 10.5)."""

import asyncio
from collections.abc import Mapping

import pytest
from tests.api.dialects import ALL, POSTGRESQL, SQLITE, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict
from tests.api.metadata_objects import SCHEMAS, Shop, make_shop

SHELF = {"snippet": '{"type": "shelf"}'}

every_shop = pytest.mark.parametrize("shop", ALL, indirect=True, ids=str)
"""Runs a test once for each dialect. The test's argument `shop` contains the tables of the dialect."""


@pytest.fixture(scope="module")
async def shops(api: Api) -> Mapping[Dialect, Shop]:
    ana = await api.user("ana")
    return {dialect: await make_shop(ana, dialect) for dialect in ALL}


@pytest.fixture
def shop(shops: Mapping[Dialect, Shop], request: pytest.FixtureRequest) -> Shop:
    """The tables of the dialect under test."""
    return shops[request.param]


class TestAutocomplete:
    @pytest.mark.item(60)
    @every_dialect
    async def test_databases_are_listed(self, ana: Caller, dialect: Dialect):
        body = await ana.post_ok("editor/autocomplete", snippet=f'{{"type": "{dialect}"}}')
        assert SCHEMAS[dialect.name] in body["databases"]
        assert (body["status"], body["truncated"]) == (0, False)
        assert body == await ana.post_ok("query/autocomplete/", snippet=f'{{"type": "{dialect}"}}')

    @pytest.mark.item(60)
    @every_shop
    async def test_tables_and_views_of_a_database_are_listed(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/autocomplete/{shop.schema}", snippet=shop.snippet)
        kinds = {one["name"]: (one["type"], one["comment"]) for one in body["tables_meta"]}
        assert kinds[shop.items] == ("Table", "")
        assert kinds[shop.cheap] == ("View", "")

    @pytest.mark.item(60)
    @every_shop
    async def test_table_includes_columns_and_keys(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/autocomplete/{shop.schema}/{shop.items}", snippet=shop.snippet)
        assert (body["name"], body["is_view"], body["columns"]) == (shop.items, False, ["id", "name", "owner_id"])
        assert all(body["extended_columns"][place]["type"].lower().startswith("int") for place in (0, 2))
        assert [one["primary_key"] for one in body["extended_columns"]] == [True, False, False]
        assert body["primary_keys"] == [{"name": "id"}]
        assert [(one["name"], one["to"].rpartition(".")[2]) for one in body["foreign_keys"]] == [("owner_id", "id")]
        assert body["partition_keys"] == []
        assert body["hdfs_link"] is None
        assert "pen" in body["extended_columns"][1]["default"]

    @pytest.mark.item(60)
    @every_shop
    async def test_column_has_its_base_type_name(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/autocomplete/{shop.schema}/{shop.items}/name", snippet=shop.snippet)
        assert (body["name"], body["type"], body["sample"]) == ("name", "varchar", [])
        assert "item" not in body

    @pytest.mark.item(61)
    @pytest.mark.parametrize(
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
    @every_shop
    async def test_unknown_names_have_specific_error_codes(self, ana: Caller, shop: Shop, path: str, code: str):
        path = path.format(schema=shop.schema, items=shop.items)
        assert await ana.refused(f"editor/autocomplete/{path}", snippet=shop.snippet) == (404, 1, code)

    @pytest.mark.item(61)
    @every_shop
    async def test_empty_database_segment_selects_the_default_database(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/autocomplete//{shop.items}/", snippet=shop.snippet)
        assert body["name"] == shop.items
        named = await ana.post_ok(f"editor/autocomplete/{shop.schema}/{shop.items}/", snippet=shop.snippet)
        assert body == named

    @every_shop
    async def test_invalid_nested_path_is_reported(self, ana: Caller, shop: Shop):
        answer = await ana.post(f"editor/autocomplete//{shop.items}/name/item/k", snippet=shop.snippet)
        assert answer.json()["message"] == "Invalid nested type path: item/k"


class TestSample:
    @pytest.mark.item(64)
    @every_shop
    async def test_table_sample_matches_a_fetch(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/sample/{shop.schema}/{shop.items}", snippet=shop.snippet)
        result = await ana.result(shop.dialect, f"SELECT * FROM {shop.items}")
        assert (body["rows"], body["full_headers"]) == (result["data"], result["meta"])
        assert (body["headers"], body["message"], body["isEscaped"]) == (["id", "name", "owner_id"], "", False)

    @pytest.mark.item(64)
    @pytest.mark.parametrize(
        ("operation", "rows"),
        [
            ("default", [["ink"], ["pen"], [None]]),
            ('"distinct"', [["ink"], ["pen"], [None]]),
            ("max", [["pen"]]),
            ("min", [["ink"]]),
        ],
    )
    @every_shop
    async def test_column_sample_returns_values(
        self, ana: Caller, shop: Shop, operation: str, rows: list[list[str | None]]
    ):
        body = await ana.post_ok(
            f"editor/sample/{shop.schema}/{shop.items}/name", snippet=shop.snippet, operation=operation
        )
        assert (body["headers"], body["rows"]) == (["name"], rows)

    @pytest.mark.item(64)
    @every_shop
    async def test_sample_has_at_most_a_hundred_rows(self, ana: Caller, shop: Shop):
        await ana.run(shop.dialect, f"CREATE TABLE many_{shop.items} AS {shop.dialect.rows(101)}")
        body = await ana.post_ok(f"editor/sample/{shop.schema}/many_{shop.items}", snippet=shop.snippet)
        assert len(body["rows"]) == 100

    @every_shop
    async def test_sample_can_be_escaped(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/sample//{shop.items}/name", snippet=shop.snippet, escape="true")
        assert (body["isEscaped"], body["rows"][-1]) == (True, ["NULL"])

    @every_dialect
    async def test_hello_operation_reads_no_table(self, ana: Caller, dialect: Dialect):
        body = await ana.post_ok("editor/sample/no/such", snippet=f'{{"type": "{dialect}"}}', operation="hello")
        assert body["rows"] == [["Hello World!"]]

    @pytest.mark.item(64)
    @every_shop
    async def test_async_sample_starts_an_operation(self, ana: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/sample//{shop.items}", snippet=shop.snippet, **{"async": "true"})
        operation = body["operationId"]
        assert body["history_uuid"] == operation
        assert (await ana.ended(operation))["query_status"]["state"] == "available"
        assert (await ana.page(operation))["rows_total"] == 3
        assert operation not in [one["uuid"] for one in (await ana.history())["history"]]

    @pytest.mark.item(42)
    @every_shop
    async def test_async_sample_belongs_to_its_owner(self, ana: Caller, bob: Caller, shop: Shop):
        body = await ana.post_ok(f"editor/sample//{shop.items}", snippet=shop.snippet, **{"async": "true"})
        for call in ("check_status", "fetch_result_data"):
            refused = await bob.refused(f"editor/{call}", operationId=body["operationId"])
            assert refused == (404, 2, "operation_not_found")

    @pytest.mark.parametrize("operation", ["distinct", "max", "min", "mean"])
    async def test_value_operations_require_a_column(self, ana: Caller, operation: str):
        refused = (await ana.refused("editor/sample/shop/t10", operation=operation, **SHELF))[::2]
        assert refused == (400, "invalid_parameter")

    @every_shop
    async def test_views_are_sampled_unless_disabled(self, ana: Caller, shop: Shop, small_api):
        assert len((await ana.post_ok(f"editor/sample//{shop.cheap}", snippet=shop.snippet))["rows"]) == 3
        async with small_api(sample_views=False) as api:
            caller = await api.user()
            for is_async in ("false", "true"):
                body = await caller.post_ok("editor/sample/shop/cheap", **SHELF, **{"async": is_async})
                assert (body["rows"], bool(body["message"])) == ([], True)
            assert api.shelf.executions == []

    @pytest.mark.item(64)
    async def test_sample_of_an_unreadable_path_is_not_supported(self, ana: Caller):
        refused = await ana.refused("editor/sample/shop/t10/tags/item/k", **SHELF)
        assert refused == (501, 5, "not_supported")

    @pytest.mark.item(62)
    @every_dialect
    async def test_unusual_names_are_quoted_safely(self, ana: Caller, dialect: Dialect):
        for name in ("o'brien", 'x"y', "a`b", "t;drop", "a.b"):
            quoted = '"' + name.replace('"', '""') + '"'
            assert (await ana.run(dialect, f"CREATE TABLE {quoted} AS SELECT 7 AS {quoted}"))["status"] == 0
            snippet = f'{{"type": "{dialect}"}}'
            path = name.replace(";", "%3B")
            assert (await ana.post_ok(f"editor/autocomplete//{path}/{path}", snippet=snippet))["name"] == name
            assert (await ana.post_ok(f"editor/describe//{path}", source_type=str(dialect)))["name"] == name
            for below in ("", f"/{path}"):
                sample = await ana.post_ok(f"editor/sample//{path}{below}", snippet=snippet)
                assert (sample["headers"], sample["rows"]) == ([name], [[7]])
            started = await ana.post_ok(f"{dialect}/analyze//{path}")
            assert (await ana.ended(started["operationId"]))["query_status"]["state"] == "success"
            await ana.run(dialect, f"DROP TABLE {quoted}")


class TestAnalyze:
    @pytest.mark.item(66)
    @every_shop
    async def test_table_analysis_can_be_watched_until_success(self, ana: Caller, shop: Shop):
        started = await ana.post_ok(f"{shop.dialect}/analyze/{shop.schema}/{shop.items}")
        assert started["watch_url"] == f"/api/v1/editor/watch/{started['operationId']}"
        watched = {"isSuccess": False, "isFailure": False}
        async with asyncio.timeout(30):
            while not (watched["isSuccess"] or watched["isFailure"]):
                watched = (await ana.send("POST", started["watch_url"])).json()
        assert (watched["isSuccess"], watched["id"]) == (True, started["history_id"])
        assert started["operationId"] not in [one["uuid"] for one in (await ana.history())["history"]]

    @pytest.mark.item(66)
    async def test_new_statistics_appear_in_describe_immediately(self, ana: Caller):
        shop = await make_shop(ana, POSTGRESQL)
        path = f"editor/describe/public/{shop.items}/stats/name"
        before = await ana.post_ok(path, source_type="postgresql")
        assert (before["num_nulls"], bool(before["message"])) == (None, True)
        started = await ana.post_ok(f"postgresql/analyze/public/{shop.items}/name")
        await ana.ended(started["operationId"])
        after = await ana.post_ok(path, source_type="postgresql")
        assert (after["num_nulls"], after["distinct_count"]) == (1, 2)

    @pytest.mark.item(66)
    async def test_column_statistics_return_501_where_unsupported(self, ana: Caller):
        shop = await make_shop(ana, SQLITE)
        assert await ana.refused(f"sqlite/analyze/main/{shop.items}/id") == (501, 5, "not_supported")

    @pytest.mark.item(66)
    @every_shop
    async def test_analysis_of_unknown_objects_starts_nothing(self, ana: Caller, shop: Shop):
        assert await ana.refused(f"{shop.dialect}/analyze/{shop.schema}/nope") == (404, 1, "table_not_found")
        unknown = await ana.refused(f"{shop.dialect}/analyze/{shop.schema}/{shop.items}/nope")
        assert unknown == (404, 1, "column_not_found")

    async def test_fixed_words_take_precedence_over_dialects(self, ana: Caller):
        assert await ana.refused("nope/analyze/a/b") == (404, -1, "dialect_not_found")
        assert await ana.refused("%20/analyze/a/b") == (404, -1, "dialect_not_found")
        assert (await ana.get("shelf/analyze/a/b")).status_code == 405


class TestExplain:
    @pytest.mark.item(56)
    @every_shop
    async def test_explain_returns_the_plan_of_the_first_statement(self, ana: Caller, shop: Shop):
        statement = f"SELECT * FROM {shop.items} WHERE id = 1"
        body = await ana.post_ok(f"editor/explain/{shop.dialect}", statement=f" {statement} ; SELECT 2")
        assert body["statement"] == statement
        assert shop.items in body["explanation"]

    @pytest.mark.item(56)
    @every_shop
    async def test_explain_executes_nothing(self, ana: Caller, shop: Shop):
        changes = (
            f"DELETE FROM {shop.items}",
            f"UPDATE {shop.items} SET name = 'gone'; DELETE FROM {shop.items}",
            f"INSERT INTO {shop.items} VALUES (9, 'new', 1)",
            f"CREATE TABLE new_{shop.items} AS SELECT 1 AS a",
        )
        before = (await ana.result(shop.dialect, f"SELECT * FROM {shop.items}"))["data"]
        for statement in changes:
            assert (await ana.post_ok(f"editor/explain/{shop.dialect}", statement=statement))["status"] == 0
        assert (await ana.result(shop.dialect, f"SELECT * FROM {shop.items}"))["data"] == before
        unknown = await ana.post_ok(f"editor/explain/{shop.dialect}", statement=f"SELECT * FROM new_{shop.items}")
        assert unknown["code"] == "engine_error"

    @pytest.mark.item(56)
    @pytest.mark.parametrize(
        "smuggled",
        [
            "EXPLAIN SELECT 1",
            "/* a */ explain select 1",
            "ANALYZE DELETE FROM {items}",
            "/* a */ -- b\n ANALYZE DELETE FROM {items}",
            "(ANALYZE) DELETE FROM {items}",
            "(ANALYZE, FORMAT JSON) DELETE FROM {items}",
            "(/* a */ ANALYZE true) DELETE FROM {items}",
            '("analyze") DELETE FROM {items}',
            '(U&"\\0061nalyze") DELETE FROM {items}',
            "VERBOSE ANALYZE DELETE FROM {items}",
            "EXPLAIN ANALYZE DELETE FROM {items}",
        ],
    )
    @every_shop
    async def test_explain_refuses_statements_that_would_run(self, ana: Caller, shop: Shop, smuggled: str):
        refused = await ana.post(f"editor/explain/{shop.dialect}", statement=smuggled.format(items=shop.items))
        assert verdict(refused) == (400, -1, "invalid_parameter")
        assert len((await ana.result(shop.dialect, f"SELECT * FROM {shop.items}"))["data"]) == 3

    @pytest.mark.item(56)
    @every_dialect
    async def test_explain_reports_engine_errors(self, ana: Caller, dialect: Dialect):
        for statement in ("SELECT * FROM no_such_table", "SELEC 1"):
            body = await ana.post_ok(f"editor/explain/{dialect}", statement=statement)
            assert (body["status"], body["code"], body["statement"]) == (1, "engine_error", statement)
            assert body["message"]

    async def test_explain_accepts_the_full_form_and_the_default_connector(self, ana: Caller):
        snippet = {"type": "sqlite", "statement": "SELECT 1"}
        assert (await ana.post_json("editor/explain", snippet=snippet)).json()["statement"] == "SELECT 1"
        assert (await ana.post_ok("editor/explain", statement="SELECT 1"))["status"] == 0
        for missing in ({}, {"statement": " "}):
            assert await ana.refused("editor/explain/sqlite", **missing) == (400, -1, "missing_parameter")
        assert await ana.refused("editor/explain/sqlite", statement="-- a") == (400, -1, "invalid_parameter")

    async def test_explain_in_a_session_sees_its_temporary_tables(self, ana: Caller, bob: Caller):
        session = (await ana.post_json("editor/create_session", session={"type": "postgresql"})).json()["session"]["id"]
        await ana.run("postgresql", "CREATE TEMPORARY TABLE only_here (a int)", session_id=session)
        statement = "SELECT * FROM only_here"
        body = await ana.post_ok("editor/explain/postgresql", statement=statement, session_id=session)
        assert "only_here" in body["explanation"]
        assert (await ana.post_ok("editor/explain/postgresql", statement=statement))["status"] == 1
        refused = await bob.refused("editor/explain/postgresql", statement=statement, session_id=session)
        assert refused == (404, -1, "session_not_found")
        await ana.post_json("editor/close_session", session={"type": "postgresql", "id": session})
        gone = await ana.post_ok("editor/explain/postgresql", statement=statement, session_id=session)
        assert (gone["status"], gone["code"]) == (1, "session_lost")

    async def test_explain_uses_the_current_database(self, ana: Caller):
        body = await ana.post_ok("editor/explain/postgresql", statement="SELECT * FROM pg_class", database="pg_catalog")
        assert body["status"] == 0
        assert (await ana.history())["count"] == 0
