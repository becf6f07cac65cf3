"""What queries find in the index (Contract platform 8.3)."""

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, described, found, look, stock
from tests.cases import each

SQL = '["sql"]'


@pytest.fixture
async def stocked(api: Api, ana: Caller) -> Caller:
    stock(api.shelf)
    await look(ana, web=["sample_07", "sample_08", "resample"], shop=["orders"])
    return ana


@pytest.mark.platform(91)
@each(
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
        ("colour:red", []),
        ("%", []),
        ("sample__07", []),
    ],
)
async def test_terms_and_filters_find_what_they_say(stocked: Caller, text: str, names: list[str]) -> None:
    assert await found(stocked, text, sources=SQL) == names


@pytest.mark.platform(91)
async def test_better_names_come_first(stocked: Caller) -> None:
    assert await found(stocked, "sample", sources=SQL, limit=4) == [
        "web.sample_07",
        "shop.orders.sample_size",
        "web.sample_08",
        "web.resample",
    ]


@pytest.mark.platform(91)
@each("text", ["x" * 1001, " ".join("abcdefghijklmnopqrstu")])
async def test_long_queries_are_refused(stocked: Caller, text: str) -> None:
    assert await stocked.refused(CALL, query_s=text) == (400, -1, "invalid_parameter")


@pytest.mark.platform(92)
async def test_facets_count_all_matches(stocked: Caller) -> None:
    body = await stocked.told(
        CALL, query_s="sample", sources=SQL, limit=1, field_facets='["type", "owner", "lastModified", "colour"]'
    )
    assert body["facets"] == {
        "type": {"FIELD": 5, "TABLE": 2, "VIEW": 1},
        "owner": {"ana": 3, "bob": 2},
        "lastModified": {"older": 5, "year": 3},
    }
    assert list(body["facets"]["type"]) == ["FIELD", "TABLE", "VIEW"]
    assert (body["count"], body["totalMatched"]) == (1, 8)
    assert body["warnings"] == ["There is no facet colour."]


@pytest.mark.platform(92)
async def test_prefix_narrows_facets_only(stocked: Caller) -> None:
    body = await stocked.told(CALL, query_s="sample", sources=SQL, field_facets='["type"]', prefix="ta")
    assert body["facets"] == {"type": {"TABLE": 2}}
    assert body["totalMatched"] == 8


@pytest.mark.platform(93)
async def test_pages_give_each_match_once(api: Api, ana: Caller) -> None:
    api.shelf.content = {"many": {f"item_{number:02}": described("many", f"item_{number:02}") for number in range(35)}}
    await look(ana, many=[])
    pages = [await found(ana, "item", sources=SQL, limit=10, offset=start) for start in range(0, 40, 10)]
    assert [len(page) for page in pages] == [10, 10, 10, 5]
    assert [name for page in pages for name in page] == [f"many.item_{number:02}" for number in range(35)]


@pytest.mark.platform(93)
@each("fields", [{"limit": 1001}, {"limit": 0}, {"offset": 9999, "limit": 10}, {"offset": -1}])
async def test_reach_is_bounded(ana: Caller, fields: dict[str, int]) -> None:
    assert await ana.refused(CALL, **fields) == (400, -1, "invalid_parameter")


@pytest.mark.platform(95)
@pytest.mark.security("T31")
async def test_only_em_is_markup(api: Api, ana: Caller) -> None:
    api.shelf.content = {"web": {"<b>x": described("web", "<b>x", comment='<script>"&')}}
    await look(ana, web=[])
    body = await ana.told(CALL, query_s="b", sources=SQL, limit=1)
    assert body["results"][0]["hue_name"] == "we<em>b</em>.&lt;<em>b</em>&gt;x" or body["results"][0]["name"] == "web"
    body = await ana.told(CALL, query_s="type:table <b>", sources=SQL)
    shown = body["results"][0]
    assert shown["hue_name"] == "web.<em>&lt;b&gt;</em>x"
    assert shown["originalName"] == "web.<b>x"
    assert shown["hue_description"] == "&lt;script&gt;&quot;&amp;"
