"""Background refreshes of the search index, and their claims (Contract platform 8.4)."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.api.driving import Api, Caller, until
from tests.api.search.conftest import CALL, browse, described, found, stock
from tests.api.search.faults import faulty
from tests.api.search.refreshing import SERVICE, another, asked, refreshed, shelf_key, shelf_of, user_of

from queryserver.errors.statements import (
    EngineForbidden,
    EngineTimeout,
    EngineUnavailable,
    StatementDenied,
    StatementRejected,
    database_not_found,
)
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role

SQL = '["sql"]'
TABLES_OF_STOCK = ["web.sample_07", "shop.orders", "web.sample_08"]


async def test_refresh_finds_everything_and_removes_dropped_objects(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    del api.shelf.content["web"]["sample_07"]
    await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == []
    assert await found(ana, "sample_08 type:table", sources=SQL) == ["web.sample_08"]


async def test_server_refreshes_connectors_with_their_own_login_in_the_background(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    async with another(api, first_after_s=0.01).running():
        await until(lambda: salary_is_found(ana))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def salary_is_found(caller: Caller) -> bool:
    return bool(await found(caller, "salary", sources=SQL))


async def test_failed_refresh_keeps_the_rows(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    del api.shelf.content["web"]["sample_07"]
    api.shelf.failure = EngineUnavailable("It is down.")
    try:
        await refreshed(api, another(api))
    finally:
        api.shelf.failure = None
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


@pytest.mark.parametrize(("limits", "count"), [({"max_tables": 2}, 2), ({"max_columns": 1}, 4)])
async def test_reached_limits_are_reported(api: Api, ana: Caller, limits: dict[str, int], count: int) -> None:
    stock(api.shelf)
    await refreshed(api, another(api, **limits))
    body = await ana.post_ok(CALL, query_s="type:table type:view", sources=SQL)
    assert body["totalMatched"] == count
    assert body["sources"]["sql"]["truncated"]
    assert (await ana.post_ok(CALL, query_s="salary", sources=SQL))["totalMatched"] == 0 or "max_tables" in limits


async def test_rows_of_a_former_address_are_ignored(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    await api.database.execute("update metadata_scopes set address = 'elsewhere'")
    assert await found(ana, "sample", sources=SQL) == []
    await browse(ana, shop=[])
    assert await found(ana, "type:table", sources=SQL) == ["shop.orders"]


async def test_search_refreshes_the_callers_own_scope(api: Api, ana: Caller, bob: Caller) -> None:
    stock(api.shelf)
    api.shelf.act_as_caller(True)
    await ana.post_ok(CALL, query_s="salary", sources=SQL)
    await until(lambda: salary_is_found(ana))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    owners = await api.database.fetch("select distinct user_id from metadata_scopes where connector = 'shelf'")
    assert len(owners) == 1
    assert owners[0]["user_id"] is not None


async def test_unreadable_table_does_not_exclude_other_tables(api: Api, ana: Caller) -> None:
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
    "error",
    [StatementRejected("Disk full."), EngineForbidden("No."), StatementDenied("No."), database_not_found("web")],
)
async def test_database_without_a_description_is_still_read(api, ana, error):
    stock(api.shelf)
    with faulty(api.shelf, {"database web": error}):
        await refreshed(api, another(api))
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_database_with_unlistable_tables_keeps_its_rows(api: Api, ana: Caller) -> None:
    """The refresh still completes for all databases whose tables can be listed."""
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.content["web"].clear()
    api.shelf.content["shop"].clear()
    with faulty(api.shelf, {"tables web": StatementRejected("The metastore has a hiccup.")}):
        await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == ["web.sample_07", "web.resample", "web.sample_08"]
    await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == []


@pytest.mark.parametrize("error", [EngineForbidden("No."), StatementDenied("No."), database_not_found("web")])
async def test_tables_of_dropped_or_denied_databases_are_removed(api, ana, error):
    stock(api.shelf)
    await refreshed(api, another(api))
    with faulty(api.shelf, {"tables web": error}):
        await refreshed(api, another(api))
    assert await found(ana, "type:table type:view", sources=SQL) == ["shop.orders"]


async def test_unlisted_databases_are_requested_individually(api: Api, ana: Caller) -> None:
    """The database list of Trino omits the schemas of a catalog that does not respond."""
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.content["shop"]["news"] = described("shop", "news")
    with faulty(api.shelf, unlisted=["shop"]):
        await refreshed(api, another(api))
    assert await found(ana, "news", sources=SQL) == ["shop.news"], "it is there, so it is read"
    with faulty(api.shelf, {"database web": EngineForbidden("No."), "database shop": database_not_found("shop")}):
        api.shelf.content = {}
        await refreshed(api, another(api))
    assert await found(ana, "", sources=SQL) == []


async def test_failing_catalog_does_not_keep_dropped_databases(api: Api, ana: Caller) -> None:
    """Dropped databases are removed even if many databases of the failing catalog precede them."""
    stock(api.shelf)
    down = [f"down{number}" for number in range(20)]
    api.shelf.content |= {name: {"t": described(name, "t")} for name in down}
    await refreshed(api, another(api))
    del api.shelf.content["web"]
    refused = {f"database {name}": StatementRejected("The catalog is down.") for name in down}
    with faulty(api.shelf, refused, unlisted=down):
        await refreshed(api, another(api))
    body = await ana.post_ok(CALL, query_s="type:table type:view", sources=SQL, limit=100)
    assert {one["originalName"] for one in body["results"]} == {"shop.orders", *(f"{name}.t" for name in down)}


async def test_no_further_unlisted_database_is_requested_after_a_timeout(api: Api, ana: Caller) -> None:
    """Further requests could take just as long until they time out."""
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.looks.clear()
    late = EngineTimeout("Too late.")
    with faulty(api.shelf, {"database shop": late, "database web": late}, unlisted=["shop", "web"]):
        await refreshed(api, another(api))
    assert sum(read.startswith("database ") for read in api.shelf.looks) == 1
    assert await found(ana, "type:table", sources=SQL) == TABLES_OF_STOCK


async def test_dropped_database_is_eventually_removed_despite_a_database_that_times_out(api: Api, ana: Caller) -> None:
    """Unlisted databases are requested in random order. In one of the refreshes, `web` is therefore requested before
    `shop` times out.
    """
    stock(api.shelf)
    await refreshed(api, another(api))
    del api.shelf.content["web"]
    with faulty(api.shelf, {"database shop": EngineTimeout("Too late.")}, unlisted=["shop"]):
        for _ in range(60):
            await refreshed(api, another(api))
            if await found(ana, "type:table", sources=SQL) == ["shop.orders"]:
                break
    assert await found(ana, "type:table", sources=SQL) == ["shop.orders"]


async def test_failing_database_requests_share_one_time_limit(api: Api, ana: Caller) -> None:
    names = [f"d{number:02}" for number in range(12)]
    api.shelf.content = {name: {"t": described(name, "t")} for name in names}
    await refreshed(api, another(api))
    api.shelf.looks.clear()
    down = {f"database {name}": StatementRejected("The catalog is down.") for name in names}
    shelf = shelf_of(api)
    hasty = replace(shelf, limits=replace(shelf.limits, metadata_timeout=timedelta(seconds=1.5)))
    with faulty(api.shelf, down, unlisted=names, fails_after_s=0.3):
        await refreshed(api, another(api), connector=hasty)
    assert sum(read.startswith("database ") for read in api.shelf.looks) <= 6
    assert (await ana.post_ok(CALL, query_s="type:table", sources=SQL))["totalMatched"] == 12


async def test_tables_that_cannot_be_read_again_count_toward_the_limit(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api, max_tables=4))
    api.shelf.content["zoo"] = {name: described("zoo", name) for name in ("ape", "bee")}
    with faulty(api.shelf, {"tables web": StatementRejected("Not now.")}):
        await refreshed(api, another(api, max_tables=4))
    body = await ana.post_ok(CALL, query_s="type:table type:view", sources=SQL)
    assert (body["totalMatched"], body["sources"]["sql"]["truncated"]) == (4, True)


async def test_dropped_tables_make_room_for_other_tables(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    bounded = another(api, max_tables=4)
    await refreshed(api, bounded)
    api.shelf.content = {"new": {f"t{number}": described("new", f"t{number}", "id") for number in range(4)}}
    await refreshed(api, bounded)
    body = await ana.post_ok(CALL, query_s="type:table", sources=SQL)
    assert [one["originalName"] for one in body["results"]] == ["new.t0", "new.t1", "new.t2", "new.t3"]
    assert not body["sources"]["sql"]["truncated"]


async def test_incomplete_refreshes_obey_the_limit(api: Api, ana: Caller) -> None:
    """The omitted tables are reported, and a later refresh that completes adds them to the index."""
    bounded = another(api, max_tables=600)

    async def matched_and_truncated() -> tuple[int, bool]:
        body = await ana.post_ok(CALL, query_s="type:table", sources=SQL)
        return body["totalMatched"], body["sources"]["sql"]["truncated"]

    async def matched_and_truncated_after_refresh() -> tuple[int, bool]:
        await refreshed(api, bounded)
        return await matched_and_truncated()

    days: list[tuple[int, bool]] = []
    with faulty(api.shelf, {"tables late": EngineTimeout("Too late.")}):
        for day in range(4):  # each day has more tables than one batch writes
            names = [f"d{day}t{number}" for number in range(510)]
            api.shelf.content = {"daily": {name: described("daily", name) for name in names}, "late": {}}
            days.append(await matched_and_truncated_after_refresh())
    assert days == [(510, False), (1020, False), (1200, True), (1200, True)]
    api.shelf.content = {"new": {f"t{number}": described("new", f"t{number}") for number in range(600)}}
    assert await matched_and_truncated_after_refresh() == (0, True)
    # The index has free capacity again. Therefore the next refresh is due immediately and not only after the interval.
    await another(api, max_tables=600, interval=timedelta(hours=1)).refresh(SERVICE, shelf_of(api), shelf_key(api))
    assert await matched_and_truncated() == (600, False)


async def test_scopes_of_deleted_connectors_are_swept(api: Api, ana: Caller) -> None:
    await api.database.execute(
        "insert into metadata_scopes (connector, stored, address) values ('4711', true, 'x'), ('shelf2', false, 'x')"
    )
    refresh = another(api)
    assert await refresh.records.sweep(unused_for=timedelta(days=30)) == 1


async def test_only_one_server_refreshes_at_a_time(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    answered = asyncio.Event()
    with faulty(api.shelf, held={"databases": answered}):
        reading = {asyncio.create_task(refreshed(api, another(api))) for _ in range(4)}
        async with asyncio.timeout(60):
            while len(reading) > 1:
                ended, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*ended)
        await asked(api, "databases")
        assert api.shelf.looks == ["databases"]
        answered.set()
        await asyncio.gather(*reading)
    assert api.shelf.looks.count("databases") == 1


async def test_scopes_of_two_users_of_one_connector_are_read_in_turn(api: Api, ana: Caller, bob: Caller) -> None:
    stock(api.shelf)
    api.shelf.act_as_caller(True)
    one, other = [await user_of(api, caller) for caller in (ana, bob)]
    api.shelf.looks.clear()
    api.shelf.look_s = 100.0
    reading = asyncio.create_task(refreshed(api, another(api), one))
    try:
        await asked(api, "databases")
        await refreshed(api, another(api), other)
        assert api.shelf.looks == ["databases"]
    finally:
        api.shelf.look_s = 0.0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    for user in (other, one):
        await refreshed(api, another(api), user)
    assert api.shelf.looks.count("databases") == 3


async def test_server_that_died_while_reading_is_replaced(api: Api, ana: Caller) -> None:
    """The dead server sends only its first heartbeat. It was really paused: it continues, but writes nothing."""
    dead = Ownership(api.database, lease=timedelta(hours=1))
    await dead.beat(Role.SERVER, Load())
    stock(api.shelf)
    await api.database.execute("delete from metadata_scopes")
    api.shelf.looks.clear()
    answered = asyncio.Event()
    with faulty(api.shelf, held={"databases": answered}):
        reading = [asyncio.create_task(refreshed(api, another(api, dead)))]
        try:
            await asked(api, "databases")
            await another(api).refresh(SERVICE, shelf_of(api), shelf_key(api))
            assert api.shelf.looks == ["databases"]
            await api.database.execute("update instances set alive_until = now() where id = $1", dead.id)
            reading.append(asyncio.create_task(another(api).refresh(SERVICE, shelf_of(api), shelf_key(api))))
            await until(lambda: api.shelf.looks == ["databases"] * 2)
            answered.set()
            await asyncio.gather(*reading)
        finally:
            for one in reading:
                one.cancel()
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]
    (claim,) = await api.database.fetch("select owner, fence from metadata_scopes where connector = 'shelf'")
    assert tuple(claim) == (None, 2)


async def test_server_whose_heartbeat_was_late_reads_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server whose claim it would take over may be alive, but has not sent its heartbeat yet."""
    api.shelf.act_as_caller(False)
    stock(api.shelf)
    await api.database.execute("delete from metadata_scopes")
    api.shelf.looks.clear()
    with monkeypatch.context() as patched:
        patched.setattr(Ownership, "may_take_over", False)
        await another(api).refresh(SERVICE, shelf_of(api), shelf_key(api))
    assert api.shelf.looks == []
    await another(api).refresh(SERVICE, shelf_of(api), shelf_key(api))
    assert api.shelf.looks.count("databases") == 1


@pytest.mark.parametrize("ending", ["lost", "canceled"])
async def test_read_is_abandoned_when_the_claim_is_lost_or_the_server_ends(api: Api, ana: Caller, ending: str) -> None:
    now = 0.0
    paused = Ownership(api.database, lease=timedelta(hours=1), clock=lambda: now)
    await paused.beat(Role.SERVER, Load())
    stock(api.shelf)
    await api.database.execute("delete from metadata_scopes")
    api.shelf.looks.clear()
    api.shelf.abandoned = 0
    api.shelf.look_s = 100.0
    reading = asyncio.create_task(refreshed(api, another(api, paused)))
    try:
        await asked(api, "databases")
        if ending == "lost":
            await api.database.execute("update metadata_scopes set owner = 'else', fence = fence + 1")
            now = 7200.0
        else:
            reading.cancel()
        await asyncio.wait({reading}, timeout=60)
        assert reading.done()
        assert reading.cancelled() is (ending == "canceled")
    finally:
        api.shelf.look_s = 0.0
        reading.cancel()
    assert api.shelf.abandoned == 1
    (owner,) = await api.database.fetch("select owner from metadata_scopes where connector = 'shelf'")
    assert owner["owner"] == ("else" if ending == "lost" else None)


async def test_rows_read_after_losing_the_scope_are_not_written(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    await refreshed(api, another(api))
    api.shelf.looks.clear()
    answered = asyncio.Event()
    with faulty(api.shelf, held={"tables web": answered}):
        reading = asyncio.create_task(refreshed(api, another(api)))
        await asked(api, "tables web")
        # A change of the connector's address has the same two effects.
        await api.database.execute("delete from metadata_objects")
        await api.database.execute("update metadata_scopes set owner = null, lease_until = null")
        answered.set()
        await reading
    assert await found(ana, "salary", sources=SQL) == []
