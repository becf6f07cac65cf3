"""The index read anew in the background (Contract platform 8.4)."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, described, found, look, stock

from queryserver.domain.connector import Connector
from queryserver.domain.errors import EngineUnavailable, StatementRejected
from queryserver.domain.user import User
from queryserver.services.search.index_refresh import IndexRefresh, RefreshLimits, RefreshParts
from queryserver.services.search.scoping import Scoping

SQL = '["sql"]'
SERVICE = User(0, "index", is_admin=True)


def another(api: Api, owner: str = "another", **limits: Any) -> IndexRefresh:
    """The refresh of one more server, with limits of its own."""
    mine = api.services.searching.refresh
    assert mine is not None
    parts = mine._parts
    bounds = RefreshLimits(**{"interval": timedelta(seconds=1), "max_tables": 100, "max_columns": 100, **limits})
    return IndexRefresh(
        RefreshParts(owner, parts.records, parts.connectors, parts.lookups, parts.scoping, parts.metrics), bounds
    )


async def refreshed(api: Api, refresh: IndexRefresh, user: User = SERVICE) -> None:
    shelf = shelf_of(api)
    key = Scoping(api.services.connectors).key(user, shelf)
    assert key is not None
    await api.database.execute("update metadata_scopes set refreshed_at = null, failed_at = null")
    await refresh.refresh(user, shelf, key)


def shelf_of(api: Api) -> Connector:
    shelf = api.services.connectors.find("shelf")
    assert shelf is not None
    return shelf


async def test_a_refresh_finds_all_and_removes_what_is_gone(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    del api.shelf.content["web"]["sample_07"]
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == []
    assert await found(ana, "sample_08 type:table", sources=SQL) == ["web.sample_08"]


async def test_a_failed_refresh_leaves_the_rows(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    del api.shelf.content["web"]["sample_07"]
    api.shelf.failure = EngineUnavailable("It is down.")
    try:
        await refreshed(api, another(api))
    finally:
        api.shelf.failure = None
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_one_server_at_a_time(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    api.shelf.look_s = 0.02
    try:
        await asyncio.gather(*(refreshed(api, another(api, f"server{number}")) for number in range(4)))
    finally:
        api.shelf.look_s = 0.0
    assert api.shelf.looks.count("databases") == 1


@pytest.mark.parametrize(("limits", "count"), [({"max_tables": 2}, 2), ({"max_columns": 1}, 4)])
async def test_bounds_are_told(api: Api, ana: Caller, limits: dict[str, int], count: int) -> None:
    stock(api.shelf)
    await refreshed(api, another(api, **limits))
    body = await ana.told(CALL, query_s="type:table type:view", sources=SQL)
    assert body["totalMatched"] == count
    assert body["sources"]["sql"]["truncated"]
    assert (await ana.told(CALL, query_s="salary", sources=SQL))["totalMatched"] == 0 or "max_tables" in limits


async def test_rows_of_another_address_do_not_count(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    await api.database.execute("update metadata_scopes set address = 'elsewhere'")
    assert await found(ana, "sample", sources=SQL) == []
    await look(ana, shop=[])
    assert await found(ana, "type:table", sources=SQL) == ["shop.orders"]


async def test_what_each_caller_sees_is_read_when_they_search(api: Api, ana: Caller, bob: Caller) -> None:
    stock(api.shelf)
    api.shelf.act_as_caller(True)
    await ana.told(CALL, query_s="salary", sources=SQL)
    for _ in range(100):
        if await found(ana, "salary", sources=SQL):
            break
        await asyncio.sleep(0.05)
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    owners = await api.database.fetch("select distinct user_id from metadata_scopes where connector = 'shelf'")
    assert len(owners) == 1
    assert owners[0]["user_id"] is not None


async def test_a_table_that_cannot_be_read_keeps_no_other_out(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.content["web"]["broken"] = described("web", "broken")
    api.shelf.unreadable = {"broken": StatementRejected("Its format is unknown.")}
    try:
        await refreshed(api, another(api))
    finally:
        api.shelf.unreadable = {}
    assert await found(ana, "broken", sources=SQL) == ["web.broken"]
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_scopes_of_deleted_connectors_are_swept(api: Api, ana: Caller) -> None:
    await api.database.execute(
        "insert into metadata_scopes (connector, stored, address) values ('4711', true, 'x'), ('shelf2', false, 'x')"
    )
    refresh = another(api)
    assert await refresh._parts.records.sweep(unused_for=timedelta(days=30)) == 1


async def test_a_slow_engine_keeps_the_lease_of_whoever_reads_it(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    api.shelf.look_s = 0.1
    lease = timedelta(seconds=0.4)
    try:
        reading = asyncio.create_task(refreshed(api, another(api, "one", lease=lease)))
        while not reading.done():
            await asyncio.sleep(0.15)
            shelf = shelf_of(api)
            key = Scoping(api.services.connectors).key(SERVICE, shelf)
            assert key is not None
            await another(api, "two", lease=lease).refresh(SERVICE, shelf, key)
        await reading
    finally:
        api.shelf.look_s = 0.0
    assert api.shelf.looks.count("databases") == 1
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_what_was_read_for_a_scope_that_is_another_s_by_now_is_not_written(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.look_s = 0.1
    try:
        reading = asyncio.create_task(refreshed(api, another(api)))
        await asyncio.sleep(0.3)
        # As a change of the connector's address does.
        await api.database.execute("delete from metadata_objects")
        await api.database.execute("update metadata_scopes set lease_owner = null, lease_until = null")
        await reading
    finally:
        api.shelf.look_s = 0.0
    assert await found(ana, "salary", sources=SQL) == []
