"""Rules for all metadata calls, tested on a scripted engine (Contract editor 10)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import AsyncMock

import httpx
import pytest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.driving import Api, Caller, open_api, until, verdict
from tests.fakes.catalog import FakeCatalogEngine, table
from tests.fixtures.database import new_database

from queryserver.catalog.lookups import Lookups
from queryserver.engines.protocol import Catalog, SessionOptions
from queryserver.errors.base import QueryServerError, TooManyRequests
from queryserver.errors.statements import (
    EngineForbidden,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementRejected,
    engine_process_lost,
)
from queryserver.identity.model import User
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.statements.session_options import SessionCredentials

SHELF = {"snippet": '{"type": "shelf"}'}
LOOKS = (
    "editor/autocomplete",
    "editor/autocomplete/shop",
    "editor/autocomplete/shop/t10",
    "query/autocomplete/shop/t10/tags/item",
    "editor/describe/shop",
    "editor/describe/shop/t10",
    "editor/describe/shop/t10/stats/id",
)


@pytest.fixture(scope="module")
async def opened(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Api]:
    limits = {"metadata_timeout_s": 60, "sample_timeout_s": 60, "metadata_max_names": 3}
    async for dsn in new_database(postgres, template=migrated_template):
        async with open_api(make_settings(tmp_path_factory.mktemp("rules"), dsn, users_url, **limits)) as api:
            yield api


@pytest.fixture
async def small(opened: Api) -> Api:
    """An application with an empty metadata cache. Its scripted engine is in its initial state."""
    vars(opened.shelf).update(vars(FakeCatalogEngine(dialect=opened.shelf.dialect)))
    await opened.database.execute("delete from metadata_answers")
    return opened


@pytest.fixture
async def hasty(small_api: ApiOpener) -> AsyncIterator[Api]:
    """An application with a metadata timeout of four seconds."""
    async with small_api(metadata_timeout_s=4, sample_timeout_s=4) as api:
        yield api


def fields(path: str) -> dict[str, str]:
    """Return the fields with which a call to this path selects the connector `shelf`."""
    return {"source_type": "shelf"} if "describe" in path else SHELF


class TestLists:
    @pytest.mark.item(60)
    async def test_names_are_in_natural_case_insensitive_order(self, ana: Caller):
        body = await ana.post_ok("editor/autocomplete/shop", **SHELF)
        assert [one["name"] for one in body["tables_meta"]] == ["cheap", "items", "T2", "t10"]
        assert {one["name"]: one["type"] for one in body["tables_meta"]}["cheap"] == "View"

    async def test_list_is_truncated_at_the_limit(self, small: Api):
        ana = await small.user()
        body = await ana.post_ok("editor/autocomplete/shop", **SHELF)
        assert ([one["name"] for one in body["tables_meta"]], body["truncated"]) == (["cheap", "items", "T2"], True)

    async def test_prefix_filters_case_insensitively(self, ana: Caller):
        body = await ana.post_ok("editor/autocomplete/shop", prefix="t", **SHELF)
        assert ([one["name"] for one in body["tables_meta"]], body["truncated"]) == (["T2", "t10"], False)

    async def test_pages_are_consecutive(self, ana: Caller):
        pages = [await ana.post_ok("editor/autocomplete/shop", limit=3, page=page, **SHELF) for page in (1, 2, 3)]
        names = [[one["name"] for one in page["tables_meta"]] for page in pages]
        assert names == [["cheap", "items", "T2"], ["t10"], []]
        assert [page["truncated"] for page in pages] == [True, False, False]

    @pytest.mark.parametrize("limit", ["50001", "9" * 30])
    async def test_page_size_is_capped_at_the_maximum(self, ana: Caller, small: Api, limit: str):
        body = await ana.post_ok("editor/autocomplete/shop", limit=limit, **SHELF)
        assert (len(body["tables_meta"]), body["truncated"]) == (4, False)
        body = await (await small.user()).post_ok("editor/autocomplete/shop", limit=limit, **SHELF)
        assert (len(body["tables_meta"]), body["truncated"]) == (3, True)

    @pytest.mark.parametrize("wrong", [{"limit": "0"}, {"limit": "-1"}, {"page": "0"}, {"operation": "x"}])
    async def test_invalid_parameters_are_named(self, ana: Caller, wrong: dict[str, str]):
        answer = await ana.post("editor/autocomplete/shop", **SHELF, **wrong)
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert answer.json()["message"].startswith(next(iter(wrong)))


class TestShapes:
    @pytest.mark.item(60)
    async def test_column_describes_its_nested_type(self, ana: Caller):
        body = await ana.post_ok("editor/autocomplete/shop/t10/tags", **SHELF)
        text = {"type": "string", "native_type": "string"}
        number = {"type": "int", "native_type": "int"}
        inner = {"type": "map", "native_type": "map<string,int>", "key": text, "value": number}
        struct = {"type": "struct", "native_type": "struct<k:string,v:map<string,int>>"}
        assert (body["type"], body["native_type"]) == ("array", "array<struct<k:string,v:map<string,int>>>")
        assert body["item"] == {**struct, "fields": [{"name": "k", **text}, {"name": "v", **inner}]}
        deeper = await ana.post_ok("editor/autocomplete/shop/t10/tags/item/v/value/", **SHELF)
        assert (deeper["name"], deeper["type"], "item" in deeper) == ("value", "int", False)

    @pytest.mark.item(60)
    async def test_table_includes_partitions_keys_and_location(self, ana: Caller):
        body = await ana.post_ok("editor/autocomplete/shop/t10", **SHELF)
        assert body["partition_keys"] == [{"name": "dt", "type": "string"}]
        assert body["columns"] == ["id", "tags", "dt"]
        assert body["hdfs_link"] == "/warehouse/t10"
        assert body["extended_columns"][0]["comment"] == "a key"

    @pytest.mark.item(65)
    async def test_describe_returns_the_documented_keys(self, ana: Caller):
        database = await ana.post_ok("editor/describe/shop", source_type="shelf")
        seen = (database["db_name"], database["hdfs_link"], database["owner_name"])
        assert seen == ("shop", "/warehouse/shop.db", "etl")
        described = await ana.post_ok("editor/describe/shop/t10", source_type="shelf")
        assert described == await ana.post_ok("editor/describe/shop/t10/stats", source_type="shelf")
        assert [one["name"] for one in described["cols"]] == ["id", "tags", "dt"]
        assert described["path_location"] == "hdfs://nn/warehouse/t10"
        column = await ana.post_ok("editor/describe/shop/t10/stats/id", source_type="shelf")
        assert (column["col_name"], column["min"], column["max"], column["distinct_count"]) == ("id", "1", "99", None)

    @pytest.mark.item(65)
    async def test_connector_json_overrides_the_source_type(self, ana: Caller):
        body = await ana.post_ok("editor/describe/shop", source_type="nope", connector='{"type": "shelf"}')
        assert body["name"] == "shop"

    @pytest.mark.item(63)
    async def test_functions_are_listed_globally_and_per_database(self, ana: Caller):
        everywhere = await ana.post_ok("editor/autocomplete", operation="functions", **SHELF)
        expected = {
            "name": "abs",
            "signature": "(int)",
            "return_type": "int",
            "is_builtin": "BUILTIN",
            "is_persistent": "true",
        }
        assert everywhere["functions"] == [expected]
        assert (await ana.post_ok("editor/autocomplete/shop", operation="functions", **SHELF))["functions"] == []
        one = await ana.post_ok("editor/autocomplete/abs", operation="function", **SHELF)
        assert one["function"] == {**expected, "description": "without sign"}

    @pytest.mark.item(63)
    async def test_engine_without_functions_returns_empty_lists(self, small: Api):
        ana = await small.user()
        small.shelf.lists = False
        assert (await ana.post_ok("editor/autocomplete", operation="functions", **SHELF))["functions"] == []
        assert (await ana.post_ok("editor/autocomplete/abs", operation="function", **SHELF))["function"] == {}
        refused = await ana.refused("editor/autocomplete/nope", operation="functions", **SHELF)
        assert refused == (404, 1, "database_not_found")


class TestNames:
    @pytest.mark.item(61)
    @pytest.mark.parametrize(
        ("path", "more", "code"),
        [
            ("editor/autocomplete/nope", {}, "database_not_found"),
            ("editor/autocomplete/shop/nope", {}, "table_not_found"),
            ("editor/autocomplete/shop/t10/nope", {}, "column_not_found"),
            ("editor/autocomplete/shop/t10/tags/value", {}, "nested_path_not_found"),
            ("editor/autocomplete/nope", {"operation": "function"}, "function_not_found"),
            ("editor/autocomplete/nope", {"operation": "functions"}, "database_not_found"),
            ("editor/sample/shop/nope", {}, "table_not_found"),
            ("editor/sample/shop/t10/nope", {}, "column_not_found"),
            ("editor/sample/shop/t10/tags/value", {}, "nested_path_not_found"),
            ("shelf/analyze/shop/nope", {}, "table_not_found"),
            ("shelf/analyze/shop/t10/nope", {}, "column_not_found"),
            ("editor/describe/nope", {"source_type": "shelf"}, "database_not_found"),
            ("editor/describe/shop/t10/stats/nope", {"source_type": "shelf"}, "column_not_found"),
        ],
    )
    async def test_unknown_objects_have_error_codes(self, ana: Caller, path: str, more: dict[str, str], code: str):
        assert await ana.refused(path, **SHELF, **more) == (404, 1, code)

    @pytest.mark.item(61)
    @pytest.mark.parametrize(
        ("name", "segment"), [("a/b", "a%2Fb"), ("50%", "50%25"), ("a b", "a%20b"), ("é", "%C3%A9")]
    )
    async def test_names_may_contain_any_character(self, small: Api, name: str, segment: str):
        ana = await small.user()
        small.shelf.content["shop"][name] = table("shop", name)
        assert (await ana.post_ok(f"editor/autocomplete/shop/{segment}/", **SHELF))["name"] == name
        assert (await ana.post_ok(f"editor/describe/shop/{segment}", source_type="shelf"))["name"] == name

    @pytest.mark.item(61)
    @pytest.mark.parametrize(
        "path", ["editor/autocomplete/shop//", "editor/autocomplete/shop//id", "editor/sample/shop//"]
    )
    async def test_empty_table_name_in_path_is_not_found(self, ana: Caller, path: str):
        assert await ana.refused(path, **SHELF) == (404, -1, "not_found")

    @pytest.mark.item(8)
    async def test_connector_that_is_not_granted_looks_unknown(self, api: Api, ana: Caller):
        for path in ("editor/autocomplete", "editor/autocomplete/shop/t10", "editor/sample/shop/t10"):
            assert await ana.refused(path, snippet='{"type": "vault"}') == (404, -1, "dialect_not_found")
        assert await ana.refused("editor/describe/shop", source_type="vault") == (404, -1, "dialect_not_found")
        assert await ana.refused("vault/analyze/shop/t10") == (404, -1, "dialect_not_found")
        assert await ana.refused("editor/explain/vault", statement="rows 1") == (404, -1, "dialect_not_found")
        analyst = await api.user(groups=("analysts",))
        assert "shop" in (await analyst.post_ok("editor/autocomplete", snippet='{"type": "vault"}'))["databases"]

    @pytest.mark.item(7)
    @pytest.mark.parametrize(
        "path", [*LOOKS, "editor/sample/shop/t10", "shelf/analyze/shop/t10", "editor/explain/shelf"]
    )
    async def test_unauthenticated_calls_are_refused(self, api: Api, path: str):
        assert (await api.stranger.post(path, **fields(path))).status_code == 401


class TestFailures:
    @pytest.mark.parametrize("path", [*LOOKS, "editor/sample/shop/t10"])
    async def test_engine_without_a_catalog_is_not_supported(self, ana: Caller, path: str):
        more = {"source_type": "mysql"} if "describe" in path else {"snippet": '{"type": "mysql"}'}
        assert await ana.refused(path, **more) == (501, 5, "not_supported")

    @pytest.mark.item(70)
    @pytest.mark.parametrize(
        "path", [*LOOKS, "editor/sample/shop/t10", "shelf/analyze/shop/t10", "editor/explain/shelf"]
    )
    async def test_next_call_retries_an_engine_that_was_down(self, small: Api, path: str):
        ana = await small.user()
        small.shelf.reachable = False
        more = {"statement": "rows 1"} if "explain" in path else fields(path)
        assert await ana.refused(path, **more) == (503, -1, "engine_unavailable")
        small.shelf.reachable = True
        assert (await ana.post_ok(path, **more))["status"] == 0

    @pytest.mark.item(64)
    async def test_slow_metadata_read_is_abandoned(self, hasty: Api):
        hasty.shelf.look_s = 30
        paths = (*LOOKS, "shelf/analyze/shop/t10")
        callers = [await hasty.user() for _ in paths]
        calls = (ana.refused(path, **fields(path)) for ana, path in zip(callers, paths, strict=True))
        assert await asyncio.gather(*calls) == [(503, -4, "engine_timeout")] * len(paths)
        assert hasty.shelf.abandoned == len(hasty.shelf.looks) > 0

    @pytest.mark.item(64)
    async def test_slow_sample_is_canceled_on_the_engine(self, hasty: Api):
        ana = await hasty.user()
        hasty.shelf.sample = "sleep 30 then rows 3"
        assert await ana.refused("editor/sample/shop/t10", **SHELF) == (503, -4, "engine_timeout")
        await until(lambda: not hasty.shelf.running)
        assert hasty.shelf.cancels == 1

    @pytest.mark.parametrize(
        ("failure", "expected"),
        [
            (EngineForbidden("no right on shop"), (403, 1, "engine_forbidden")),
            (StatementRejected("the catalog is broken"), (200, 1, "engine_error")),
            (OutcomeUnknown("the connection was lost"), (503, -1, "engine_unavailable")),
        ],
    )
    async def test_engine_failures_have_their_error_codes(self, small: Api, failure, expected):
        ana = await small.user()
        small.shelf.failure = failure
        for path in LOOKS:
            assert await ana.refused(path, **fields(path)) == expected

    async def test_sample_without_read_permission_is_forbidden(self, small: Api):
        ana = await small.user()
        small.shelf.sample = "deny no right to read t10"
        assert await ana.refused("editor/sample/shop/t10", **SHELF) == (403, 1, "engine_forbidden")
        small.shelf.sample = "fail t10 is broken"
        assert await ana.refused("editor/sample/shop/t10", **SHELF) == (200, 1, "engine_error")

    async def test_statement_without_permission_fails_with_the_common_code(self, ana: Caller):
        body = await ana.run("shelf", "deny no right to read t10")
        assert (body["query_status"]["state"], body["code"]) == ("failed", "engine_error")

    @pytest.mark.item(56)
    async def test_refused_plan_is_reported_as_an_engine_error(self, ana: Caller):
        answer = await ana.post("editor/explain/shelf", statement="no plan: there is no such table")
        assert (answer.status_code, answer.json()) == (
            200,
            {
                "status": 1,
                "code": "engine_error",
                "message": "there is no such table",
                "line": None,
                "column": None,
                "statement": "no plan: there is no such table",
            },
        )

    @pytest.mark.item(59)
    @pytest.mark.parametrize("path", [*LOOKS, "editor/sample/public/t", "login/analyze/public/t"])
    async def test_source_without_credentials_requests_them_with_http_200(self, ana: Caller, path: str):
        more = {"source_type": "login"} if "describe" in path else {"snippet": '{"type": "login"}'}
        assert await ana.refused(path, **more) == (200, 401, "credentials_required")
        assert await ana.refused("editor/explain/login", statement="SELECT 1") == (200, 401, "credentials_required")

    @pytest.mark.item(71)
    @pytest.mark.parametrize("path", LOOKS)
    async def test_unknown_fields_change_nothing(self, ana: Caller, path: str):
        assert await ana.post_ok(path, **fields(path)) == await ana.post_ok(
            path, **fields(path), surplus="x", Async="1"
        )


async def joined(api: Api, count: int) -> None:
    """Wait until this number of calls wait for lookups that they share."""
    calls = api.services.metadata.lookups._single_flight._joinable
    await until(lambda: sum(call.waiting for call in calls.values()) == count)


class TestCache:
    @pytest.mark.parametrize("path", LOOKS)
    async def test_second_read_is_served_from_the_cache(self, small: Api, path: str):
        ana = await small.user()
        first = await ana.post_ok(path, **fields(path))
        looks = len(small.shelf.looks)
        assert await ana.post_ok(path, **fields(path)) == first
        assert len(small.shelf.looks) == looks > 0

    async def test_concurrent_equal_calls_query_the_engine_once(self, small: Api):
        ana = await small.user()
        small.shelf.may_look.clear()
        calls = [asyncio.create_task(ana.post_ok("editor/autocomplete/shop", **SHELF)) for _ in range(20)]
        await joined(small, 20)
        small.shelf.may_look.set()
        answers = await asyncio.gather(*calls)
        assert small.shelf.looks == ["tables shop"]
        assert all(answer == answers[0] for answer in answers)

    @pytest.mark.parametrize(
        "differs", ["wants_credentials", "wants_external_token", "acts_as_caller", "reads_files", None]
    )
    async def test_users_share_the_cache_if_they_see_the_same(self, small: Api, monkeypatch, differs: str | None):
        ana, bob = await small.user(), await small.user()
        capabilities = replace(small.shelf.capabilities, **({differs: True} if differs else {}))
        monkeypatch.setattr(small.shelf, "_capabilities", capabilities)
        monkeypatch.setattr(Lookups, "_login", AsyncMock(return_value=""))
        monkeypatch.setattr(SessionCredentials, "options", AsyncMock(return_value=SessionOptions()))
        await ana.post_ok("editor/autocomplete/shop", **SHELF)
        await bob.post_ok("editor/autocomplete/shop", **SHELF)
        assert len(small.shelf.looks) == (2 if differs else 1)

    async def test_equal_calls_of_many_users_query_the_engine_once(self, small: Api):
        users = [await small.user() for _ in range(10)]
        small.shelf.may_look.clear()
        calls = [asyncio.create_task(one.post_ok("editor/autocomplete/shop", **SHELF)) for one in users]
        await joined(small, 10)
        small.shelf.may_look.set()
        answers = await asyncio.gather(*calls)
        assert small.shelf.looks == ["tables shop"]
        assert all(answer == answers[0] for answer in answers)

    @pytest.mark.parametrize(
        ("failure", "is_personal"),
        [
            (TooManyRequests("Retry in 5 seconds."), True),
            (SessionLost("The session is gone."), True),
            (engine_process_lost(), True),
            (EngineUnavailable("The data source is down."), False),
        ],
        ids=lambda one: getattr(one, "code", ""),
    )
    async def test_limits_and_lost_sessions_of_one_user_do_not_concern_others(
        self, small: Api, monkeypatch, failure: QueryServerError, is_personal: bool
    ):
        users, original = [await small.user() for _ in range(3)], FakeCatalogEngine.catalog

        @asynccontextmanager
        async def catalog(self: FakeCatalogEngine, user: User, options: SessionOptions) -> AsyncIterator[Catalog]:
            async with original(self, user, options) as opened:
                await self.may_look.wait()
                if user.username == users[0].username:
                    raise failure
                yield opened

        monkeypatch.setattr(FakeCatalogEngine, "catalog", catalog)
        small.shelf.may_look.clear()
        calls = list[asyncio.Task[httpx.Response]]()
        for number, one in enumerate(users, start=1):
            calls.append(asyncio.create_task(one.post("editor/autocomplete/shop", **SHELF)))
            await joined(small, number)
        small.shelf.may_look.set()
        first, *others = await asyncio.gather(*calls)
        assert first.json()["code"] in {failure.code, "engine_unavailable"}
        if is_personal:
            assert [(one.status_code, len(one.json()["tables_meta"])) for one in others] == [(200, 3)] * 2
        else:
            assert [one.json() for one in others] == [first.json()] * 2

    async def test_change_by_one_user_updates_the_cache_of_all(self, small: Api):
        ana, bob = await small.user(), await small.user()
        await ana.post_ok("editor/autocomplete/default", **SHELF)
        small.shelf.content["default"]["made"] = table("default", "made")
        await bob.run("shelf", "ddl")
        assert len((await ana.post_ok("editor/autocomplete/default", **SHELF))["tables_meta"]) == 1

    async def test_refresh_reads_again_and_updates_the_cache(self, small: Api):
        ana = await small.user()
        await ana.post_ok("editor/autocomplete/default", **SHELF)
        small.shelf.content["default"]["made"] = table("default", "made")
        kept = await ana.post_ok("editor/autocomplete/default", **SHELF)
        fresh = await ana.post_ok("editor/autocomplete/default", refresh="true", **SHELF)
        again = await ana.post_ok("editor/autocomplete/default", **SHELF)
        assert [len(body["tables_meta"]) for body in (kept, fresh, again)] == [0, 1, 1]

    async def test_failure_is_not_cached(self, small: Api):
        ana = await small.user()
        assert (await ana.refused("editor/autocomplete/shop/made", **SHELF))[0] == 404
        small.shelf.content["shop"]["made"] = table("shop", "made")
        assert (await ana.post_ok("editor/autocomplete/shop/made", **SHELF))["name"] == "made"

    async def test_sample_rows_are_never_cached(self, small: Api):
        ana = await small.user()
        for _ in range(2):
            assert (await ana.post_ok("editor/sample/shop/t10", **SHELF))["rows"] == [[0], [1], [2]]
        assert small.shelf.executions == ["rows 3", "rows 3"]
        assert await small.database.value("select count(*) from metadata_answers") == 0

    async def test_completed_ddl_updates_the_cache_on_every_server(self, small_api: ApiOpener):
        async with small_api() as here, small_api() as there:
            ana = await here.user()
            elsewhere = Caller(there, ana.username, ana.headers)
            for api in (here, there):
                assert isinstance(api.shelf, FakeCatalogEngine)
            await elsewhere.post_ok("editor/autocomplete/default", **SHELF)
            there.shelf.content["default"]["made"] = table("default", "made")
            assert (await elsewhere.post_ok("editor/autocomplete/default", **SHELF))["tables_meta"] == []
            await ana.run("shelf", "ddl")
            assert len((await elsewhere.post_ok("editor/autocomplete/default", **SHELF))["tables_meta"]) == 1

    async def test_read_started_before_a_change_is_not_reused_after_it(self, small_api: ApiOpener):
        async with small_api() as api:
            ana = await api.user()
            api.shelf.may_look.clear()
            early = asyncio.create_task(ana.post_ok("editor/autocomplete/default", **SHELF))
            await until(lambda: len(api.shelf.looks) == 1)
            await ana.run("shelf", "ddl")
            late = asyncio.create_task(ana.post_ok("editor/autocomplete/default", **SHELF))
            await until(lambda: len(api.shelf.looks) == 2)
            api.shelf.may_look.set()
            assert (await early)["tables_meta"] == (await late)["tables_meta"] == []
