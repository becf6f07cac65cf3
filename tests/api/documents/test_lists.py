"""Lists and searches of documents by their indexes (Contract documents 3.2, 9)."""

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.api.documents.calls import listed, save, share
from tests.api.documents.test_search import names
from tests.api.driving import Api, Caller

from queryserver.documents import lists
from queryserver.documents.lists import candidates, page_query
from queryserver.documents.model import DocumentQuery
from queryserver.identity.model import User
from queryserver.search.model import Search
from queryserver.search.query_language import parse_query
from queryserver.search.saved_queries import SavedQuerySource

_OTHERS = 3000
_OF_OTHERS = """
insert into documents (uuid, owner_id, name, description, statement, parameters, connector, dialect, tags, folder,
    modified_by, size_bytes)
select gen_random_uuid(), $1, 'common ' || n, '', 'select 1', '[]', 'mysql', 'mysql', array['common'], '/common', 'x', 9
from generate_series(1, $2::integer) as n
"""


async def found(user: Caller, **query: Any) -> list[str]:
    return [one["name"] for one in await listed(user, **query)]


@pytest.mark.documents(7, 24)
@pytest.mark.parametrize("most", [lists.MAX_CANDIDATES, 0], ids=["by index", "by text"])
async def test_texts_are_found_with_and_without_the_index(ana: Caller, monkeypatch: pytest.MonkeyPatch, most: int):
    monkeypatch.setattr(lists, "MAX_CANDIDATES", most)
    content = {"description": "客户 list", "statement": "SELECT Needle FROM 'Straße'", "tags": ["t a g"]}
    saved = await save(ana, name="Äpfel", **content)
    for text in ("needle", "NEEDLE FROM 'stra", "Äpfel", "客户", "Straße'", "ed", "n", "\n客户"):
        assert await found(ana, text=text) == ["Äpfel"], text
    for text in ("needles", "needle\nfrom", "t a g"):
        assert await found(ana, text=text) == [], text
    assert await names(ana, "needle 客户 T*a") == ["Äpfel"]
    await save(ana, uuid=saved["uuid"], version=1, statement="other")
    assert await found(ana, text="needle") == await names(ana, "needle") == []
    assert await found(ana, text="other") == await names(ana, "other") == ["Äpfel"]


@pytest.mark.documents(7, 21)
async def test_index_finds_every_text_that_a_scan_finds(api: Api, ana: Caller, monkeypatch: pytest.MonkeyPatch):
    letters = "abAB.- äÄßſK\N{KELVIN SIGN}İ客"
    chance = random.Random(11)
    for _ in range(30):
        await save(ana, name="x", statement="".join(chance.choices(letters, k=40)))
    user_id = await api.database.value("select id from users where username_key = $1", ana.username)
    source = SavedQuerySource(api.database, api.services.threads.searching)
    seen = 0
    for _ in range(60):
        text = "".join(chance.choices(letters, k=chance.randrange(1, 6))).strip() or "a"
        pattern = "".join(chance.choices(letters.replace(" ", "*") + "?", k=chance.randrange(1, 6)))
        answers: list[Any] = []
        for most in (10_000, 0):
            monkeypatch.setattr(lists, "MAX_CANDIDATES", most)
            search = Search(parse_query(pattern), datetime.now(UTC), limit=100)
            matches = (await source.search(User(user_id, ana.username), search)).matches
            uuids = [one["uuid"] for one in await listed(ana, text=text)]
            answers.append((uuids, [one.record.uuid for one in matches]))
        assert answers[0] == answers[1], (text, pattern)
        seen += len(answers[0][0])
    assert seen > 0


@pytest.mark.documents(7)
async def test_shared_documents_are_listed_once_and_by_their_last_save(api: Api, ana: Caller):
    groups = tuple(f"g{uuid4().hex}" for _ in range(3))
    bob = await api.user("bob", groups=groups)
    made = [await save(ana, name=f"document {number}") for number in range(6)]
    for number, one in enumerate(made):
        to = [{"user": bob.username}, {"group": groups[0]}, {"group": groups[1]}, {"group": groups[2]}]
        grants = [{**grant, "permission": "view"} for grant in (to[number % 4], to[(number + 1) % 4])]
        assert (await share(ana, one["uuid"], *grants)).status_code == 200
    await save(bob, name="own")
    changed = await save(ana, uuid=made[2]["uuid"], version=1, name="document 2, changed")
    expected = [changed["name"], "own", *(f"document {number}" for number in (5, 4, 3, 1, 0))]
    for limit in (1, 2, 3, 7, 100):
        assert await found(bob, limit=limit) == expected, limit
    assert await found(bob, owner=ana.username, limit=2) == [one for one in expected if one != "own"]
    await ana.post_ok("documents/delete", uuid=made[4]["uuid"])
    assert "document 4" not in await found(bob)


@pytest.mark.documents(7, 24)
@pytest.mark.parametrize(
    "query",
    [
        DocumentQuery(),
        DocumentQuery(folder="/common"),
        DocumentQuery(tag="common"),
        DocumentQuery(text="common"),
        DocumentQuery(text="rare"),
        DocumentQuery(type="query-mysql"),
    ],
    ids=["all", "folder", "tag", "common text", "rare text", "type"],
)
async def test_lists_do_not_read_the_documents_of_other_users(api: Api, ana: Caller, bob: Caller, query: DocumentQuery):
    await save(ana, name="common rare", tags=["common"], folder="/common", connector="mysql")
    theirs = await save(bob, name="common rare", tags=["common"], folder="/common", connector="mysql")
    await share(bob, theirs["uuid"], {"user": ana.username, "permission": "view"})
    carl = await api.user("carl")
    id_of = "select id from users where username_key = $1"
    await api.database.execute(_OF_OTHERS, await api.database.value(id_of, carl.username), _OTHERS)
    user = User(await api.database.value(id_of, ana.username), ana.username)
    for table in ("documents", "document_grants", "document_trigrams"):
        await api.database.execute(f"analyze {table}")
    ids = await candidates(api.database, [query.text]) if query.text else None
    sql, arguments = page_query(user, query, owner_id=None, ids=ids)
    async with api.database.transaction() as connection:
        await connection.execute("set local plan_cache_mode = force_custom_plan")
        text = await connection.fetchval(f"explain (analyze, format json) {sql}", *arguments)
    [plan] = json.loads(text) if isinstance(text, str) else text
    assert plan["Plan"]["Actual Rows"] == 2
    assert sum(rows_read(node) for node in _nodes(plan["Plan"])) < _OTHERS / 10, json.dumps(plan)


def rows_read(node: Mapping[str, Any]) -> float:
    """Return the number of documents that a node of a plan has read."""
    if node.get("Relation Name") != "documents":
        return 0
    rows = sum(node.get(key, 0) for key in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"))
    return rows * node["Actual Loops"]


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
