"""The query language, documents, sources and encodings of metadata searches (Contract platform 1.2, 8.1, 8.3, 8.4)."""

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, browse, described, found, stock

from queryserver.catalog.browser import LookupSource, NameFilter
from queryserver.identity.model import User
from queryserver.search.model import Search, position_of
from queryserver.search.query_language import folded, parse_query
from queryserver.search.sources import HistorySource

SQL = '["sql"]'


@pytest.fixture
async def stocked(api: Api, ana: Caller) -> Caller:
    stock(api.shelf)
    await browse(ana, web=["sample_07", "sample_08", "resample"], shop=["orders"])
    return ana


@pytest.mark.platform(91)
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("sample type:table", ["web.sample_07", "web.sample_08"]),
        ('"*sample" type:table', ["web.sample_07", "web.sample_08"]),
        ("s?mple*07 type:table", ["web.sample_07"]),
        ('"x|y" type:table', ["web.sample_08"]),
        ('type:table "figures of"', ["web.sample_08"]),
        ("type:view", ["web.resample"]),
        ("type:view type:database", ["shop", "web", "web.resample"]),
        ("owner:ana", ["web.sample_07", "web.sample_07.code", "web.sample_07.salary"]),
        ("owner:a* salary", ["web.sample_07.salary"]),
        ("owner:an", []),
        (r"a\*b", ["web.resample.a*b"]),
        ("(x|y)+", ["web.sample_08"]),
        ("(x.y)+", []),
        ("figures.of", []),
        ("db:web table:sample_08 type:field", ["web.sample_08.code"]),
        ("source:shelf code", ["web.sample_07.code", "web.sample_08.code"]),
        ("source:hive code", []),
        ("tag:x", []),
        ("web.sample_07.c", ["web.sample_07.code"]),
        ("SAMPLE_0 CODE", ["web.sample_07.code", "web.sample_08.code"]),
        ("color:red", []),
        ("%", []),
        ("sample__07", []),
    ],
)
async def test_terms_and_filters_select_matches(stocked: Caller, text: str, names: list[str]) -> None:
    assert await found(stocked, text, sources=SQL) == names


@pytest.mark.platform(91)
async def test_better_name_matches_rank_first(stocked: Caller) -> None:
    seen = await found(stocked, "sample", sources=SQL, limit=4)
    assert seen == ["web.sample_07", "shop.orders.sample_size", "web.sample_08", "web.resample"]


@pytest.mark.platform(91)
@pytest.mark.parametrize("text", ["x" * 1001, " ".join("abcdefghijklmnopqrstu")])
async def test_long_queries_are_refused(stocked: Caller, text: str) -> None:
    assert await stocked.refused(CALL, query_s=text) == (400, -1, "invalid_parameter")


@pytest.mark.platform(92)
async def test_facets_count_all_matches(stocked: Caller) -> None:
    body = await stocked.post_ok(
        CALL, query_s="sample", sources=SQL, limit=1, field_facets='["type", "owner", "lastModified", "color"]'
    )
    assert body["facets"] == {
        "type": {"FIELD": 5, "TABLE": 2, "VIEW": 1},
        "owner": {"ana": 3, "bob": 2},
        "lastModified": {"older": 5, "year": 3},
    }
    assert list(body["facets"]["type"]) == ["FIELD", "TABLE", "VIEW"]
    assert (body["count"], body["totalMatched"]) == (1, 8)
    assert body["warnings"] == ["Facet color does not exist."]


@pytest.mark.platform(92)
async def test_prefix_narrows_only_facets(stocked: Caller) -> None:
    body = await stocked.post_ok(CALL, query_s="sample", sources=SQL, field_facets='["type"]', prefix="ta")
    assert body["facets"] == {"type": {"TABLE": 2}}
    assert body["totalMatched"] == 8


@pytest.mark.platform(93)
async def test_pages_contain_every_match_once(api: Api, ana: Caller) -> None:
    api.shelf.content = {"many": {f"item_{number:02}": described("many", f"item_{number:02}") for number in range(35)}}
    await browse(ana, many=[])
    pages = [await found(ana, "item", sources=SQL, limit=10, offset=start) for start in range(0, 40, 10)]
    assert [len(page) for page in pages] == [10, 10, 10, 5]
    assert [name for page in pages for name in page] == [f"many.item_{number:02}" for number in range(35)]


@pytest.mark.platform(93)
@pytest.mark.parametrize("fields", [{"limit": 0}, {"offset": 10_000, "limit": 10}, {"offset": -1}])
async def test_out_of_range_parameters_are_refused(ana: Caller, fields: dict[str, int]) -> None:
    assert await ana.refused(CALL, **fields) == (400, -1, "invalid_parameter")


@pytest.mark.platform(93)
@pytest.mark.parametrize(("fields", "limit"), [({"limit": 10**30}, 1000), ({"offset": 9999, "limit": 10}, 1)])
async def test_page_size_is_capped_at_the_maximum(ana: Caller, fields: dict[str, int], limit: int) -> None:
    assert (await ana.post_ok(CALL, **fields))["limit"] == limit


@pytest.mark.platform(95)
@pytest.mark.security("T31")
async def test_em_is_the_only_markup(api: Api, ana: Caller) -> None:
    api.shelf.content = {"web": {"<b>x": described("web", "<b>x", comment='<script>"&')}}
    await browse(ana, web=[])
    body = await ana.post_ok(CALL, query_s="b", sources=SQL, limit=1)
    assert body["results"][0]["hue_name"] == "we<em>b</em>.&lt;<em>b</em>&gt;x" or body["results"][0]["name"] == "web"
    body = await ana.post_ok(CALL, query_s="type:table <b>", sources=SQL)
    shown = body["results"][0]
    assert shown["hue_name"] == "web.<em>&lt;b&gt;</em>x"
    assert shown["originalName"] == "web.<b>x"
    assert shown["hue_description"] == "&lt;script&gt;&quot;&amp;"


FIELDS: dict[str, Any] = {
    "query_s": "sample*",
    "sources": ["sql"],
    "field_facets": ["type", "owner"],
    "limit": 3,
    "offset": 1,
}


@pytest.mark.platform(2)
async def test_searches_are_equivalent_in_every_encoding(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await browse(ana, web=["sample_07", "sample_08"], shop=["orders"])
    texts = {name: value if isinstance(value, str | int) else json.dumps(value) for name, value in FIELDS.items()}
    form = (await ana.post(CALL, **texts)).json()
    assert len(form["results"]) == 3
    assert form["facets"]["type"].keys() >= {"TABLE", "FIELD"}
    assert (await ana.post_json(CALL, **texts)).json() == form
    assert (await ana.post_json(CALL, **FIELDS)).json() == form


_DOCUMENTS = '["documents"]'


async def _user_id(api: Api, caller: Caller) -> int:
    return await api.database.value("select id from users where username_key = $1", caller.username)


@pytest.mark.platform(91)
async def test_document_name_ranking_follows_the_term_rules(api: Api, ana: Caller) -> None:
    run = await ana.run("duckdb", "SELECT 1")
    source = HistorySource(api.database, api.services.threads.searching)
    user = User(await _user_id(api, ana), ana.username)
    chance = random.Random(9)
    seen: set[int] = set()
    for _ in range(150):
        text = "".join(chance.choices("abAB_.-'\n \täÄ", k=chance.randrange(1, 12)))
        pattern = "".join(chance.choices("abBäÄ*?", k=chance.randrange(1, 3)))
        query = parse_query(pattern)
        statement = f"x{text}" if chance.random() < 0.5 else text
        await api.database.execute(
            "update statements set statement = $2 where id = $1::uuid", run["history_uuid"], statement
        )
        found = await source.search(user, Search(query, datetime.now(UTC), limit=1))
        for one in found.matches:
            assert one.position == position_of(query.terms, " ".join(statement.split())), (statement, pattern)
            seen.add(one.position)
    assert seen >= {0, 1, 2, 3}


@pytest.mark.platform(91)
async def test_better_documents_rank_first_and_pages_do_not_overlap(ana: Caller) -> None:
    """The documents are created in order of their rank, from the best match to the worst: the exact name, the start of
    the name, the start of a word, the inside of a word, outside the name.
    """
    texts = ["select 1", "select 1 + 1", "(select 1) union all select 2", "values ('Xselect 1')"]
    texts.append(f"values ({', '.join(str(number) for number in range(100, 150))}) -- select 1")
    for text in texts:
        await ana.run("duckdb", text)
    asked = {"query_s": '"\\"SELECT 1\\""', "sources": _DOCUMENTS}
    whole = await ana.post_ok(CALL, **asked)
    assert [one["name"] for one in whole["results"]] == [text[:100] for text in texts]
    pages = [await ana.post_ok(CALL, **asked, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [one for page in pages for one in page["results"]] == whole["results"]
    assert {page["totalMatched"] for page in pages} == {5}


@pytest.mark.platform(92)
async def test_document_age_facets_count_all_matches(api: Api, ana: Caller) -> None:
    for days in (0, 3, 20, 200, 700):
        run = await ana.run("duckdb", f"select 'aged', {days}")
        await api.database.execute(
            "update statements set recorded_at = recorded_at - make_interval(days => $2) where id = $1::uuid",
            run["history_uuid"],
            days,
        )
    body = await ana.post_ok(CALL, query_s="aged", sources=_DOCUMENTS, field_facets='["lastModified"]', limit=1)
    assert body["facets"]["lastModified"] == {"month": 1, "older": 1, "today": 1, "week": 1, "year": 1}


@pytest.mark.platform(91)
async def test_phrases_match_across_a_statements_line_breaks(ana: Caller, bob: Caller) -> None:
    """The name of a document is its statement, in which a space replaces each line break."""
    await ana.run("duckdb", "SELECT 1\n  AS lined,\t2,\r\n'äö\n3'")
    await ana.run("duckdb", "SELECT 1, 2 AS lined")
    for text in ('"1 as lined, 2"', '"1 AS l?ned,"', '"1*lined, 2"', '"ÄÖ 3"', '"1 as" "lined, 2"'):
        body = await ana.post_ok(CALL, query_s=json.dumps(text), sources=_DOCUMENTS)
        assert [one["name"] for one in body["results"]] == ["SELECT 1 AS lined, 2, 'äö 3'"], text
        assert "<em>" in body["results"][0]["hue_name"]
        assert await bob.post_ok(CALL, query_s=json.dumps(text), sources=_DOCUMENTS) == body | {
            "results": [], "count": 0, "totalMatched": 0, "sources": body["sources"] | {
                "documents": body["sources"]["documents"] | {"matched": 0},
            },
        }  # fmt: skip


async def test_excerpt_shows_the_match_at_any_distance(ana: Caller) -> None:
    """The short prefix of this wildcard pattern occurs everywhere. Therefore the longest literal locates the match."""
    await ana.run("duckdb", f"select 's' -- {'so on, ' * 100}\n, 'salary of the month'")
    body = await ana.post_ok(CALL, query_s="s*salary?of", sources=_DOCUMENTS)
    assert "salary of</em> the month" in body["results"][0]["hue_description"]


@pytest.mark.platform(90)
@pytest.mark.parametrize("sources", [None, "[]", '["documents", "sql", "hdfs", "s3"]'])
async def test_documents_and_objects_appear_in_one_list(api: Api, ana: Caller, sources: str | None) -> None:
    stock(api.shelf)
    await browse(ana, web=["sample_07"])
    await ana.run("duckdb", "SELECT 1 AS sample")
    body = await ana.post_ok(CALL, query_s="sample_07", **({} if sources is None else {"sources": sources}))
    assert list(body["sources"]) == ["documents", "sql", "hdfs", "s3"]
    assert body["sources"]["sql"] == {"ok": True, "matched": 3, "truncated": False, "message": ""}
    assert body["sources"]["hdfs"] == {"ok": False, "matched": 0, "truncated": False, "message": "Not configured."}
    body = await ana.post_ok(CALL, query_s="sample", **({} if sources is None else {"sources": sources}))
    assert {one["type"] for one in body["results"]} >= {"HUE", "TABLE", "FIELD"}
    assert body["totalMatched"] == body["count"] == sum(one["matched"] for one in body["sources"].values())


async def test_only_documents_are_found_without_the_right(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await browse(ana, web=[])
    await api.database.execute("update group_rights set \"right\" = 'meta' where \"right\" = 'metadata'")
    try:
        body = await ana.post_ok(CALL, query_s="sample")
        alone = await ana.refused(CALL, query_s="sample", sources=SQL)
        dummy = await ana.post_ok(CALL, query_s="sample", interface="dummy")
    finally:
        await api.database.execute("update group_rights set \"right\" = 'metadata' where \"right\" = 'meta'")
    assert not body["sources"]["sql"]["ok"]
    assert alone == (403, -1, "permission_denied")
    # The test catalog contains nothing that is hidden because of missing permissions.
    assert all(one["ok"] for one in dummy["sources"].values())


async def test_dialect_sources_limit_the_sql_search(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await browse(ana, web=[])
    assert await found(ana, "sample_07", sources='["shelf"]') == ["web.sample_07"]
    assert await found(ana, "sample_07", sources='["hive"]') == []
    assert await ana.refused(CALL, sources='["cellar"]') == (400, -1, "invalid_parameter")
    assert await ana.refused(CALL, sources="[1") == (400, -1, "invalid_json")


async def test_json_bodies_accept_native_arrays(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await browse(ana, web=[])
    response = await ana.post_json(CALL, query_s='"sample_07"', sources=["sql"], field_facets=["type"], limit="2")
    assert response.json()["facets"] == {"type": {"TABLE": 1}}


@pytest.mark.platform(94)
async def test_other_users_history_is_never_found(ana: Caller, bob: Caller) -> None:
    await ana.run("duckdb", "SELECT 'needle ÄÖ' AS a")
    assert await found(ana, "NEEDLE äö", sources='["documents"]') == ["SELECT 'needle ÄÖ' AS a"]
    assert await found(bob, "needle", sources='["documents"]') == []


@pytest.mark.platform(94)
async def test_statements_outside_the_history_are_never_found(ana: Caller) -> None:
    """Statements are kept for their results after they have left the history, and also if they never enter it."""
    for hidden in ('{"type": "notebook"}', '{"skipHistorify": true}'):
        await ana.run("duckdb", "SELECT 'needle'", notebook=hidden)
    assert await found(ana, "needle") == []
    body = await ana.run("duckdb", "SELECT 'needle' AS shown")
    assert await found(ana, "needle") == ["SELECT 'needle' AS shown"]
    await ana.api.database.execute("update statements set in_history = false where id = $1::uuid", body["history_uuid"])
    assert await found(ana, "needle") == []


async def test_documents_have_full_descriptions(ana: Caller) -> None:
    run = await ana.run("duckdb", "SELECT 1 AS a_b,\n 'needle <i>' AS c")
    body = await ana.post_ok(CALL, query_s="needle", sources='["documents"]', field_facets='["type", "lastModified"]')
    one = body["results"][0]
    assert one["uuid"] == one["identity"] == run["history_uuid"]
    assert (one["type"], one["sourceType"], one["doc_type"]) == ("HUE", "HUE", "query-duckdb")
    assert "<em>needle</em> &lt;i&gt;" in one["hue_description"]
    assert body["facets"] == {"type": {"HUE": 1}, "lastModified": {"today": 1}}
    assert len(await found(ana, "a?b c*", sources='["documents"]')) == 1
    assert await found(ana, "a%c", sources='["documents"]') == []


@pytest.mark.platform(94)
@pytest.mark.security("T20")
async def test_connectors_that_are_not_granted_are_not_searched(api: Api, ana: Caller) -> None:
    carl = await api.user("carl", groups=("analysts",))
    engine = api.services.connectors.engine(api.services.connectors.find("vault"))
    engine.content = {"deep": {"gold": described("deep", "gold", "bars")}}
    await browse(carl, "vault", deep=["gold"])
    assert await found(carl, "gold") == ["deep.gold", "deep.gold.bars"]
    assert await found(ana, "gold") == []
    await api.database.execute(
        "delete from group_members where user_id = (select id from users where username = $1)", carl.username
    )
    assert await found(carl, "gold") == []


@pytest.mark.platform(94)
@pytest.mark.security("T20")
async def test_rows_of_an_impersonating_connector_are_private_to_the_caller(api, ana, bob):
    api.shelf.act_as_caller(True)
    stock(api.shelf)
    await browse(ana, web=["sample_07"])
    assert len(await found(ana, "sample_07", sources=SQL)) == 3
    # The search triggers an index refresh for bob. Because the read is slow, the refresh does not complete before the
    # search returns.
    api.shelf.look_s = 2.0
    try:
        assert await found(bob, "sample_07", sources=SQL) == []
    finally:
        api.shelf.look_s = 0.0


async def test_refreshed_objects_are_found_by_their_new_columns(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await browse(ana, web=["sample_07"])
    assert await found(ana, "wages") == []
    api.shelf.content["web"]["sample_07"] = described("web", "sample_07", "wages")
    await ana.post_ok("editor/autocomplete/web/sample_07", snippet='{"type": "shelf"}', refresh="true")
    await api.services.searching.feed.wait_until_idle()
    assert await found(ana, "wages") == ["web.sample_07.wages"]
    assert await found(ana, "salary") == []


async def test_tables_listed_under_the_empty_name_of_the_default_database_are_not_found_twice(api: Api, ana: Caller):
    await ana.run("duckdb", "CREATE TABLE found_once (id INTEGER)")
    await browse(ana, "duckdb", main=[])
    source = LookupSource(User(await _user_id(api, ana), ana.username), "duckdb")
    listed = await api.services.metadata.browser.tables(source, "", NameFilter())
    assert "found_once" in listed.items.names
    await api.services.searching.feed.wait_until_idle()
    assert await found(ana, "found_once", sources=SQL) == ["main.found_once"]


async def test_catalogs_are_selected_by_name(ana: Caller) -> None:
    assert await ana.refused(CALL, interface="atlas") == (501, -1, "catalog_not_configured")
    assert await ana.refused(CALL, interface='"navigator"') == (501, -1, "catalog_not_supported")
    body = await ana.post_ok(CALL, interface="dummy")
    assert (body["results"], body["totalMatched"]) == ([], 0)
    assert all(one["ok"] for one in body["sources"].values())


@pytest.mark.platform(91)
async def test_statement_matching_follows_the_term_rules(api: Api, ana: Caller) -> None:
    """PostgreSQL and Python must agree in every comparison, including letters of other alphabets."""
    run = await ana.run("duckdb", "SELECT 1")
    chance = random.Random(5)
    for _ in range(60):
        text = "".join(chance.choices("abAB_ .%\\*?äÄßſİK", k=chance.randrange(1, 10)))
        pattern = "".join(chance.choices("abB_.%*?äÄß", k=chance.randrange(1, 4)))
        await api.database.execute(
            "update statements set statement = $2 where id = $1::uuid", run["history_uuid"], text
        )
        terms = parse_query(f'"{pattern}"').terms
        texts = folded(text), folded(" ".join(text.split()))
        wanted = all(any(term.find_in(one) is not None for one in texts) for term in terms)
        body = await ana.post_ok(CALL, query_s=f'"\\"{pattern}\\""', sources='["documents"]')
        assert body["totalMatched"] == int(wanted), (text, pattern)
