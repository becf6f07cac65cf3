"""What every keeper of leases must do (`StatementLeases`), inherited by one class per keeper."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest

from queryserver.formats.columns import Column, ResultType
from queryserver.results.model import Segment
from queryserver.statements.assignments import ClaimScope, EngineCheckpoint, Lease, Outcome, Resumption
from queryserver.statements.intake import SlotLimits
from queryserver.statements.leases import StatementLeases
from queryserver.statements.states import StatementState

ME, OTHER = "me", "other"
HELD = 10**12
LEASE = timedelta(seconds=30)
ROOMY = SlotLimits(per_connector=100, per_user=100)
COLUMNS = (Column("n", ResultType.INT, "integer"),)
FAILED = Outcome(StatementState.FAILED, error_code="engine_error", message="no")
SUCCESS = Outcome(StatementState.SUCCESS)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as its readers see it."""

    state: StatementState
    owner: str | None
    lines: Sequence[str]


class LeaseDesk(ABC):
    """A keeper with what the tests need beside it."""

    leases: StatementLeases
    within = ClaimScope(["here"], [HELD])
    """Of those who claim."""

    @abstractmethod
    async def add(
        self,
        *,
        owner: str | None = ME,
        lease_s: float = 30,
        connector: str = "here",
        session: int | None = None,
        timeout_s: int = 60,
        user: int = 0,
        priority: int = 0,
        keeps_session: bool = False,
    ) -> Lease:
        """A new waiting statement of the user of that number."""

    @abstractmethod
    async def look(self, statement_id: UUID) -> Seen:
        """The record."""

    @abstractmethod
    async def ask_to_cancel(self, statement_id: UUID) -> None:
        """What a caller does."""

    async def claim(self, lease: Lease, *, owner: str = ME) -> Lease | None:
        """Claim by somebody who runs the connector `here`, and holds the session HELD."""
        found = await self.leases.claim(lease.statement_id, owner=owner, lease=LEASE, within=self.within)
        return found[-1].lease if found else None

    async def orphans(self, *, owner: str = ME, ignore_leases: bool = False) -> dict[UUID, Lease]:
        """Take over as such a one."""
        found = await self.leases.claim_orphans(
            owner=owner, lease=LEASE, within=self.within, ignore_leases=ignore_leases
        )
        return {one.lease.statement_id: one.lease for one in found}

    async def taken(
        self,
        most: int = 100,
        *,
        most_of_busy: int | None = None,
        owner: str = ME,
        slots: SlotLimits = ROOMY,
        connectors: Sequence[str] = ("here",),
    ) -> list[UUID]:
        """Take from the queue of all workers; in the order in which they start."""
        found = await self.leases.claim_waiting(
            owner=owner,
            lease=LEASE,
            connectors=connectors,
            slots=slots,
            most=most,
            most_of_busy=most if most_of_busy is None else most_of_busy,
        )
        return [one.lease.statement_id for one in found]

    async def resumptions(self, *, ignore_leases: bool = True) -> dict[UUID, Resumption | None]:
        """Take over, and say what each statement was found with."""
        found = await self.leases.claim_orphans(owner=ME, lease=LEASE, within=self.within, ignore_leases=ignore_leases)
        return {one.lease.statement_id: one.resumption for one in found}

    async def finish(
        self, lease: Lease, outcome: Outcome, lines: Sequence[str] = (), *, start_line: int | None = 0
    ) -> bool:
        """End it."""
        return await self.leases.finish(lease, outcome, retention=LEASE, lines=lines, start_line=start_line)


class LeasesContract:
    """The rules. A class that inherits them gives a fixture `desk`."""

    async def test_one_of_several_gets_a_free_statement(self, desk: LeaseDesk) -> None:
        free = await desk.add(owner=None)
        mine = await desk.claim(free)
        assert mine is not None
        assert (mine.owner, mine.fence > 0) == (ME, True)
        assert await desk.claim(free, owner=OTHER) is None

    async def test_the_queue_gives_each_statement_once(self, desk: LeaseDesk) -> None:
        added = {(await desk.add(owner=None)).statement_id for _ in range(7)}
        await desk.add(owner=None, connector="elsewhere")
        await desk.add(owner=OTHER)
        taken = await asyncio.gather(*(desk.taken(2, owner=f"worker {number}") for number in range(6)))
        assert sorted(one for some in taken for one in some) == sorted(added)

    async def test_users_take_turns_in_the_queue_however_many_statements_one_has(self, desk: LeaseDesk) -> None:
        many = [(await desk.add(owner=None, user=0)).statement_id for _ in range(50)]
        one = (await desk.add(owner=None, user=1)).statement_id
        other = (await desk.add(owner=None, user=2)).statement_id
        assert await desk.taken(1) == many[:1]
        # The first user runs one already.
        assert [await desk.taken(1) for _ in range(3)] == [[one], [other], many[1:2]]

    async def test_statements_of_people_come_before_those_of_schedules(self, desk: LeaseDesk) -> None:
        later = (await desk.add(owner=None, priority=1, user=1)).statement_id
        sooner = [(await desk.add(owner=None)).statement_id for _ in range(3)]
        assert [one for _ in range(4) for one in await desk.taken(1)] == [*sooner, later]

    async def test_places_of_a_user_and_of_a_connector_count_over_all_workers(self, desk: LeaseDesk) -> None:
        for user in (0, 1, 2):
            for _ in range(4):
                await desk.add(owner=None, user=user)
        slots = SlotLimits(per_connector=5, per_user=2)
        first = await desk.taken(4, owner="one", slots=slots)
        second = await desk.taken(100, owner="two", slots=slots)
        assert (len(first), len(second)) == (4, 1)
        assert await desk.taken(owner="three", slots=slots) == []

    async def test_the_last_places_are_for_people_who_run_nothing(self, desk: LeaseDesk) -> None:
        many = [(await desk.add(owner=None, user=0)).statement_id for _ in range(5)]
        # The first one, and one more: the third place is kept.
        assert await desk.taken(3, most_of_busy=2) == many[:2]
        assert await desk.taken(1, most_of_busy=0) == []
        late = [(await desk.add(owner=None, user=1)).statement_id for _ in range(2)]
        assert await desk.taken(2, most_of_busy=0) == late[:1]
        assert await desk.taken(2, most_of_busy=0) == []
        assert await desk.taken(2, most_of_busy=1) == late[1:]

    async def test_who_runs_on_another_connector_runs_something(self, desk: LeaseDesk) -> None:
        await desk.add(owner="one", user=0, connector="elsewhere")
        await desk.add(owner=None, user=0)
        assert await desk.taken(1, most_of_busy=0) == []
        other = await desk.add(owner=None, user=1)
        assert await desk.taken(2, most_of_busy=0) == [other.statement_id]

    async def test_schedules_have_no_first_statement_and_take_nobodys(self, desk: LeaseDesk) -> None:
        await desk.add(owner=None, user=0, priority=1)
        assert await desk.taken(1, most_of_busy=0) == []
        await desk.add(owner=OTHER, user=0, priority=1)
        own = await desk.add(owner=None, user=0)
        assert await desk.taken(2, most_of_busy=0) == [own.statement_id]

    async def test_who_runs_something_elsewhere_has_the_same_turn_but_no_kept_place(self, desk: LeaseDesk) -> None:
        await desk.add(owner=OTHER, user=0, connector="elsewhere")
        older = [(await desk.add(owner=None, user=0)).statement_id for _ in range(2)]
        first = [(await desk.add(owner=None, user=user)).statement_id for user in (1, 2)]
        assert await desk.taken(1, slots=SlotLimits(per_connector=1, per_user=1)) == older[:1]
        slots = SlotLimits(per_connector=2, per_user=2)
        assert await desk.taken(1, slots=slots, most_of_busy=0) == first[:1]
        assert await desk.taken(2, most_of_busy=1) == first[1:]
        assert await desk.taken(1) == older[1:]

    async def test_the_first_statement_gets_the_kept_place_behind_any_number_of_others(self, desk: LeaseDesk) -> None:
        await desk.add(owner=OTHER, user=0, connector="elsewhere")
        for connector in ("here", "third") * 3:
            await desk.add(owner=None, user=0, connector=connector)
        first = (await desk.add(owner=None, user=1)).statement_id
        taken = await desk.taken(3, connectors=("here", "third"), most_of_busy=2)
        assert (len(taken), taken[-1]) == (3, first)

    async def test_statements_of_a_full_connector_use_up_no_place(self, desk: LeaseDesk) -> None:
        for user in (0, 1):
            await desk.add(owner=None, user=user)
        elsewhere = (await desk.add(owner=None, user=2, connector="elsewhere")).statement_id
        slots, both = SlotLimits(per_connector=1, per_user=1), ("here", "elsewhere")
        taken = await desk.taken(2, slots=slots, connectors=both)
        assert (len(taken), elsewhere in taken) == (2, True)

    async def test_what_a_lost_worker_had_not_sent_is_in_the_queue_again(self, desk: LeaseDesk) -> None:
        lost = await desk.add(owner=OTHER, lease_s=-1)
        assert await desk.taken() == [lost.statement_id]
        assert not await desk.leases.mark_sent(lost)

    async def test_statements_of_one_session_are_taken_one_after_the_other(self, desk: LeaseDesk) -> None:
        first, second = [await desk.add(owner=None, session=HELD + 1, keeps_session=True) for _ in range(2)]
        found = await desk.leases.claim_waiting(
            owner=ME, lease=LEASE, connectors=["here"], slots=ROOMY, most=10, most_of_busy=10
        )
        assert [one.lease.statement_id for one in found] == [first.statement_id]
        for owner in ("one", "two"):
            assert await desk.taken(owner=owner) == []
        assert await desk.finish(found[0].lease, FAILED)
        assert await desk.taken() == [second.statement_id]

    async def test_a_statement_brings_those_that_wait_before_it_in_its_session(self, desk: LeaseDesk) -> None:
        before, given, after = [await desk.add(owner=None, session=HELD, keeps_session=True) for _ in range(3)]
        found = await desk.leases.claim(given.statement_id, owner=ME, lease=LEASE, within=desk.within)
        assert [one.lease.statement_id for one in found] == [before.statement_id, given.statement_id]
        assert await desk.claim(after) is not None

    async def test_a_canceled_statement_is_not_in_the_queue(self, desk: LeaseDesk) -> None:
        canceled = await desk.add(owner=None)
        await desk.ask_to_cancel(canceled.statement_id)
        assert await desk.taken() == []

    async def test_all_leases_end_where_nobody_is_alive(self, desk: LeaseDesk) -> None:
        held = await desk.add(owner=OTHER)
        assert await desk.taken() == []
        await desk.leases.expire_all()
        assert await desk.taken() == [held.statement_id]

    async def test_a_server_beside_workers_leaves_them_what_they_can_follow(self, desk: LeaseDesk) -> None:
        followed, unknown = await desk.add(), await desk.add()
        for lease in (followed, unknown):
            assert await desk.leases.mark_sent(lease)
        assert await desk.leases.mark_running(followed, checkpoint=EngineCheckpoint("token", 0))
        assert await desk.leases.mark_running(unknown)
        await desk.leases.expire_all()
        beside = ClaimScope((), (), resumes=False)
        found = await desk.leases.claim_orphans(owner=OTHER, lease=LEASE, within=beside, ignore_leases=False)
        assert [one.lease.statement_id for one in found] == [unknown.statement_id]

    async def test_a_statement_of_another_connector_is_not_claimed(self, desk: LeaseDesk) -> None:
        assert await desk.claim(await desk.add(owner=None, connector="elsewhere")) is None

    async def test_an_orphan_is_taken_over_and_its_former_owner_writes_nothing_more(self, desk: LeaseDesk) -> None:
        old = await desk.add(owner=OTHER, lease_s=-1)
        new = (await desk.orphans())[old.statement_id]
        assert new.fence > old.fence
        assert not await desk.leases.mark_sent(old)
        assert not await desk.leases.mark_running(old)
        assert not await desk.leases.report(old, progress=1, lines=["old"], start_line=0)
        assert not await desk.finish(old, FAILED)
        assert not await desk.leases.release(old)
        assert await desk.finish(new, SUCCESS, ["new"])
        assert await desk.look(old.statement_id) == Seen(StatementState.SUCCESS, ME, ["new"])

    async def test_a_statement_waits_once_more_and_its_former_runners_write_nothing(self, desk: LeaseDesk) -> None:
        old = await desk.add(owner=OTHER, lease_s=-1)
        new = (await desk.orphans())[old.statement_id]
        assert await desk.leases.mark_sent(new)
        assert await desk.leases.mark_running(new)
        assert not await desk.leases.retry(old, line="again")
        assert await desk.leases.retry(new, line="again")
        assert await desk.look(new.statement_id) == Seen(StatementState.WAITING, None, ["again"])
        assert not await desk.finish(new, FAILED)
        third = await desk.claim(old)
        assert third is not None
        assert await desk.leases.mark_sent(third)
        assert not await desk.leases.retry(third, line="a third time")
        assert await desk.finish(third, SUCCESS, start_line=None)

    async def test_a_statement_whose_cancel_is_requested_does_not_wait_once_more(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_sent(lease)
        await desk.ask_to_cancel(lease.statement_id)
        assert not await desk.leases.retry(lease, line="again")

    async def test_a_lease_in_force_is_respected_but_by_who_is_alone(self, desk: LeaseDesk) -> None:
        held = await desk.add(owner=OTHER)
        assert held.statement_id not in await desk.orphans()
        assert held.statement_id in await desk.orphans(ignore_leases=True)

    async def test_unsent_statements_of_other_connectors_are_no_orphans(self, desk: LeaseDesk) -> None:
        unsent = await desk.add(owner=None, connector="elsewhere")
        assert unsent.statement_id not in await desk.orphans()

    async def test_a_statement_of_a_session_that_is_held_is_within_reach(self, desk: LeaseDesk) -> None:
        """Its connector may have been changed since to what does not run there."""
        announced = await desk.add(owner=None, connector="elsewhere", session=HELD)
        assert await desk.claim(announced) is not None
        unheard = await desk.add(owner=None, connector="elsewhere", session=HELD)
        other = await desk.add(owner=None, connector="elsewhere", session=HELD + 1)
        assert await desk.claim(other) is None
        found = await desk.orphans()
        assert unheard.statement_id in found
        assert other.statement_id not in found

    async def test_sent_statements_end_whoever_runs_their_connector(self, desk: LeaseDesk) -> None:
        sent = await desk.add(owner=OTHER, lease_s=-1, connector="elsewhere")
        assert await desk.leases.mark_sent(sent)
        assert sent.statement_id in await desk.orphans()

    async def test_statements_past_their_deadline_end_whoever_runs_their_connector(self, desk: LeaseDesk) -> None:
        late = await desk.add(owner=None, connector="elsewhere", timeout_s=-1)
        assert late.statement_id in await desk.orphans()

    async def test_what_was_not_sent_can_be_given_back(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.release(lease)
        assert (await desk.look(lease.statement_id)).owner is None
        again = await desk.claim(lease, owner=OTHER)
        assert again is not None
        assert again.fence > lease.fence

    async def test_what_was_sent_cannot_be_given_back(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_sent(lease)
        assert not await desk.leases.release(lease)
        assert (await desk.look(lease.statement_id)).owner == ME

    async def test_marking_as_sent_twice_is_harmless(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_sent(lease)
        assert await desk.leases.mark_sent(lease)

    @pytest.mark.item(37)
    async def test_a_statement_canceled_before_it_was_sent_is_never_sent(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        await desk.ask_to_cancel(lease.statement_id)
        assert not await desk.leases.mark_sent(lease)
        assert (await desk.look(lease.statement_id)).state is StatementState.CANCELED
        assert not await desk.finish(lease, SUCCESS)

    async def test_a_refused_statement_is_not_sent_again_after_a_cancel(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_sent(lease)
        await desk.ask_to_cancel(lease.statement_id)
        assert not await desk.leases.mark_sent(lease)
        assert await desk.finish(lease, Outcome(StatementState.CANCELED, message="Canceled."))

    async def test_the_heartbeat_tells_of_cancels_and_of_losses(self, desk: LeaseDesk) -> None:
        calm, canceled, lost, ended = [await desk.add() for _ in range(4)]
        assert await desk.leases.mark_sent(canceled)
        await desk.ask_to_cancel(canceled.statement_id)
        await desk.orphans(owner=OTHER, ignore_leases=True)
        mine = [await desk.add() for _ in range(2)]
        await desk.finish(mine[1], SUCCESS)
        told = await desk.leases.renew(
            [one.statement_id for one in (calm, canceled, lost, ended, *mine)], owner=ME, lease=LEASE
        )
        assert told == {mine[0].statement_id: False}
        others = await desk.leases.renew([calm.statement_id, canceled.statement_id], owner=OTHER, lease=LEASE)
        assert others == {calm.statement_id: False, canceled.statement_id: True}

    async def test_a_lease_that_ran_out_and_was_not_taken_can_be_renewed(self, desk: LeaseDesk) -> None:
        lease = await desk.add(lease_s=-1)
        assert lease.statement_id in await desk.leases.renew([lease.statement_id], owner=ME, lease=LEASE)
        assert lease.statement_id not in await desk.orphans(owner=OTHER)

    async def test_lines_written_again_with_more_behind_them_are_kept_once(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.report(lease, progress=None, lines=["a", "b"], start_line=0)
        assert await desk.leases.report(lease, progress=None, lines=["a", "b", "c"], start_line=0)
        assert await desk.leases.report(lease, progress=None, lines=["a"], start_line=0)
        assert await desk.finish(lease, FAILED, ["d"], start_line=3)
        assert (await desk.look(lease.statement_id)).lines == ["a", "b", "c", "d"]

    async def test_lines_without_a_number_come_last(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.report(lease, progress=None, lines=["a", "b"], start_line=0)
        assert await desk.finish(lease, FAILED, ["gone"], start_line=None)
        assert (await desk.look(lease.statement_id)).lines == ["a", "b", "gone"]

    async def test_rows_become_visible_only_of_a_running_statement(self, desk: LeaseDesk) -> None:
        lease, segment = await desk.add(), Segment(0, 0, 10, 100)
        assert not await desk.leases.add_segment(lease, segment, columns=COLUMNS)
        assert await desk.leases.mark_running(lease)
        assert await desk.leases.add_segment(lease, segment, columns=COLUMNS)
        assert await desk.leases.add_segment(lease, segment, columns=COLUMNS)

    @pytest.mark.item(25)
    async def test_who_takes_over_learns_how_far_the_statement_had_come(self, desk: LeaseDesk) -> None:
        old = await desk.add(owner=OTHER)
        mark, later = EngineCheckpoint("at the engine: 1", 2), EngineCheckpoint("at the engine: 2", 3)
        assert await desk.leases.report(old, progress=1, lines=["a", "b", "c"], start_line=0)
        assert await desk.leases.mark_running(old, checkpoint=mark)
        assert await desk.leases.add_segment(old, Segment(0, 0, 10, 100), columns=COLUMNS, checkpoint=mark)
        assert await desk.leases.add_segment(old, Segment(1, 10, 5, 50), columns=COLUMNS, checkpoint=later)
        assert await desk.leases.report(old, progress=2, lines=["d"], start_line=3)
        assert (await desk.resumptions())[old.statement_id] == Resumption(
            later, rows=15, size_bytes=150, segments=2, log_lines=4
        )

    @pytest.mark.item(25)
    async def test_a_statement_that_the_engine_goes_on_with_can_be_handed_over(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_sent(lease)
        assert not await desk.leases.hand_over(lease)
        assert await desk.leases.mark_running(lease, checkpoint=EngineCheckpoint("token"))
        assert await desk.leases.hand_over(lease)
        assert (await desk.look(lease.statement_id)).owner is None
        assert not await desk.finish(lease, SUCCESS)
        assert lease.statement_id in await desk.orphans(owner=OTHER)

    async def test_a_statement_that_ends_with_its_client_cannot_be_handed_over(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.leases.mark_running(lease)
        assert not await desk.leases.hand_over(lease)
        assert (await desk.resumptions(ignore_leases=True))[lease.statement_id] is None

    @pytest.mark.item(41)
    async def test_an_end_is_final(self, desk: LeaseDesk) -> None:
        lease = await desk.add()
        assert await desk.finish(lease, FAILED)
        assert not await desk.finish(lease, SUCCESS)
        assert not await desk.leases.mark_running(lease)
        assert await desk.claim(lease) is None
        assert lease.statement_id not in await desk.orphans(ignore_leases=True)
        assert (await desk.look(lease.statement_id)).state is StatementState.FAILED
