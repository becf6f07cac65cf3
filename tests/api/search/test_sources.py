"""Who finds what, and how sources come together (Contract platform 8.1, 8.4)."""

import random

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, described, found, look, stock
from tests.cases import each

from queryserver.search.query_language import folded, parse_query

SQL = '["sql"]'


@pytest.mark.platform(90)
@each("sources", [None, "[]", '["documents", "sql", "hdfs", "s3"]'])
async def test_documents_and_objects_come_in_one_list(api: Api, ana: Caller, sources: str | None) -> None:
    stock(api.shelf)
    await look(ana, web=["sample_07"])
    await ana.run("duckdb", "SELECT 1 AS sample")
    body = await ana.told(CALL, query_s="sample_07", **({} if sources is None else {"sources": sources}))
    assert list(body["sources"]) == ["documents", "sql", "hdfs", "s3"]
    assert body["sources"]["sql"] == {"ok": True, "matched": 3, "truncated": False, "message": ""}
    assert body["sources"]["hdfs"] == {"ok": False, "matched": 0, "truncated": False, "message": "Not configured."}
    body = await ana.told(CALL, query_s="sample", **({} if sources is None else {"sources": sources}))
    assert {one["type"] for one in body["results"]} >= {"HUE", "TABLE", "FIELD"}
    assert body["totalMatched"] == body["count"] == sum(one["matched"] for one in body["sources"].values())


async def test_without_the_right_only_documents_are_found(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await look(ana, web=[])
    await api.database.execute("update group_rights set \"right\" = 'meta' where \"right\" = 'metadata'")
    try:
        body = await ana.told(CALL, query_s="sample")
        alone = await ana.refused(CALL, query_s="sample", sources=SQL)
        dummy = await ana.told(CALL, query_s="sample", interface="dummy")
    finally:
        await api.database.execute("update group_rights set \"right\" = 'metadata' where \"right\" = 'meta'")
    assert not body["sources"]["sql"]["ok"]
    assert alone == (403, -1, "permission_denied")
    assert all(one["ok"] for one in dummy["sources"].values())  # for tests: nothing is in it that a right could hide


async def test_dialects_limit_sql(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await look(ana, web=[])
    assert await found(ana, "sample_07", sources='["shelf"]') == ["web.sample_07"]
    assert await found(ana, "sample_07", sources='["hive"]') == []
    assert await ana.refused(CALL, sources='["cellar"]') == (400, -1, "invalid_parameter")
    assert await ana.refused(CALL, sources="[1") == (400, -1, "invalid_json")


async def test_json_bodies_take_arrays_natively(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await look(ana, web=[])
    response = await ana.post_json(CALL, query_s='"sample_07"', sources=["sql"], field_facets=["type"], limit="2")
    assert response.json()["facets"] == {"type": {"TABLE": 1}}


@pytest.mark.platform(94)
async def test_history_of_others_is_never_found(ana: Caller, bob: Caller) -> None:
    await ana.run("duckdb", "SELECT 'needle ÄÖ' AS a")
    assert await found(ana, "NEEDLE äö", sources='["documents"]') == ["SELECT 'needle ÄÖ' AS a"]
    assert await found(bob, "needle", sources='["documents"]') == []


@pytest.mark.platform(94)
async def test_what_is_not_in_the_history_is_never_found(ana: Caller) -> None:
    """Statements stay for their results when they leave the history, or never come into it."""
    for hidden in ('{"type": "notebook"}', '{"skipHistorify": true}'):
        await ana.run("duckdb", "SELECT 'needle'", notebook=hidden)
    assert await found(ana, "needle") == []
    body = await ana.run("duckdb", "SELECT 'needle' AS shown")
    assert await found(ana, "needle") == ["SELECT 'needle' AS shown"]
    await ana.api.database.execute("update statements set in_history = false where id = $1::uuid", body["history_uuid"])
    assert await found(ana, "needle") == []


async def test_documents_are_described(ana: Caller) -> None:
    run = await ana.run("duckdb", "SELECT 1 AS a_b,\n 'needle <i>' AS c")
    body = await ana.told(CALL, query_s="needle", sources='["documents"]', field_facets='["type", "lastModified"]')
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
    await look(carl, "vault", deep=["gold"])
    assert await found(carl, "gold") == ["deep.gold", "deep.gold.bars"]
    assert await found(ana, "gold") == []
    await api.database.execute(
        "delete from group_members where user_id = (select id from users where username = $1)", carl.username
    )
    assert await found(carl, "gold") == []


@pytest.mark.platform(94)
@pytest.mark.security("T20")
async def test_rows_of_a_connector_that_acts_as_the_caller_are_the_callers_own(
    api: Api, ana: Caller, bob: Caller
) -> None:
    api.shelf.act_as_caller(True)
    stock(api.shelf)
    await look(ana, web=["sample_07"])
    assert len(await found(ana, "sample_07", sources=SQL)) == 3
    # To search makes the index read what bob sees: not within this search.
    api.shelf.look_s = 2.0
    try:
        assert await found(bob, "sample_07", sources=SQL) == []
    finally:
        api.shelf.look_s = 0.0


async def test_objects_that_are_described_anew_are_found_anew(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await look(ana, web=["sample_07"])
    assert await found(ana, "wages") == []
    api.shelf.content["web"]["sample_07"] = described("web", "sample_07", "wages")
    await ana.told("editor/autocomplete/web/sample_07", snippet='{"type": "shelf"}', refresh="true")
    await api.services.searching.feed.settled()
    assert await found(ana, "wages") == ["web.sample_07.wages"]
    assert await found(ana, "salary") == []


async def test_catalogues_by_name(ana: Caller) -> None:
    assert await ana.refused(CALL, interface="atlas") == (501, -1, "catalog_not_configured")
    assert await ana.refused(CALL, interface='"navigator"') == (501, -1, "catalog_not_supported")
    body = await ana.told(CALL, interface="dummy")
    assert (body["results"], body["totalMatched"]) == ([], 0)
    assert all(one["ok"] for one in body["sources"].values())


@pytest.mark.platform(91)
async def test_statements_are_matched_as_terms_say(api: Api, ana: Caller) -> None:
    """PostgreSQL compares as Python does, letters of other alphabets included."""
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
        wanted = all(any(term.found_in(one) is not None for one in texts) for term in terms)
        body = await ana.told(CALL, query_s=f'"\\"{pattern}\\""', sources='["documents"]')
        assert body["totalMatched"] == int(wanted), (text, pattern)
