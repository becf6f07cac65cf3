"""Saved queries are found by the metadata search, and counted by get_config (Contract documents 9)."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.api.documents.calls import save, share
from tests.api.driving import Api, Caller
from tests.api.test_api_token_statements import program_of

from queryserver.identity.model import User
from queryserver.search.model import Search, position_of
from queryserver.search.query_language import parse_query
from queryserver.search.saved_queries import SavedQuerySource

CALL = "metadata/search/entities_interactive"
PHRASE = '"\\"rows 7\\""'  # a phrase within a JSON string


async def search(user: Caller, text: str, **fields: Any) -> dict[str, Any]:
    return await user.post_ok(CALL, query_s=text, sources='["documents"]', **fields)


async def names(user: Caller, text: str, **fields: Any) -> list[str]:
    return [one["name"] for one in (await search(user, text, **fields))["results"]]


@pytest.mark.documents(21)
async def test_saved_queries_are_found_by_name_description_tag_and_text(ana: Caller):
    saved = await save(
        ana,
        name="Daily sales",
        description="Orders of a day",
        statement="SELECT count(*) FROM shop.needles",
        tags=["reporting"],
        connector="hive2",
    )
    for text in ("daily", "SALES", "orders of", "needl*", "reporting", "dai?y needles", "shop.needles"):
        assert await names(ana, text) == ["Daily sales"], text
    assert await names(ana, "absent") == []
    [record] = (await search(ana, "needles"))["results"]
    expected = {
        "originalName": "Daily sales",
        "description": "Orders of a day",
        "type": "HUE",
        "sourceType": "HUE",
        "owner": ana.username,
        "tags": ["reporting"],
        "identity": saved["uuid"],
        "uuid": saved["uuid"],
        "connector": "hive2",
        "dialect": "hive",
        "doc_type": "query-hive",
        "link": f"/editor?editor={saved['uuid']}",
        "parentUuid": None,
    }
    assert expected.items() <= record.items()
    assert (await search(ana, "daily"))["results"][0]["hue_name"] == "<em>Daily</em> sales"


@pytest.mark.documents(21)
async def test_only_own_and_shared_documents_are_found(api: Api, ana: Caller, bob: Caller):
    group = f"readers of {ana.username}"
    carl = await api.user("carl", groups=(group,))
    root = await api.user("root", admin=True)
    uuid = (await save(ana, name="needle", connector="mysql"))["uuid"]
    users = (ana, bob, carl, root)
    assert [await names(user, "needle") for user in users] == [["needle"], [], [], []]
    await share(ana, uuid, {"user": bob.username, "permission": "view"}, {"group": group, "permission": "run"})
    assert [await names(user, "needle") for user in users] == [["needle"], ["needle"], ["needle"], []]
    limited, _ = await program_of(ana, connectors=["duckdb"])
    allowed, _ = await program_of(ana, connectors=["mysql"])
    assert [await names(user, "needle") for user in (limited, allowed)] == [[], ["needle"]]
    await ana.post_ok("documents/delete", uuid=uuid)
    assert [await names(user, "needle") for user in users] == [[], [], [], []]


@pytest.mark.documents(21)
async def test_saved_queries_are_ranked_with_history_entries(ana: Caller):
    await ana.run("mysql", "rows 7")
    await save(ana, name="all rows 7", connector="mysql")
    await save(ana, name="rows 7", connector="mysql")
    assert await names(ana, PHRASE) == ["rows 7", "rows 7", "all rows 7"]
    first = (await search(ana, PHRASE, limit=1))["results"]
    rest = (await search(ana, PHRASE, limit=5, offset=1))["results"]
    whole = await search(ana, PHRASE)
    assert [*first, *rest] == whole["results"]
    assert whole["totalMatched"] == 3


@pytest.mark.documents(21)
async def test_filters_and_facets_hold(ana: Caller, bob: Caller):
    await save(ana, name="needle one", tags=["Sales", "daily"])
    await save(ana, name="needle two", tags=["sales"])
    theirs = await save(bob, name="needle three", tags=["stock"])
    await share(bob, theirs["uuid"], {"user": ana.username, "permission": "view"})
    await ana.run("mysql", "rows 1 ")
    assert await names(ana, "tag:sales") == ["needle two", "needle one"]
    assert await names(ana, "tag:s* needle") == ["needle three", "needle two", "needle one"]
    assert await names(ana, f"owner:{bob.username}") == ["needle three"]
    assert await names(ana, "source:documents needle tag:daily") == ["needle one"]
    assert await names(ana, "type:HUE needle one") == ["needle one"]
    assert await names(ana, "type:TABLE needle") == []
    assert await names(ana, "db:shop needle") == []
    body = await search(ana, "needle", field_facets='["tags", "owner", "type", "lastModified"]')
    assert body["facets"] == {
        "tags": {"Sales": 1, "daily": 1, "sales": 1, "stock": 1},
        "owner": {ana.username: 2, bob.username: 1},
        "type": {"HUE": 3},
        "lastModified": {"today": 3},
    }
    every = await search(ana, "", field_facets='["type", "owner"]')
    assert every["facets"]["owner"] == {ana.username: 3, bob.username: 1}


@pytest.mark.documents(21)
async def test_ranking_follows_the_term_rules(api: Api, ana: Caller):
    saved = await save(ana, name="x")
    user_id = await api.database.value("select id from users where username_key = $1", ana.username)
    source = SavedQuerySource(api.database, api.services.threads.searching)
    chance = random.Random(9)
    seen: set[int] = set()
    for _ in range(150):
        name = "".join(chance.choices("abAB_.-' äÄ", k=chance.randrange(1, 12)))
        query = parse_query("".join(chance.choices("abBäÄ*?", k=chance.randrange(1, 3))))
        await api.database.execute("update documents set name = $2 where id = $1", saved["id"], name)
        found = await source.search(User(user_id, ana.username), Search(query, datetime.now(UTC), limit=1))
        for one in found.matches:
            assert one.position == position_of(query.terms, name), (name, query)
            seen.add(one.position)
    assert seen >= {0, 1, 2, 3}


@pytest.mark.documents(22)
async def test_configuration_lists_the_types_of_the_caller(ana: Caller, bob: Caller):
    async def types(user: Caller) -> list[str]:
        return (await user.post_ok("get_config"))["documents"]["types"]

    assert await types(ana) == ["directory"]
    await save(ana, name="x", connector="hive2")
    uuid = (await save(ana, name="y"))["uuid"]
    await save(bob, name="z", connector="mysql")
    await ana.run("duckdb", "SELECT 1")
    assert await types(ana) == ["directory", "notebook", "query-duckdb", "query-hive"]
    await ana.post_ok("documents/delete", uuid=uuid)
    assert await types(ana) == ["directory", "query-duckdb", "query-hive"]
    program, _ = await program_of(ana, connectors=["duckdb"])
    assert await types(program) == ["directory", "query-duckdb"]
