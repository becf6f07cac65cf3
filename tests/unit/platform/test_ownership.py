"""Owners of rows: claims, heartbeats, and the rows of processes that died, were paused or lost a response."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.fixtures.database import PATIENT
from tests.fixtures.owners import AFTER_LOCK, NEW, Clock, result_of_late_claim
from tests.timing import until

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, open_database
from queryserver.platform.ownership import Load, OwnedTable, Ownership
from queryserver.platform.roles import Role

LEASE = timedelta(seconds=30)
OPERATIONS = OwnedTable("storage_operations", active="state = 'running'")
CLAIM = f"""update storage_operations set {OPERATIONS.claimed("$2")}
    where id = $1 and {OPERATIONS.may_claim("$2")} returning fence"""
CLAIM_FREE = f"""update storage_operations set {OPERATIONS.claimed("$2")}
    where id in (
        select id from storage_operations where id = $1 and {OPERATIONS.claimable(me="$2")}
        limit {AFTER_LOCK.format(limit=1)} for update skip locked
    ) and {OPERATIONS.may_claim("$2")} returning fence"""
WRITE = "update storage_operations set done = done + 1 where id = $1 and owner = $2 and fence = $3"
RELEASE = f"update storage_operations set {OPERATIONS.released} where id = $1"
ROW = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as opened:
        await opened.execute(
            "insert into users (id, username, username_key) overriding system value values (1, 'ana', 'ana')"
        )
        await opened.execute(
            "insert into storage_operations (id, user_id, kind, path, state, lease_until)"
            " values ($1, 1, 'copy', '/', 'running', now() - interval '1 s')",
            ROW,
        )
        yield opened


async def claimed(database: Database, owner: Ownership) -> int | None:
    """Claim the row for `owner`. Return the fence, or None if another process owns the row."""
    return await database.value(CLAIM, ROW, owner.id)


async def is_owned(database: Database) -> bool | None:
    return await database.value(f"select {OPERATIONS.is_owned()} from storage_operations where id = $1", ROW)


async def grow_old(database: Database, owner: Ownership) -> None:
    """Let the last heartbeat of a process become older than its lease."""
    await database.execute("update instances set alive_until = now() - interval '1 ms' where id = $1", owner.id)


def test_each_start_of_a_process_has_a_new_id(database: Database) -> None:
    assert len({Ownership(database, lease=LEASE).id for _ in range(100)}) == 100


async def test_row_of_a_live_process_is_not_claimable(database: Database) -> None:
    one, two = Ownership(database, lease=LEASE), Ownership(database, lease=LEASE)
    async with one.running(Role.SERVER), two.running(Role.WORKER):
        assert await claimed(database, one) == 1
        assert await is_owned(database)
        assert await claimed(database, two) is None
    # Both have ended, and no longer wait for the lease.
    async with Ownership(database, lease=LEASE).running(Role.SERVER):
        assert not await is_owned(database)
        assert await claimed(database, two) == 2


async def test_row_is_claimed_once_if_two_processes_start_at_once(database: Database) -> None:
    owners = [Ownership(database, lease=LEASE) for _ in range(8)]

    async def started(owner: Ownership) -> int | None:
        await owner.beat(Role.SERVER, Load())
        return await claimed(database, owner)

    fences = await asyncio.gather(*map(started, owners))
    assert [fence for fence in fences if fence is not None] == [1]


@pytest.mark.parametrize("claim", [CLAIM, CLAIM_FREE], ids=["update", "for update"])
async def test_row_claimed_by_a_process_that_starts_is_not_claimed_by_an_earlier_query(
    database: Database, claim: str
) -> None:
    two = Ownership(database, lease=LEASE)
    await two.beat(Role.SERVER, Load())
    late = database.value(claim, ROW, two.id)
    assert await result_of_late_claim(database, OPERATIONS, late, locks_rows=claim is CLAIM) is None
    assert await database.value("select owner from storage_operations where id = $1", ROW) == NEW


async def test_owner_whose_heartbeat_is_too_old_can_no_longer_write(database: Database) -> None:
    one, two = Ownership(database, lease=LEASE), Ownership(database, lease=LEASE)
    await one.beat(Role.SERVER, Load())
    await two.beat(Role.SERVER, Load())
    fence = await claimed(database, one)
    assert await database.execute(WRITE, ROW, one.id, fence) == 1
    await grow_old(database, one)
    assert await claimed(database, two) == 2
    await one.beat(Role.SERVER, Load())  # it goes on after a pause
    assert await database.execute(WRITE, ROW, one.id, fence) == 0
    assert await claimed(database, one) is None


async def test_paused_owner_continues_if_no_process_has_claimed_its_row(database: Database) -> None:
    one, two = Ownership(database, lease=LEASE), Ownership(database, lease=LEASE)
    await one.beat(Role.SERVER, Load())
    fence = await claimed(database, one)
    await grow_old(database, one)
    assert not await is_owned(database)
    await one.beat(Role.SERVER, Load())
    assert await claimed(database, two) is None
    assert await database.execute(WRITE, ROW, one.id, fence) == 1


async def test_process_does_not_claim_its_own_rows_although_its_heartbeat_is_late(database: Database) -> None:
    one = Ownership(database, lease=LEASE)
    await one.beat(Role.SERVER, Load())
    assert await claimed(database, one) == 1
    await grow_old(database, one)
    assert await claimed(database, one) is None


async def test_owner_without_a_record_is_not_alive(database: Database) -> None:
    one, two = Ownership(database, lease=LEASE), Ownership(database, lease=LEASE)
    assert await claimed(database, one) == 1
    assert await claimed(database, two) == 2


@pytest.mark.parametrize(("lease", "is_claimable"), [
    ("now() + interval '1 minute'", False), ("now() - interval '1 ms'", True), ("'-infinity'", True)])  # fmt: skip
async def test_leases_of_older_programs_count(database: Database, lease: str, is_claimable: bool) -> None:
    """Older programs claim and renew rows with a lease that ends soon, and know no `alive_until`."""
    one = Ownership(database, lease=LEASE)
    await one.beat(Role.SERVER, Load())
    await database.execute("insert into instances (id, kind, name, version) values ('old', 'server', 'host-1', '0.1')")
    await database.execute(f"update storage_operations set lease_until = {lease}, owner = null")
    assert await claimed(database, one) == (1 if is_claimable else None)
    if is_claimable:  # the condition with which older programs claim
        assert not await database.value("select lease_until < now() from storage_operations")


async def test_released_row_is_claimable_at_once_also_for_older_programs(database: Database) -> None:
    one = Ownership(database, lease=LEASE)
    await one.beat(Role.SERVER, Load())
    fence = await claimed(database, one)
    release = f"update storage_operations set {OPERATIONS.released} where id = $1 and owner = $2 and fence = $3"
    assert await one.release(release, ROW, one.id, fence)
    assert not await one.release(release, ROW, one.id, fence)
    assert await database.value("select lease_until < now() from storage_operations")
    assert await claimed(database, one) == 2


async def test_process_is_current_only_while_its_heartbeats_succeed(database: Database) -> None:
    class Unavailable(Database):
        is_down = False

        async def execute(self, sql: str, *arguments: object) -> int:
            if self.is_down:
                clock.now += 1
                raise DatabaseUnavailable
            return await database.execute(sql, *arguments)

    clock, unavailable = Clock(), Unavailable.__new__(Unavailable)
    one = Ownership(unavailable, lease=LEASE, clock=clock)
    assert not one.is_current
    async with one.running(Role.SERVER):
        assert one.is_current
        clock.now += 29
        assert one.is_current
        unavailable.is_down = True
        with pytest.raises(DatabaseUnavailable):
            await one.beat(Role.SERVER, Load())
        assert not one.is_current
        assert not await one.release("update storage_operations set done = 1")
        unavailable.is_down = False
        await one.beat(Role.SERVER, Load())
        assert one.is_current
    assert not one.is_current


async def test_lease_in_the_database_outlasts_the_one_that_the_process_assumes(database: Database) -> None:
    """A heartbeat that takes long must not make the process believe to be alive for longer than others do."""
    clock = Clock()

    class Slow(Database):
        async def execute(self, sql: str, *arguments: object) -> int:
            done = await database.execute(sql, *arguments)
            clock.now += 31  # the response takes longer than the lease
            return done

    one = Ownership(Slow.__new__(Slow), lease=LEASE, clock=clock)
    await one.beat(Role.SERVER, Load())
    assert not one.is_current


async def test_heartbeat_continues_after_failures(database: Database) -> None:
    class Failing(Database):
        beats = 0

        async def execute(self, sql: str, *arguments: object) -> int:
            self.beats += 1
            if self.beats == 2:
                raise DatabaseUnavailable
            if self.beats == 4:
                renewed.set()
            return await database.execute(sql, *arguments)

    renewed = asyncio.Event()
    one = Ownership(Failing.__new__(Failing), lease=timedelta(seconds=0.3))
    async with one.running(Role.SERVER), asyncio.timeout(60):
        await renewed.wait()


async def test_row_that_its_process_does_not_work_on_is_released_after_a_lease(database: Database) -> None:
    """The response to the claim was lost, so the process does not know that it owns the row."""
    clock, held = Clock(), set[str]()
    one = Ownership(database, lease=LEASE, clock=clock)
    one.watch(OPERATIONS, lambda: held)
    await one.beat(Role.SERVER, Load())
    fence = await claimed(database, one)

    async def is_owned_after(seconds: float) -> bool | None:
        clock.now += seconds
        await one.release_strays()
        return await is_owned(database)

    assert await is_owned_after(0)
    assert await is_owned_after(29)
    held.add(ROW)  # the work begins late
    assert await is_owned_after(2)
    assert await is_owned_after(1000)
    held.clear()
    assert await is_owned_after(1000)  # seen for the first time
    assert await is_owned_after(29)
    assert not await is_owned_after(2)
    assert await database.execute(WRITE, ROW, one.id, fence) == 0
    assert await claimed(database, one) == (fence or 0) + 2


async def test_row_that_is_not_released_after_the_work_is_expired_without_waiting_for_a_lease(
    database: Database,
) -> None:
    one = Ownership(database, lease=LEASE, clock=Clock())
    one.watch(OPERATIONS)
    await one.beat(Role.SERVER, Load())
    fence = await claimed(database, one)
    assert fence is not None
    with one.holding(OPERATIONS, ROW, fence):
        await one.release_strays()
        await one.release_strays()
        assert await is_owned(database)
    await one.release_strays()
    assert await is_owned(database), "the release may be in progress"
    await one.release_strays()
    assert not await is_owned(database)
    assert await database.execute(WRITE, ROW, one.id, fence) == 0


async def test_row_that_is_claimed_again_after_the_work_is_not_expired(database: Database) -> None:
    """The response to the second claim has not arrived yet, so nothing marks the row as worked on."""
    one = Ownership(database, lease=LEASE, clock=Clock())
    one.watch(OPERATIONS)
    await one.beat(Role.SERVER, Load())
    with one.holding(OPERATIONS, ROW, await claimed(database, one) or 0):
        assert await one.release(RELEASE, ROW)
    await claimed(database, one)
    for _ in range(3):
        await one.release_strays()
    assert await is_owned(database)


async def test_time_before_a_pause_does_not_count_for_a_row_whose_work_has_not_begun(database: Database) -> None:
    """The process was paused between the claim and the work."""
    clock = Clock()
    one = Ownership(database, lease=LEASE, clock=clock)
    one.watch(OPERATIONS, set)
    await one.beat(Role.SERVER, Load())
    await claimed(database, one)
    await one.release_strays()
    clock.now += 31
    await one.beat(Role.SERVER, Load())
    await one.release_strays()
    assert await is_owned(database)
    clock.now += 31
    await one.release_strays()
    assert not await is_owned(database)


async def test_heartbeat_continues_while_another_table_is_locked(database: Database, database_dsn: str) -> None:
    one = Ownership(database, lease=timedelta(seconds=1))
    one.watch(OPERATIONS, set)
    beats = set[object]()

    async def has_sent_beats() -> bool:
        beats.add(await database.value("select heartbeat_at from instances where id = $1", one.id))
        return len(beats) > 4

    async with (
        open_database(database_dsn, PATIENT) as other,
        one.running(Role.SERVER),
        other.transaction() as connection,
    ):
        await connection.execute("lock table storage_operations in access exclusive mode")
        await until(has_sent_beats)


async def test_lapse_is_noticed_after_the_next_heartbeat_too(database: Database) -> None:
    clock = Clock()
    one = Ownership(database, lease=LEASE, clock=clock)
    await one.beat(Role.SERVER, Load())
    before = one.lapses
    clock.now += 20
    await one.beat(Role.SERVER, Load())
    assert not one.has_lapsed(before)
    clock.now += 31
    assert one.has_lapsed(before)
    await one.beat(Role.SERVER, Load())
    assert one.is_current
    assert one.has_lapsed(before)
    assert not one.has_lapsed(one.lapses)


async def test_process_that_lapsed_takes_over_nothing_until_others_had_time_for_a_heartbeat(database: Database) -> None:
    clock = Clock()
    one = Ownership(database, lease=LEASE, clock=clock)
    assert not one.may_take_over
    await one.beat(Role.SERVER, Load())
    assert one.may_take_over, "a process that starts has not been paused"
    clock.now += 31
    assert not one.may_take_over
    await one.beat(Role.SERVER, Load())
    clock.now += 10
    await one.beat(Role.SERVER, Load())
    assert not one.may_take_over
    clock.now += 5
    assert one.may_take_over


async def test_process_that_may_count_as_dead_sends_a_heartbeat_before_it_claims(database: Database) -> None:
    clock = Clock()
    one, silent = Ownership(database, lease=LEASE, clock=clock), Ownership(database, lease=LEASE, clock=clock)
    await one.beat(Role.SERVER, Load())
    await grow_old(database, one)
    await one.require_current()
    assert await database.value("select count(*) from instances where alive_until > now()") == 0
    clock.now += 31
    await one.require_current()
    assert one.is_current
    assert await database.value("select count(*) from instances where alive_until > now()") == 1
    await silent.require_current()
    assert not silent.is_current, "a program without heartbeats"


async def test_process_that_is_alone_ends_the_claims_of_all_others(database: Database) -> None:
    killed, one = Ownership(database, lease=LEASE), Ownership(database, lease=LEASE)
    await killed.beat(Role.SERVER, Load())
    await claimed(database, killed)
    await database.execute(
        "insert into storage_operations (id, user_id, kind, path, state, lease_until)"
        " values (gen_random_uuid(), 1, 'copy', '/', 'running', now() + interval '1 minute')"
    )
    one.watch(OPERATIONS)
    async with one.running(Role.SERVER, alone=True):
        assert one.is_current
        owned = await database.value(f"select count(*) from storage_operations where {OPERATIONS.is_owned()}")
        assert owned == 0
        assert await claimed(database, one) == 2
        assert await is_owned(database)


class Row:
    """A claimed row. `fails` is the error that the check of the claim raises."""

    def __init__(self) -> None:
        self.checks = 0
        self.fails: Exception | None = None
        self.checked = asyncio.Event()

    async def require(self) -> None:
        self.checks += 1
        self.checked.set()
        if self.fails:
            raise self.fails


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queryserver.platform.ownership._CHECK_EVERY_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("has_beaten", [True, False])
async def test_work_continues_after_a_pause_if_the_row_is_still_owned(database: Database, has_beaten: bool) -> None:
    """After the pause, the first heartbeat may come before or after the check."""
    clock, row, may_end = Clock(), Row(), asyncio.Event()
    one = Ownership(database, lease=LEASE, clock=clock)
    await one.beat(Role.SERVER, Load())
    work = asyncio.create_task(one.run(may_end.wait(), row.require))
    await asyncio.sleep(0.05)
    assert row.checks == 0
    clock.now += 31
    before = 0
    if has_beaten:
        await one.beat(Role.SERVER, Load())
        # The row may have been checked while the heartbeat was being sent. The heartbeat causes one more check.
        row.checked.clear()
        before = row.checks
    await asyncio.wait_for(row.checked.wait(), 30)
    may_end.set()
    assert await work
    assert row.checks == before + 1 or not has_beaten


@pytest.mark.usefixtures("impatient")
async def test_work_stops_if_the_row_was_claimed_during_a_pause(database: Database) -> None:
    clock, row, ended = Clock(), Row(), asyncio.Event()
    one = Ownership(database, lease=LEASE, clock=clock)
    await one.beat(Role.SERVER, Load())

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    work = asyncio.create_task(one.run(endless(), row.require))
    row.fails = DatabaseUnavailable()
    clock.now += 31
    await one.beat(Role.SERVER, Load())
    with pytest.raises(DatabaseUnavailable):
        await asyncio.wait_for(work, 30)
    assert ended.is_set()
