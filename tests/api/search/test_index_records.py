"""What the index says of itself: whether it was cut, and what a refresh finds in it (Contract platform 8.4)."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, described, found, look, stock
from tests.cases import each

from queryserver.search.model import DATABASE, TABLE, IndexedColumn, IndexedObject, Scope, ScopeKey
from queryserver.search.repository import MetadataIndexRecords

KEY = ScopeKey("elsewhere", None, b"address", is_stored=False)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def records(api: Api, ana: Caller) -> MetadataIndexRecords:
    """Without any scope."""
    return MetadataIndexRecords(api.database)


def table(name: str, *columns: str, cut: bool = False) -> IndexedObject:
    return IndexedObject(TABLE, "web", name, columns=[IndexedColumn(one) for one in columns], columns_cut=cut)


async def now_of(records: MetadataIndexRecords) -> Scope:
    (scope,) = await records.scopes([KEY])
    return scope


async def completed(
    records: MetadataIndexRecords, *, seen: Sequence[str], unread: Sequence[str] = (), again: bool = False
) -> Scope:
    began = await records.now()
    scope = await records.claim(KEY, owner="me", lease=MINUTE, interval=timedelta(0))
    assert scope is not None
    await records.complete(
        scope.id,
        owner="me",
        seen={"web": seen} if seen else {},
        unread=unread,
        began=began,
        truncated=False,
        again=again,
    )
    return await now_of(records)


async def test_tables_that_are_left_out_are_told_at_once(records: MetadataIndexRecords) -> None:
    scope = await records.scope(KEY)
    assert await records.put(scope.id, [table("a")], max_tables=1)
    assert not (await now_of(records)).truncated
    assert await records.put(scope.id, [table("a", "id")], max_tables=1)
    assert not (await now_of(records)).truncated
    assert not await records.put(scope.id, [table("b"), IndexedObject(DATABASE, "web", "")], max_tables=1)
    assert (await now_of(records)).truncated
    assert await records.tables_by_database(scope.id) == {"web": 1}
    assert not (await completed(records, seen=["a"])).truncated


async def test_columns_that_are_left_out_are_told_until_they_are_all_there(records: MetadataIndexRecords) -> None:
    """Also when the columns that are kept are the same as before."""
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("a", "id", "name")], max_tables=9)
    assert not (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [table("a", "id", "name", cut=True)], max_tables=9)
    assert (await now_of(records)).truncated
    assert (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [IndexedObject(TABLE, "web", "a", "a list knows no columns")], max_tables=9)
    assert (await completed(records, seen=["a"])).truncated
    await records.put(scope.id, [table("a", "id", "name")], max_tables=9)
    assert not (await completed(records, seen=["a"])).truncated


async def test_rows_of_databases_that_were_not_read_stay(records: MetadataIndexRecords) -> None:
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("a"), table("b"), IndexedObject(TABLE, "shop", "c")], max_tables=9)
    await completed(records, seen=["a"], unread=["shop"])
    assert await records.tables_by_database(scope.id) == {"web": 1, "shop": 1}
    await completed(records, seen=[], unread=["web"])
    assert await records.tables_by_database(scope.id) == {"web": 1}


async def test_scopes_of_one_connector_are_claimed_one_at_a_time(
    api: Api, records: MetadataIndexRecords, ana: Caller, bob: Caller
) -> None:
    ids = [await api.database.value("select id from users where username_key = $1", one.username) for one in (ana, bob)]
    mine, theirs = (ScopeKey("elsewhere", one, b"address", is_stored=False) for one in ids)
    scope = await records.claim(mine, owner="me", lease=MINUTE, interval=MINUTE)
    assert scope is not None
    assert await records.claim(theirs, owner="you", lease=MINUTE, interval=MINUTE) is None
    other = ScopeKey("another", ids[1], b"address", is_stored=False)
    assert await records.claim(other, owner="you", lease=MINUTE, interval=MINUTE) is not None
    await records.give_up(scope.id, owner="me", soon=True)
    assert await records.claim(theirs, owner="you", lease=-MINUTE, interval=MINUTE) is not None
    assert await records.claim(mine, owner="me", lease=MINUTE, interval=MINUTE) is not None, "that lease is over"


async def test_what_a_caller_s_look_cut_is_told_in_the_next_search(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.content["web"]["wide"] = described("web", "wide", *(f"c{number:03}" for number in range(501)))
    await look(ana, web=["sample_07"])
    assert not (await ana.told(CALL, query_s="", sources='["sql"]'))["sources"]["sql"]["truncated"]
    await look(ana, web=["wide"])
    assert (await ana.told(CALL, query_s="", sources='["sql"]'))["sources"]["sql"]["truncated"]
    assert len(await found(ana, "web.wide.c4", limit=1000)) == 100


async def test_databases_are_bounded_too(records: MetadataIndexRecords) -> None:
    """Beside the tables, for a refresh that never ends removes none."""
    scope = await records.scope(KEY)
    a, b, c = [IndexedObject(DATABASE, name, "") for name in "abc"]
    assert await records.put(scope.id, [a, table("t"), b], max_tables=2)
    assert await records.put(scope.id, [table("u"), b], max_tables=2)
    assert not await records.put(scope.id, [c, table("v")], max_tables=2)
    assert (await records.tables_by_database(scope.id)).keys() == {"a", "b", "web"}
    assert (await now_of(records)).truncated


@each(("seen", "is_due"), [(["t"], False), ([], True)])
async def test_it_is_read_again_at_once_when_that_can_help(
    records: MetadataIndexRecords, seen: Sequence[str], *, is_due: bool
) -> None:
    """What found no room finds some only where something was removed."""
    scope = await records.scope(KEY)
    await records.put(scope.id, [table("t")], max_tables=1)
    await completed(records, seen=seen, again=True)
    claimed = await records.claim(KEY, owner="me", lease=MINUTE, interval=timedelta(hours=1))
    assert (claimed is not None) is is_due
