"""How documents are ranked: PostgreSQL over the names it keeps, as Python does (Contract platform 8.3)."""

import json
import random
from datetime import UTC, datetime

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL

from queryserver.search.documents import DocumentRecords
from queryserver.search.model import age_limits, position_of
from queryserver.search.query_language import parse_query

_DOCUMENTS = '["documents"]'


async def _user_id(api: Api, caller: Caller) -> int:
    return await api.database.value("select id from users where username_key = $1", caller.username)


@pytest.mark.platform(91)
async def test_names_of_documents_are_ranked_as_terms_say(api: Api, ana: Caller) -> None:
    run = await ana.run("duckdb", "SELECT 1")
    records, mine = DocumentRecords(api.database), await _user_id(api, ana)
    chance = random.Random(9)
    seen: set[int] = set()
    for _ in range(150):
        text = "".join(chance.choices("abAB_.-'\n \täÄ", k=chance.randrange(1, 12)))
        pattern = "".join(chance.choices("abBäÄ*?", k=chance.randrange(1, 3)))
        terms = parse_query(pattern).terms
        statement = f"x{text}" if chance.random() < 0.5 else text
        await api.database.execute(
            "update statements set statement = $2 where id = $1::uuid", run["history_uuid"], statement
        )
        found = await records.search(mine, terms, most=1, ages=age_limits(datetime.now(UTC)))
        for one in found.first:
            assert one.position == position_of(terms, " ".join(statement.split())), (statement, pattern)
            seen.add(one.position)
    assert seen >= {0, 1, 2, 3}


@pytest.mark.platform(91)
async def test_better_documents_come_first_and_pages_of_them_do_not_overlap(ana: Caller) -> None:
    """The newest is the worst: found beyond the name, in it, at a word, at its begin, and the name itself."""
    texts = ["select 1", "select 1 + 1", "(select 1) union all select 2", "values ('Xselect 1')"]
    texts.append(f"values ({', '.join(str(number) for number in range(100, 150))}) -- select 1")
    for text in texts:
        await ana.run("duckdb", text)
    asked = {"query_s": '"\\"SELECT 1\\""', "sources": _DOCUMENTS}
    whole = await ana.told(CALL, **asked)
    assert [one["name"] for one in whole["results"]] == [text[:100] for text in texts]
    pages = [await ana.told(CALL, **asked, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [one for page in pages for one in page["results"]] == whole["results"]
    assert {page["totalMatched"] for page in pages} == {5}


@pytest.mark.platform(92)
async def test_ages_of_documents_are_counted_over_all_matches(api: Api, ana: Caller) -> None:
    for days in (0, 3, 20, 200, 700):
        run = await ana.run("duckdb", f"select 'aged', {days}")
        await api.database.execute(
            "update statements set recorded_at = recorded_at - make_interval(days => $2) where id = $1::uuid",
            run["history_uuid"],
            days,
        )
    body = await ana.told(CALL, query_s="aged", sources=_DOCUMENTS, field_facets='["lastModified"]', limit=1)
    assert body["facets"]["lastModified"] == {"month": 1, "older": 1, "today": 1, "week": 1, "year": 1}


@pytest.mark.platform(91)
async def test_a_phrase_is_found_across_the_line_breaks_of_a_statement(ana: Caller, bob: Caller) -> None:
    """The name, which has a blank there, is what callers see."""
    await ana.run("duckdb", "SELECT 1\n  AS lined,\t2,\r\n'äö\n3'")
    await ana.run("duckdb", "SELECT 1, 2 AS lined")
    for text in ('"1 as lined, 2"', '"1 AS l?ned,"', '"1*lined, 2"', '"ÄÖ 3"', '"1 as" "lined, 2"'):
        body = await ana.told(CALL, query_s=json.dumps(text), sources=_DOCUMENTS)
        assert [one["name"] for one in body["results"]] == ["SELECT 1 AS lined, 2, 'äö 3'"], text
        assert "<em>" in body["results"][0]["hue_name"]
        assert await bob.told(CALL, query_s=json.dumps(text), sources=_DOCUMENTS) == body | {
            "results": [], "count": 0, "totalMatched": 0, "sources": body["sources"] | {
                "documents": body["sources"]["documents"] | {"matched": 0},
            },
        }  # fmt: skip


async def test_the_place_that_matched_is_shown_however_far_it_lies(ana: Caller) -> None:
    """A wildcard's short beginning occurs everywhere: the longest literal tells where to look."""
    await ana.run("duckdb", f"select 's' -- {'so on, ' * 100}\n, 'salary of the month'")
    body = await ana.told(CALL, query_s="s*salary?of", sources=_DOCUMENTS)
    assert "salary of</em> the month" in body["results"][0]["hue_description"]
