"""The index read anew in the background (Contract platform 8.4)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.api.search.conftest import CALL, described, found, look, stock
from tests.api.search.faults import faulty

from queryserver.db.metadata_index import MetadataIndexTables
from queryserver.domain.connector import Connector
from queryserver.domain.errors import (
    DatabaseNotFound,
    DatabaseUnavailable,
    EngineForbidden,
    EngineTimeout,
    EngineUnavailable,
    QueryServerError,
    StatementDenied,
    StatementRejected,
)
from queryserver.domain.user import User
from queryserver.interfaces.metadata_index import MetadataIndexRecords, ScopeKey
from queryserver.services.search.index_refresh import IndexRefresh, RefreshLimits
from queryserver.services.search.scoping import Scoping

SQL = '["sql"]'
SERVICE = User(0, "index", is_admin=True)


class Alone:
    """A server that knows one connector."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def visible(self, user: User) -> Sequence[Connector]:
        del user
        return [self._connector]


def another(
    api: Api, owner: str = "another", *, records: MetadataIndexRecords | None = None, **limits: Any
) -> IndexRefresh:
    """The refresh of one more server, with limits of its own. By itself it reads `shelf` only."""
    mine = api.services.searching.refresh
    assert mine is not None
    parts = mine._parts
    bounds = RefreshLimits(**{"interval": timedelta(seconds=1), "max_tables": 100, "max_columns": 100, **limits})
    return IndexRefresh(
        replace(parts, owner=owner, records=records or parts.records, connectors=Alone(shelf_of(api))),
        bounds,
    )


class Forgetful(MetadataIndexTables):
    """Is out of reach when a lease is renewed for the first time."""

    failed = 0

    async def renew(self, scope_id: int, *, owner: str, lease: timedelta) -> bool:
        if not self.failed:
            self.failed += 1
            raise DatabaseUnavailable
        return await super().renew(scope_id, owner=owner, lease=lease)


async def asked(api: Api, what: str) -> None:
    """Returns once the engine is asked that."""
    for _ in range(1000):
        if what in api.shelf.looks:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


async def user_of(api: Api, caller: Caller) -> User:
    user_id = await api.database.value("select id from users where username_key = $1", caller.username)
    return User(user_id, caller.username)


async def refreshed(api: Api, refresh: IndexRefresh, user: User = SERVICE) -> None:
    await api.database.execute("update metadata_scopes set refreshed_at = null, failed_at = null")
    await refresh.refresh(user, shelf_of(api), shelf_key(api, user))


def shelf_of(api: Api) -> Connector:
    shelf = api.services.connectors.find("shelf")
    assert shelf is not None
    return shelf


def shelf_key(api: Api, user: User = SERVICE) -> ScopeKey:
    key = Scoping(api.services.connectors).key(user, shelf_of(api))
    assert key is not None
    return key


async def test_a_refresh_finds_all_and_removes_what_is_gone(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    del api.shelf.content["web"]["sample_07"]
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == []
    assert await found(ana, "sample_08 type:table", sources=SQL) == ["web.sample_08"]


async def test_a_server_reads_what_has_a_login_of_its_own_by_itself(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    async with another(api, first_after_s=0.01).running():
        for _ in range(200):
            if await found(ana, "salary", sources=SQL):
                break
            await asyncio.sleep(0.05)
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


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


@pytest.mark.parametrize(
    "error", [StatementRejected("Disk full."), EngineForbidden("No."), StatementDenied("No."), DatabaseNotFound("web")]
)
async def test_a_database_that_cannot_be_described_is_read_all_the_same(
    api: Api, ana: Caller, error: QueryServerError
) -> None:
    stock(api.shelf)
    with faulty(api.shelf, {"database web": error}):
        await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_a_database_whose_tables_cannot_be_told_keeps_them(api: Api, ana: Caller) -> None:
    """The refresh is complete for all others."""
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.content["web"].clear()
    api.shelf.content["shop"].clear()
    with faulty(api.shelf, {"tables web": StatementRejected("The metastore has a hiccup.")}):
        await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == ["web.sample_07", "web.resample", "web.sample_08"]
    await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == []


@pytest.mark.parametrize("error", [EngineForbidden("No."), StatementDenied("No."), DatabaseNotFound("web")])
async def test_tables_of_a_database_that_is_gone_or_denied_are_removed(
    api: Api, ana: Caller, error: QueryServerError
) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    with faulty(api.shelf, {"tables web": error}):
        await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == ["shop.orders"]


async def test_databases_that_are_not_listed_are_asked_for(api: Api, ana: Caller) -> None:
    """Trino leaves the schemas of a catalog out that does not answer."""
    stock(api.shelf)
    await refreshed(api, another(api))
    both = ["web.sample_07", "shop.orders", "web.sample_08"]
    for error in (StatementRejected("The catalog is down."), EngineTimeout("Too late.")):
        api.shelf.looks.clear()
        with faulty(api.shelf, {"database shop": error}, unlisted=["web", "shop"]):
            await refreshed(api, another(api))
        assert await found(ana, "type:table", sources=SQL) == both
        assert "database web" not in api.shelf.looks, "the next would take as long to fail"
    api.shelf.content["shop"]["news"] = described("shop", "news")
    with faulty(api.shelf, unlisted=["shop"]):
        await refreshed(api, another(api))
    assert await found(ana, "news", sources=SQL) == ["shop.news"], "it is there, so it is read"
    with faulty(api.shelf, {"database web": EngineForbidden("No."), "database shop": DatabaseNotFound("shop")}):
        api.shelf.content = {}
        await refreshed(api, another(api))
    assert await found(ana, "", sources=SQL) == []


async def test_tables_that_cannot_be_read_again_count(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api, max_tables=4))
    api.shelf.content["zoo"] = {name: described("zoo", name) for name in ("ape", "bee")}
    with faulty(api.shelf, {"tables web": StatementRejected("Not now.")}):
        await refreshed(api, another(api, max_tables=4))
    body = await ana.told(CALL, query_s="type:table type:view", sources=SQL)
    assert (body["totalMatched"], body["sources"]["sql"]["truncated"]) == (4, True)


async def test_tables_that_are_gone_leave_room_for_others(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    bounded = another(api, max_tables=4)
    await refreshed(api, bounded)
    api.shelf.content = {"new": {f"t{number}": described("new", f"t{number}", "id") for number in range(4)}}
    await refreshed(api, bounded)
    body = await ana.told(CALL, query_s="type:table", sources=SQL)
    assert [one["originalName"] for one in body["results"]] == ["new.t0", "new.t1", "new.t2", "new.t3"]
    assert not body["sources"]["sql"]["truncated"]


async def test_two_users_of_one_connector_are_read_one_after_the_other(api: Api, ana: Caller, bob: Caller) -> None:
    stock(api.shelf)
    api.shelf.act_as_caller(True)
    one, other = [await user_of(api, caller) for caller in (ana, bob)]
    api.shelf.looks.clear()
    api.shelf.look_s = 100.0
    reading = asyncio.create_task(refreshed(api, another(api, "one"), one))
    try:
        await asked(api, "databases")
        await refreshed(api, another(api, "two"), other)
        assert api.shelf.looks == ["databases"]
    finally:
        api.shelf.look_s = 0.0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    for user in (other, one):
        await refreshed(api, another(api, "two"), user)
    assert api.shelf.looks.count("databases") == 3


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
            await another(api, "two", lease=lease).refresh(SERVICE, shelf_of(api), shelf_key(api))
        await reading
    finally:
        api.shelf.look_s = 0.0
    assert api.shelf.looks.count("databases") == 1
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_one_look_may_take_longer_than_a_lease(api: Api, ana: Caller) -> None:
    """Also when the service database does not answer for a while."""
    stock(api.shelf)
    api.shelf.looks.clear()
    api.shelf.look_s = 2.6
    records = Forgetful(api.database)
    lease = timedelta(seconds=2)
    reading = asyncio.create_task(refreshed(api, another(api, "one", lease=lease, records=records)))
    try:
        await asked(api, "databases")
        api.shelf.look_s = 0.0  # for those that follow
        while not reading.done():
            await asyncio.sleep(0.1)
            await another(api, "two", lease=lease).refresh(SERVICE, shelf_of(api), shelf_key(api))
        await reading
    finally:
        api.shelf.look_s = 0.0
        reading.cancel()
    assert api.shelf.looks.count("databases") == 1
    assert records.failed == 1
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


@pytest.mark.parametrize("ending", ["lost", "cancelled"])
async def test_a_look_ends_with_the_lease_or_the_server(api: Api, ana: Caller, ending: str) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    api.shelf.abandoned = 0
    api.shelf.look_s = 100.0
    reading = asyncio.create_task(refreshed(api, another(api, lease=timedelta(seconds=0.4))))
    try:
        await asked(api, "databases")
        if ending == "lost":
            await api.database.execute("update metadata_scopes set lease_owner = 'else', lease_until = now() + '1h'")
        else:
            reading.cancel()
        await asyncio.wait({reading}, timeout=15)
        assert reading.done()
        assert reading.cancelled() is (ending == "cancelled")
    finally:
        api.shelf.look_s = 0.0
        reading.cancel()
    assert api.shelf.abandoned == 1
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "metadata-lease"]
    leases = await api.database.fetch("select lease_owner from metadata_scopes where connector = 'shelf'")
    assert [row["lease_owner"] for row in leases] == (["else"] if ending == "lost" else [None])


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
