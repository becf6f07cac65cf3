"""Who refreshes the index, and for how long (Contract platform 8.4)."""

import asyncio
from datetime import timedelta

from tests.api.driving import Api, Caller
from tests.api.search.conftest import found, stock
from tests.api.search.faults import faulty
from tests.api.search.refreshing import SERVICE, another, asked, refreshed, shelf_key, shelf_of, user_of
from tests.cases import each

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database
from queryserver.search.repository import MetadataIndexRecords

SQL = '["sql"]'


class Renewing(MetadataIndexRecords):
    """Tells that a lease is renewed; `failed`, the first time, for then it is out of reach.

    A lease that is renewed lasts an hour: this machine may stand still longer than the short one that was claimed.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.failed = False
        self.renewed = asyncio.Event()

    async def renew(self, scope_id: int, *, owner: str, lease: timedelta) -> bool:
        if not self.failed:
            self.failed = True
            raise DatabaseUnavailable
        is_held = await super().renew(scope_id, owner=owner, lease=timedelta(hours=1))
        self.renewed.set()
        return is_held


async def test_one_server_at_a_time(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    answered = asyncio.Event()
    with faulty(api.shelf, held={"databases": answered}):
        reading = {asyncio.create_task(refreshed(api, another(api, f"server{number}"))) for number in range(4)}
        async with asyncio.timeout(60):
            while len(reading) > 1:
                ended, reading = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*ended)
        await asked(api, "databases")
        assert api.shelf.looks == ["databases"]
        answered.set()
        await asyncio.gather(*reading)
    assert api.shelf.looks.count("databases") == 1


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


async def test_a_slow_engine_keeps_the_lease_of_whoever_reads_it(api: Api, ana: Caller) -> None:
    stock(api.shelf)
    api.shelf.looks.clear()
    api.shelf.look_s = 0.4
    # All looks take longer than the lease. What has just been read is not due again.
    limits = {"lease": timedelta(seconds=3), "interval": timedelta(hours=1)}
    try:
        reading = asyncio.create_task(refreshed(api, another(api, "one", **limits)))
        while not reading.done():
            await asyncio.sleep(0.15)
            await another(api, "two", **limits).refresh(SERVICE, shelf_of(api), shelf_key(api))
        await reading
    finally:
        api.shelf.look_s = 0.0
    assert api.shelf.looks.count("databases") == 1
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


async def test_one_look_may_take_longer_than_a_lease(api: Api, ana: Caller) -> None:
    """Also when the service database does not answer for a while."""
    stock(api.shelf)
    api.shelf.looks.clear()
    answered = asyncio.Event()
    records = Renewing(api.database)
    lease = timedelta(seconds=1)
    with faulty(api.shelf, held={"databases": answered}):
        reading = asyncio.create_task(refreshed(api, another(api, "one", lease=lease, records=records)))
        try:
            await asked(api, "databases")
            await asyncio.wait_for(records.renewed.wait(), 30)
            await asyncio.sleep(lease.total_seconds())
            await another(api, "two", lease=lease).refresh(SERVICE, shelf_of(api), shelf_key(api))
            assert api.shelf.looks == ["databases"]
            answered.set()
            await reading
        finally:
            reading.cancel()
    assert records.failed
    assert await found(ana, "salary", sources=SQL) == ["web.sample_07.salary"]


@each("ending", ["lost", "cancelled"])
async def test_a_look_ends_with_the_lease_or_the_server(api: Api, ana: Caller, ending: str) -> None:
    stock(api.shelf)
    await api.database.execute("delete from metadata_scopes")
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
        await asyncio.wait({reading}, timeout=60)
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
    api.shelf.looks.clear()
    answered = asyncio.Event()
    with faulty(api.shelf, held={"tables web": answered}):
        reading = asyncio.create_task(refreshed(api, another(api)))
        await asked(api, "tables web")
        # As a change of the connector's address does.
        await api.database.execute("delete from metadata_objects")
        await api.database.execute("update metadata_scopes set lease_owner = null, lease_until = null")
        answered.set()
        await reading
    assert await found(ana, "salary", sources=SQL) == []
